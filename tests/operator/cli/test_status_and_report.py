"""`rtj status` and `rtj report` over run directories, for people and for programs."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from rich.console import Console
from run_samples import BEGIN, SPEC, STATUS

from resumable_operator.cli.rundir import JobFile, RunDir
from resumable_operator.cli.status import render
from resumable_operator.cli.status_model import StatusView, budgets_left, build_view
from resumable_operator.model import BudgetStatus, JobSpec, JobStatus, RecoveryStatus

COMMANDS = ("status", "report")
JOB = JobFile("local", "train", "u-1", 0.0, {})


def shown(view: StatusView) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(render(view))
    return file.getvalue()


def test_status_tells_what_why_and_what_was_lost(run, rtj) -> None:
    """One look answers: what is it doing, how far is it, what happened last, how much may still go wrong."""
    result = rtj("status", run.path)
    assert result.exit_code == 0
    for text in (
        "train  Cut off: its last word was Running: all 3 workers train",
        "3 (running when it was cut off), world size 3",
        "0 of 3 workers, 3 when it was cut off; allowed 1-4",
        "200, 400 ms a step",
        "2.346",
        "step 190 (step-00000190.3), 12.5 MB, 5.0 s before it stopped, stopped training for 120 ms",
        "80.0 % = scheduling 99.0 % x runtime 80.8 %",
        "user error 3 of 3, infrastructure 99 of 100, preemption 1000 of 1000, without progress 4 of 5",
        "node_lost 1, scale 1",
        "Valid=True (Accepted)",
        "last interruption: node_lost, attempt 1, 59.6 s before it stopped",
        "train-1-1 rank 1: worker train-1-1 is gone (killed by SIGKILL)",
        "detected after 400 ms, recovered after 5.6 s, 4 steps done again",
        "| Traceback [not markup]",
    ):
        assert text in result.output


def test_status_says_whether_anybody_runs_it(run, rtj) -> None:
    """An abandoned run looks like a running one in its files; the lock tells."""
    assert (
        "nobody runs it now; the same `rtj run` command line continues it" in rtj("status", run.path).output
    )
    with run.owned():
        assert "process " in rtj("status", run.path).output
    run.status(JobStatus(phase="Succeeded", finished_at=5.0))
    assert "run           ended" in rtj("status", run.path).output


def test_a_run_that_goes_on_is_told_as_it_is(run, rtj) -> None:
    """Phase, attempt and size are of now."""
    with run.owned():
        output = rtj("status", run.path).output
    for text in (
        "train  Running: all 3 workers train",
        "3 (running), world size 3",
        "3 of 3 workers; allowed 1-4",
    ):
        assert text in output


@pytest.mark.parametrize(
    ("changes", "owned", "cut_off"),
    [
        pytest.param({}, False, True, id="killed"),
        pytest.param({}, True, False, id="running"),
        pytest.param({"phase": "Suspended"}, False, False, id="drained"),
        pytest.param({"phase": "Failed", "finished_at": BEGIN + 100}, False, False, id="ended"),
    ],
)
def test_how_a_run_stands_is_told_alike_everywhere(
    run, rtj, changes: dict[str, Any], owned: bool, cut_off: bool
) -> None:
    """By status, report and page; for programs the phase is as stored, and beside it whether it holds."""
    status = STATUS.model_copy(update=changes)
    run.status(status)
    stands = f"its last word was {status.phase}: {status.reason}" if cut_off else status.reason
    word = "Cut off" if cut_off else status.phase
    with run.owned() if owned else nullcontext():
        for command in COMMANDS:
            assert f"train  {word}: {stands}\n" in rtj(command, run.path, columns=200).output
        assert re.search(f">{word}</span> {stands}<", rtj("report", run.path, "--html", "-").output)
        view, report = (json.loads(rtj(command, run.path, "--json").output) for command in COMMANDS)
    assert (view["status"]["phase"], view["cutOff"]) == (status.phase, cut_off)
    assert (report["phase"], report["reason"], report["cutOff"]) == (status.phase, status.reason, cut_off)


def test_what_was_cut_off_without_a_reason_has_none(run, rtj) -> None:
    """Nothing had been said yet."""
    run.status(JobStatus())
    for command in COMMANDS:
        assert "train  Cut off: its last word was Pending\n" in rtj(command, run.path).output


def test_what_will_not_be_recovered_is_not_awaited(run, rtj) -> None:
    """The ending that a job failed with has no recovery to come."""
    lost = STATUS.last_interruption.model_copy(update={"recover_seconds": None})
    failed = {"phase": "Failed", "finished_at": BEGIN + 100, "interruptions": (lost,)}
    failed["last_interruption"] = lost
    run.status(STATUS.model_copy(update=failed))
    output = rtj("status", run.path).output
    assert "detected after 400 ms, the job ended with it" in output
    assert "recovered not yet" not in output


@pytest.mark.parametrize(
    ("changes", "owned", "since"),
    [
        ({}, True, "ago"),
        ({}, False, "before it stopped"),
        ({"phase": "Succeeded", "finished_at": BEGIN + 100}, False, "before the end"),
    ],
)
def test_ages_are_counted_to_a_moment_that_is_named(
    run, changes: dict[str, Any], owned: bool, since: str
) -> None:
    """`ago` is before now; of a job whose clock has stopped nobody could know what it is before."""
    view = build_view(
        JOB,
        JobSpec.model_validate(SPEC),
        STATUS.model_copy(update=changes),
        7 if owned else None,
        BEGIN + 100,
    )
    told = shown(view)
    assert f"12.5 MB, 5.0 s {since}, stopped" in told
    assert f"attempt 1, 59.6 s {since}" in told
    assert told.count("ago") == 2 * owned


@pytest.mark.parametrize(
    ("attempt", "last_grow_at", "told"),
    [
        ({"grow_ready_since": BEGIN + 95, "running_at": BEGIN + 90}, None, "may grow in 50.0 s (growCool"),
        (
            {"grow_ready_since": BEGIN + 95, "running_at": BEGIN + 90},
            BEGIN + 95,
            "may grow in 55.0 s (growCool",
        ),
        ({"grow_ready_since": BEGIN + 95, "running_at": BEGIN + 30}, None, "; more are ready "),
        ({"grow_ready_since": None, "running_at": BEGIN + 90}, None, ""),
        ({"grow_ready_since": BEGIN + 95, "running_at": BEGIN + 90, "state": "draining"}, None, ""),
    ],
)
def test_a_smaller_size_says_what_it_waits_for(
    attempt: dict[str, Any], last_grow_at: float | None, told: str
) -> None:
    """A machine is back and the job does not grow: the cool-down is why, and how long it lasts."""
    spec = JobSpec.model_validate({**SPEC, "recovery": {"growCooldownSeconds": 60}})
    newest = STATUS.attempt.model_copy(update=attempt)
    smaller = STATUS.model_copy(update={"attempt": newest, "size": 2, "last_grow_at": last_grow_at})
    line = next(
        line
        for line in shown(build_view(JOB, spec, smaller, 7, BEGIN + 100)).splitlines()
        if "2 of 3" in line
    )
    assert told in line
    assert ("ready" in line) == bool(told)


FIXED = {"interval": {"steps": 40}}


@pytest.mark.parametrize(
    ("saving", "told"),
    [
        (FIXED, "every 40 steps (about 16.0 s)"),
        ({"interval": {"steps": 1}}, "every 1 step (about 400 ms)"),
        ({"interval": {"seconds": 30}}, "every 30.0 s"),
        (
            {"interval": {"steps": 40, "seconds": 30}},
            "every 40 steps (about 16.0 s) or 30.0 s, whichever comes first",
        ),
        ({**FIXED, "maxIntervalSeconds": 9}, "every 40 steps (about 16.0 s) or 9.0 s, whichever comes first"),
    ],
)
def test_a_fixed_interval_is_told_alike_everywhere(run, rtj, saving: dict[str, Any], told: str) -> None:
    """By status, report and page, in the spec's own words; whatever was measured beside it."""
    newest = STATUS.checkpoint.model_copy(update={"interval_seconds": 12.8, "interval_bound": "fixed"})
    run.job({**SPEC, "checkpoint": saving}).status(STATUS.model_copy(update={"checkpoint": newest}))
    assert f"; {told} " in rtj("status", run.path, columns=200).output
    assert f"  was {told}: expected" in rtj("report", run.path, columns=200).output
    assert f"It saved {told}, with" in rtj("report", run.path, "--html", "-").output


def test_what_has_ended_saves_no_more(run, rtj) -> None:
    """No `every` of a job that is over; the report says what it was."""
    run.job({**SPEC, "checkpoint": FIXED})
    run.status(STATUS.model_copy(update={"phase": "Succeeded", "finished_at": BEGIN + 100}))
    assert "every" not in rtj("status", run.path).output
    assert "was every 40 steps" in rtj("report", run.path).output


def test_of_the_interval_auto_the_library_has_the_word(run, rtj) -> None:
    """Status, report and page recommend the same."""
    newest = STATUS.checkpoint.model_copy(update={"interval_seconds": 48.0, "interval_bound": "optimum"})
    run.status(STATUS.model_copy(update={"checkpoint": newest}))
    assert "; every 48.0 s (auto), as of that save" in rtj("status", run.path, columns=200).output
    assert "should have been 48.0 s (120 steps): expected" in rtj("report", run.path).output
    assert "<b>48.0 s (120 steps)</b>" in rtj("report", run.path, "--html", "-").output


def test_status_of_a_fresh_job_invents_nothing(run, rtj) -> None:
    """No loss, no checkpoint, no interruption: said so, not shown as zeros."""
    result = rtj("status", run.status(JobStatus()).path)
    assert result.exit_code == 0
    assert "none yet" in result.output
    assert "last interruption" not in result.output


def test_status_as_json_holds_all_of_it(run, rtj) -> None:
    """Programs read the stored status and what is derived from it, in one object."""
    told = json.loads(rtj("status", run.path, "--json").output)
    assert told["status"] == RunDir(run.path).status().plain()
    assert told["goodput"]["goodput"] == 0.8
    assert told["budgetsLeft"][1] == {"name": "infrastructure", "left": 99, "limit": 100}
    assert told["lastInterruption"]["evidence"] == "worker train-1-1 is gone (killed by SIGKILL)"
    assert told["owner"] is None


def test_the_report_says_what_recoveries_were_made_of(run, rtj) -> None:
    """Only when there were any that are over."""
    assert "Recoveries took" not in rtj("report", run.path).output
    stage_ms = {"detect": 400, "reschedule": 4000, "rendezvous": 100, "restore": 900, "warmup": 600}
    run.status(STATUS.model_copy(update={"recovery": RecoveryStatus(stage_ms=stage_ms)}))
    told = "Recoveries took 6.0 s: detect 400 ms, reschedule 4.0 s, rendezvous 100 ms, restore 900 ms"
    assert told in rtj("report", run.path).output
    assert json.loads(rtj("report", run.path, "--json").output)["recoverySeconds"]["warmup"] == 0.6


def test_a_report_counts_in_good_grammar(run, rtj) -> None:
    """One is no plural, and of nothing there is no newest."""
    first = STATUS.model_copy(update={"attempt": STATUS.attempt.model_copy(update={"number": 1})})
    run.status(first.model_copy(update={"checkpoint": None})).history()
    told = rtj("report", run.path).output
    assert "4 steps done again), 1 attempt\n" in told
    assert "Checkpoints: none made\n" in told
    page = rtj("report", run.path, "--html", "-").output
    assert "No save was made." in page


@pytest.mark.parametrize(
    ("step", "changes", "told", "cell", "header"),
    [
        (
            190,
            {"resumed_step": 190, "rework_steps": 33},
            "33 steps to redo",
            "33 to redo",
            "33 steps to redo",
        ),
        (
            200,
            {"resumed_step": 190, "rework_steps": 33},
            "33 steps to redo",
            "33 to redo",
            "23 steps to redo",
        ),
        (223, {"resumed_step": 190, "rework_steps": 33}, "33 steps done again", "33", "33 steps done again"),
        (223, {"resumed_step": None, "rework_steps": 0, "recover_seconds": None}, "not known", "-", "223)"),
        (223, {"resumed_step": 223, "rework_steps": 0}, "0 steps done again", "0", "223)"),
    ],
)
def test_steps_are_to_be_redone_until_they_are_done_again(
    run, rtj, step: int, changes: dict[str, Any], told: str, cell: str, header: str
) -> None:
    """In status, in the report's header, its table and its lines alike; before it is known, nothing."""
    done = step - 190 if changes["rework_steps"] else 0
    ending = STATUS.interruptions[0].model_copy(update={"attempt": 2, **changes})
    ledger = STATUS.ledger.model_copy(update={"rework_steps": done})
    changed = {"step": step, "high_water_step": 223, "interruptions": (ending,), "last_interruption": ending}
    run.status(STATUS.model_copy(update={**changed, "ledger": ledger}))
    assert told in rtj("status", run.path).output
    wide, narrow = rtj("report", run.path, columns=120).output, rtj("report", run.path, columns=60).output
    assert header in wide
    assert f" {cell} " in wide
    assert told in " ".join(narrow.split())


def test_a_roll_back_is_no_loss_of_the_suspension_before_it(run, rtj) -> None:
    """The suspension committed; going back was wanted, and nobody recovered from being suspended."""
    changes = {"cause": "suspend", "resumed_step": 100, "rework_steps": 1259, "recover_seconds": 33.6}
    ending = STATUS.interruptions[1].model_copy(update=changes)
    run.status(STATUS.model_copy(update={"interruptions": (ending,)}))
    told = " ".join(rtj("report", run.path, columns=120).output.split())
    assert "suspend (planned) 0 s - went back 1259 2 > 3" in told
    assert "33.6 s" not in told
    page = rtj("report", run.path, "--html", "-").output
    assert "went back 1259" in page
    assert "33.6 s" not in page


def test_a_suspension_whose_drain_failed_has_lost_steps(run, rtj) -> None:
    """Nobody went back on purpose: what no checkpoint held was lost, and done again."""
    changes = {"cause": "suspend", "resumed_step": 100, "rework_steps": 9, "committed": False}
    ending = STATUS.interruptions[1].model_copy(update=changes)
    run.status(STATUS.model_copy(update={"interruptions": (ending,)}))
    for page in (rtj("report", run.path, columns=60).output, rtj("report", run.path, "--html", "-").output):
        assert "went back" not in page
    assert "9 steps done again" in " ".join(rtj("report", run.path, columns=60).output.split())


def test_a_job_that_never_trained_again_has_not_recovered(run, rtj) -> None:
    """Tries that ended in the next interruption are no recoveries, and have no mean."""
    stages = {"detect": 0.4, "reschedule": 4.0, "rendezvous": 0.1, "restore": 0.9, "warmup": 0.0}
    lost = STATUS.interruptions[0].model_copy(update={"recover_seconds": None, "stages": stages})
    tries = tuple(lost.model_copy(update={"attempt": number}) for number in (1, 2, 3))
    spent = RecoveryStatus(stage_ms={stage: round(3000 * took) for stage, took in stages.items()})
    failed = {"phase": "Failed", "interruptions": tries, "interruption_counts": {"node_lost": 3}}
    run.status(STATUS.model_copy(update={**failed, "recovery": spent}))
    told = rtj("report", run.path).output
    assert "No recovery yet; tries that failed took 16.2 s: detect" in told
    assert "Recoveries took" not in told
    page = rtj("report", run.path, "--html", "-").output
    assert "No recovery yet" in page
    assert "mean of" not in page


def test_the_cost_of_saves_adds_up_to_their_phase(run, rtj) -> None:
    """What no save took from training to begin it was waited for at the end; said when it is worth a word."""
    for spent, rest in ((320, ""), (2125, "the other 1.8 s of checkpointing went into waiting")):
        phases = {**STATUS.ledger.phases, "checkpointing": spent, "productive": 80_000 - spent}
        ledger = STATUS.ledger.model_copy(update={"phases": phases})
        run.status(STATUS.model_copy(update={"ledger": ledger}))
        for command in (("report", run.path), ("report", run.path, "--html", "-")):
            told = rtj(*command, columns=200).output
            assert ("waiting for the last save" in told) == bool(rest)
            assert rest in told


def test_budgets_forget_what_is_older_than_their_window() -> None:
    """What is left is what the next decision will see."""
    spec = JobSpec.model_validate(
        {
            "workers": {"replicas": 1},
            "recovery": {"budgets": {"userError": {"limit": 2, "windowSeconds": 100}}},
        }
    )
    status = JobStatus(budgets=BudgetStatus(user_error=(0.0, 50.0, 60.0, 99.0), without_progress=9))
    left = {item.name: item.left for item in budgets_left(spec, status, 100.0)}
    assert (left["user error"], left["without progress"]) == (0, 0)
    assert {item.name: item.left for item in budgets_left(spec, status, 155.0)}["user error"] == 0
    assert {item.name: item.left for item in budgets_left(spec, status, 165.0)}["user error"] == 1


def test_watching_ends_when_the_job_has(run, rtj) -> None:
    """Piped, a watched job is a line per change; nothing is left waiting."""
    with run.owned():
        run.status(JobStatus(phase="Failed", reason="budget spent\nTraceback"))
        result = rtj("status", run.path, "--watch")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 1
    assert "Failed" in result.output


def test_watching_a_run_that_nobody_owns_shows_it_once(run, rtj) -> None:
    """There is nothing to wait for."""
    assert len(rtj("status", run.path, "--watch").output.splitlines()) == 1


def test_watching_sees_changes(run) -> None:
    """A line for each, until the job ends."""
    with run.owned():
        command = [sys.executable, "-m", "resumable_operator.cli.main", "status", str(run.path), "--watch"]
        watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert "Running" in watcher.stdout.readline()
            run.status(JobStatus(phase="Recovering"))
            assert "Recovering" in watcher.stdout.readline()
            run.status(JobStatus(phase="Succeeded"))
            rest, _ = watcher.communicate(timeout=30)
            assert "Succeeded" in rest
            assert watcher.returncode == 0
        finally:
            watcher.kill()
            watcher.wait()


def test_watch_and_json_exclude_each_other(run, rtj) -> None:
    """An option is refused rather than ignored."""
    assert rtj("status", run.path, "--watch", "--json").exit_code == 2


def test_the_report_says_where_time_went_and_what_failures_cost(run, rtj) -> None:
    """Interruptions with evidence, phases that sum to the age, checkpoints, and the interval by Daly."""
    result = rtj("report", run.path)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    for line in (
        "goodput 80.0 % = scheduling 99.0 % x runtime 80.8 %",
        "1 40.4 s 1 node_lost 400 ms 5.6 s 4 3 > 2",
        "2 1 min 10 s 2 scale (planned) 0 s 4.0 s 0 2 > 3",
        "#1 node_lost: train-1-1 rank 1: worker train-1-1 is gone (killed by SIGKILL)",
        "| Traceback [not markup]",
        "productive 80.000 80.0 %",
        "age 100.000 100.0 %",
        "Checkpoints: 3 made, 1 failed; newest step-00000190.3",
        "attempt 2 did not use step-00000024.1: hash of __0_0.distcp differs",
    ):
        assert line.replace("1 min 10 s", "70.0 s") in lines
    assert any(line.startswith("Save interval: should have been") for line in lines)
    assert any(
        line.startswith("by Daly, from an interruption every 30 min 50 s (1 seen, and") for line in lines
    )


def test_the_report_as_json_sums_up(run, rtj) -> None:
    """Programs get the same numbers, and the phases sum to the age there too."""
    told = json.loads(rtj("report", run.path, "--json").output)
    assert sum(item["seconds"] for item in told["phases"]) == pytest.approx(told["goodput"]["ageSeconds"])
    assert [item["cause"] for item in told["endings"]] == ["node_lost", "scale"]
    assert told["checkpoints"]["made"] == 3
    assert told["interval"]["interruptions"] == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_time_without_the_library_is_said(run, rtj, command: str) -> None:
    """A goodput of zero for a script that reports nothing is explained where it is shown."""
    assert "without the library" not in rtj(command, run.path).output
    status = RunDir(run.path).status()
    phases = {"running_opaque": 90_000, "starting": 10_000}
    run.status(status.model_copy(update={"ledger": status.ledger.model_copy(update={"phases": phases})}))
    assert "90.0 s ran without the library" in rtj(command, run.path).output


def test_steps_redone_without_the_library_are_not_known(run, rtj) -> None:
    """Of a script that reports no steps nobody can say how many it does again."""
    run.status(RunDir(run.path).status().model_copy(update={"uses_library": False}))
    assert "steps to redo are not known" in rtj("status", run.path).output
    told = json.loads(rtj("report", run.path, "--json").output)
    assert {item["reworkSteps"] for item in told["endings"]} == {None}
    assert rtj("report", run.path).exit_code == 0


def test_damaged_history_is_said(run, rtj) -> None:
    """A report over a history that was cut off says that it may lack something."""
    run.history('{"at": 1, "wor')
    result = rtj("report", run.path)
    assert result.exit_code == 0
    assert "Skipped 1 damaged line of history.jsonl." in result.output
    assert "no save was measured" in result.output


@pytest.mark.parametrize("columns", [20, 40, 60, 79, 100, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(run, rtj, command: str, columns: int) -> None:
    """Narrow terminals fold text; what matters is still there."""
    result = rtj(command, run.path, columns=columns)
    assert result.exit_code == 0
    assert all(len(line) <= columns for line in result.output.splitlines())
    if columns >= 40:
        assert "node_lost" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_piped_output_has_no_control_characters(run, rtj, command: str) -> None:
    """Files and pagers get text."""
    assert "\x1b" not in rtj(command, run.path).output


@pytest.mark.parametrize("command", [*COMMANDS, "logs"])
def test_what_is_not_a_run_is_a_usage_error_in_one_line(bare, rtj, command: str) -> None:
    """Wrong directory: one line that says what is missing, exit code 2, no traceback."""
    for path in (bare.path, bare.path / "nowhere"):
        result = rtj(command, path)
        assert result.exit_code == 2
        assert result.output.startswith("Error: ")
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_without_status_is_told_apart(bare, rtj, command: str) -> None:
    """It exists, it has only not begun."""
    result = rtj(command, bare.job().path)
    assert result.exit_code == 2
    assert "has no status yet" in result.output
