"""``rtj simulate``: from the command line to a table, JSON, CSV and a picture."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from run_samples import SPEC, STATUS

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.main import cli
from resumable_operator.cli.simulate_input import Wish, cells_of, read_trace, seconds
from resumable_operator.simulate.account import LOSSES
from resumable_operator.simulate.failures import Failure, Machines, Racks, SpotWaves

QUICK = ("--days", "0.5", "--seeds", "2", "--processes", "1")
JOB = """
apiVersion: resumable.dev/v1alpha1
kind: ResumableTrainingJob
metadata: {name: gpt}
spec:
  workers: {replicas: 6, min: 3, spares: 1}
  checkpoint: {interval: {steps: 100, seconds: 300}, maxIntervalSeconds: 60}
  template:
    spec:
      containers:
      - {name: worker, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 4}}}
"""


def simulate(*arguments: str, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["simulate", *QUICK, *arguments])
    assert result.exit_code == code, result.output
    return result


def cells(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(simulate("--json", *arguments).stdout)["cells"]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("15m", 900),
        ("30d", 2_592_000),
        ("250ms", 0.25),
        ("2 h", 7200),
    ],
)
def test_times_have_units(text: str, expected: float) -> None:
    """A bare number is seconds."""
    assert seconds(text, "--x") == expected


@pytest.mark.parametrize("text", ["", "fast", "-3s", "5 parsecs", "1e3", "3h2m"])
def test_other_times_are_refused(text: str) -> None:
    """The message names the option and shows what a time looks like."""
    with pytest.raises(UsageProblem, match=r"--x: .* such as 90s, 15m, 2h or 30d"):
        seconds(text, "--x")


def test_each_combination_is_a_row_under_the_same_failures() -> None:
    """Two intervals by three numbers of spares; rows of one M meet equally many failures."""
    found = cells("--workers", "2", "--mtbf", "1h", "--interval", "5m,auto", "--spares", "0,1,2")
    axes = [tuple(cell["axes"].values()) for cell in found]
    assert axes == [(spares, interval) for spares in ("0", "1", "2") for interval in ("5m", "auto")]
    assert found[0]["interruptions"] == found[1]["interruptions"]
    by_formula = [cell["runtimeByFormula"] for cell in found]
    assert [value is None for value in by_formula] == [False, True] * 3
    assert all(0 < cell["goodput"]["mean"] < 1 for cell in found)
    assert all(set(cell["lostGpuHoursADay"]) == set(LOSSES) for cell in found)


def test_the_same_command_gives_the_same_numbers_on_any_number_of_cores() -> None:
    """A plan can be checked by somebody else."""
    line = ("--workers", "2", "--mtbf", "1h", "--in-place", "0.5")
    assert cells(*line) == cells(*line, "--processes", "2")
    assert cells(*line) != cells(*line, "--seed", "7")


def test_the_table_says_what_was_simulated_and_what_was_best() -> None:
    """For people: the numbers that all rows share, one row each, what was lost to what, the best one."""
    output = simulate("--workers", "4", "--spares", "0,2", "--machine-mtbf", "1d").output
    flat = " ".join(output.split())
    assert "4 workers of 8 GPUs" in flat
    assert "a machine fails every 1 d 00 h, so the job every 6 h 00 min" in flat
    assert "Varied below: spares" in flat
    assert "GPU-hours lost a day, by cause" in flat
    assert "highest goodput: spares" in flat
    assert "most new steps for the GPUs: spares 0" in flat


def test_a_job_that_gives_up_is_said(tmp_path: Path) -> None:
    """The budgets of the spec hold in the simulation too, and why one is spent is shown."""
    output = simulate("--workers", "1", "--mtbf", "5m", "--interval", "1h", "--in-place", "1").output
    told = "2 of 2 lives gave up: 5 endings without a new checkpoint between them"
    assert told in " ".join(output.split())
    assert "spent by" not in output


def test_copies_in_memory_help_where_ranks_die_and_machines_stay() -> None:
    """Each row names its steps between copies; where every failure takes a machine it says that none help."""
    line = ("--workers", "2", "--mtbf", "1h", "--interval", "30m", "--blocking", "1s", "--durable", "5s")
    axis = ("--memory-every", "0,100,auto", "--copy", "200ms")
    never, often, auto = cells(*line, *axis, "--in-place", "1")
    assert never["goodput"]["mean"] < often["goodput"]["mean"] < auto["goodput"]["mean"]
    assert (never["runtimeByFormula"] is None, often["runtimeByFormula"]) == (False, None)
    assert [cell["notes"] for cell in (never, often, auto)] == [[], [], []]
    output = " ".join(simulate(*line, "--memory-every", "auto").output.split())
    assert "a copy in memory every 100 steps takes 1.0 s" in output  # as a save stops training
    assert "copies in memory gain nothing: no failure leaves the machines good (--in-place)" in output


def test_what_copies_take_and_what_auto_came_to_is_told(tmp_path: Path) -> None:
    """Also where the first row makes none; in the table, as JSON and as CSV."""
    table = tmp_path / "a.csv"
    line = ("--workers", "2", "--mtbf", "1h", "--in-place", "1", "--blocking", "1s", "--days", "0.05")
    axis = ("--memory-every", "0,auto", "--copy", "200ms", "--csv", str(table))
    output = " ".join(simulate(*line, *axis).output.split())
    assert "a copy in memory takes 200 ms; restart" in output
    assert "memory every auto (20): " in output
    assert output.count(" auto (20) ") == 2  # a row in each table
    found = cells(*line, *axis)
    assert [(cell["memoryEverySteps"], cell["copySeconds"]) for cell in found] == [(0, None), (20, 0.2)]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    told = [(row["memory_every"], row["memory_every_steps"], row["copy_seconds"]) for row in rows]
    assert told == [("0", "0", ""), ("auto", "20", "0.200000")]
    alone = " ".join(simulate(*line, "--memory-every", "0").output.split())
    assert "a copy in memory" not in alone


def test_a_job_file_says_how_often_it_copies(tmp_path: Path) -> None:
    """As the spec has it: a number of steps, or auto; options overrule it."""
    spec = {"workers": {"replicas": 1}, "checkpoint": {"memoryEverySteps": 7}}
    told = [({}, 7), ({"memory_every": "0"}, 0), ({"memory_every": "auto"}, 500)]
    for axes, steps in told:
        (cell,) = cells_of(Wish(spec=spec, axes=axes))
        assert cell.parameters.memory_every == steps
    spec = {"workers": {"replicas": 1}, "checkpoint": {"memoryEverySteps": "auto"}}
    (cell,) = cells_of(Wish(spec=spec, costs={"copy": "30ms", "step": "500ms"}))
    assert cell.parameters.memory_every == 6


def test_a_job_file_gives_its_numbers(tmp_path: Path) -> None:
    """Workers, smallest size, spares; of steps, seconds and the longest interval the earliest counts."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    (found,) = cells(str(path), "--step", "2s", "--mtbf", "2h")
    assert found["intervalSeconds"] == 60.0
    output = " ".join(simulate(str(path), "--mtbf", "2h").output.split())
    assert "6 workers of 4 GPUs (down to 3), 1 spare" in output


def test_beside_a_job_file_a_run_gives_costs_alone(run, rtj, tmp_path: Path) -> None:
    """The file says how large the job is to be, and how often it saves."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    line = ("simulate", *QUICK, path, "--from-run", run.path, "--machine-mtbf", "10d")
    told = " ".join(rtj(*line).output.split())
    assert "6 workers of 4 GPUs (down to 3), 1 spare" in told
    assert "a save stops training for 107 ms" in told
    assert "interval 40.0 s" in told


def test_a_run_gives_what_it_has_measured(run, rtj) -> None:
    """Size, step, save, restart by stage, interval and MTBF of a run directory; options overrule them."""
    told = " ".join(rtj("simulate", *QUICK, "--days", "0.05", "--from-run", run.path).output.split())
    assert "3 workers (down to 1)" in told
    assert "a save stops training for 107 ms, durable after 200 ms" in told
    assert "detect 400 ms, setup 6.2 s" in told
    assert "so the job every 30 min 50 s" in told
    other = ("--workers", "6", "--machine-mtbf", "1d", "--blocking", "3s")
    told = " ".join(rtj("simulate", *QUICK, "--days", "0.05", "--from-run", run.path, *other).output.split())
    assert "6 workers (down to 6)" in told
    assert "a save stops training for 3.0 s" in told
    assert "so the job every 4 h 00 min" in told


def test_what_a_run_has_not_measured_is_said(run, rtj) -> None:
    """A usual value is not to be taken for a measured one; an option makes it neither."""
    line = ("simulate", *QUICK, "--days", "0.05", "--from-run", run.path)
    told = " ".join(rtj(*line).output.split())
    assert "not measured by the run, so usual values are taken: rendezvous, restore, warmup, resch" in told
    assert "rendezvous 10.0 s" in told
    given = ("--rendezvous", "1s", "--warmup", "1s", "--reschedule", "1s", "--json")
    assert json.loads(rtj(*line, *given).output)["notMeasured"] == ["restore", "replace"]
    run.status(STATUS.model_copy(update={"interruptions": (), "interruption_counts": {}}))
    names = json.loads(rtj(*line, *given).output)["notMeasured"]
    assert names == ["detect", "restore", "replace", "machine MTBF"]
    assert "not measured" not in simulate("--workers", "1").output


@pytest.mark.parametrize(("every", "steps"), [(1, 1), ("auto", 27)])
def test_a_run_that_copies_in_memory_is_simulated_so(run, rtj, every: int | str, steps: int) -> None:
    """As often as its spec has it; what a copy takes was not measured, and is said. An option overrules."""
    run.job({**SPEC, "checkpoint": {"memoryEverySteps": every}})
    line = ("simulate", *QUICK, "--days", "0.05", "--from-run", run.path, "--json")
    told = json.loads(rtj(*line).output)
    assert [cell["memoryEverySteps"] for cell in told["cells"]] == [steps]
    assert "copy" in told["notMeasured"]
    told = json.loads(rtj(*line, "--copy", "2ms", "--memory-every", "5").output)
    assert [cell["memoryEverySteps"] for cell in told["cells"]] == [5]
    assert "copy" not in told["notMeasured"]
    told = json.loads(rtj(*line, "--memory-every", "0").output)
    assert "copy" not in told["notMeasured"]


def test_without_gpus_hours_are_those_of_workers(run, rtj, tmp_path: Path) -> None:
    """Nobody buys GPUs for a job whose template asks for none."""
    line = ("simulate", *QUICK, "--days", "0.05", "--from-run", run.path)
    told = " ".join(rtj(*line, "--interval", "1m,2m").output.split())
    assert "3 workers (down to 1)" in told
    assert "worker-hours lost a day, by cause" in told
    assert "most new steps for the workers" in told
    assert "GPU" not in told
    assert "GPU-hours lost a day" in rtj(*line, "--gpus", "2").output
    path, picture = tmp_path / "job.yaml", tmp_path / "a.svg"
    path.write_text(JOB.replace(", resources: {limits: {nvidia.com/gpu: 4}}", ""))
    assert "6 workers (down to 3)" in simulate(str(path), "--plot", str(picture)).output
    assert "worker-hours lost" in picture.read_text()
    assert [cell["hoursOf"] for cell in (*cells(str(path)), *cells("--workers", "2"))] == ["worker", "GPU"]


def test_an_interval_that_saves_cannot_follow_is_said() -> None:
    """One has to be durable before the next: T and the formula are those that it lives by."""
    line = ("--workers", "2", "--mtbf", "2h", "--blocking", "5s", "--durable", "10m")
    short, long = cells(*line, "--interval", "1m,20m")
    assert (short["intervalSeconds"], long["intervalSeconds"]) == (595.0, 1200.0)
    (same,) = cells(*line, "--interval", "595s")
    assert short["runtimeByFormula"] == same["runtimeByFormula"]
    assert ([len(cell["notes"]) for cell in (short, long, same)]) == [1, 0, 0]
    output = " ".join(simulate(*line, "--interval", "1m,20m").output.split())
    assert "interval 1m: saves come less often than every 60.0 s: bounded by the time a save needs" in output


def test_failures_of_machines_that_are_not_there_are_said(tmp_path: Path) -> None:
    """With the row that lacks them, and what it has."""
    path = tmp_path / "trace.csv"
    path.write_text("at,machines\n3600,0\n7200,2\n9000,7\n")
    output = " ".join(simulate("--workers", "2", "--spares", "0,1", "--trace", str(path)).output.split())
    assert "1 failure from the trace" in output
    assert "spares 0: 2 failures of the trace left out: this job has machines 0 to 1" in output
    assert "spares 1: 1 failure of the trace left out: this job has machines 0 to 2" in output


def test_lives_and_days_are_counted_in_good_grammar() -> None:
    """One is no plural."""
    output = simulate("--workers", "1").output
    assert "2 lives of 0.5 days" in " ".join(output.split())
    one = simulate("--seeds", "1", "--days", "1", "--workers", "1").output
    assert " ".join(one.split()).partition(" Goodput in %")[0].endswith("; 1 life of 1 day")


def test_csv_and_picture(tmp_path: Path) -> None:
    """Written beside the table: every number, and an SVG that needs nothing else."""
    table, picture = tmp_path / "a.csv", tmp_path / "a.svg"
    line = ("--workers", "2", "--mtbf", "2h", "--interval", "5m,10m,auto", "--restart", "1m,5m")
    simulate(*line, "--csv", str(table), "--plot", str(picture))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["interval"] for row in rows] == ["5m", "5m", "10m", "10m", "auto", "auto"]
    assert all(0 < float(row["goodput"]) < 1 for row in rows)
    root = ET.fromstring(picture.read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Goodput", "5m", "auto", "restart 1m", "restart 5m", "saves"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
    assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "")


CSV_TRACE = "at,machines,notice,back,inPlace\n60,0 2,,,\n90.5,1,120,600,\n100,3,,,true\n"
JSON_TRACE = (
    '{"at": 60, "machines": [0, 2]}\n\n{"at": 90.5, "machines": 1, "notice": 120, "back": 600}\n'
    '{"at": 100, "machines": [3], "inPlace": true}\n'
)


@pytest.mark.parametrize(
    "text",
    [CSV_TRACE, JSON_TRACE, "\ufeff" + CSV_TRACE.replace("\n", "\r\n"), "\ufeff" + JSON_TRACE],
    ids=["csv", "json lines", "csv of another system", "json lines of it"],
)
def test_a_trace(text: str) -> None:
    """The same failures in both forms."""
    assert read_trace(text, "t").failed == (
        Failure(60.0, (0, 2), "trace"),
        Failure(90.5, (1,), "trace", notice=120.0, back=600.0),
        Failure(100.0, (3,), "trace", in_place=True),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "t holds no failure"),
        ("at,machines\n", "t holds no failure"),
        ("at,machines\nsoon,1\n", "t, line 2: could not convert"),
        ("at,machines\n5\n", "t, line 2: machines is missing"),
        ("at,machines\n-5,1\n", "t, line 2: at must be a time"),
        ("at,machines\n5,-1\n", "t, line 2: machines are numbered from 0"),
        ("at,machines,when\n5,1,x\n", "t, line 2: unknown field when; known are at, machines"),
        ('{"at": 1, "machines": []}', "t, line 1: machines is empty"),
        ('{"at": 1, "machines": 1, "inPlace": "perhaps"}', "t, line 1: inPlace must be true or false"),
        ('{"at": 1', "t, line 1: not valid JSON"),
        ('{"at": 1e999, "machines": 0}', "t, line 1: not valid JSON: 1e999 is no finite number"),
        ('{"at": NaN, "machines": 0}', "t, line 1: not valid JSON: NaN is no finite number"),
        ('{"at": 1, "machines": ' + "[" * 100_000, "t, line 1: not valid JSON"),
        ('{"at": 1, "machines": 1.5}', "t, line 1: machines are whole numbers"),
        ('{"at": 1, "machines": true}', "t, line 1: machines are whole numbers"),
        ('{"at": 1, "machines": null}', "t, line 1: int"),
        ('[{"at": 1, "machines": 0}]', "t is one JSON list: give an object on each line"),
        ("at,machines\n5,1,2\n", "t, line 2: more fields than the header has"),
        ("at,machines\nnan,1\n", "t, line 2: at must be a time"),
        ("at,machines\n1e300,1\n", "t, line 2: at must be a time"),
        ("at,machines\n5,1.5\n", "t, line 2: invalid literal"),
        ("at;machines\n5;1\n", "t, line 2: unknown field"),
        ("\0\0\n\0", "t, line"),
        ('{"at": 1, "machines": 0}\n[]', "t, line 2: not an object"),
    ],
)
def test_a_bad_trace_names_its_line(text: str, why: str) -> None:
    """And what is wrong with it."""
    with pytest.raises(UsageProblem, match=why):
        read_trace(text, "t")


def test_a_trace_replaces_the_failures_of_machines(tmp_path: Path) -> None:
    """Only what was written down happens, unless a rate is given as well."""
    path = tmp_path / "trace.csv"
    path.write_text("at,machines\n3600,0\n7200,1\n")
    (found,) = cells("--workers", "2", "--trace", str(path))
    assert found["interruptions"] == {"node_lost": 4}  # of two lives
    (more,) = cells("--workers", "2", "--trace", str(path), "--mtbf", "1h")
    assert more["interruptions"]["node_lost"] > 8


def test_processes_from_the_command_line() -> None:
    """Racks and waves beside machines; notice is an axis like the others."""
    wish = Wish(
        axes={"workers": "4", "mtbf": "2h", "notice": "30s"}, racks="2:30d", spot="1d:0.25:2h", shape=0.7
    )
    (cell,) = cells_of(wish)
    assert cell.processes == (
        Machines(8 * 3600.0, 0.7),
        Racks(2, 30 * 86_400.0),
        SpotWaves(86_400.0, 0.25, 30.0, 7200.0),
    )
    assert cell.formula() is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--interval", "5m,,10m"), "--interval: give values between the commas"),
        (("--interval", "0"), "--interval: give a time above 0"),
        (("--mtbf", "1h", "--machine-mtbf", "1d"), "exclude each other"),
        (("--mtbf", "0"), "--mtbf: a mean time between failures must be 10 s or more"),
        (("--machine-mtbf", "0s"), "--machine-mtbf: a mean time between failures must be 10 s or more"),
        (("--racks", "1:9s"), "--racks: a mean time between failures must be 10 s or more"),
        (("--spot", "1ms:0.5"), "--spot: a mean time between failures must be 10 s or more"),
        (("--workers", "0"), "--workers: give 1 or more"),
        (("--workers", "4,0"), "--workers: give 1 or more"),
        (("--plot", "a.png"), "--plot draws SVG: 'a.png' must end in .svg"),
        (("--workers", "many"), "--workers: 'many' is not a whole number"),
        (("--workers", "4", "--min", "5"), "spec.workers"),
        (("--racks", "4"), "--racks: '4' is not SIZE:MTBF"),
        (("--spot", "1d:25"), "is not a share of the machines"),
        (("--weibull", "0.7", "--spot", "1d:0.5"), "--weibull and --in-place are of machines that fail"),
        (("--memory-every", "-1"), "--memory-every: '-1' is not a number of steps, 0 for none, or auto"),
        (("--memory-every", "5m"), "--memory-every: '5m' is not a number of steps"),
        (("--notice", "2m"), "--notice is that of a spot wave"),
        (("--copy", "3s"), "--copy is that of a copy in memory, and none is made: give --memory-every too"),
        (("--copy", "3s", "--memory-every", "0"), "give --memory-every too"),
        (("-n", "team"), "are for --from-run of a job in a cluster"),
        (("--step", "0"), "a step takes 1 ms or more"),
        (("--step", "0.9ms"), "a step takes 1 ms or more"),
        (("--days", "nan"), "--days': nan is not a number"),
        (("--days", "inf"), "--days"),
        (("--weibull", "nan"), "--weibull': nan is not a number"),
        (("--in-place", "nan", "--mtbf", "1h"), "--in-place': nan is not a number"),
        (("--mtbf", "nan"), "--mtbf: 'nan' is not a time"),
        (("--mtbf", "-1h"), "--mtbf: '-1h' is not a time"),
        (("--mtbf", "9" * 400), "is more than 10,000 years"),
        (("--interval", "9" * 20), "is more than 10,000 years"),
        (("--replace", "10001y"), "is not a time"),
        (("--restart", "\u0661m"), "is not a time"),
        (("--racks", "1e3:1d"), "'1e3' is not a number of machines"),
        (("--spot", "1d:nan"), "is not a share of the machines"),
        (("--workers", "1000000"), "1000000 are too many to simulate"),
        (("--workers", "1" * 5000), "are too many to simulate"),
        (("--spares", "\u0661"), "is not a whole number"),
        (("--seeds", "0"), "--seeds"),
        (("--processes", "0"), "--processes"),
        (("--trace", "nowhere.csv"), "nowhere.csv: no such file"),
        (("--plot", "no/such/place.svg"), "cannot write no/such/place.svg"),
        (("--csv", "no/such/place.csv", "--days", "3650"), "cannot write no/such/place.csv"),
        (("--spares", ",".join(str(n) for n in range(1001))), "too many for one table"),
        (("nowhere.yaml",), "nowhere.yaml: no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], why: str) -> None:
    """As a usage error, with the option and what to do."""
    assert why in " ".join(simulate(*arguments, code=2).output.split())
