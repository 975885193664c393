"""``rtj run`` is stopped, killed, repeated and misused: it continues, and says what is wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from local_run import FAKE_RANK, LocalRun, rtj

from resumable_operator.cli import exitcodes

FAKE = ("--steps", "120", "--step-seconds", "0.02", "--checkpoint-every", "10")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def test_interrupt_drains_and_the_same_command_continues(run: LocalRun) -> None:
    """Ctrl-C commits a checkpoint; the next run starts from it as the next attempt, with nothing redone.

    One worker: fake ranks agree on no step, so that of a second worker may be ahead of the checkpoint.
    """
    run.start_fake("--workers", "1", "--processes-per-worker", "2", fake=FAKE)
    run.until_step(15)
    run.signal(signal.SIGINT)
    drained = run.finish(exitcodes.DRAINED)
    assert drained.phase == "Suspended"
    assert drained.checkpoint is not None
    assert drained.checkpoint.step == drained.step
    assert run.processes() == []
    run.again()
    status = run.finish()
    assert (status.step, status.attempt.number) == (120, 2)
    assert status.attempt.start_step == drained.step
    assert status.ledger.phases.get("rework", 0) == 0


def test_termination_drains_too(run: LocalRun) -> None:
    """SIGTERM to rtj run is a request to drain, as from a batch system."""
    run.start_fake("--workers", "1", fake=FAKE)
    run.until_step(5)
    run.signal(signal.SIGTERM)
    assert run.finish(exitcodes.DRAINED).phase == "Suspended"


def test_second_interrupt_stops_at_once(run: LocalRun) -> None:
    """Ranks that will not drain don't keep the user waiting; the run can still be continued."""
    run.start_fake("--workers", "2", fake=(*FAKE, "--ignore-drain"))
    run.until_step(15)
    run.signal(signal.SIGINT)
    run.until(lambda status: status.attempt.state == "draining", "the drain")
    run.signal(signal.SIGINT)
    run.finish(exitcodes.INTERRUPTED)
    assert run.processes() == []
    run.again()
    assert run.finish().step == 120


def test_killed_run_leaves_no_orphans_and_continues(run: LocalRun) -> None:
    """SIGKILL of rtj run ends agents, ranks and their children in seconds; the same command goes on."""
    run.start_fake("--workers", "2", "--processes-per-worker", "2", fake=(*FAKE, "--grandchild"))
    run.until_step(15)
    assert len(run.processes()) >= 10
    run.signal(signal.SIGKILL)
    run.finish(-9)
    run.wait(lambda: not run.processes(), "all orphans to end")
    run.again()
    status = run.finish()
    assert (status.step, status.attempt.number) == (120, 2)
    assert status.interruptions[0].cause == "node_lost"
    assert run.workers_created() == [f"fake-rank-{place}-{row}" for place in (0, 1) for row in (1, 2)]


def test_killed_run_is_continued_at_once(run: LocalRun) -> None:
    """A run that starts while the killed one's processes still end finds and ends them itself."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.signal(signal.SIGKILL)
    assert run.process is not None
    run.process.wait()
    run.again()
    assert run.finish().attempt.number == 2


def test_two_at_once(run: LocalRun) -> None:
    """A second rtj run on the same directory says who has it and harms nothing."""
    run.start_fake("--workers", "1", fake=FAKE)
    run.until_step(5)
    second = rtj("run", "--dir", str(run.directory), str(FAKE_RANK))
    assert second.returncode == exitcodes.USAGE
    assert run.process is not None
    assert f"process {run.process.pid}" in second.stderr
    assert run.finish().attempt.number == 1


def test_two_runs_side_by_side(run: LocalRun, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of different directories don't meet: each has addresses of its own."""
    with LocalRun(tmp_path_factory.mktemp("other")) as other:
        run.start_fake("--workers", "2", fake=FAKE)
        other.start_fake("--workers", "2", fake=FAKE)
        assert (run.finish().attempt.number, other.finish().attempt.number) == (1, 1)


def test_finished_run_says_so(run: LocalRun) -> None:
    """The same command after success starts nothing and exits 0; other arguments are an error."""
    run.start_fake("--workers", "1", fake=("--steps", "5"))
    run.finish()
    run.again()
    assert run.finish().attempt.number == 1
    assert "finished" in run.text()
    other = rtj("run", "--dir", str(run.directory), str(FAKE_RANK), "--", "--steps", "6")
    assert other.returncode == exitcodes.USAGE
    assert "--fresh" in other.stderr


def test_other_script_needs_fresh(run: LocalRun, tmp_path: Path) -> None:
    """A directory belongs to one script; --fresh moves the old run aside and starts at 1."""
    run.start_fake("--workers", "1", fake=("--steps", "5"))
    first = run.finish()
    script = tmp_path / "other.py"
    script.write_text("print('hello from the other script')\n")
    refused = rtj("run", "--dir", str(run.directory), str(script))
    assert refused.returncode == exitcodes.USAGE
    assert "belongs to" in refused.stderr
    run.start("--fresh", str(script))
    status = run.finish()
    assert status.attempt.number == 1
    assert json.loads((run.directory / "old-1" / "status.json").read_text())["status"]["step"] == first.step
    assert "[1:0] hello from the other script" in run.text()


def test_changed_arguments_and_size_continue(run: LocalRun) -> None:
    """Between two runs the size and the script's arguments may change; training goes on."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.signal(signal.SIGINT)
    drained = run.finish(exitcodes.DRAINED)
    run.start_fake("--workers", "3", fake=("--steps", "60", *FAKE[2:]))
    status = run.finish()
    assert (status.step, len(status.attempt.members)) == (max(60, drained.step), 3)


def test_error_at_import_is_shown_once(run: LocalRun, tmp_path: Path) -> None:
    """A script that can't start is a user error: bounded tries, one traceback, exit code 3."""
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no such thing')\n")
    run.start("--workers", "2", str(script))
    status = run.finish(exitcodes.USER_ERROR)
    assert (status.phase, status.failure_class) == ("Failed", "user")
    shown = run.output.read_text()
    assert shown.count("Traceback (most recent call last)") == 1
    assert 1 < status.attempt.number < 10


def test_failed_run_is_started_again(run: LocalRun, tmp_path: Path) -> None:
    """After the user has mended the script the same command goes on, with fresh budgets and new numbers."""
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(81)\n")
    run.start("--workers", "1", str(script))
    failed = run.finish(exitcodes.USER_ERROR)
    script.write_text("print('mended')\n")
    run.again()
    status = run.finish()
    assert status.phase == "Succeeded"
    assert status.attempt.number == failed.attempt.number + 1


def test_budget_spent_has_a_code_of_its_own(run: LocalRun, tmp_path: Path) -> None:
    """A job given up for infrastructure failures exits with 4, not with a user error's 3."""
    container = {"name": "worker", "command": ["python", str(FAKE_RANK), *FAKE, "--stop-at", "12"]}
    spec = {
        "workers": {"replicas": 1},
        "template": {"spec": {"containers": [container]}},
        "recovery": {"budgets": {"infrastructure": {"limit": 0}}},
    }
    document = tmp_path / "job.yaml"
    document.write_text(yaml.safe_dump(spec))
    run.start(str(document))
    status = run.finish(exitcodes.BUDGET)
    assert (status.phase, status.failure_class) == ("Failed", "budget")


def test_resource_of_kubernetes_runs_here(run: LocalRun, tmp_path: Path) -> None:
    """The same YAML as for the operator: its claim becomes a directory of the run, and the user is told."""
    container = {
        "name": "worker",
        "image": "train:1",
        "command": ["python", str(FAKE_RANK)],
        "args": list(FAKE),
    }
    document = {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "metadata": {"name": "from-yaml"},
        "spec": {
            "workers": {"replicas": 2, "min": 1},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"persistentVolumeClaim": {"claimName": "ckpt"}, "interval": {"steps": 10}},
        },
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    run.start(str(path))
    status = run.finish()
    assert status.phase == "Succeeded"
    assert run.workers_created() == ["from-yaml-0-1", "from-yaml-1-1"]
    assert (run.directory / "checkpoints").is_dir()
    assert "persistentVolumeClaim" in run.output.read_text()
    assert "image" in run.output.read_text()


def test_quiet_hides_the_output_of_rank_0(run: LocalRun, tmp_path: Path) -> None:
    """Output goes to the log file in any case."""
    script = tmp_path / "talk.py"
    script.write_text("print('a word')\n")
    run.start("--quiet", str(script))
    run.finish()
    assert "a word" not in run.output.read_text()
    assert (run.directory / "logs/attempt-00001/rank-00000.log").read_text() == "a word\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "missing.py: no such file"),
        (("-m", "no_such_module_here"), "no Python module"),
        ((), "give a script"),
        (("--workers", "4:2", "x.py"), "min"),
        (("--workers", "two", "x.py"), "MIN:MAX"),
        (("--checkpoint-dir", "x.py/below", "x.py"), "can't be written"),
        (("bad.yaml",), "did you mean replicas"),
        (("--keep", "3", "bad.yaml"), "write it into its spec"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """What can be known before the start is said before it, with exit code 2, and leaves no run behind."""
    (tmp_path / "x.py").write_text("")
    (tmp_path / "bad.yaml").write_text("workers: {replica: 2}\n")
    done = rtj("run", "--dir", str(tmp_path / "run"), *arguments, cwd=tmp_path)
    assert done.returncode == exitcodes.USAGE
    assert message in done.stderr
    assert not (tmp_path / "run" / "job.json").exists()


def test_fault_on_a_run_that_is_not_live(run: LocalRun) -> None:
    """Breaking what does not run is a clear error."""
    run.start_fake("--workers", "1", fake=("--steps", "5"))
    run.finish()
    done = rtj("fault", str(run.directory), "kill-rank")
    assert done.returncode == exitcodes.USAGE
    assert "this job has ended (Succeeded)" in done.stderr
