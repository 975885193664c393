"""How often the cache is compared; what comparing finds is tested in ``test_kube_cluster``."""

from __future__ import annotations

import pytest

from resumable_operator.cluster.kube_compare import pause_seconds


@pytest.mark.parametrize(
    ("usual", "taken", "pause"),
    [(30.0, 0.1, 30.0), (30.0, 1.5, 30.0), (30.0, 2.0, 40.0), (30.0, 20.0, 60.0), (5.0, 0.3, 6.0)],
)
def test_long_comparisons_are_rarer(usual: float, taken: float, pause: float) -> None:
    """As usual while they are quick, then a twentieth of the time, but never less than half as often."""
    assert pause_seconds(usual, taken) == pytest.approx(pause)
