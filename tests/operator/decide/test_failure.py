"""From witnesses to one cause."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.failure import add_evidence, first_witness, judge, of_rank_exit
from resumable_operator.model import AttemptStatus, Evidence
from resumable_training.contract import exitcodes
from resumable_training.contract.events import RankExit
from resumable_training.contract.metrics import INTERRUPTION_CAUSES


def seen(cause: str, at: float = 0.0, **more: Any) -> Evidence:
    return Evidence(at=at, cause=cause, **more)


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        pytest.param(
            [seen("crash", 0.0, code=1), seen("oom", 0.5)], "oom", id="out of memory explains a crash"
        ),
        pytest.param([seen("oom"), seen("preempted", 1.0)], "preempted", id="pod conditions come first"),
        pytest.param([seen("hang"), seen("node_lost", 1.0)], "node_lost", id="node before hang"),
        pytest.param(
            [seen("crash", 0.0, code=1), seen("oom", 60.0)], "crash", id="what comes later is another thing"
        ),
        pytest.param(
            [seen("unknown", 0.0, code=86, primary=False), seen("hang", 1.0)],
            "hang",
            id="a lost peer is no cause",
        ),
        pytest.param(
            [seen("unknown", 0.0, code=86, primary=False)], "unknown", id="unless nothing else is seen"
        ),
    ],
)
def test_cause(evidence: list[Evidence], cause: str) -> None:
    """The most trusted of the first witnesses gives the cause."""
    assert judge(AttemptStatus(evidence=tuple(evidence)), committed=False, trained=True).cause == cause


def test_signal_before_exit_code() -> None:
    """Of two ranks that end together, the one that was killed is the cause, the other the consequence."""
    found = first_witness((seen("crash", 0.0, rank=0, code=1), seen("crash", 0.1, rank=1, code=-11)))
    assert found is not None
    assert found.rank == 1


def test_drain_keeps_its_cause_when_committed() -> None:
    """A failure during a drain matters only when the drain had not yet committed."""
    attempt = AttemptStatus(drain_cause="preempted", drain_reason="notice", evidence=(seen("node_lost"),))
    assert judge(attempt, committed=True, trained=True).cause == "preempted"
    assert judge(attempt, committed=False, trained=True).cause == "node_lost"
    scale = AttemptStatus(drain_cause="scale", evidence=(seen("hang"),))
    assert judge(scale, committed=True, trained=True).planned
    assert judge(scale, committed=False, trained=True).cause == "hang"


@pytest.mark.parametrize(
    ("ended_at", "witness", "cause"),
    [
        pytest.param(20.0, seen("unknown", primary=False), "scale", id="peers of ranks it killed"),
        pytest.param(19.9, seen("unknown", primary=False), "scale", id="by another clock"),
        pytest.param(15.0, seen("unknown", primary=False), "unknown", id="there was time left"),
        pytest.param(20.0, seen("crash", code=1), "crash", id="one that failed by itself"),
    ],
)
def test_a_window_that_was_over_explains_lost_peers(ended_at: float, witness: Evidence, cause: str) -> None:
    """Ranks that their agent killed at the end of the window leave peers behind: no failure of theirs."""
    attempt = AttemptStatus(
        drain_cause="scale",
        draining_since=10.0,
        drain_deadline=20.0,
        ending_since=ended_at,
        evidence=(witness,),
    )
    assert judge(attempt, committed=False, trained=True).cause == cause


@pytest.mark.parametrize(
    ("evidence", "trained", "paying"),
    [
        (seen("unknown", code=exitcodes.MASTER_BIND), True, None),
        (seen("node_lost"), False, None),
        (seen("node_lost"), True, "infrastructure"),
        (seen("crash", code=1), False, "user_error"),
        (seen("crash", code=1, primary=False), True, "infrastructure"),
    ],
)
def test_what_is_free(evidence: Evidence, trained: bool, paying: str | None) -> None:
    """A taken port, and a worker lost before anything trained, cost nothing."""
    assert judge(AttemptStatus(evidence=(evidence,)), committed=False, trained=trained).paying == paying


@pytest.mark.parametrize(
    ("exit_", "cause", "primary"),
    [
        (RankExit(1, 1, own=True), "crash", True),
        (RankExit(1, -9, own=True), "crash", True),
        (RankExit(1, 1, own=True, peer_suspect=True), "crash", False),
        (RankExit(1, exitcodes.PEER_LOST, own=True), "unknown", False),
        (RankExit(1, exitcodes.NUMERIC, own=True), "numeric", True),
        (RankExit(1, exitcodes.STORAGE, own=True), "unknown", True),
        (RankExit(1, 1, own=True, tail=("torch.OutOfMemoryError: CUDA out of memory.",)), "oom", True),
    ],
)
def test_rank_exit(exit_: RankExit, cause: str, primary: bool) -> None:
    """What a rank's end tells, from its code and its last words."""
    witness = of_rank_exit(exit_, "w-0-1", 5.0)
    assert witness is not None
    assert (witness.cause, witness.primary, witness.rank) == (cause, primary, 1)
    assert "rank 1 on w-0-1" in witness.message


STORE_ERROR = "resumable_training.checkpoint.errors.StorageUnavailable: /c has no store.json, and so on"


@pytest.mark.parametrize(
    ("code", "tail", "told"),
    [
        (
            exitcodes.STORAGE,
            ("Traceback ...", STORE_ERROR, "[W] a word of torch"),
            ": /c has no store.json, ",
        ),
        (exitcodes.STORAGE, (f"[rank0]: {STORE_ERROR}",), ": /c has no store.json, "),  # as torch prints it
        (exitcodes.STORAGE, ("OSError: an error of the script",), None),
        (1, (STORE_ERROR,), None),
    ],
)
def test_why_the_store_could_not_be_used_is_told(code: int, tail: tuple[str, ...], told: str | None) -> None:
    """Live, in events and in conditions: the traceback that says it may be on no screen."""
    witness = of_rank_exit(RankExit(1, code, own=True, early=True, tail=tail), "w-0-1", 5.0)
    assert witness is not None
    if told is None:
        assert witness.message.endswith("before its first step")
    else:
        assert f"before its first step{told}" in witness.message


@pytest.mark.parametrize("exit_", [RankExit(0, 0, True), RankExit(0, 80, True), RankExit(0, -9, False)])
def test_no_witness(exit_: RankExit) -> None:
    """Success, a drain and the agent's own kill are no failures."""
    assert of_rank_exit(exit_, "w", 0.0) is None


witnesses = st.builds(
    Evidence,
    at=st.floats(0, 10),
    cause=st.sampled_from(INTERRUPTION_CAUSES),
    worker=st.sampled_from(["a", "b", "c"]),
    rank=st.none() | st.integers(0, 9),
    primary=st.booleans(),
)


@given(st.lists(witnesses, min_size=1, max_size=60))
def test_evidence_stays_small_and_keeps_the_cause(found: list[Evidence]) -> None:
    """However many ranks fail, status keeps a few witnesses, each once, a primary one if there was any."""
    kept: tuple[Evidence, ...] = ()
    for witness in found:
        kept = add_evidence(kept, witness)
        assert add_evidence(kept, witness) == kept or len(kept) == 16
    assert 1 <= len(kept) <= 16
    first = first_witness(kept)
    assert first is not None
    assert first.primary or not any(witness.primary for witness in found)
    verdict = judge(AttemptStatus(evidence=kept), committed=False, trained=True)
    assert verdict.cause in INTERRUPTION_CAUSES
