"""The operator beside its peer, for people: of one run of the benchmark, two columns a size.

The peer is measured at one rate of failures, the last; so that is what is told of ours.
"""

from __future__ import annotations

from typing import Any

from operator_table import dig

WIDTH = 11
Raw = dict[str, Any]

# Title, where it is in our results, where it is in the peer's; None: it has no such thing.
ROWS: tuple[tuple[str, str | None, str | None], ...] = (
    ("pod failed -> next attempt complete, p50 s", "replace.seconds.p50", "restart.seconds.p50"),
    ("                                     p99 s", "replace.seconds.p99", "restart.seconds.p99"),
    ("   going on without the lost pod:    p50 s", "shrink.seconds.p50", None),
    ("                                     p99 s", "shrink.seconds.p99", None),
    ("recoveries", "replace.recoveries", "restart.recoveries"),
    ("never complete", "replace.never", "restart.never"),
    ("pods made anew, a recovery", "replace.pods_made", "restart.pods_made"),
    ("requests to the API server, a recovery", "replace.requests", "restart.requests"),
    ("cores meanwhile: the operator, the manager", "replace.cpu.operator", "restart.cpu.manager"),
    (
        "                 kube-controller-manager",
        "replace.cpu.kube-controller-manager",
        "restart.cpu.kube-controller-manager",
    ),
    ("                 API server", "replace.cpu.kube-apiserver", "restart.cpu.kube-apiserver"),
    ("memory: the operator, the manager, RSS MB", "memory_mb.rss", "memory_mb.manager.rss"),
    ("start -> /readyz, s", "start.synced", "start.synced"),
    ("start -> all jobs seen, s", "start.all_jobs_seen", "start.all_jobs_seen"),
    ("all jobs from nothing, s", "cold_start.seconds", "cold_start.seconds"),
)


def lines(sizes: dict[str, Raw], peer: str) -> list[str]:
    """The table. Sizes that the peer was not measured at are left out."""
    chosen = {size: found for size, found in sizes.items() if peer in found}
    heads = [f"{size} {who}" for size in chosen for who in ("ours", peer)]
    width = max([WIDTH, *(len(head) + 2 for head in heads)])
    table = [f"{'':<44}" + "".join(f"{head:>{width}}" for head in heads)]
    for title, ours, theirs in ROWS:
        values = []
        for found in chosen.values():
            values += [dig(with_sums(at_last_rate(found)), ours), dig(with_sums(found[peer]), theirs)]
        table.append(f"{title:<44}" + "".join(f"{_shown(value):>{width}}" for value in values))
    return table


def at_last_rate(found: Raw) -> Raw:
    """Our results, with the recoveries at that rate."""
    *_, modes = found["rates"].values()
    return {**found, **modes}


def with_sums(found: Raw) -> Raw:
    """A side's results with what is told of them: requests in all, pods made, and the best start."""
    result = {**found, "start": min(found["starts"], key=lambda start: start["synced"], default={})}
    for mode in ("replace", "restart"):
        if mode in found:
            asked = found[mode]["plane_requests_per_recovery"]
            sums = {"requests": sum(asked.values()), "pods_made": asked.get("POST pods", 0.0)}
            result[mode] = {**found[mode], **sums}
    return result


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if isinstance(value, int) or value >= 100 else f"{value:.2f}"
