"""What the cluster benchmark makes of what it saw."""

from __future__ import annotations

import pytest
from cluster_cases import Found, aims, tables, under_way
from recovery_cases import Outcome

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


def found(seconds: float | None, **more: float) -> Found:
    return Found(Outcome(seconds, seconds, redone=int(more.pop("redone", 0))), **more)  # type: ignore[arg-type]


def test_aims() -> None:
    """Met, not met, and not measured are told apart; a machine that Kubernetes marked first is not ours."""
    results = {
        "rank": [found(1.0), found(1.2), found(9.0)],
        "pod": [found(None), found(None), found(1.0)],
        "dead": [
            found(4.0, known=3.0, missed=4.5),
            found(4.0, known=3.0),
            found(6.0, known=5.0, missed=4.5),
        ],
        "preempt": [found(1.0, redone=2)],
    }
    verdicts = [aim.met for aim in aims(results)]
    assert verdicts == [True, False, True, None, True, None, False, False]
    assert "2 of 3" in str(aims(results)[-1])
    assert any("never" in line for line in tables(results))
