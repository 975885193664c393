"""Whether machines and store are fit: what is an error, what a warning, and one message for all."""

from __future__ import annotations

import pytest

from resumable_training.checkpoint.fitness import (
    ERROR,
    MEBIBYTE,
    WARNING,
    Finding,
    Look,
    Needs,
    Room,
    Shm,
    judge,
    message,
    rank_clocks,
    shm,
    space,
    store_clock,
)

GIB = 1 << 30


def room(free: int | None, keep: int = 3, has_some: bool = False) -> Room:
    return Room("/data", free, keep, has_some)


@pytest.mark.parametrize(
    ("free", "has_some", "severity"),
    [
        (None, False, None),  # object storage
        (4 * GIB, False, None),  # three to keep, and one that is being written
        (4 * GIB - 1, False, WARNING),
        (2 * GIB, False, WARNING),
        (2 * GIB - 1, False, ERROR),  # two must fit
        (GIB, True, None),
        (GIB - 1, True, WARNING),  # it trains on, and somebody makes room
        (0, True, WARNING),
    ],
)
def test_space(free: int | None, has_some: bool, severity: str | None) -> None:
    """Two checkpoints must fit at the beginning; later a full disk is no reason to stop training."""
    found = space(GIB, room(free, has_some=has_some))
    assert [one.severity for one in found] == ([severity] if severity else [])
    for one in found:
        assert "quota" in one.text
        assert "spec.checkpoint" in one.text
        assert "1.0 GiB" in one.text


def test_nothing_is_said_of_a_size_that_is_not_known() -> None:
    """Better than a guess."""
    assert space(0, room(5)) == []


def look(host: str = "a", clock: float = 1000.0, total: int = GIB, free: int = GIB, need: int = 0) -> Look:
    return Look(host, clock, Shm(total, free), Needs(shm=need))


def test_shm_must_hold_what_is_needed_on_its_machine() -> None:
    """All ranks of a machine share it; the fix is in the text."""
    assert shm([look(need=GIB // 2), look(need=GIB // 2)]) == []
    (found,) = shm([look(need=GIB // 2), look(need=GIB // 2 + 1), look("b", need=5)])
    assert found.severity == ERROR
    assert "emptyDir with medium: Memory" in found.text
    assert found.text.endswith("(host a)")
    (missing,) = shm([Look("a", 0.0, None, Needs(shm=5))])
    assert missing.severity == ERROR
    assert shm([Look("a", 0.0, None)]) == []


def test_a_small_shm_is_a_warning() -> None:
    """Whether data loaders have workers is not known; machines that are alike are named once."""
    small = [look(host, total=64 * MEBIBYTE, free=MEBIBYTE) for host in "abcdef"]
    (found,) = shm([*small, look("g", total=65 * MEBIBYTE)])
    assert found.severity == WARNING
    assert found.text.endswith("(hosts a, b, c, d and 2 more)")


def test_clocks_of_ranks_and_store() -> None:
    """A warning: no rule of the store rests on them. The worst is named, and which way."""
    assert rank_clocks([look(), look("b", 1010.0)]) == []
    (found,) = rank_clocks([look(), look("b", 1020.0), look("c", 900.0)])
    assert found.severity == WARNING
    assert "c is 100 s behind a (hosts b, c by more than 10 s)" in found.text
    assert store_clock([1.0, -9.0]) == []
    (store,) = store_clock([1.0, 400.0])
    assert "400 s ahead of that of rank 1" in store.text


def test_one_message_with_errors_first() -> None:
    """Numbered when there are several."""
    found = judge([Look("a", 0.0, Shm(GIB, 5), Needs(GIB, 50))], room(GIB), [99.0])
    assert [one.severity for one in found] == [ERROR, ERROR, WARNING]
    text = message(found)
    assert text.startswith("(1) /data has 1.0 GiB free")
    assert "; (2) the shared memory" in text
    assert "; (3) the store's clock" in text
    assert message([Finding(ERROR, "one.")]) == "one"
