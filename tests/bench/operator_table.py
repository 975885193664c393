"""What bench_operator.py measured, for people: one column a size. ``--write-docs``: docs/operator-cost.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measured_page import DOCS, replace_measured

PAGE = DOCS / "operator-cost.md"
PART = "measured"  # the part of the page that has this table; the one beside a peer is in the peer's part
MODES = ("replace", "shrink")
Raw = dict[str, Any]

ROWS: tuple[tuple[str, str], ...] = (
    ("pod failed -> all assigned, replaced: p50 s", "replace.seconds.p50"),
    ("                                      p99 s", "replace.seconds.p99"),
    ("pod failed -> all assigned, smaller:  p50 s", "shrink.seconds.p50"),
    ("                                      p99 s", "shrink.seconds.p99"),
    ("requests a recovery, replaced", "replace.requests"),
    ("                     smaller", "shrink.requests"),
    ("start -> synced, s", "start.synced"),
    ("start -> all jobs seen, s", "start.all_jobs_seen"),
    ("start -> all agents followed, s", "start.all_agents_followed"),
    ("memory while all train: RSS MB", "idle.memory_mb.rss"),
    ("memory after all that:  RSS MB", "memory_mb.rss"),
    ("                        PSS MB", "memory_mb.pss"),
    ("                        peak MB", "memory_mb.peak_rss"),
    ("CPU while all train: operator, cores", "idle.cpu.operator"),
    ("                     simulator, cores", "idle.cpu.simulator"),
    ("                     API server, cores", "idle.cpu.kube-apiserver"),
    ("passes a second while all train", "idle.passes_per_second"),
    ("all jobs from nothing, s", "cold_start.seconds"),
    ("naive kopf handlers: start -> all jobs seen, s", "peers.handlers.seconds"),
    ("                     RSS MB", "peers.handlers.memory_mb.rss"),
    ("kopf.index:          start -> all jobs seen, s", "peers.index.seconds"),
    ("                     RSS MB", "peers.index.memory_mb.rss"),
)
WORDS = {
    "stopped": "a survivor is told to stop",
    "created": "the new pod is there",
    "runs": "it runs (simulated kubelet and API server)",
    "followed": "its agent is asked for its events",
    "assigned": "the first agent has its assignment",
    "all assigned": "all have it",
}


def lines(sizes: dict[str, Raw]) -> list[str]:
    """The table, and the growth from the first size to the last. What no size was asked for is left out."""
    several = len(sizes) > 1
    table = [f"{'':<48}" + "".join(f"{size:>10}" for size in sizes) + ("    growth" if several else "")]
    for title, where in ROWS:
        values = [dig(_with_sums(found), where) for found in sizes.values()]
        if all(value is None for value in values):
            continue
        shown = "".join(f"{value:>10.2f}" if value is not None else f"{'-':>10}" for value in values)
        grown = values[-1] / values[0] if values[0] and values[-1] else None
        growth = f"{grown:>9.1f}x" if grown is not None else f"{'-':>10}"
        table.append(f"{title:<48}{shown}" + (growth if several else ""))
    return table


def ways(sizes: dict[str, Raw]) -> Iterator[str]:
    """Which requests recoveries made, where their time went, and what waited for what."""
    for size, found in sizes.items():
        for mode in MODES:
            yield f"requests per recovery, {size}, {mode}: {found[mode]['requests_per_recovery']}"
    for size, found in sizes.items():
        for mode in MODES:
            yield from _way(f"{size}, {mode}", found[mode])


def write(table: list[str], strikes: int, rate: float, part: str = PART) -> Path:
    """Put a table into ``part`` of the page; the page's path."""
    where = f"{os.cpu_count()} cores, which everything shares, Python {platform.python_version()}"
    how = f"{strikes} failures of each kind, {rate:g} a second on average, of jobs in turn"
    replace_measured(PAGE, "\n".join([f"On {where}; {how}.", "", "```", *table, "```"]), part)
    return PAGE


def dig(found: Any, where: str | None) -> float | None:
    """What is at a path with dots; None where a part of it is missing."""
    for name in where.split(".") if where else ():
        found = (found or {}).get(name)
    return found if where else None


def _way(title: str, found: Raw) -> Iterator[str]:
    yield f"\n{title}: from failure until ...{'p50 s':>24}{'p99 s':>10}"
    for name in (name for name in WORDS if name in found["stages"]):
        stage = found["stages"][name]
        yield f"  + {WORDS[name]:<46}{stage['p50']:>7.3f}{stage['p99']:>10.3f}"
    waits = ", ".join(f"{kind} {value:.3f}" for kind, value in found["waits"].items())
    loop, cpu = found["loop_seconds"], found["cpu"]
    yield f"  operator: {waits}; /healthz p50 {loop['p50']:.3f} p99 {loop['p99']:.3f} s"
    yield "  cores: " + ", ".join(f"{name} {share:.2f}" for name, share in cpu.items())


def _with_sums(found: Raw) -> Raw:
    """A size's results, and what is told of them in one number: the best start, a recovery's requests."""
    sums = {
        mode: {**found[mode], "requests": sum(found[mode]["requests_per_recovery"].values())}
        for mode in MODES
        if mode in found
    }
    return {**found, **sums, "start": min(found["starts"], key=lambda start: start["synced"], default={})}
