"""Agents with a preloaded parent that is there in no time, since its interpreter has no torch to import."""

from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

from agent_process import AgentProcess, wait_until

from resumable_training.contract import events

MODULE = ("colorsys",)  # nothing imports it by itself


def make_bare_python(root: Path) -> str:
    """An interpreter without torch, in a virtual environment of its own."""
    venv.create(root, with_pip=False, symlinks=True)
    return str(root / "bin" / "python")


def agent_of(root: Path, python: str, text: str, mine: str = "", **changes: Any) -> AgentProcess:
    """An agent whose ranks run ``text``; ``mine`` is a module beside it."""
    work = root / "work"
    work.mkdir(exist_ok=True)
    (work / "script.py").write_text(text)
    (work / "mine.py").write_text(mine)
    changes = {"preload_modules": MODULE, "working_directory": str(work), **changes}
    return AgentProcess(root / "agent", (python, "script.py"), **changes)


def parent_of(agent: AgentProcess) -> int:
    """Pid of the parent that is ready to fork."""
    assert agent.process is not None

    def find() -> int:
        children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text()  # type: ignore[union-attr]
        named = [pid for pid in children.split() if "rtj-preload" in read(pid, "comm")]
        return int(named[0]) if named and "preloaded" in agent.own_log() else 0

    return int(wait_until(find, "a preloaded parent"))


def read(pid: str, name: str) -> str:
    """Of a process, empty when it is gone."""
    try:
        return Path("/proc", pid, name).read_text()
    except OSError:
        return ""


def warnings_of(agent: AgentProcess) -> list[str]:
    return [event.data["message"] for event in agent.events() if event.kind == events.WARNING]
