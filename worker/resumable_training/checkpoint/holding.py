"""A copy between saves, held in memory: how its rank leaves it, and how a writer finds it. No torch.

The values lie in the arena. Beside it lies a letter: the message that would have asked for a save, and the
seal that the arena has with it. A copy wakes nobody. Only a writer whose rank is gone reads the letter, and
stores what is held if the arena still has that seal. Whoever copies again, for a save or to hold it, breaks
the seal first: what is half copied, or was saved meanwhile, is never taken for the copy that was held.
"""

from __future__ import annotations

import json
import os

import xxhash

from resumable_training.checkpoint.moments import moment
from resumable_training.contract.framing import Message

_DIGEST_BYTES = 16


class Letter:
    """The rank's end: an anonymous file in memory, which its writer has, too."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.descriptor = os.memfd_create("resumable-letter", os.MFD_CLOEXEC)

    def write(self, message: Message) -> None:
        """What is held from now on; ``message`` as for a save, with the seal of the arena.

        Raises:
            OSError: there is no memory for it; nothing is held.
        """
        data = json.dumps(message, separators=(",", ":")).encode()
        moment("hold.write")
        sent = os.pwrite(self.descriptor, xxhash.xxh3_128_digest(data) + data, 0)
        os.ftruncate(self.descriptor, sent)
        moment("hold.written")

    def clear(self) -> None:
        """Nothing is held any more."""
        os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        os.close(self.descriptor)


def held(letter: int, arena: int, arena_bytes: int) -> Message | None:
    """What the arena (a descriptor, as ``letter`` is) holds whole; None: nothing, or something else.

    To be asked when the rank is gone: one that lives may copy the next moment.
    """
    whole = os.pread(letter, os.fstat(letter).st_size, 0)
    digest, data = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    if not data or xxhash.xxh3_128_digest(data) != digest:
        return None  # none was written yet, or its rank died at that
    message: Message = json.loads(data)
    seal = bytes.fromhex(message["seal"])
    return message if os.pread(arena, len(seal), arena_bytes) == seal else None
