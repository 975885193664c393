"""Words in messages that people read."""

from __future__ import annotations

import pytest

from resumable_operator.words import span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (86400, "a day"),
        (604800.0, "7 days"),
        (3600, "an hour"),
        (7200, "2 hours"),
        (60, "a minute"),
        (5400, "90 minutes"),
        (90, "90 s"),
        (0.5, "0.5 s"),
        (86401, "86401 s"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    """In the largest unit that says exactly what was chosen."""
    assert span(seconds) == text
