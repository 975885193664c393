"""Numbers as people read them."""

from __future__ import annotations

import pytest

from resumable_operator.cli.units import byte_size, duration, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.34, "340 ms"),
        (1, "1.0 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (245, "4 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (274_000, "3 d 04 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    """Two units at most, never `60 s` or `60 min` beside a larger unit."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (12_500_000, "12.5 MB"), (2.5e9, "2.5 GB"), (7e13, "70.0 TB")],
)
def test_byte_sizes(count: float, text: str) -> None:
    """Powers of 1000, as disks are sold."""
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "-"), (0.0, "0.0 %"), (0.8314, "83.1 %"), (1.0, "100.0 %")]
)
def test_percentages(ratio: float | None, text: str) -> None:
    """What is not defined is a dash, not a zero."""
    assert percent(ratio) == text
