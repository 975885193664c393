"""What a save is told, and what a restore and a save tell their caller. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reached:
    """Where training has come to, and the small values that are kept with the tensors of that step."""

    step: int
    samples: int  # data position
    shared: Mapping[str, Any] = field(default_factory=dict)  # the same on all ranks; rank 0's counts
    per_rank: Mapping[str, bytes] = field(default_factory=dict)  # this rank's own


@dataclass(frozen=True)
class Fallback:
    """A checkpoint that was passed over, with the proof."""

    checkpoint: str
    why: str


@dataclass(frozen=True)
class RestoreReport:
    """What was loaded. The same on all ranks, except ``per_rank``."""

    checkpoint: str  # name in the store, or path of one outside it
    record: int  # number of the record that this attempt trains under
    step: int
    samples: int  # data position
    shared: dict[str, Any]  # as given to ``save``; empty for another program's checkpoint
    per_rank: dict[str, bytes] | None  # this rank's own; None: it had none, the world was smaller
    saved_world_size: int  # 0: unknown
    fallback: tuple[Fallback, ...] = ()
    seconds: float = 0.0
    memory_bytes: int = 0  # that no rank had to read from storage, of all ranks
    storage_bytes: int = 0
    deliberate: bool = False  # by resumeFrom, or the first restore since a roll-back; not of those after it
    landed: SaveReport | None = None  # of this checkpoint, if it became durable after its ranks' end


@dataclass(frozen=True)
class SaveReport:
    """How a save went; the same on all ranks. ``ok`` False: nothing was committed, training goes on.

    ``durable`` False: it has only begun, and how it ends is told later.
    """

    name: str
    step: int
    samples: int
    bytes: int = 0  # of all files of the checkpoint, manifest and marker too
    blocking_ms: int = 0  # the loop stood still for so long
    durable_ms: int = 0  # from the call to the commit
    ok: bool = True
    message: str = ""  # why not; or what did not go well beside the commit
    durable: bool = True
    unlike: bool = False  # ranks hold other tensors than was planned for: plan the next one anew
