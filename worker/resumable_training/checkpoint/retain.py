"""PURE: which checkpoint directories to delete.

Only complete checkpoints on the chain count as kept, so abandoned saves never push out good ones. The rest
(half-written ones, and branches that the chain has left) goes once enough good ones exist: until then a
roll-back can still be taken back.
"""

from __future__ import annotations

from collections.abc import Collection

from resumable_training.checkpoint.chain import Chain
from resumable_training.contract.manifest import parse_checkpoint_name

LEAST_KEPT = 2


def to_delete(
    chain: Chain,
    complete: Collection[str],
    incomplete: Collection[str],
    *,
    keep_last: int,
    keep_every_steps: int | None = None,
    pinned: Collection[str] = (),
    in_flight: Collection[str] = (),
) -> list[str]:
    """Names to delete, oldest first.

    ``complete``: names with a marker. ``in_flight``: being written now. Never deletes a pinned name, nor one
    that is not a checkpoint's. Directories of records newer than the chain's head are not ours to judge.
    """
    good = chain.newest_first(complete)
    keep = max(keep_last, LEAST_KEPT)
    doomed = {name for name in good[keep:] if not _kept_for_its_step(name, keep_every_steps)}
    if len(good) >= keep:
        doomed |= leftovers(chain, complete, incomplete)
    doomed -= set(pinned) | set(in_flight)
    return sorted(doomed, key=lambda name: tuple(reversed(_parsed(name))))


def leftovers(
    chain: Chain, complete: Collection[str], incomplete: Collection[str], *, only_incomplete: bool = False
) -> set[str]:
    """What nobody can resume from and no writer is at, since it is older than the newest good checkpoint."""
    good = chain.newest_first(complete)
    if not good:
        return set()
    newest_step, newest_record = _parsed(good[0])
    off_chain = set() if only_incomplete else {name for name in complete if not chain.contains(name)}
    return {
        name
        for name in off_chain | set(incomplete)
        if parse_checkpoint_name(name)
        and _parsed(name)[1] <= chain.head
        and (_parsed(name)[1], _parsed(name)[0]) < (newest_record, newest_step)
    }


def dead(chain: Chain, incomplete: Collection[str]) -> set[str]:
    """What older attempts were cut off in: their records are no more the newest, so they can't commit it.

    Also when it is newer than all good ones, as what a killed job leaves is. It may fill the disk.
    """
    return {name for name in incomplete if parse_checkpoint_name(name) and _parsed(name)[1] < chain.head}


def _kept_for_its_step(name: str, keep_every_steps: int | None) -> bool:
    return bool(keep_every_steps) and _parsed(name)[0] % (keep_every_steps or 1) == 0


def _parsed(name: str) -> tuple[int, int]:
    return parse_checkpoint_name(name) or (0, 0)
