"""The memory that ranks have copied their state into, held for the next attempt: descriptors, no copies.

One arena for each slot, which is a rank's number on this worker. What lies in it is described by a second
memory file, which this agent never reads. Whether the description still holds is said by a seal in the arena
that its rank breaks before it copies again; readers look.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple


@dataclass
class _Slot:
    arena: int
    bytes: int
    checkpoint: str = ""
    content: int = -1


class Arenas:
    """Owns every descriptor that it is given."""

    def __init__(self) -> None:
        self._slots: Dict[int, _Slot] = {}

    def put(self, slot: int, descriptor: int, size: int) -> None:
        """The slot's rank copies into this one from now on. What lies in it is forgotten with another one."""
        known = self._slots.get(slot)
        if known is not None and os.path.sameopenfile(known.arena, descriptor):
            os.close(descriptor)
            return
        self._forget(slot)
        self._slots[slot] = _Slot(descriptor, size)

    def describe(self, slot: int, checkpoint: str, content: int) -> None:
        """The slot's arena holds something of this checkpoint."""
        known = self._slots.get(slot)
        if known is None:
            os.close(content)
            return
        if known.content >= 0:
            os.close(known.content)
        known.checkpoint, known.content = checkpoint, content

    def find(self, checkpoint: str) -> List[Tuple[int, int, int]]:
        """(bytes, arena, content) of each slot that has something of it."""
        return [
            (slot.bytes, slot.arena, slot.content)
            for _, slot in sorted(self._slots.items())
            if slot.content >= 0 and slot.checkpoint == checkpoint
        ]

    def take(self, slot: int, size: int, slots: int) -> Optional[Tuple[int, int]]:
        """(bytes, arena) for a rank of the next attempt to copy into; None: it has to make one.

        Nobody reads any more: all ranks have restored. Slots that the attempt has no rank for are given up,
        and so is an arena that is too small, or so large that half of it would lie idle.
        """
        for other in [one for one in self._slots if one >= slots]:
            self._forget(other)
        known = self._slots.get(slot)
        if known is None:
            return None
        if not size <= known.bytes <= 2 * size:
            self._forget(slot)
            return None
        return known.bytes, known.arena

    def close(self) -> None:
        for slot in list(self._slots):
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        known = self._slots.pop(slot, None)
        if known is None:
            return
        os.close(known.arena)
        if known.content >= 0:
            os.close(known.content)
