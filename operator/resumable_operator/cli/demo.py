"""``rtj demo``: train for real, break machines on purpose, and check afterwards that nothing was lost.

It uses nothing that a user could not: ``rtj run`` as a process, ``rtj fault`` to break things, the files of
the run directory to watch and judge it. The verdict at the end is made of checks that can fail.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.errors import ResumableError
from resumable_operator.model import JobStatus

NAME = "demo"
EXAMPLE = "resumable_training.examples.gpt"
WORKERS = 3
STEPS = 240
GLOBAL_BATCH = 24
SAVE_EVERY_STEPS = 20
STEPS_AT_RISK = (
    6  # done since the last checkpoint when something is broken: a fault must have something to lose
)


@dataclass(frozen=True)
class Scene:
    """One thing that is done to the run: when, what, and what must come of it."""

    title: str
    ready: Callable[[JobStatus], bool]
    faults: tuple[tuple[str, ...], ...]  # arguments of ``rtj fault RUN``, one tuple a command
    cause: str | None  # of the interruption that must follow; None: none may


def _mid_interval(status: JobStatus, size: int) -> bool:
    """The current attempt trains at this size, and some of its steps are not in a checkpoint yet."""
    now, checkpoint = status.attempt, status.checkpoint
    committed = checkpoint.step if checkpoint else 0
    training = status.phase == "Running" and now.state == "running" and now.first_step_at is not None
    return (
        training
        and len(now.members) == size
        and committed > 0
        and status.step >= max(committed, now.start_step) + STEPS_AT_RISK
    )


SCENES = (
    Scene(
        "SIGKILL one worker: its machine is gone, the job goes on with two",
        lambda status: _mid_interval(status, 3),
        (("kill-worker",),),
        "node_lost",
    ),
    Scene(
        "preempt another with 20 s of grace: it drains, the job goes on with one",
        lambda status: _mid_interval(status, 2),
        (("preempt", "--grace", "20"),),
        "preempted",
    ),
    Scene(
        "SIGSTOP a rank: it hangs",
        lambda status: _mid_interval(status, 1),
        (("hang",),),
        "hang",
    ),
    Scene(
        "two machines come back: the job grows after its next checkpoint",
        lambda status: status.attempt.number >= 4 and _mid_interval(status, 1),
        (("add-worker",), ("add-worker",)),
        None,
    ),
)


@click.command("demo")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Run directory; an earlier demo there is removed.",
)
@click.option("--steps", default=STEPS, show_default=True, help="Training steps.")
@click.option("--time-limit", default=600.0, show_default=True, help="Give up after this many seconds.")
def demo_command(directory: Path, steps: int, time_limit: float) -> None:
    """Train a small GPT on this machine while workers are killed, preempted and hung, then audit the result.

    Takes one to four minutes on 2 cores. Exit code 0 only if every check held.
    """
    console = Console()
    _clear(directory)
    _announce(console)
    process = subprocess.Popen(_run_command(directory, steps))
    try:
        _play(directory, process, time.monotonic() + time_limit)
        code = process.wait(timeout=time_limit)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    checks = judge(directory, code, steps)
    _show_report(directory)
    _show_checks(console, checks)
    sys.exit(0 if all(passed for _, passed, _ in checks) else 1)


def _announce(console: Console) -> None:
    """Before it begins: while it runs the screen belongs to ``rtj run``, which tells each fault itself."""
    console.print(
        f"A small GPT trains with {WORKERS} workers. In the middle of save intervals:", highlight=False
    )
    for number, scene in enumerate(SCENES, 1):
        console.print(f"  {number}. {scene.title}", highlight=False)


def _clear(directory: Path) -> None:
    """Make room, but only where an earlier demo was: a run directory may hold somebody's only checkpoints.

    Raises:
        UsageProblem: something else is there, or a demo that still runs.
    """
    if is_run(directory):
        run = RunDir(directory)
        if run.job().name != NAME or EXAMPLE not in run.spec().command():
            raise UsageProblem(f"{directory} holds a run that is no demo; give another --dir")
        if run.owner() is not None:
            raise UsageProblem(f"a demo is running in {directory}; wait for it, or give another --dir")
        shutil.rmtree(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise UsageProblem(f"{directory} exists and is not a run directory; give another --dir")


def _rtj(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "resumable_operator.cli.main", *arguments]


def _run_command(directory: Path, steps: int) -> list[str]:
    options = [
        "--name",
        NAME,
        "--workers",
        f"1:{WORKERS}",
        "--dir",
        str(directory),
        "--save-every-steps",
        str(SAVE_EVERY_STEPS),
    ]
    options += ["--grow-cooldown", "3", "--drain-seconds", "20", "--trace-samples"]
    script = [
        "-m",
        EXAMPLE,
        "--",
        "--steps",
        str(steps),
        "--batch",
        str(GLOBAL_BATCH),
    ]
    return _rtj("run", *options, *script)


def _play(directory: Path, process: subprocess.Popen[bytes], deadline: float) -> None:
    """Inject each scene's faults when its moment has come."""
    for scene in SCENES:
        if not _await(directory, process, scene.ready, deadline):
            return
        for fault in scene.faults:
            subprocess.run(_rtj("fault", str(directory), *fault), check=True, stdout=subprocess.DEVNULL)


def _await(
    directory: Path, process: subprocess.Popen[bytes], ready: Callable[[JobStatus], bool], deadline: float
) -> bool:
    """True when the run's status says so; False when the run has ended first or time is up."""
    while process.poll() is None and time.monotonic() < deadline:
        status = _status(directory)
        if status is not None and ready(status):
            return True
        time.sleep(0.1)
    return False


def _status(directory: Path) -> JobStatus | None:
    try:
        return RunDir(directory).status()
    except (ResumableError, OSError):
        return None  # not there yet


Check = tuple[str, bool, str]


def judge(directory: Path, code: int, steps: int) -> list[Check]:
    """All checks on a finished demo: (what, held, detail)."""
    status = _status(directory)
    if status is None:
        return [("the run left a status", False, str(directory))]
    causes = [interruption.cause for interruption in status.interruptions if not interruption.planned]
    wanted = [scene.cause for scene in SCENES if scene.cause]
    preempted = [item for item in status.interruptions if item.cause == "preempted"]
    ledger = status.ledger
    gap = abs(sum(ledger.phases.values()) - (ledger.settled_at - ledger.started_at)) / 1000
    age = (status.finished_at or 0.0) - (status.started_at or 0.0)
    settled = sum(ledger.phases.values()) / 1000
    verdict = _audit(directory, steps)
    return [
        (
            "the run succeeded",
            code == 0 and status.phase == "Succeeded",
            f"exit code {code}, phase {status.phase}",
        ),
        ("every fault became one interruption", causes == wanted, f"{_told(causes)}; wanted {_told(wanted)}"),
        ("the preemption cost no step", not sum(item.rework_steps for item in preempted), "0 steps redone"),
        ("it grew back", len(status.attempt.members) == WORKERS, f"final size {len(status.attempt.members)}"),
        ("all steps were done", status.step == steps, f"{status.step} of {steps}"),
        (
            "the phases sum to the run's age",
            gap == 0 and abs(settled - age) < 1,
            f"{settled:.1f} s of {age:.1f} s",
        ),
        ("the final weights saw samples 0..N-1 in order, each once", verdict["ok"], _audit_detail(verdict)),
    ]


def _audit(directory: Path, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "resumable_training.data.audit", "--json"]
    command += ["--traces", str(directory / "traces"), "--store", str(directory / "checkpoints")]
    command += ["--total", str(steps * GLOBAL_BATCH)]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"ok": False, "problems": [done.stderr.strip() or "the audit printed nothing"]}
    return verdict


def _audit_detail(verdict: dict[str, Any]) -> str:
    if verdict["ok"]:
        return f"{verdict['samples']} samples through attempts {_told(verdict['attempts'])}"
    return "; ".join(verdict["problems"])


def _told(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"


def _show_report(directory: Path) -> None:
    subprocess.run(_rtj("report", str(directory)), check=False)


def _show_checks(console: Console, checks: list[Check]) -> None:
    table = Table(title="Checks", title_justify="left", show_header=False)
    for what, held, detail in checks:
        table.add_row("[green]held[/green]" if held else "[red]FAILED[/red]", what, detail)
    console.print(table)
