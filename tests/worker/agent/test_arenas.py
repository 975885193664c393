"""Descriptors of memory that outlives its rank: which are held, handed out, and closed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from resumable_training.agent.arenas import Arenas

NAME = "step-00000010.1"


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    held = Arenas()
    yield held
    held.close()


def memory(text: str = "") -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, text.encode())
    return descriptor


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_found_by_the_name_of_the_checkpoint(arenas: Arenas) -> None:
    """Only what was described, and only under the newest name."""
    first, second = memory(), memory()
    arenas.put(0, first, 100)
    arenas.put(1, second, 200)
    assert arenas.find(NAME) == []
    content = memory("content")
    arenas.describe(1, NAME, content)
    assert arenas.find(NAME) == [(200, second, content)]
    newer = memory("newer")
    arenas.describe(1, "step-00000020.1", newer)
    assert arenas.find(NAME) == []
    assert not is_open(content)
    assert arenas.find("step-00000020.1") == [(200, second, newer)]


def test_the_same_memory_under_another_descriptor(arenas: Arenas) -> None:
    """What lies in it stays known when the next attempt's writer shows it again; not with other memory."""
    first, content = memory(), memory()
    arenas.put(0, first, 100)
    arenas.describe(0, NAME, content)
    again = os.dup(first)
    arenas.put(0, again, 100)
    assert arenas.find(NAME) == [(100, first, content)]
    assert not is_open(again)
    arenas.put(0, memory(), 100)
    assert arenas.find(NAME) == []
    assert not is_open(first)
    assert not is_open(content)


@pytest.mark.parametrize(("wanted", "is_taken"), [(100, True), (50, True), (101, False), (49, False)])
def test_taken_again_if_it_fits(arenas: Arenas, wanted: int, is_taken: bool) -> None:
    """Too small or far too large: freed, so that there is room for another one."""
    descriptor = memory()
    arenas.put(0, descriptor, 100)
    assert arenas.take(0, wanted, slots=1) == ((100, descriptor) if is_taken else None)
    assert is_open(descriptor) == is_taken


def test_slots_that_no_rank_has_are_freed(arenas: Arenas) -> None:
    """An attempt with fewer ranks on this worker does not hold the memory of those that were."""
    kept, freed = memory(), memory()
    arenas.put(0, kept, 100)
    arenas.put(1, freed, 100)
    assert arenas.take(0, 100, slots=1) == (100, kept)
    assert not is_open(freed)


def test_nothing_is_left_open(arenas: Arenas) -> None:
    """A description without an arena is closed at once, all else at the end."""
    stray = memory()
    arenas.describe(3, NAME, stray)
    assert not is_open(stray)
    held = [memory(), memory()]
    arenas.put(0, held[0], 1)
    arenas.describe(0, NAME, held[1])
    arenas.close()
    assert [is_open(one) for one in held] == [False, False]
