"""GPUs that a killed rank's leftovers still hold, with files in place of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resumable_training.agent import gpus

OPEN = (
    "import sys; f = open(sys.argv[1]) if sys.argv[1:] else None; print('open', flush=True); sys.stdin.read()"
)
Hold = Callable[..., int]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def hold() -> Iterator[Hold]:
    """``hold(path)``: a child of this process, in a session of its own, that has ``path`` open; its pid."""
    started: list[subprocess.Popen[str]] = []

    def start(*paths: Path) -> int:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OPEN, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("names", "wanted"),
    [(("nvidia0",), True), (("nvidia17",), True), (("nvidiactl", "nvidia-uvm"), False), ((), False)],
)
def test_present(tmp_path: Path, names: tuple[str, ...], wanted: bool) -> None:
    """A GPU is a numbered device; the driver's other files are there without one, too."""
    for name in names:
        (tmp_path / name).touch()
    assert gpus.present(tmp_path) is wanted


def test_no_devices_at_all(tmp_path: Path) -> None:
    """A system without such a directory has no GPUs that we could look after."""
    assert not gpus.present(tmp_path / "none")


def test_holders(devices: Path, hold: Hold) -> None:
    """What ranks left behind and has a GPU open; not those that are kept, nor what holds other files."""
    holder, kept = hold(devices / "nvidia0"), hold(devices / "nvidia0")
    hold(devices / "nvidiactl")
    hold()
    sessions = {holder}
    assert gpus.holders(sessions, [kept], devices) == [holder]


def test_an_ended_process_holds_nothing(devices: Path, hold: Hold) -> None:
    """Dead and not yet reaped: the driver has got everything back."""
    pid = hold(devices / "nvidia0")
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert gpus.holders({pid}, [], devices) == []


def test_who_is_there(hold: Hold) -> None:
    """It is until it has ended; reaped or not does not matter."""
    pid = hold()
    assert gpus.is_there(pid)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not gpus.is_there(pid)
    assert not gpus.is_there(2**22 + 1)
