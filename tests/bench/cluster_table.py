"""The cluster benchmark's results in numbers and words: a table, stages, aims met or not (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import recovery_table
from cluster_cases import SCENARIOS, WORKERS, Found
from measured_page import DOCS, machine
from recovery_docs import Published, runs_each
from recovery_file import Measured
from recovery_table import HEADS, Aim, Results, at_most, nothing_redone, seconds

SIDE = "operator"  # the one contender
LIMITS = {  # seconds, of medians
    "rank": 1.3,
    "rank-saved": 1.3,
    "pod": 3.0,
    "spare": 3.0,
    "dead": 5.0,
    "grow": 2.0,
    "preempt": 2.0,
}
GRACE_SECONDS, USUAL_GRACE_SECONDS = 4.0, 50.0  # of the node controller: the bed's, and Kubernetes' default


def by_size(found: Mapping[str, Sequence[Found]]) -> Results:
    """Of scenarios, as recovery_file.py keeps them."""
    return {WORKERS: {name: {SIDE: runs} for name, runs in found.items()}}


def _by_scenario(results: Results) -> dict[str, Sequence[Found]]:
    """Of those that were measured."""
    found = {name: sides.get(SIDE, ()) for name, sides in results.get(WORKERS, {}).items()}
    return {name: runs for name, runs in found.items() if runs}  # type: ignore[misc]


def tables(results: Results) -> list[str]:
    """A row for each scenario, then where its time went."""
    found = _by_scenario(results)
    titles = {scenario.name: scenario.title for scenario in SCENARIOS if scenario.name in found}
    width = max(map(len, titles.values()), default=0)
    lines = [f"  {'':<{width}}" + recovery_table.row(HEADS)]
    for name, title in titles.items():
        lines.append(f"  {title:<{width}}" + recovery_table.row(recovery_table.cells(found[name])))
    lines += ["", "  by the history; of that, writes to the API server under way (how many):"]
    for name in titles:
        if split := recovery_table.by_history(found[name]):
            lines.append(f"  {name:<10} {split}; {_writes(found[name])}")
    return lines


def _writes(found: Sequence[Found]) -> str:
    took = statistics.median(one.api_seconds for one in found)
    return f"API writes {took:.2f} ({statistics.median(one.api_writes for one in found):g})"


def aims(results: Results) -> list[Aim]:
    """What was set out to be reached, and whether it was."""
    return [
        *(at_most(one.title, results, one.name, LIMITS[one.name], SIDE) for one in SCENARIOS),
        *(nothing_redone(results, one, SIDE) for one in SCENARIOS if one.planned),
        _before_kubernetes(_by_scenario(results).get("dead", ())),
    ]


def _before_kubernetes(found: Sequence[Found]) -> Aim:
    """The attempt was ended before the node was marked."""
    text = "a dead machine is known by its agents before Kubernetes marks its node"
    if not found:
        return Aim(text, "", None)
    known = [math.inf if one.known is None else one.known for one in found]
    missed = [math.inf if one.missed is None else one.missed for one in found]
    ahead = sum(mine < theirs for mine, theirs in zip(known, missed, strict=True))
    words = f"{ahead} of {len(found)}; known after {seconds(statistics.median(known))} s"
    shown = [value for value in missed if not math.isinf(value)]
    if shown:
        words += f", marked after {seconds(statistics.median(shown))} s"
    return Aim(text, words, ahead == len(found))


# ---- the page --------------------------------------------------------------------------------------------


def section(measured: Measured) -> str:
    """What was measured on a cluster, in Markdown."""
    results = measured.results
    parts = [
        f"On {machine(measured.machine)}, shared by the control plane, the operator and all pods;"
        f" {runs_each(results)} each. Seconds.",
        "\n".join(["```", *tables(results), "```"]),
        *_ahead(_by_scenario(results).get("dead", ())),
        "Aims:",
        "\n".join(["```", *map(str, aims(results)), "```"]),
    ]
    return "\n\n".join(parts)


def _ahead(found: Sequence[Found]) -> list[str]:
    """How long before the node controller the agents' evidence acted; nothing where that is not known."""
    both = [(one.known, one.missed) for one in found if one.known is not None and one.missed is not None]
    if not both:
        return []
    known, missed = ([pair[side] for pair in both] for side in (0, 1))
    ahead = [theirs - mine for mine, theirs in both]
    rest = len(found) - len(both)
    told = f" ({rest} more runs know only one of the two)" if rest else ""
    return [
        f"The machine that falls silent: on the evidence of agents the attempt was ended {_range(known)}"
        f" after the strike, and the node controller marked the node after {_range(missed)},"
        f" {_range(ahead)} later{told}. The node controller's grace, from the node's last sign of life, is"
        f" {GRACE_SECONDS:g} s in this measurement; Kubernetes' default is {USUAL_GRACE_SECONDS:g} s."
    ]


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


PUBLISHED = Published(DOCS / "recovery-cluster.json", "measured on a cluster", section)
