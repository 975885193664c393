"""Random number generators: saved, restored, derived, isolated."""

import random

import numpy as np
import pytest
import torch

from resumable_training import rng

GOLDEN = (
    5413329968470360474,
    9129938653645826665,
    891248051255718971,
    208096619439393115,
)


def draw() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.randn()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_a_restored_state_goes_on_as_the_saved_one() -> None:
    """Python, numpy and torch draw the same after a restore, cached gaussians included."""
    rng.seed_all(5)
    draw()
    state = rng.capture()
    expected = draw()
    draw()
    rng.restore(state)
    assert draw() == expected


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"python": 1, "numpy": 2, "torch": 3}'])
def test_garbage_is_refused(data: bytes) -> None:
    """Bytes that are no state raise ValueError."""
    with pytest.raises(ValueError, match=r"state|Expecting|decode"):
        rng.restore(data)


def test_ranks_and_steps_have_their_own_streams() -> None:
    """The documented rule (seed, rank, step): all different, and the same each time."""
    found = []
    for seed, rank, step in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)]:
        rng.seed_rank(seed, rank, step)
        found.append(tuple(draw()))
    assert len(set(found)) == 4
    assert found[0] == found[-1]


def test_derived_seeds_never_change() -> None:
    """Golden values: augmentation is the same in every version."""
    key = rng.derive("sample", 0)
    assert (key, rng.sample_seed(key, 0, 0), rng.sample_seed(key, 1, 0), rng.sample_seed(key, 0, 1)) == GOLDEN


def test_isolated_code_leaves_no_trace() -> None:
    """Seeding and drawing inside changes nothing outside, even when it raises."""
    rng.seed_all(1)
    expected = draw()
    rng.seed_all(1)
    with pytest.raises(KeyError), rng.isolated():
        rng.seed_cpu(int({}["99"] if draw() else 0))
    assert draw() == expected
