"""What lives long is set aside: at the start, once more, then hourly."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from resumable_operator.garbage import GENERATIONS, YOUNG_OBJECTS, Garbage


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    """The collector of the test run is left as it was."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_it_is_tidied_at_the_start_once_more_and_then_hourly() -> None:
    """Of calls that come twice a minute only those do anything that are due."""
    now = [0.0]
    garbage = Garbage(lambda: now[0])
    tidied = []
    for minute in range(200):
        now[0] = 60.0 * minute
        if garbage.tidy():
            tidied.append(minute)
    assert tidied == [0, 1, 61, 121, 181]


def test_what_is_set_aside_is_not_looked_at_again() -> None:
    """Until the next time; dead cycles in it go then."""

    class Cycle:
        def __init__(self, end: list[str]) -> None:
            self.me, self.end = self, end

        def __del__(self) -> None:
            self.end.append("gone")

    now, end = [0.0], list[str]()
    garbage = Garbage(lambda: now[0])
    cycle = Cycle(end)
    garbage.tidy()
    assert gc.get_freeze_count() > 0
    del cycle
    gc.collect()
    assert end == []
    now[0] = 60.0
    garbage.tidy()
    assert end == ["gone"]


def test_the_young_are_looked_at_less_often() -> None:
    """Python's own rhythm is for small programs."""
    Garbage()
    assert gc.get_threshold() == (YOUNG_OBJECTS, *GENERATIONS)
