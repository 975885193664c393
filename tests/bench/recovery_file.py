"""The runs that a recovery benchmark keeps as JSON: written, read again, and put together from its parts.

A long benchmark can be taken scenario by scenario. What stands in one table is always of one run, in which
contenders took turns; what stands in one file is of the same code, measured in the same way on the same kind
of machine. Used by recovery_main.py, for the file in results and for the published one in docs/.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recovery_cases import SCENARIOS, Outcome, Scenario
from recovery_table import Results

import resumable_operator
import resumable_training

PACKAGES = [Path(str(one.__file__)).parent for one in (resumable_operator, resumable_training)]
DIGITS = 3  # of a second: steps take hundreds of milliseconds
LINES_DEEP = 5  # a run, below runs, ranks, scenario and contender, is one line of the file


class Mixed(Exception):
    """What is there does not go together with what is to be added; the text says why."""


@dataclass(frozen=True)
class Measured:
    """``code``: ``digest`` of what was measured; ``machine``: on what.

    ``notes``: what readers must know of a contender, by its name; ``absent``: why one could not take part.
    """

    code: str
    machine: Mapping[str, Any]
    notes: Mapping[str, str]
    results: Results
    absent: Mapping[str, str] = field(default_factory=dict)

    def with_added(self, new: Measured, scenarios: Sequence[Scenario] = SCENARIOS) -> Measured:
        """Both; a table that both have is the new one's. One without a single run replaces nothing.

        ``scenarios``: in the order of the tables.

        Raises:
            Mixed: they are of different code, or of different machines.
        """
        if not self.code or self.code != new.code:
            raise Mixed(
                f"it was measured with other code in operator/, worker/ or the benchmark"
                f" ({self.code or 'unknown'}, now {new.code}): measure all of it anew, without --add"
            )
        if self.machine != new.machine:
            raise Mixed(f"it was measured on another machine: {told(self.machine)}, now {told(new.machine)}")
        results = _joined(self.results, new.results, scenarios)
        tables = [sides for scenarios in results.values() for sides in scenarios.values()]
        there = {name for sides in tables for name, runs in sides.items() if runs}
        notes = {name: note for name, note in {**self.notes, **new.notes}.items() if name in there}
        absent = {name: why for name, why in self.absent.items() if name not in new.notes} | {**new.absent}
        absent = {name: why for name, why in absent.items() if name not in there}
        return Measured(new.code, new.machine, notes, results, absent)

    def lost_to(self, new: Mapping[int, Mapping[str, Iterable[str]]]) -> list[str]:
        """Contenders who would be gone with a table that a new one replaces, each with its table, for people.

        ``new``: who is in the new ones, by ranks and scenario.
        """
        lost: list[str] = []
        for ranks, scenarios in new.items():
            for scenario, names in scenarios.items():
                there = set(names)
                old = self.results.get(ranks, {}).get(scenario, {}) if there else {}
                gone = [name for name, runs in old.items() if runs and name not in there]
                lost += [f"{name} ({scenario}, {ranks} ranks)" for name in gone]
        return lost

    def told(self) -> list[str]:
        """Notes for people."""
        told = [f"{name}: {note}" for name, note in self.notes.items() if note]
        return [*told, *(f"{name} did not take part: {why}" for name, why in self.absent.items())]


def told(machine: Mapping[str, Any]) -> str:
    """A machine for people."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _joined(old: Results, new: Results, scenarios: Sequence[Scenario]) -> Results:
    """In the order in which one run would have had it."""
    joined: dict[int, dict[str, Mapping[str, Sequence[Outcome]]]] = {}
    for ranks in sorted({*old, *new}):
        tables = {name: sides for name, sides in old.get(ranks, {}).items() if any(sides.values())}
        tables |= {name: sides for name, sides in new.get(ranks, {}).items() if any(sides.values())}
        joined[ranks] = {one.name: tables[one.name] for one in scenarios if one.name in tables}
    return {ranks: tables for ranks, tables in joined.items() if tables}


def digest(code: Iterable[Path]) -> str:
    """Of these files, and all that are in these packages, committed or not; twelve hexadecimal digits.

    Hidden files are none of it: editors keep theirs beside what is edited.
    """
    found = hashlib.sha256()
    for top in code:
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = path.relative_to(top.parent)
            if any(part == "__pycache__" or part.startswith(".") for part in name.parts):
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # an editor's file, gone again
                line = f"{name.as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
                found.update(line.encode())
    return found.hexdigest()[:12]


def machine() -> dict[str, Any]:
    """This one, as far as numbers depend on it."""
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return {"cpus": os.cpu_count(), "cpu": _cpu_model(), **versions}


def _cpu_model() -> str:
    """Its name, where the system tells one; else the architecture."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def text(measured: Measured) -> str:
    """All runs and what they ran on, as JSON: a line for each run, so that versions can be compared."""
    runs = {
        str(ranks): {
            scenario: {name: [_plain(one) for one in outcomes] for name, outcomes in sides.items()}
            for scenario, sides in scenarios.items()
        }
        for ranks, scenarios in measured.results.items()
    }
    names = ("code", "machine", "notes", "absent")
    plain = {name: getattr(measured, name) for name in names} | {"runs": runs}
    return _laid_out(plain, LINES_DEEP) + "\n"


def parsed(text: str, outcome: type[Outcome] = Outcome) -> Measured:
    """What ``text`` was made of, as far as it was kept. ``outcome``: what was taken down of each run."""
    plain = json.loads(text)
    if "absent" not in plain:  # of an older version of the benchmark: nothing is added to it
        return Measured("", plain["machine"], {}, {})
    results = {
        int(ranks): {
            scenario: {name: [outcome(**one) for one in outcomes] for name, outcomes in sides.items()}
            for scenario, sides in scenarios.items()
        }
        for ranks, scenarios in plain["runs"].items()
    }
    return Measured(plain["code"], plain["machine"], plain["notes"], results, plain["absent"])


def _plain(one: Outcome) -> dict[str, Any]:
    """Without what says nothing, and with times as exact as they are told."""
    usual = vars(type(one)(None))
    return {
        name: _rounded(value)
        for name, value in vars(one).items()
        if name == "seconds" or value != usual[name]
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, DIGITS) if isinstance(value, float) else value


def _laid_out(value: Any, deep: int, indent: str = "") -> str:
    """JSON with a line for each item of the upper levels; what is deeper stands in its item's line."""
    if not deep or not value or not isinstance(value, dict | list):
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_laid_out(one, deep - 1, inner)}" for name, one in value.items()]
    else:
        items = [_laid_out(one, deep - 1, inner) for one in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + ",".join(f"\n{inner}{item}" for item in items) + f"\n{indent}{end}"
