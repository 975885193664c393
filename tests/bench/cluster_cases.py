"""What the cluster benchmark does to a job, and what is taken down of it (pure; tests beside it).

Two workers of one rank. The legs and moments are those of recovery_cases.py; the leg ``spared`` has a spare.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recovery_cases import LOST_STEPS, NOTICE_SECONDS, Outcome, Scenario

WORKERS = 2
SCENARIOS = (
    Scenario("rank", f"one rank killed, {LOST_STEPS} steps after a checkpoint", "fixed"),
    Scenario("rank-saved", "one rank killed, right after a checkpoint", "fixed", "saved"),
    Scenario("pod", "a worker's container killed: a new pod takes its place", "fixed"),
    Scenario("spare", "a worker's container killed: a spare takes its place", "spared"),
    Scenario("dead", "a machine falls silent, its connections stay open", "elastic", smaller=True),
    Scenario("grow", "a machine joins (pause)", "elastic", planned=True),
    Scenario("preempt", f"spot notice of {NOTICE_SECONDS:g} s to one of two machines (pause)", "elastic",
             smaller=True, planned=True),
)  # fmt: skip


@dataclass(frozen=True)
class Found(Outcome):
    """One strike.

    ``api_seconds``: time in which a write to the API server was under way, between the first witness and the
    last assignment; it is a part of the stages, not one more. ``api_writes``: how many there were.
    ``known``: seconds from the strike until the attempt was ended on all survivors; ``missed``: until
    Kubernetes said that the node is not ready, if it did before the recovery was over or within the wait for
    that.
    """

    api_seconds: float = 0.0
    api_writes: int = 0
    known: float | None = None
    missed: float | None = None


def under_way(spans: Iterable[tuple[float, float]], since: float, until: float) -> tuple[float, int]:
    """How long at least one of the spans was open within the window, and how many were open in it."""
    inside = sorted((max(began, since), min(ended, until)) for began, ended in spans)
    inside = [span for span in inside if span[0] < span[1]]
    total, reached = 0.0, since
    for began, ended in inside:
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total, len(inside)
