"""What the cluster benchmark takes down of what it saw."""

from __future__ import annotations

import pytest
from cluster_cases import under_way

SPANS = [(1.0, 2.0), (1.5, 3.0), (5.0, 6.0), (9.0, 12.0)]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (0.0, 20.0, (6.0, 4)),
        (1.5, 5.5, (2.0, 3)),
        (3.0, 5.0, (0.0, 0)),
        (10.0, 11.0, (1.0, 1)),
    ],
)
def test_time_under_way_is_counted_once(since: float, until: float, expected: tuple[float, int]) -> None:
    """Writes at the same time do not add up, and only the window counts."""
    assert under_way(SPANS, since, until) == expected
