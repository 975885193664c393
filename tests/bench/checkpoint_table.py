"""The lines and the aims of the checkpoint benchmark, and its page in docs/checkpoint-speed.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured_page import DOCS, machine, replace_measured

PAGE = DOCS / "checkpoint-speed.md"
OURS, PLAIN = "resumable-training", "dcp.save"
LARGE_WAYS = (OURS, PLAIN)  # by which the large state is saved
LEAST_SAVES = 3  # of whose times a median is judged: of two it is as much the slower one as the faster
_PARTS = ("measured", "large")  # of the page
AIMS = {"stall": 1.15, "slow_down": 1.1, "bytes": 1.1, "memory_bytes": 64 << 20}
Result = dict[str, Any]

_COLUMNS = (
    ("stall", "ms", 8),
    ("x copy", "", 8),
    ("first", "ms", 8),
    ("steps", "x", 8),
    ("lost", "ms", 8),
    ("durable", "ms", 9),
    ("written", "MB most", 9),
    ("read", "MB all", 8),
    ("load", "ms", 8),
    ("memory", "MB", 8),
    ("loading", "MB", 8),
)
_NAME_WIDTH = 30
_HEAD = "\n".join(
    " " * _NAME_WIDTH + "".join(f"{column[row]:>{column[2]}}" for column in _COLUMNS) for row in (0, 1)
)


def head(one: Result) -> str:
    """Above the lines of one setting; any result of it, or the options of one."""
    ranks = f"{one['world_size']} rank{'s' if one['world_size'] > 1 else ''}"
    return f"{one['wrap']}, {ranks}, {one['megabytes']} MB, {one['shape']}\n{_HEAD}"


def line(one: Result) -> str:
    """One way in one setting."""
    slow = f"{one['slow_down']:.2f}" if one["slow_down"] else "-"
    cells = (
        f"{one['stall_ms']:.1f}",
        f"{one['stall']:.2f}",
        f"{one['first_stall_ms']:.0f}",
        slow,
        f"{one['lost_ms']:.0f}",
        f"{one['durable_ms']:.0f}",
        f"{one['written_most'] / 1e6:.1f}",
        f"{one['read'] / 1e6:.0f}",
        f"{one['load_ms']:.0f}",
        f"{one['extra_bytes'] / 1e6:.0f}",
        f"{one['load_peak'] / 1e6:.0f}",
    )
    widths = [width for _, _, width in _COLUMNS]
    return f"  {one['way']:{_NAME_WIDTH - 2}}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )


def judge(results: Sequence[Result]) -> list[str]:
    """Where our own numbers miss an aim, or are too few to tell."""
    missed = []
    plain = {key(one): one for one in results if one["way"] == PLAIN}
    for one in results:
        if one["way"] != OURS:
            continue
        where = f"{one['wrap']} x {one['world_size']}, {one['megabytes']} MB, {one['shape']}"
        local = one["megabytes"] * (1 << 20) / one["world_size"]
        times = {
            "stall": one["stall"] / AIMS["stall"],
            "slow-down": (one["slow_down"] or 1.0) / AIMS["slow_down"],
            "durable": one["durable_ms"] / plain[key(one)]["durable_ms"] if key(one) in plain else 0.0,
        }
        sizes = {
            "bytes written": one["written_most"] / (AIMS["bytes"] * local),
            "bytes read": one["read"] / (AIMS["bytes"] * one["megabytes"] * (1 << 20)),
            "memory": one["extra_bytes"] / (local + AIMS["memory_bytes"]),
            "memory while loading": one["load_peak"] / (local + AIMS["memory_bytes"]),
        }
        if one["saves"] < LEAST_SAVES:
            missed.append(f"{where}: {', '.join(times)} not judged, since {one['saves']} saves are too few")
            times = {}
        told = times | sizes
        missed += [f"{where}: {name} {value:.2f} x its aim" for name, value in told.items() if value > 1]
    return missed


def key(one: Result) -> tuple[str, str, int, int]:
    """Of a setting: what is compared with each other."""
    return one["wrap"], one["shape"], one["world_size"], one["megabytes"]


def write(results: Sequence[Result], large: Sequence[Result] = ()) -> Path:
    """Replace the measured parts of the page, each if there is something new; the page's path."""
    for part, found in zip(_PARTS, (results, large), strict=True):
        if found:
            replace_measured(PAGE, section(found), part)
    return PAGE


def section(results: Sequence[Result]) -> str:
    """What was measured, in Markdown."""
    lines: list[str] = []
    for number, one in enumerate(results):
        if number == 0 or key(one) != key(results[number - 1]):
            lines.append(head(one))
        lines.append(line(one))
    aims = "\n".join(judge(results)) or "All aims are met."
    table = "\n".join(lines)
    return f"On {machine()}.\n\n```\n{table}\n```\n\nAims that were missed:\n\n```\n{aims}\n```"
