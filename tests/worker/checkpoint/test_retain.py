"""Retention: what may be deleted, and what never is."""

from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.chain import build_chain
from resumable_training.checkpoint.retain import LEAST_KEPT, dead, to_delete
from resumable_training.contract.manifest import Record, checkpoint_name, parse_checkpoint_name

S = checkpoint_name
CHAIN = build_chain({1: Record(1, "u", 1, None), 2: Record(2, "u", 2, S(30, 1))})
GOOD = [S(10, 1), S(20, 1), S(30, 1), S(40, 2), S(50, 2)]


def test_keeps_the_last_k_on_the_chain() -> None:
    """Only the newest K complete checkpoints stay, and the oldest goes first."""
    assert to_delete(CHAIN, GOOD, [], keep_last=3) == [S(10, 1), S(20, 1)]


def test_keeps_at_least_two() -> None:
    """keep_last 1 would leave nothing to fall back to."""
    assert to_delete(CHAIN, GOOD, [], keep_last=1) == [S(10, 1), S(20, 1), S(30, 1)]


def test_keeps_every_n_steps() -> None:
    """Steps that divide by N stay for ever."""
    assert to_delete(CHAIN, GOOD, [], keep_last=2, keep_every_steps=20) == [S(10, 1), S(30, 1)]


def test_never_deletes_pinned_or_in_flight() -> None:
    """What a reader holds or a writer writes is left alone."""
    kept = {S(10, 1), S(45, 2)}
    doomed = to_delete(CHAIN, GOOD, [S(45, 2)], keep_last=2, pinned=[S(10, 1)], in_flight=[S(45, 2)])
    assert not kept & set(doomed)


def test_abandoned_saves_do_not_push_out_good_ones() -> None:
    """Incomplete and off-chain directories are not counted as kept; they go instead."""
    abandoned = [S(35, 1), S(45, 2), S(47, 2)]
    zombie = [S(60, 1), S(70, 1)]
    doomed = to_delete(CHAIN, [*GOOD, *zombie], abandoned, keep_last=5)
    assert set(doomed) == {*abandoned, *zombie}


def test_nothing_goes_while_good_ones_are_few() -> None:
    """After a roll-back the branch that was left stays until enough new checkpoints exist."""
    chain = build_chain({1: Record(1, "u", 1, None), 2: Record(2, "u", 2, None)})
    left = [S(100, 1), S(200, 1)]
    assert to_delete(chain, [*left, S(5, 2)], [S(3, 2)], keep_last=2) == []
    assert to_delete(chain, [*left, S(5, 2), S(6, 2)], [], keep_last=2) == left


def test_newer_incomplete_ones_stay() -> None:
    """A directory newer than the newest good one may be somebody's save in progress."""
    assert to_delete(CHAIN, GOOD, [S(60, 2), S(10, 3)], keep_last=5) == []


def test_what_older_attempts_were_cut_off_in_is_dead() -> None:
    """However new: their records are not the newest any more. That of an unknown record is not."""
    assert dead(CHAIN, [S(60, 1), S(60, 2), S(10, 3), "step-00000060.1.tmp"]) == {S(60, 1)}


NAMES = st.builds(S, st.integers(0, 30), st.integers(1, 4))


@given(
    complete=st.sets(NAMES | st.just("step-00000001.1.backup")),
    incomplete=st.sets(NAMES),
    keep=st.integers(0, 5),
    every=st.none() | st.integers(1, 7),
    pinned=st.sets(NAMES),
    parents=st.lists(st.integers(0, 30), min_size=1, max_size=4),
)
def test_safe_whatever_happens(
    complete: set[str],
    incomplete: set[str],
    keep: int,
    every: int | None,
    pinned: set[str],
    parents: list[int],
) -> None:
    """The newest K (>= 2) on the chain, pinned ones, strangers, newer records: never deleted; stable."""
    records = {
        seq: Record(seq, "u", seq, S(step, seq - 1) if seq > 1 else None)
        for seq, step in enumerate(parents, 1)
    }
    chain = build_chain(records, complete)
    incomplete -= complete
    doomed = to_delete(chain, complete, incomplete, keep_last=keep, keep_every_steps=every, pinned=pinned)
    good = chain.newest_first(complete)
    assert not set(good[: max(keep, LEAST_KEPT)]) & set(doomed)
    assert not pinned & set(doomed)
    assert set(doomed) <= complete | incomplete
    assert all((parse_checkpoint_name(name) or (0, 99))[1] <= chain.head for name in doomed)
    if every:
        assert not [n for n in doomed if n in good and (parse_checkpoint_name(n) or (0, 0))[0] % every == 0]
    left = complete - set(doomed), incomplete - set(doomed)
    assert to_delete(chain, *left, keep_last=keep, keep_every_steps=every, pinned=pinned) == []
