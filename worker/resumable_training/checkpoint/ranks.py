"""What the ranks of an attempt do together, so that an error reaches all of them at once.

Nobody may raise alone between two collectives: the others would wait for the group's timeout. So each step
is tried on every rank, the outcomes are exchanged, and then all go on or all raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch.distributed as dist

from resumable_training.checkpoint.errors import (
    BY_NAME,
    CheckpointError,
    CheckpointUserError,
    PeerFailed,
    StorageUnavailable,
    Superseded,
)

T = TypeVar("T")
_MOST_NAMED = 4


@dataclass(frozen=True)
class _Failure:
    rank: int
    kind: str  # name of a CheckpointError, or of any other class
    message: str


class Ranks:
    """The ranks of one attempt. ``group``: a CPU (gloo) group of this library alone; None for one rank."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int) -> None:
        if world_size > 1 and group is None:
            raise ValueError("more than one rank needs a process group")
        self.group = group if world_size > 1 else None
        self.rank = rank
        self.world_size = world_size

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return cast(list[T], values)

    def agree(self, work: Callable[[], T]) -> list[T]:
        """Do ``work`` on every rank; its results in the order of ranks.

        Raises:
            CheckpointError: on all ranks, if any raised one; the text says which ranks and why.
            PeerFailed: another rank raised something else. That rank raises its own error.
        """
        outcome, error = self._attempt(work)
        outcomes = self.gather(outcome)
        failures = [one for one in outcomes if isinstance(one, _Failure)]
        if failures:
            self._raise(failures, error)
        return [cast(T, one) for one in outcomes]

    def together(self, work: Callable[[], T]) -> T:
        """Do ``work`` on every rank and keep one's own result, which is not sent; errors as in ``agree``."""
        kept: list[T] = []

        def keep() -> None:
            kept.append(work())

        self.agree(keep)
        return kept[0]

    def first(self, work: Callable[[], T]) -> T:
        """Do ``work`` on rank 0 only; its result, or its error, on every rank."""
        outcome: Any = None
        error: BaseException | None = None
        if self.rank == 0:
            outcome, error = self._attempt(work)
        if self.group is not None:
            box = [outcome]
            dist.broadcast_object_list(box, src=dist.get_global_rank(self.group, 0), group=self.group)
            outcome = box[0]
        if isinstance(outcome, _Failure):
            self._raise([outcome], error)
        return cast(T, outcome)

    def _attempt(self, work: Callable[[], T]) -> tuple[T | _Failure, Exception | None]:
        try:
            return work(), None
        except Exception as error:  # noqa: BLE001  raised again in _raise, on this rank, after the others know
            return _Failure(self.rank, type(error).__name__, str(error)), error

    def _raise(self, failures: Sequence[_Failure], own: BaseException | None) -> None:
        if own is not None and not isinstance(own, CheckpointError):
            raise own
        kind = min((BY_NAME.get(failure.kind, PeerFailed) for failure in failures), key=_gravity)
        raise kind(_text(failures, self.world_size)) from own


def _gravity(kind: type[CheckpointError]) -> int:
    order = (Superseded, CheckpointUserError, StorageUnavailable)
    return next((place for place, base in enumerate(order) if issubclass(kind, base)), len(order))


def _text(failures: Sequence[_Failure], world_size: int) -> str:
    if world_size == 1 or (len(failures) == 1 and failures[0].rank == 0):
        return failures[0].message
    by_message: dict[str, list[int]] = {}
    for failure in failures:
        by_message.setdefault(failure.message, []).append(failure.rank)
    if len(by_message) == 1 and len(failures) == world_size:
        return failures[0].message
    parts = [f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in by_message.items()]
    more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return "; ".join(parts[:_MOST_NAMED]) + more
