"""What the cluster benchmark does to a job, and what is made of it (pure; tests beside it).

Two workers of one rank. The legs and moments are those of recovery_cases.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recovery_cases import LOST_STEPS, NOTICE_SECONDS, Outcome, Scenario
from recovery_table import Aim, Spread, seconds
from stages import STAGES

SCENARIOS = (
    Scenario("rank", f"one rank killed, {LOST_STEPS} steps after a checkpoint", "fixed"),
    Scenario("pod", "a worker's container killed: a new pod takes its place", "fixed"),
    Scenario("dead", "a machine falls silent, its connections stay open", "elastic", smaller=True),
    Scenario("grow", "a machine joins (pause)", "elastic", planned=True),
    Scenario("preempt", f"spot notice of {NOTICE_SECONDS:g} s to one of two machines (pause)", "elastic",
             smaller=True, planned=True),
)  # fmt: skip
LIMITS = {"rank": 1.3, "pod": 3.0, "dead": 5.0, "grow": 2.0, "preempt": 2.0}  # seconds, of medians
NOTHING_REDONE = ("grow", "preempt")


@dataclass(frozen=True)
class Found:
    """One strike.

    ``api_seconds``: time in which a write to the API server was under way, between the first witness and the
    last assignment; it is a part of the stages, not one more. ``api_writes``: how many there were.
    ``known``: seconds from the strike until the attempt was ended on all survivors; ``missed``: until
    Kubernetes said that the node is not ready, if it did before the recovery was over or within the wait for
    that.
    """

    outcome: Outcome
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


def tables(results: Mapping[str, Sequence[Found]]) -> list[str]:
    """A row for each scenario, then where its time went."""
    heads = ("runs", "never", "min", "p25", "median", "p75", "max", "redone", "API s", "writes")
    lines = [f"  {'':<70}" + "".join(f"{head:>8}" for head in heads)]
    for scenario in SCENARIOS:
        found = results.get(scenario.name)
        if found:
            lines.append(_row(scenario, found))
    lines += ["", "  where the time went, medians in seconds:"]
    for name, found in results.items():
        split = [one.outcome.split for one in found if one.outcome.split]
        if split:
            parts = (f"{stage} {statistics.median(one[stage] for one in split):.2f}" for stage in STAGES)
            lines.append(f"  {name:<8} " + ", ".join(parts))
    return lines


def _row(scenario: Scenario, found: Sequence[Found]) -> str:
    spread = Spread.of([one.outcome for one in found])
    times = (spread.least, spread.p25, spread.median, spread.p75, spread.most)
    cells = [str(spread.runs), str(spread.never), *map(seconds, times)]
    cells += [f"{statistics.median(one.outcome.redone for one in found):g}"]
    cells += [f"{statistics.median(one.api_seconds for one in found):.2f}"]
    cells += [f"{statistics.median(one.api_writes for one in found):g}"]
    return f"  {scenario.title:<70}" + "".join(f"{cell:>8}" for cell in cells)


def aims(results: Mapping[str, Sequence[Found]]) -> list[Aim]:
    """What was set out to be reached, and whether it was."""
    return [
        *(_at_most(scenario, results.get(scenario.name, ())) for scenario in SCENARIOS),
        *(_nothing_redone(name, results.get(name, ())) for name in NOTHING_REDONE),
        _before_kubernetes(results.get("dead", ())),
    ]


def _at_most(scenario: Scenario, found: Sequence[Found]) -> Aim:
    text = f"{scenario.title} <= {LIMITS[scenario.name]:g} s"
    if not found:
        return Aim(text, "", None)
    median = Spread.of([one.outcome for one in found]).median
    return Aim(text, f"median {seconds(median)}", median <= LIMITS[scenario.name])


def _nothing_redone(name: str, found: Sequence[Found]) -> Aim:
    text = f"no step redone: {name}"
    if not found:
        return Aim(text, "", None)
    redone = sum(one.outcome.redone for one in found)
    return Aim(text, f"{redone} steps in {len(found)} runs", redone == 0)


def _before_kubernetes(found: Sequence[Found]) -> Aim:
    """The attempt was ended before the node was marked."""
    text = "a dead machine is known by its agents before Kubernetes marks its node"
    known = [math.inf if one.known is None else one.known for one in found]
    if not known:
        return Aim(text, "", None)
    missed = [math.inf if one.missed is None else one.missed for one in found]
    ahead = sum(mine < theirs for mine, theirs in zip(known, missed, strict=True))
    words = f"{ahead} of {len(found)}; known after {seconds(statistics.median(known))} s"
    shown = [value for value in missed if not math.isinf(value)]
    if shown:
        words += f", marked after {seconds(statistics.median(shown))} s"
    return Aim(text, words, ahead == len(found))
