"""What the benchmark of the operator reads: processes from /proc, the operator from its metrics page."""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_TICKS = os.sysconf("SC_CLK_TCK")
_MB = 1024.0  # kB in one
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> dict[str, float]:
    """Resident and proportional memory now, and the most that was ever resident."""
    rollup = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
    status = _kilobytes(Path(f"/proc/{pid}/status"))
    return {"rss": rollup["Rss"] / _MB, "pss": rollup["Pss"] / _MB, "peak_rss": status["VmHWM"] / _MB}


def _kilobytes(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}


class CpuMeter:
    """CPU shares of named processes from now on."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def shares(self) -> dict[str, float]:
        """Of one core each."""
        seconds = self.seconds
        return {name: (cpu_seconds(pid) - self._before[name]) / seconds for name, pid in self._pids.items()}


def load() -> dict[str, Any]:
    """How busy the machine is, with whatever."""
    found: dict[str, Any] = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0]}
    pressure = Path("/proc/pressure/cpu")
    if pressure.exists():
        match = re.search(r"some avg10=(\S+)", pressure.read_text())
        found["cpu_pressure_percent"] = float(match[1]) if match else None
    return found


def page(port: int, name: str) -> tuple[int, str]:
    """Status and text of a page of the operator; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{name}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


@dataclass(frozen=True)
class Scrape:
    """The operator's own metrics at one moment: (name, labels) -> value."""

    samples: dict[tuple[str, str], float]
    at: float

    @classmethod
    def of(cls, port: int) -> Scrape:
        status, text = page(port, "/metrics")
        if status != 200:
            raise RuntimeError(f"/metrics answers {status}")
        found = (_SAMPLE.fullmatch(line) for line in text.splitlines() if "resumable_operator" in line)
        samples = {(match[1], match[2] or ""): float(match[3]) for match in found if match}
        return cls(samples, time.monotonic())

    def total(self, name: str) -> float:
        return sum(value for (known, _), value in self.samples.items() if known == name)

    def by(self, name: str, *labels: str) -> dict[str, float]:
        """Totals by the values of these labels."""
        found: dict[str, float] = {}
        for (known, text), value in self.samples.items():
            if known == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', text))
                key = " ".join(given[label] for label in labels)
                found[key] = found.get(key, 0.0) + value
        return found


class Asker:
    """Asks for a page again and again while the block runs; how long answers took.

    ``scrapes``: as Prometheus does: first after a period, and what is no page does not count.
    """

    def __init__(self, port: int, where: str, period_seconds: float, *, scrapes: bool) -> None:
        self._port, self._where, self._period, self._scrapes = port, where, period_seconds, scrapes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        if not self._scrapes:
            self._ask()  # the block may be over before one period is
        while not self._end.wait(self._period):
            self._ask()

    def _ask(self) -> None:
        began = time.monotonic()
        status = page(self._port, self._where)[0]
        if status == 200 or not self._scrapes:
            self.seconds.append(time.monotonic() - began)


def scraper(port: int) -> Asker:
    """Reads the metrics page as Prometheus would."""
    return Asker(port, "/metrics", 15.0, scrapes=True)


def pulse(port: int) -> Asker:
    """How long the operator's event loop lets a tiny request wait."""
    return Asker(port, "/healthz", 0.2, scrapes=False)


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {key: after[key] - before.get(key, 0.0) for key in after if after[key] != before.get(key, 0.0)}


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, 99th percentile (nearest rank) and largest."""
    ordered = sorted(values)
    if not ordered:
        return {}
    rank = min(len(ordered) - 1, round(0.99 * len(ordered) + 0.5) - 1)
    return {"p50": statistics.median(ordered), "p99": ordered[rank], "max": ordered[-1]}
