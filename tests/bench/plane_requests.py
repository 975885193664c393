"""What an API server was asked for, by its own count: the measure that is the same whoever asks.

Left out is what the simulated kubelets write (the status of pods), and watches, which count when they end.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from sim_measure import grown

from bed.control_plane import ControlPlane

_SAMPLE = re.compile(r"apiserver_request_total\{(.*)\} (\S+)")
_KUBELETS = ("pods", "status")


@dataclass(frozen=True)
class PlaneRequests:
    """Requests so far: "POST pods" -> how many; ``at`` on the monotonic clock."""

    counts: dict[str, float]
    at: float

    @classmethod
    def of(cls, plane: ControlPlane) -> PlaneRequests:
        return cls(counted(plane.api.text("/metrics")), time.monotonic())


def counted(text: str) -> dict[str, float]:
    """From the text of the API server's metrics page."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
            what = (labels["resource"], labels["subresource"])
            if what != _KUBELETS and labels["verb"] not in ("WATCH", "CONNECT") and labels["resource"]:
                key = f"{labels['verb']} {'/'.join(part for part in what if part)}"
                found[key] = found.get(key, 0.0) + float(match[2])
    return found


def rates(before: PlaneRequests, after: PlaneRequests) -> dict[str, float]:
    """Requests a second."""
    seconds = after.at - before.at
    return {what: count / seconds for what, count in grown(before.counts, after.counts).items()}


def each(
    before: PlaneRequests, after: PlaneRequests, routine: dict[str, float], events: int
) -> dict[str, float]:
    """Requests for each of so many events, without what goes on anyway: ``routine``, a second."""
    seconds = after.at - before.at
    more = grown(before.counts, after.counts)
    found = {what: (count - routine.get(what, 0.0) * seconds) / events for what, count in more.items()}
    return {what: round(count, 2) for what, count in sorted(found.items()) if abs(count) >= 0.005}
