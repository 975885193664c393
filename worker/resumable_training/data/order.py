"""Which sample comes at which position of the stream. Pure; O(1) memory; the same in every version.

The stream is epoch 0's permutation of ``0 .. length - 1``, then epoch 1's, and so on; a *position* is an
index into that stream, and the only thing a checkpoint needs to store. The permutation is a Feistel network
over the smallest power of two that holds the length, keyed by (seed, epoch); an output beyond the length is
put through again until it fits ("cycle walking"), which keeps it a bijection. Nothing here depends on the
number of ranks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ORDER_VERSION = 1  # a change of anything below must raise this: it is part of the fingerprint
MAX_LENGTH = 1 << 62

_ROUNDS = 8
_MINIMUM_BITS = 4  # fewer would leave halves of one bit, which mix badly
_BLOCK = 4096  # positions computed at once, so that a step costs a slice

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_SHIFT = np.uint64(33)
_MULTIPLY_1 = np.uint64(0xFF51AFD7ED558CCD)
_MULTIPLY_2 = np.uint64(0xC4CEB9FE1A85EC53)


def permute(indices: npt.ArrayLike, length: int, seed: int, epoch: int) -> Indices:
    """Map indices in ``[0, length)`` to dataset indices by the permutation of (seed, epoch).

    Raises:
        ValueError: ``length`` is not in ``[1, MAX_LENGTH]``.
    """
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"length must be between 1 and 2**62, not {length}")
    keys = _round_keys(seed, epoch)
    bits = max(_MINIMUM_BITS, (length - 1).bit_length())
    words = _encrypt(np.array(indices, dtype=np.uint64, ndmin=1), bits, keys)
    outside = np.nonzero(words >= np.uint64(length))[0]
    while outside.size:
        words[outside] = _encrypt(words[outside], bits, keys)
        outside = outside[words[outside] >= np.uint64(length)]
    return words.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> _Words:
    text = f"resumable-training order {ORDER_VERSION} seed {seed} epoch {epoch}"
    digest = hashlib.shake_256(text.encode()).digest(8 * _ROUNDS)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _encrypt(words: _Words, bits: int, keys: _Words) -> _Words:
    """One pass of the network over ``[0, 2**bits)``; a round changes one half by a function of the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = words >> low_bits, words & low_mask
    for number, key in enumerate(keys):
        if number % 2 == 0:
            high = high ^ (_mix(low + key) & high_mask)
        else:
            low = low ^ (_mix(high + key) & low_mask)
    return (high << low_bits) | low


def _mix(words: _Words) -> _Words:
    """MurmurHash3's 64-bit finalizer; arithmetic wraps modulo 2**64."""
    words = (words ^ (words >> _SHIFT)) * _MULTIPLY_1
    words = (words ^ (words >> _SHIFT)) * _MULTIPLY_2
    return words ^ (words >> _SHIFT)


@lru_cache(maxsize=8)
def _block(length: int, seed: int, epoch: int, block: int) -> Indices:
    start = block * _BLOCK
    return permute(np.arange(start, min(start + _BLOCK, length)), length, seed, epoch)


@dataclass(frozen=True)
class Stream:
    """The endless (or ``epochs`` long) sequence of samples, and how global batches are cut from it.

    Without ``drop_last`` a batch at an epoch's end is filled from the next epoch: no sample is left out, none
    comes twice, and only the very last batch of ``epochs`` may be short. With it, an epoch's last partial
    batch is skipped: positions jump to the next epoch.
    """

    length: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    epochs: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_LENGTH:
            raise ValueError(f"a dataset must have between 1 and 2**62 samples, not {self.length}")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {self.epochs}")

    @property
    def end(self) -> int | None:
        """The position after the last sample; None when there is none."""
        return None if self.epochs is None else self.epochs * self.length

    def epoch(self, position: int) -> int:
        """The epoch of the sample at ``position``."""
        return position // self.length

    def next_batch(self, position: int, size: int) -> tuple[int, int] | None:
        """Start and stop position of the global batch that follows ``position``; None at the end.

        Raises:
            ValueError: ``drop_last`` and an epoch shorter than one batch.
        """
        start, stop = position, position + size
        if self.drop_last:
            if size > self.length:
                raise ValueError(
                    f"drop_last with a batch of {size} drops all {self.length} samples of an epoch"
                )
            if start % self.length + size > self.length:
                start = (start // self.length + 1) * self.length
                stop = start + size
        if self.end is not None:
            stop = min(stop, self.end)
        return (start, stop) if start < stop else None

    def ids(self, start: int, stop: int) -> Indices:
        """Dataset indices of the samples at positions ``start .. stop - 1``."""
        parts: list[Indices] = []
        while start < stop:
            epoch, index = divmod(start, self.length)
            count = min(stop - start, self.length - index)
            parts.append(self._ids_in_epoch(epoch, index, index + count))
            start += count
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def _ids_in_epoch(self, epoch: int, start: int, stop: int) -> Indices:
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        first, last = start // _BLOCK, (stop - 1) // _BLOCK
        blocks = [_block(self.length, self.seed, epoch, block) for block in range(first, last + 1)]
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return joined[start - first * _BLOCK : stop - first * _BLOCK]
