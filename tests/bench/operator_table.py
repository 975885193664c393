"""What bench_operator.py measured, for people: one column a size. ``--write-docs``: docs/operator-cost.md.

What depends on how many workers fail a second has a part for each rate, with its rows under its name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measured_page import DOCS, replace_measured

PAGE = DOCS / "operator-cost.md"
PART = "measured"  # the part of the page that has this table; the one beside a peer is in the peer's part
MODES = ("replace", "shrink")
TITLE = 48  # characters
Raw = dict[str, Any]

RATE_ROWS: tuple[tuple[str, str], ...] = (  # of one rate
    ("pod failed -> all assigned, replaced: p50 s", "replace.seconds.p50"),
    ("                                      p99 s", "replace.seconds.p99"),
    ("pod failed -> all assigned, smaller:  p50 s", "shrink.seconds.p50"),
    ("                                      p99 s", "shrink.seconds.p99"),
    ("requests a recovery, replaced", "replace.requests"),
    ("                     smaller", "shrink.requests"),
    ("CPU meanwhile: operator, cores", "cpu.operator"),
    ("               API server, cores", "cpu.kube-apiserver"),
    ("               simulator, cores", "cpu.simulator"),
    ("               with etcd and all else, cores", "cpu.all"),
)
ROWS: tuple[tuple[str, str], ...] = (
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


def rate_name(rate: float) -> str:
    """Of a rate, among the results and for people."""
    return f"{rate:g}"


def lines(sizes: dict[str, Raw]) -> list[str]:
    """The table, and the growth from the first size to the last. What no size was asked for is left out."""
    head = f"{'':<{TITLE}}" + "".join(f"{size:>10}" for size in sizes)
    table = [head + ("    growth" if len(sizes) > 1 else "")]
    for rate in dict.fromkeys(rate for found in sizes.values() for rate in found["rates"]):
        table.append(f"{rate} {'failure' if rate == '1' else 'failures'} a second:")
        at_rate = [_rate_with_sums(found["rates"].get(rate, {})) for found in sizes.values()]
        table += (f"  {row}" for row in _rows(RATE_ROWS, at_rate, TITLE - 2))
    return [*table, *_rows(ROWS, [_with_best_start(found) for found in sizes.values()], TITLE)]


def _rows(rows: Sequence[tuple[str, str]], columns: list[Raw], width: int) -> Iterator[str]:
    for title, where in rows:
        values = [dig(column, where) for column in columns]
        if all(value is None for value in values):
            continue
        shown = "".join(f"{value:>10.2f}" if value is not None else f"{'-':>10}" for value in values)
        yield f"{title:<{width}}{shown}" + (_growth(values[0], values[-1]) if len(values) > 1 else "")


def _growth(first: float | None, last: float | None) -> str:
    return f"{last / first:>9.1f}x" if first and last else f"{'-':>10}"


def ways(sizes: dict[str, Raw]) -> Iterator[str]:
    """Which requests recoveries made, where their time went, and what waited for what."""
    for title, found in _each(sizes):
        yield f"requests per recovery, {title}: {found['requests_per_recovery']}"
    for title, found in _each(sizes):
        yield from _way(title, found)


def _each(sizes: dict[str, Raw]) -> Iterator[tuple[str, Raw]]:
    """Every series of recoveries: of each size, at each rate, in each mode."""
    for size, found in sizes.items():
        for rate, modes in found["rates"].items():
            for mode in MODES:
                yield f"{size}, {rate} a second, {mode}", modes[mode]


def write(table: list[str], strikes: int, rates: Sequence[float], part: str = PART) -> Path:
    """Put a table into ``part`` of the page; the page's path."""
    where = f"{os.cpu_count()} cores, which everything shares, Python {platform.python_version()}"
    often = " and ".join(map(rate_name, rates)) + " a second on average"
    each = "" if len(rates) == 1 else " at each rate"
    how = f"{strikes} failures of each kind{each}, {often}, of jobs in turn"
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
    ms = found["cpu_ms_per_recovery"]
    yield "  CPU ms a recovery, beyond what is used anyway: " + ", ".join(
        f"{name} {ms[name]:.0f}" for name in ms
    )


def _rate_with_sums(modes: Raw) -> Raw:
    """The series of a rate; requests of a recovery as one number, and CPU of both series as one: each lasts
    as long as the other."""
    found = {
        mode: {**modes[mode], "requests": sum(modes[mode]["requests_per_recovery"].values())}
        for mode in MODES
        if mode in modes
    }
    shares = [series["cpu"] for series in found.values()]
    if not shares:
        return {}
    cpu = {name: sum(share[name] for share in shares) / len(shares) for name in shares[0]}
    return {**found, "cpu": {**cpu, "all": sum(cpu.values())}}


def _with_best_start(found: Raw) -> Raw:
    return {**found, "start": min(found["starts"], key=lambda start: start["synced"], default={})}
