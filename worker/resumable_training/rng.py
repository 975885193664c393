"""Random number generators: one rank's global state as bytes, and streams derived from numbers.

The rule for a rank that has no saved state (another world size, or a first start with a seed): its
generators are seeded by (seed, rank, step). Each sample's augmentation is seeded by (seed, epoch, index), so
it depends on no rank, no worker process and no order of fetching.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_WORD = (1 << 64) - 1


def capture() -> bytes:
    """State of python's, numpy's, torch's CPU and (if in use) current CUDA generators."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = _encode(torch.cuda.get_rng_state())
    return json.dumps(state, separators=(",", ":")).encode()


def restore(data: bytes) -> None:
    """Set the generators to what :func:`capture` saw.

    Raises:
        ValueError: not a state that this version can read.
    """
    try:
        state = json.loads(data)
        version, words, gauss = state["python"]
        name, keys, position, has_gauss, cached = state["numpy"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(_decode(state["torch"]))
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a state of random number generators: {error}") from error
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["cuda"]))


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def derive(*numbers: int | str) -> int:
    """A 63-bit seed that depends on all of ``numbers``; the same on every machine and version."""
    text = "resumable-training rng " + " ".join(str(number) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seed_all(seed: int) -> None:
    """Seed python, numpy and torch (all devices)."""
    seed_cpu(seed)
    torch.manual_seed(seed & _WORD)


def seed_cpu(seed: int) -> None:
    """Seed python's, numpy's and torch's CPU generator; cheap enough to do for every sample."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & _WORD)  # which is what torch does with a negative one


def seed_rank(seed: int, rank: int, step: int) -> None:
    """The documented rule for a rank without a saved state."""
    seed_all(derive("rank", seed, rank, step))


def sample_seed(key: int, epoch: int, index: int) -> int:
    """Seed of one sample's augmentation; ``key`` is ``derive("sample", seed)``. Costs a microsecond."""
    word = (key + epoch * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return (word ^ (word >> 31)) >> 1


@contextmanager
def isolated() -> Iterator[None]:
    """What runs inside leaves the CPU generators as they were."""
    python, numpy_, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_)
        torch.set_rng_state(torch_)
