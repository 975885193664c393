"""``rtj run`` in surroundings that are against it: no terminal, no directory, modules of the same names."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from local_run import FAKE_RANK, RTJ, LocalRun, rtj

from resumable_operator.cli import exitcodes

FAKE = ("--steps", "60", "--step-seconds", "0.02", "--checkpoint-every", "10")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def fake_command(run: LocalRun, *fake: str) -> list[str]:
    return [*RTJ, "run", "--dir", str(run.directory), str(FAKE_RANK), "--", *(fake or FAKE)]


def test_reader_that_goes_away_does_not_end_the_job(run: LocalRun) -> None:
    """``rtj run ... | head -1``: output is lost, training is not."""
    run.process = subprocess.Popen(fake_command(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.process.stdout is not None
    assert run.process.stdout.readline()
    run.process.stdout.close()
    assert run.finish().phase == "Succeeded"
    assert run.process.stderr is not None
    assert run.process.stderr.read() == b""


def test_terminal_that_goes_away_does_not_end_the_job(run: LocalRun) -> None:
    """Writing to a closed terminal is an input/output error; the job goes on."""
    ours, theirs = pty.openpty()
    run.process = subprocess.Popen(fake_command(run), stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    run.until_step(5)
    os.close(ours)
    assert run.finish().phase == "Succeeded"


def test_started_with_closed_streams(run: LocalRun) -> None:
    """No file of ours gets the number of standard output, and what is printed goes nowhere."""
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    run.process = subprocess.Popen([*closed, *fake_command(run)])
    assert run.finish().phase == "Succeeded"
    assert (run.directory / "key").read_text().count("\n") == 1


def test_hang_up_is_ignored_under_nohup(run: LocalRun) -> None:
    """``nohup rtj run ... &`` outlives its terminal."""
    run.process = subprocess.Popen(["nohup", *fake_command(run)], stdout=subprocess.DEVNULL)
    run.until_step(5)
    run.signal(signal.SIGHUP)
    assert run.finish().phase == "Succeeded"


def test_modules_of_the_users_directory_are_not_ours(run: LocalRun, tmp_path: Path) -> None:
    """The agent imports nothing from where ``rtj run`` is called: people have a queue.py or a types.py."""
    for name in ("queue", "types", "json", "socket", "asyncio", "resumable_training"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')\n")
    script = tmp_path / "below" / "hello.py"
    script.parent.mkdir()
    script.write_text("print('hello')\n")
    run.process = subprocess.Popen(
        [*RTJ[:1], "-P", *RTJ[1:], "run", "--dir", str(run.directory), str(script)], cwd=tmp_path
    )
    assert run.finish().phase == "Succeeded"


def test_suspended_from_the_start(run: LocalRun, tmp_path: Path) -> None:
    """A job that is not to run ends at once as suspended, not at the next look some time later."""
    run.patience_seconds = 20.0
    container = {"name": "worker", "command": ["python", str(FAKE_RANK)]}
    spec = {
        "workers": {"replicas": 1},
        "suspend": True,
        "template": {"spec": {"containers": [container]}},
    }
    document = tmp_path / "job.yaml"
    document.write_text(yaml.safe_dump(spec))
    run.start(str(document))
    assert run.finish(exitcodes.DRAINED).phase == "Suspended"


def test_run_directory_that_is_removed(run: LocalRun) -> None:
    """With nowhere to write, the run ends with a sentence and leaves nothing running."""
    run.start_fake("--workers", "2", fake=("--steps", "100000", "--step-seconds", "0.02"))
    run.until_step(5)
    shutil.rmtree(run.directory, ignore_errors=True)
    shutil.rmtree(run.directory, ignore_errors=True)  # an agent may have written meanwhile
    assert run.process is not None
    assert run.process.wait(run.patience_seconds) == exitcodes.INTERNAL
    assert "Traceback" not in run.output.read_text()
    assert run.processes() == []


def test_environment_of_the_container_wins(run: LocalRun, tmp_path: Path) -> None:
    """What ``env`` sets is what ranks see, also PATH; ``workingDir`` is where they are."""
    program = tmp_path / "bin" / "show"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$MINE in $PWD"\n')
    program.chmod(0o755)
    path = {"name": "PATH", "value": f"{program.parent}:/usr/bin:/bin"}
    container = {
        "command": ["show"],
        "env": [path, {"name": "MINE", "value": "yes"}],
        "workingDir": str(program.parent),
    }
    document = tmp_path / "job.yaml"
    document.write_text(
        yaml.safe_dump({"workers": {"replicas": 1}, "template": {"spec": {"containers": [container]}}})
    )
    run.start(str(document))
    run.finish()
    assert f"yes in {program.parent}" in run.output.read_text()


@pytest.mark.parametrize("moment", ["rtj.log", "lock", "workers", "job.json", "cluster.json"])
def test_interrupt_while_it_starts(run: LocalRun, moment: str) -> None:
    """Ctrl-C before anything trains ends it as an interrupt or a drain, whatever has been made so far."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.wait(lambda: (run.directory / moment).exists(), moment)
    run.signal(signal.SIGINT)
    assert run.process is not None
    assert run.process.wait(run.patience_seconds) in (exitcodes.DRAINED, exitcodes.INTERRUPTED)
    assert "Traceback" not in run.output.read_text()
    assert run.processes() == []
    run.again()
    assert run.finish().step == 60


def test_long_temporary_directory(run: LocalRun, tmp_path: Path) -> None:
    """A unix socket's path is short; TMPDIR may be long."""
    long = tmp_path / ("t" * 120)
    long.mkdir()
    run.environment["TMPDIR"] = str(long)
    run.start_fake(fake=("--steps", "3"))
    run.finish()


def test_what_ranks_print_need_not_fit_the_terminal(run: LocalRun, tmp_path: Path) -> None:
    """Bytes that are no text, and text that the terminal's encoding lacks, are shown as well as can be."""
    script = tmp_path / "talk.py"
    script.write_text("import sys\nsys.stdout.buffer.write(bytes(range(256)) + 'ü ☃\\nlast'.encode())\n")
    run.environment["PYTHONIOENCODING"] = "ascii"
    run.start(str(script))
    run.finish()
    assert "last\n" in run.output.read_text()


def test_fresh_start_over_damaged_files(run: LocalRun) -> None:
    """What says "start over with --fresh" can be answered with --fresh."""
    run.start_fake(fake=("--steps", "3"))
    run.finish()
    for path in (run.directory / "status.json", run.directory / "cluster.json", run.directory / "key"):
        path.write_text("{")
    refused = rtj(*fake_command(run, "--steps", "3")[len(RTJ) :])
    assert refused.returncode == exitcodes.INTERNAL
    assert "start over with --fresh" in refused.stderr
    run.start_fake("--fresh", fake=("--steps", "3"))
    assert run.finish().attempt.number == 1
    assert json.loads((run.directory / "job.json").read_text())["generation"] == 1


@pytest.mark.parametrize(
    ("where", "message"),
    [("nowhere", "no such directory"), ("file", "no such directory"), (".", "is not a run directory")],
)
def test_fault_where_nothing_runs(tmp_path: Path, where: str, message: str) -> None:
    """Not 3, which says that a job failed."""
    (tmp_path / "file").write_text("")
    done = rtj("fault", where, "kill-rank", cwd=tmp_path)
    assert done.returncode == exitcodes.USAGE
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("below",), "no program"),
        (("no-such-program",), "no program"),
        (("plain",), "not executable"),
        (("",), "give a script"),
        (("--name", "a/b", "x.py"), "--name"),
        (("--workers", "99999999", "x.py"), "workers"),
        (("--processes-per-worker", "²", "x.py"), "must be a number"),
        (("--drain-seconds", "inf", "x.py"), "drainSeconds"),
        (("list.yaml",), "mapping"),
        (("twice.yaml",), "given twice"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Said before anything starts, with exit code 2 and without a traceback."""
    for name, text in {
        "x.py": "",
        "plain": "#!/bin/sh\n",
        "list.yaml": "workers: {replicas: 1}\ntemplate: {spec: {containers: [worker]}}\n",
        "twice.yaml": "workers: {replicas: 1, replicas: 2}\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "below").mkdir()
    done = rtj("run", "--dir", str(tmp_path / "run"), *arguments, cwd=tmp_path)
    assert done.returncode == exitcodes.USAGE, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "job.json").exists()
