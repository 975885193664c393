"""Many small requests to a store at a time: object storage answers each in tens of milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")
_REQUESTS_AT_ONCE = 32
_WORTH_THREADS = 16


def at_once(work: Callable[[K], T], things: Iterable[K]) -> list[T]:
    """Results in the order of ``things``; the first error of any is raised."""
    things = list(things)
    if len(things) < _WORTH_THREADS:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="store") as pool:
        return list(pool.map(work, things))
