"""The cluster benchmark's table and aims."""

from __future__ import annotations

from cluster_cases import Found
from cluster_table import GRACE_SECONDS, aims, by_size, tables

from bed.components import FAST_NODE_LOSS


def found(seconds: float | None, **more: float) -> Found:
    return Found(seconds, seconds, **more)  # type: ignore[arg-type]


RESULTS = by_size(
    {
        "rank": [found(1.0), found(1.2), found(9.0)],
        "rank-saved": [found(1.4)],
        "pod": [found(None), found(None), found(1.0)],
        "dead": [
            found(4.0, known=3.0, missed=4.5),
            found(4.0, known=3.0),
            found(6.0, known=5.0, missed=4.5),
        ],
        "grow": [],
        "preempt": [found(1.0, redone=2)],
    }
)


def test_aims() -> None:
    """Met, not met, and not measured are told apart; a machine that Kubernetes marked first is not ours."""
    verdicts = [aim.met for aim in aims(RESULTS)]
    assert verdicts == [True, False, False, None, True, None, True, None, False, False]
    assert "2 of 3" in str(aims(RESULTS)[-1])


def test_the_table_has_what_was_measured() -> None:
    """A row for each scenario with a run; what never came back is said."""
    text = "\n".join(tables(RESULTS))
    assert [text.count(words) for words in ("killed, 3 steps", "a machine joins")] == [1, 0]
    (row,) = [line for line in text.splitlines() if "container killed" in line]
    assert row.split()[-8:] == ["3", "2", "1.00", "never", "never", "never", "never", "0"]


def test_the_node_controller_has_the_grace_that_is_told() -> None:
    """That of the bed."""
    assert f"--node-monitor-grace-period={GRACE_SECONDS:g}s" in FAST_NODE_LOSS
