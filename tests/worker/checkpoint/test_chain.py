"""The chain: what counts as this job's history, and what a cut-off rank adds to in vain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.chain import Chain, build_chain
from resumable_training.contract.manifest import Record, checkpoint_name


def record(seq: int, parent: str | None = None) -> Record:
    return Record(seq=seq, job_uid="u", attempt=seq, parent=parent)


def records(*parents: str | None) -> dict[int, Record | None]:
    """Records 1, 2, ... with these parents."""
    return {seq: record(seq, parent) for seq, parent in enumerate(parents, 1)}


def names(*pairs: tuple[int, int]) -> list[str]:
    return [checkpoint_name(step, seq) for step, seq in pairs]


S = checkpoint_name

TABLE = [
    ("no record: nothing counts", records(), names((10, 1)), []),
    ("first attempt: its own", records(None), names((10, 1), (20, 1)), names((20, 1), (10, 1))),
    (
        "second goes on from the first's newest",
        records(None, S(20, 1)),
        names((10, 1), (20, 1), (30, 2)),
        names((30, 2), (20, 1), (10, 1)),
    ),
    (
        "a zombie's later commit is off the chain",
        records(None, S(20, 1)),
        names((20, 1), (30, 1), (40, 1)),
        names((20, 1)),
    ),
    (
        "a zombie's commit of the same step is off the chain too",
        records(None, S(20, 1)),
        names((20, 1), (25, 1), (25, 2)),
        names((25, 2), (20, 1)),
    ),
    (
        "a roll-back leaves what came after it",
        records(None, S(30, 1), S(10, 1)),
        names((10, 1), (30, 1), (40, 2)),
        names((10, 1)),
    ),
    ("two fresh starts: only the newer counts", records(None, None), names((10, 1), (5, 2)), names((5, 2))),
    (
        "parents deleted by retention: the walk needs only the records",
        records(None, S(20, 1), S(40, 2)),
        names((10, 1), (60, 3)),
        names((60, 3), (10, 1)),
    ),
    (
        "newest record from outside ends the chain there",
        records(None, "/elsewhere/ckpt"),
        names((10, 1), (7, 2)),
        names((7, 2)),
    ),
    (
        "a damaged newest record without checkpoints never trained",
        {**records(None, S(20, 1)), 3: None},
        names((20, 1), (30, 2)),
        names((30, 2), (20, 1)),
    ),
    (
        "a damaged newest record with checkpoints did train: they count, what was before is unknown",
        {**records(None, S(20, 1)), 3: None},
        names((20, 1), (30, 2), (40, 3)),
        names((40, 3)),
    ),
    (
        "a missing record in the middle: its checkpoints up to the parent count",
        {1: record(1), 3: record(3, S(20, 2))},
        names((10, 1), (20, 2), (30, 2), (30, 3)),
        names((30, 3), (20, 2)),
    ),
    (
        "a parent that is not older ends the walk",
        {1: record(1, S(10, 1))},
        names((10, 1), (20, 1)),
        names((20, 1), (10, 1)),
    ),
    (
        "names that only resemble a checkpoint's never count",
        records(None),
        [*names((10, 1)), "step-00000020.1.tmp", "step-00000020", "step-00000020.1x", "backup"],
        names((10, 1)),
    ),
]


@pytest.mark.parametrize(("about", "known", "present", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_chain_table(
    about: str, known: dict[int, Record | None], present: list[str], expected: list[str]
) -> None:
    """Each row: records and names present -> what is valid, newest first."""
    assert build_chain(known, present).newest_first(present) == expected


def test_head_is_the_highest_number_even_if_damaged() -> None:
    """The next record's number comes after every one that exists."""
    assert build_chain({1: record(1), 4: None}).head == 4
    assert build_chain({}) == Chain()


def test_origin_is_kept() -> None:
    """A chain that began outside the store says where: a crash before the first save returns there."""
    assert build_chain(records("/elsewhere/ckpt")).origin == "/elsewhere/ckpt"


@given(st.data())
def test_chain_equals_true_history(data: st.DataObject) -> None:
    """Whoever branches from where and commits late: exactly the newest attempt's history counts."""
    known: dict[int, Record | None] = {}
    history: dict[int, list[str]] = {}  # what each attempt builds on, and its own
    steps: dict[int, int] = {}
    everything: list[str] = []
    for _ in range(data.draw(st.integers(1, 25))):
        head = max(known, default=0)
        if not known or data.draw(st.booleans()):
            base = history.get(head, [])
            keep = data.draw(st.integers(0, len(base)))
            seq = head + 1
            known[seq] = record(seq, base[keep - 1] if keep else None)
            history[seq] = base[:keep]
            steps[seq] = int(base[keep - 1].split("-")[1].split(".")[0]) if keep else 0
        else:
            seq = data.draw(st.sampled_from(sorted(known)))  # any of them: older ones are zombies
            steps[seq] += data.draw(st.integers(1, 3))
            history[seq] = [*history[seq], checkpoint_name(steps[seq], seq)]
            everything.append(history[seq][-1])
    assert build_chain(known, everything).newest_first(everything) == history[max(known)][::-1]
