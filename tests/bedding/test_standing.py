"""A cluster for a person: one per directory, found by its lock, gone with its holder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bed import standing as module
from bed.processes import wait_until
from bed.standing import NotRunning, RunsAlready, Standing

BED = Path(module.__file__).parents[1]
HOLD = """
import signal, sys, pathlib
from bed.standing import Standing
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with Standing(pathlib.Path(sys.argv[1])).held():
    print("held", flush=True)
    signal.pause()
"""
UP_SECONDS = 240


def _python(*arguments: str, **options: object) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(BED)}
    return subprocess.Popen([sys.executable, *arguments], env=env, text=True, **options)  # type: ignore[call-overload]


def _bed(*arguments: str) -> subprocess.CompletedProcess[str]:
    process = _python("-m", "bed", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=UP_SECONDS)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def standing(tmp_path: Path) -> Standing:
    """A directory that nobody holds."""
    return Standing(tmp_path / "cluster")


@pytest.fixture
def holder(standing: Standing) -> Iterator[subprocess.Popen[str]]:
    """A process that holds it."""
    process = _python("-c", HOLD, str(standing.directory), stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_nobody_holds_a_new_directory(standing: Standing) -> None:
    """No holder, nothing to stop, and the error says how to start one."""
    assert standing.holder() is None
    assert standing.stop() is False
    with pytest.raises(NotRunning, match="make cluster"):
        standing.state()


def test_second_holder_is_refused(standing: Standing, holder: subprocess.Popen[str]) -> None:
    """The holder is known by its process id; a second one is told, and harms nothing."""
    assert standing.holder() == holder.pid
    with pytest.raises(RunsAlready, match=f"process {holder.pid}"), standing.held():
        pass
    assert standing.holder() == holder.pid
    with pytest.raises(NotRunning, match="still starting"):
        standing.state()


def test_stop_ends_the_holder(standing: Standing, holder: subprocess.Popen[str]) -> None:
    """After stop the holder is gone, and the directory is free."""
    assert standing.stop() is True
    assert holder.wait(10) == 0
    with standing.held():
        assert standing.holder() == os.getpid()
    assert standing.holder() is None


def test_killed_holder_frees_the_directory(standing: Standing, holder: subprocess.Popen[str]) -> None:
    """What a killed holder left is removed by the next one."""
    (standing.directory / "plane").mkdir()
    standing.state_file.write_text("{}")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert standing.holder() is None
    with pytest.raises(NotRunning):
        standing.state()
    with standing.held():
        assert not (standing.directory / "plane").exists()
        assert not standing.state_file.exists()


def test_cluster_stands_until_it_is_stopped(standing: Standing, control_plane: object) -> None:
    """Up returns when nodes and operator are ready and says what to type; down leaves nothing."""
    where = ("--directory", str(standing.directory))
    try:
        up = _bed("up", "--detach", *where)
        assert up.returncode == 0, up.stderr
        kubeconfig = standing.state()["kubeconfig"]
        for words in (f"export KUBECONFIG={kubeconfig}", "kubectl apply -f deploy/examples/gpt-pvc.yaml"):
            assert words in up.stderr + up.stdout
        wait_until(lambda: _is_ready(_bed("status", *where).stdout), 60, "the operator and four nodes")

        again = _bed("up", "--detach", *where)
        assert again.returncode == 1
        assert "runs in" in again.stderr

        assert _bed("node", "kill", "node-2", *where).returncode == 0
        wait_until(lambda: "NotReady" in _bed("status", *where).stdout, 60, "node-2 to be NotReady")
    finally:
        down = _bed("down", *where)
    assert down.stdout == "stopped\n"
    assert standing.holder() is None
    wait_until(lambda: not _processes(standing.directory), 30, "the last process to end")


def _is_ready(status: str) -> bool:
    """One that is busy may miss a heartbeat now and then."""
    operator = re.search(r"deployment.apps/resumable-training +1/1", status)
    return bool(operator) and len(re.findall(r"^node-\d +Ready", status, re.MULTILINE)) == 4


def _processes(directory: Path) -> list[Path]:
    """Those that name it in their command line."""
    return [file for file in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in _text(file)]


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("arguments", [["status"], ["node", "kill", "node-1"]])
def test_commands_without_a_cluster_say_so(standing: Standing, arguments: list[str]) -> None:
    """A short error, no traceback."""
    result = _bed(*arguments, "--directory", str(standing.directory))
    assert result.returncode == 1
    assert result.stderr.startswith("Error: no cluster runs in")
