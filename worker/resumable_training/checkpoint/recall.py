"""What a restore takes from this worker's memory, unless that memory has to make room for the restore itself.

A rank stages the share of the checkpoint that it reads beside its state. Where the copy of the attempt before
and the shares of all ranks do not fit together, the copy goes first: storage has all that is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resumable_training.checkpoint import arena
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.memory import Memory, remember
from resumable_training.checkpoint.shelf import machine
from resumable_training.contract.manifest import Manifest

STAGING_BYTES = 64 << 20  # of a rank's pieces in flight, beside its share

Room = tuple[str, int | None]  # machine, and bytes free there as one rank sees them; None: unknown


def room() -> Room:
    """What each rank tells the others before."""
    return machine(), arena.free_bytes()


def recall(
    keeper: RankLink,
    told: Sequence[Room],
    rank: int,
    checkpoint: str,
    manifest: Manifest | None,
    state_bytes: Callable[[], int],
    warn: Callable[[str], None],
) -> Memory:
    """What is held here of a checkpoint of this store. Nothing where room is short.

    Args:
        told: every rank's ``room``.
        manifest: None: of another program's checkpoint, or one in another store: nothing here is of it.
        state_bytes: about how large it is, if no manifest tells.
    """
    memory = remember(keeper, checkpoint, manifest.files) if manifest is not None else Memory()
    total = sum(entry.bytes for entry in manifest.files.values()) if manifest is not None else state_bytes()
    missing = short_of(total, told, rank)
    if not missing:
        return memory
    if memory:
        warn(
            f"{missing >> 20} MiB of memory are missing to restore beside the copy of the state that is held"
            " here: that is given up, and all is read from storage"
        )
    memory.close()
    keeper.free()
    return Memory()


def short_of(total_bytes: int, told: Sequence[Room], rank: int) -> int:
    """PURE: bytes that are missing on a rank's machine to stage the shares of its ranks; ``told`` by rank."""
    here = [free for where, free in told if where == told[rank][0]]
    known = [free for free in here if free is not None]
    needed = len(here) * (total_bytes // len(told) + STAGING_BYTES)
    return max(0, needed - min(known)) if known else 0
