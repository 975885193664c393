"""What the ranks of an attempt do together, so that an error reaches all of them at once.

Nobody may raise alone between two collectives: the others would wait for the group's timeout. So each step
is tried on every rank, the outcomes are exchanged, and then all go on or all raise.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
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
_LENGTH = struct.Struct("<q")
_FIRST_BYTES = 4096  # of a value, with its length, go in the first collective; only longer ones need a second
_ROOM = _FIRST_BYTES - _LENGTH.size

# The name of one function, before torch 2.14 and since.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


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
        """Every rank's value, on every rank. One collective; two where any of them is long."""
        if self.group is None:
            return [value]
        mine = pickle.dumps(value)
        heads = self._all_gather(_LENGTH.pack(len(mine)) + mine[:_ROOM], _FIRST_BYTES)
        lengths = [int(_LENGTH.unpack_from(head)[0]) for head in heads]
        rest = max(lengths) - _ROOM
        tails = self._all_gather(mine[_ROOM:], rest) if rest > 0 else [b""] * self.world_size
        whole = [head[_LENGTH.size :] + tail for head, tail in zip(heads, tails, strict=True)]
        return [cast(T, pickle.loads(one[:size])) for one, size in zip(whole, lengths, strict=True)]  # noqa: S301  from our own ranks

    def _all_gather(self, mine: bytes, size: int) -> list[bytes]:
        """``size`` bytes of every rank; what a rank does not have of them is filled up."""
        table = torch.empty(self.world_size * size, dtype=torch.uint8)
        _gather(table, _padded(mine, size), group=self.group)
        told = table.numpy().tobytes()
        return [told[at : at + size] for at in range(0, len(told), size)]

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
            outcome = self._hand_out(outcome)
        if isinstance(outcome, _Failure):
            self._raise([outcome], error)
        return cast(T, outcome)

    def _hand_out(self, value: Any) -> Any:
        """Rank 0's value, on every rank; rank 0 keeps the one that it has."""
        mine = pickle.dumps(value) if self.rank == 0 else b""
        head = self._broadcast(_LENGTH.pack(len(mine)) + mine[:_ROOM], _FIRST_BYTES)
        (length,) = _LENGTH.unpack_from(head)
        tail = self._broadcast(mine[_ROOM:], length - _ROOM) if length > _ROOM else b""
        if self.rank == 0:
            return value
        return pickle.loads((head[_LENGTH.size :] + tail)[:length])  # noqa: S301  from our own rank 0

    def _broadcast(self, mine: bytes, size: int) -> bytes:
        assert self.group is not None
        told = _padded(mine, size)
        dist.broadcast(told, src=dist.get_global_rank(self.group, 0), group=self.group)
        return told.numpy().tobytes()

    def _attempt(self, work: Callable[[], T]) -> tuple[T | _Failure, Exception | None]:
        try:
            return work(), None
        except Exception as error:  # noqa: BLE001  raised again in _raise, on this rank, after the others know
            return _Failure(self.rank, type(error).__name__, str(error)), error

    def _raise(self, failures: Sequence[_Failure], own: BaseException | None) -> None:
        if own is not None and not isinstance(own, CheckpointError):
            raise own
        kind = min((BY_NAME.get(failure.kind, PeerFailed) for failure in failures), key=_gravity)
        error = kind(_text(failures, self.world_size))
        error.on_all_ranks = all(failure.kind in BY_NAME for failure in failures)
        raise error from own


def _padded(data: bytes, size: int) -> torch.Tensor:
    """On the CPU, whatever the ranks train on: the group is gloo's."""
    return torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)


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
