"""recovery.json of the recovery benchmark: written, read again, and put together from runs of its parts.

A long benchmark can be taken scenario by scenario. What stands in one table is always of one run, in which
contenders took turns; what stands in one file is of the same code, on the same kind of machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import recovery_plot
import recovery_table
from recovery_cases import SCENARIOS, Outcome
from recovery_table import Results

import resumable_operator
import resumable_training

PACKAGES = [Path(str(one.__file__)).parent for one in (resumable_operator, resumable_training)]
JSON, PICTURE = "recovery.json", "recovery.svg"


class Mixed(Exception):
    """What is there does not go together with what is to be added; the text says why."""


@dataclass(frozen=True)
class Measured:
    """``code``: ``digest`` of what was measured; ``machine``: on what; ``notes``: of contenders."""

    code: str
    machine: Mapping[str, Any]
    notes: Sequence[str]
    results: Results

    def with_added(self, new: Measured) -> Measured:
        """Both; a table that both have is the new one's. One without a single run replaces nothing.

        Raises:
            Mixed: they are of different code, or of different machines.
        """
        if self.code != new.code:
            raise Mixed(
                f"it was measured with other code in operator/ or worker/ ({self.code or 'unknown'}, now"
                f" {new.code}): measure all of it anew, without --add"
            )
        if self.machine != new.machine:
            raise Mixed(f"it was measured on another machine: {told(self.machine)}, now {told(new.machine)}")
        notes = [*self.notes, *(note for note in new.notes if note not in self.notes)]
        return Measured(new.code, new.machine, notes, _joined(self.results, new.results))


def told(machine: Mapping[str, Any]) -> str:
    """A machine for people."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _joined(old: Results, new: Results) -> Results:
    """In the order in which one run would have had it."""
    joined: dict[int, dict[str, Mapping[str, Sequence[Outcome]]]] = {}
    for ranks in sorted({*old, *new}):
        tables = {name: sides for name, sides in old.get(ranks, {}).items() if any(sides.values())}
        tables |= {name: sides for name, sides in new.get(ranks, {}).items() if any(sides.values())}
        joined[ranks] = {one.name: tables[one.name] for one in SCENARIOS if one.name in tables}
    return {ranks: tables for ranks, tables in joined.items() if tables}


def digest(packages: Iterable[Path] = PACKAGES) -> str:
    """Of all files of these packages, whether committed or not; twelve hexadecimal digits."""
    found = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(package.parent).as_posix()
                found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:12]


def machine() -> dict[str, Any]:
    """This one, as far as numbers depend on it."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "torch": version("torch")}


def write(measured: Measured, directory: Path) -> Path:
    """All runs and what they ran on, as JSON, and a picture; the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    runs = {
        str(ranks): {
            scenario: {name: [vars(one) for one in outcomes] for name, outcomes in sides.items()}
            for scenario, sides in scenarios.items()
        }
        for ranks, scenarios in measured.results.items()
    }
    aims = [str(aim) for aim in recovery_table.aims(measured.results)]
    plain = {"code": measured.code, "machine": measured.machine, "notes": list(measured.notes), "aims": aims}
    path = directory / JSON
    path.write_text(json.dumps({**plain, "runs": runs}, indent=1) + "\n")
    (directory / PICTURE).write_text(recovery_plot.draw(measured.results))
    return path


def read(directory: Path) -> Measured | None:
    """What was measured last; None: nothing."""
    path = directory / JSON
    if not path.exists():
        return None
    plain = json.loads(path.read_text())
    results = {
        int(ranks): {
            scenario: {name: [Outcome(**one) for one in outcomes] for name, outcomes in sides.items()}
            for scenario, sides in scenarios.items()
        }
        for ranks, scenarios in plain["runs"].items()
    }
    return Measured(plain.get("code", ""), plain["machine"], plain["notes"], results)
