"""The control socket: short, private, one line each way; and what a caller hears when nobody is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.cluster.local_control import ControlServer, call
from resumable_operator.cluster.local_faults import Fault
from resumable_operator.cluster.local_files import RunFiles, RunLock, is_live
from resumable_operator.errors import UserError


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RunFiles]:
    """A deep run directory whose path is longer than a socket's may be, owned by this process."""
    root = tmp_path / ("deep" * 30)
    root.mkdir()
    lock = RunLock(root / "lock")
    lock.acquire()
    yield RunFiles(root)
    lock.release()


async def echo(plain: dict[str, Any]) -> dict[str, Any]:
    if plain["fault"] == "no":
        return {"ok": False, "message": "no such worker"}
    return {"ok": True, "message": f"did {plain['fault']}"}


async def test_one_line_each_way(files: RunFiles) -> None:
    """A request is answered; a refusal is an error with its reason."""
    async with ControlServer(files, 3, echo):
        assert (await asyncio.to_thread(call, files, {"fault": "hang"}))["message"] == "did hang"
        with pytest.raises(UserError, match="no such worker"):
            await asyncio.to_thread(call, files, {"fault": "no"})


async def test_socket_is_private_and_removed(files: RunFiles) -> None:
    """Only the owner may call; after the end neither socket nor cluster.json is left."""
    async with ControlServer(files, 3, echo):
        plain = json.loads(files.cluster.read_text())
        path = Path(plain["control"])
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        assert plain["capacity"] == 3
    assert not path.parent.exists()
    assert not files.cluster.exists()


async def test_garbage_is_answered(files: RunFiles) -> None:
    """A line that is no JSON object is refused and harms nobody."""
    async with ControlServer(files, 3, echo):
        path = json.loads(files.cluster.read_text())["control"]
        for line in (b"nonsense\n", b"[]\n"):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(line)
            assert json.loads(await reader.readline())["ok"] is False
            writer.close()


def test_nobody_there(tmp_path: Path) -> None:
    """A directory without a live run says how to start one."""
    with pytest.raises(UserError, match="is not running"):
        call(RunFiles(tmp_path), {"fault": "hang"})


def test_lock_tells_who_lives(files: RunFiles, tmp_path: Path) -> None:
    """A held lock is a live run, a free or missing one is not; asking takes nothing away."""
    assert is_live(files)
    assert not is_live(RunFiles(tmp_path))
    (tmp_path / "lock").touch()
    assert not is_live(RunFiles(tmp_path))


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"fault": "explode"}, "no such fault"),
        ({}, "no such fault"),
        ({"fault": "hang", "wrong": 1}, "wrong"),
    ],
)
def test_unknown_faults(plain: dict[str, Any], message: str) -> None:
    """What is not a fault, or has a field too many, is refused by name."""
    with pytest.raises(UserError, match=message):
        Fault.parse(plain)
