"""PURE: from the words of ``rtj simulate`` to the cells of its table."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.decide.assign import gpus_per_worker
from resumable_operator.model import Checkpoint, JobSpec
from resumable_operator.simulate.failures import Failure, Machines, Process, Racks, SpotWaves, Trace
from resumable_operator.simulate.grid import Cell
from resumable_operator.simulate.parameters import (
    STAGES,
    Costs,
    Parameters,
    Restart,
    auto_memory_every,
    make_spec,
)
from resumable_training.contract.codec import ContractError, plain_from_json

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
AUTO = "auto"
MACHINE_MTBF = "264d"  # 419 unexpected interruptions of 2,048 machines in 54 days (Llama 3, section 3.3.4)
AXES = (
    *("workers", "spares", "interval", "blocking", "durable", "mtbf", "machine_mtbf"),
    *("restart", "replace", "notice", "memory_every"),
)
_VARIED_COSTS = ("blocking", "durable", "replace")
MOST_CELLS = 1000
MOST_MACHINES = 10_000  # more take days to simulate
LONGEST_SECONDS = 10_000 * 365.25 * 86_400
SHORTEST_MTBF = 10  # seconds; a life under more failures takes for ever, and comes to nothing
SHORTEST_STEP = 0.001  # a life is reckoned in whole milliseconds
LONGEST_TEXT = 60
GPUS = 8  # of a machine, where nothing says otherwise


@dataclass(frozen=True)
class Wish:
    """The command line. ``axes``: comma-separated values by name; durations as text, with a unit.

    ``measured``: of a run, under the names of ``Costs`` and ``Restart``, and ``interval``, ``mtbf``.
    """

    spec: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    least: int | None = None
    gpus: int | None = None
    measured_gpus: int | None = None  # of a worker of the run that was measured; 0: its spec asks for none
    days: float = 30.0
    shape: float | None = None
    in_place: float | None = None
    racks: str | None = None
    spot: str | None = None
    trace: Trace | None = None


def seconds(text: str, what: str) -> float:
    """``90``, ``90s``, ``1.5h``, ``30d`` in seconds; a bare number is seconds.

    Raises:
        UsageProblem: it is none of these.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise UsageProblem(f"{what}: '{shorten(text)}' is not a time such as 90s, 15m, 2h or 30d")
    value = float(found[1]) * _UNITS[found[2]]
    if value > LONGEST_SECONDS:
        raise UsageProblem(f"{what}: '{shorten(text)}' is more than 10,000 years")
    return value


def shorten(text: str) -> str:
    """For a message: no longer than a line."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def cells_of(wish: Wish) -> list[Cell]:
    """One for each combination of the values that were given.

    Raises:
        UsageProblem: a value makes no sense.
        SpecError: workers, min, spares and the spec do not go together.
    """
    lists = {name: [part.strip() for part in text.split(",")] for name, text in wish.axes.items()}
    count = 1
    for name, values in lists.items():
        if not all(values):
            raise UsageProblem(f"--{name.replace('_', '-')}: give values between the commas")
        count *= len(values)
    if count > MOST_CELLS:
        raise UsageProblem(f"{count} combinations are too many for one table; at most {MOST_CELLS}")
    varied = [name for name, values in lists.items() if len(values) > 1]
    cells = []
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        cells.append(_cell(wish, chosen, {name: chosen[name] for name in varied}))
    if "copy" in wish.costs and not any(cell.parameters.memory_every for cell in cells):
        raise UsageProblem("--copy is that of a copy in memory, and none is made: give --memory-every too")
    return cells


def _cell(wish: Wish, chosen: Mapping[str, str], shown: Mapping[str, str]) -> Cell:
    spec = make_spec(wish.spec, _whole(chosen, "workers"), wish.least, _whole(chosen, "spares"))
    costs = _costs(wish, chosen)
    parameters = Parameters(
        spec=spec,
        costs=costs,
        interval=_interval(chosen, spec.checkpoint, costs.step),
        gpus_per_worker=_gpus(wish, spec),
        days=wish.days,
        memory_every=_memory_every(chosen, spec.checkpoint, costs),
    )
    machine_mtbf = _machine_mtbf(wish, chosen, spec.workers.replicas)
    processes = tuple(_processes(wish, chosen, machine_mtbf))
    alone = machine_mtbf is not None and len(processes) == 1 and wish.shape in (None, 1.0)
    mtbf = machine_mtbf / spec.workers.replicas if alone and machine_mtbf is not None else None
    return Cell(dict(shown), parameters, processes, mtbf)


def _gpus(wish: Wish, spec: JobSpec) -> int:
    """Of a machine. A template without GPUs is a word about them; no template is none."""
    if wish.gpus is not None:
        return wish.gpus
    if spec.template:
        return gpus_per_worker(spec)
    return GPUS if wish.measured_gpus is None else wish.measured_gpus


def _whole(chosen: Mapping[str, str], name: str) -> int | None:
    text = chosen.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        raise UsageProblem(f"--{name}: '{shorten(text)}' is not a whole number")
    if name == "workers" and set(text) == {"0"}:
        raise UsageProblem("--workers: give 1 or more")
    if len(text) > 9 or int(text) > MOST_MACHINES:
        raise UsageProblem(f"--{name}: {shorten(text)} are too many to simulate; at most {MOST_MACHINES}")
    return int(text)


def _costs(wish: Wish, chosen: Mapping[str, str]) -> Costs:
    texts = {**wish.costs, **{name: chosen[name] for name in _VARIED_COSTS if name in chosen}}
    given = {name: seconds(text, f"--{name}") for name, text in texts.items()}
    restart = Restart(**{name: given[name] for name in STAGES if name in given})
    if "restart" in chosen:
        restart = restart.scaled(seconds(chosen["restart"], "--restart"))
    own = {name: value for name, value in given.items() if name not in STAGES}
    costs = Costs(**own, restart=restart)
    if costs.step < SHORTEST_STEP:
        raise UsageProblem("--step: a step takes 1 ms or more; for shorter ones give several as one")
    return costs


def _interval(chosen: Mapping[str, str], checkpoint: Checkpoint, step: float) -> float | Literal["auto"]:
    text = chosen.get("interval")
    if text is None:
        return _interval_of_spec(checkpoint, step)
    if text == AUTO:
        return "auto"
    found = seconds(text, "--interval")
    if found <= 0:
        raise UsageProblem("--interval: give a time above 0, or auto")
    return found


def _memory_every(chosen: Mapping[str, str], checkpoint: Checkpoint, costs: Costs) -> int:
    """Steps between copies in memory; 0: none. ``auto``: as often as they take 1 % of training."""
    text = chosen.get("memory_every", str(checkpoint.memory_every_steps or 0))
    if text == AUTO:
        return auto_memory_every(costs.step, costs.copy_seconds)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageProblem(f"--memory-every: '{shorten(text)}' is not a number of steps, 0 for none, or auto")
    return int(text)


def _interval_of_spec(checkpoint: Checkpoint, step: float) -> float | Literal["auto"]:
    interval = checkpoint.interval
    if interval == "auto":
        return "auto"
    by_steps = interval.steps * step if interval.steps else None
    given = (by_steps, interval.seconds, checkpoint.max_interval_seconds)
    return min(value for value in given if value)


def _machine_mtbf(wish: Wish, chosen: Mapping[str, str], replicas: int) -> float | None:
    """Of one machine; None: machines do not fail by themselves."""
    if "mtbf" in chosen and "machine_mtbf" in chosen:
        raise UsageProblem("--mtbf (of the whole job) and --machine-mtbf exclude each other")
    if "mtbf" in chosen:
        return replicas * _mtbf(chosen["mtbf"], "--mtbf")
    if "machine_mtbf" in chosen:
        return _mtbf(chosen["machine_mtbf"], "--machine-mtbf")
    if wish.trace is not None or wish.racks or wish.spot:
        return None
    return seconds(MACHINE_MTBF, "")


def _processes(wish: Wish, chosen: Mapping[str, str], machine_mtbf: float | None) -> Iterator[Process]:
    if machine_mtbf is not None:
        yield Machines(machine_mtbf, wish.shape or 1.0, wish.in_place or 0.0)
    elif wish.shape is not None or wish.in_place is not None:
        raise UsageProblem(
            "--weibull and --in-place are of machines that fail: give --mtbf or --machine-mtbf"
        )
    if wish.racks:
        size, mtbf = _parts(wish.racks, "--racks", "SIZE:MTBF", 2, 2)
        if not re.fullmatch(r"[1-9][0-9]*", size):
            raise UsageProblem(f"--racks: '{size}' is not a number of machines")
        yield Racks(int(size), _mtbf(mtbf, "--racks"))
    if wish.spot:
        yield _waves(wish.spot, chosen)
    elif "notice" in chosen:
        raise UsageProblem("--notice is that of a spot wave: give --spot too; in a trace it is a field")
    if wish.trace is not None:
        yield wish.trace


def _waves(text: str, chosen: Mapping[str, str]) -> SpotWaves:
    mtbf, share, *rest = _parts(text, "--spot", "MTBF:SHARE[:LASTS]", 2, 3)
    try:
        taken = float(share)
    except ValueError:
        taken = -1.0
    if not 0 < taken <= 1:
        raise UsageProblem(f"--spot: '{share}' is not a share of the machines between 0 and 1, such as 0.25")
    waves = SpotWaves(_mtbf(mtbf, "--spot"), taken)
    if rest:
        waves = replace(waves, lasts=seconds(rest[0], "--spot"))
    if "notice" in chosen:
        waves = replace(waves, notice=seconds(chosen["notice"], "--notice"))
    return waves


def _parts(text: str, what: str, form: str, least: int, most: int) -> list[str]:
    parts = text.split(":")
    if not least <= len(parts) <= most:
        raise UsageProblem(f"{what}: '{text}' is not {form}")
    return parts


def _mtbf(text: str, what: str) -> float:
    found = seconds(text, what)
    if found < SHORTEST_MTBF:
        raise UsageProblem(f"{what}: a mean time between failures must be {SHORTEST_MTBF} s or more")
    return found


# ---- a trace -----------------------------------------------------------------------------------------------


def read_trace(text: str, name: str) -> Trace:
    """Failures from JSON lines, or CSV with a header line: the same fields in both.

    ``at`` (seconds from the start), ``machines`` (one number or, in CSV, several with spaces between; in JSON
    a list), and if wanted ``notice``, ``back`` (seconds) and ``inPlace`` (true: the machine stays good).

    Raises:
        UsageProblem: names the line that is wrong.
    """
    text = text.removeprefix("\ufeff")  # as some editors begin their files
    if text.lstrip().startswith("["):
        raise UsageProblem(f"{name} is one JSON list: give an object on each line, without brackets around")
    rows = _json_rows(text, name) if text.lstrip().startswith("{") else _csv_rows(text, name)
    found = []
    for line, row in rows:
        try:
            found.append(_failure(row))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageProblem(f"{name}, line {line}: {_why(error)}") from error
    if not found:
        raise UsageProblem(f"{name} holds no failure")
    return Trace(tuple(found))


def _json_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = plain_from_json(line)
        except ContractError as error:
            raise UsageProblem(f"{name}, line {number}: {error}") from error
        if not isinstance(row, dict):
            raise UsageProblem(f"{name}, line {number}: not an object")
        yield number, row


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    try:
        for row in reader:
            if None in row:
                raise UsageProblem(f"{name}, line {reader.line_num}: more fields than the header has")
            yield reader.line_num, {key: value for key, value in row.items() if key and value}
    except csv.Error as error:
        raise UsageProblem(f"{name}, line {reader.line_num}: not CSV: {error}") from error


_FIELDS = ("at", "machines", "notice", "back", "inPlace")


def _failure(row: Mapping[str, Any]) -> Failure:
    unknown = sorted(set(row) - set(_FIELDS))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]}; known are {', '.join(_FIELDS)}")
    back = row.get("back")
    found = Failure(
        at=_number(row, "at"),
        slots=_slots(row["machines"]),
        kind="trace",
        notice=_number(row, "notice") if "notice" in row else 0.0,
        in_place=_truth(row.get("inPlace", False)),
        back=None if back is None else _number(row, "back"),
    )
    if not found.slots:
        raise ValueError("machines is empty")
    return found


def _number(row: Mapping[str, Any], name: str) -> float:
    found = float(row[name])
    if not 0 <= found <= LONGEST_SECONDS:
        raise ValueError(f"{name} must be a time of 0 s or more, not {shorten(str(row[name]))}")
    return found


def _slots(value: Any) -> tuple[int, ...]:
    parts = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
    if any(isinstance(part, (bool, float)) for part in parts):
        raise ValueError("machines are whole numbers")
    found = tuple(int(part) for part in parts)
    if any(slot < 0 for slot in found):
        raise ValueError("machines are numbered from 0")
    return tuple(dict.fromkeys(found))


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError(f"inPlace must be true or false, not {value}")


def _why(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
