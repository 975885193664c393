"""Wishes for faults: what is no time, no fault, or names nobody is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_faults import Fault, Faults
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.errors import UserError
from resumable_training.contract.assignment import Request


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"fault": None},
        {"fault": "explode"},
        {"fault": "preempt", "grace": float("nan")},
        {"fault": "preempt", "grace": float("inf")},
        {"fault": "preempt", "grace": -1},
        {"fault": "preempt", "grace": "soon"},
        {"fault": "cut-network", "seconds": 1e300},
        {"fault": "kill-worker", "back_after": float("nan")},
        {"fault": "kill-rank", "pid": 1},
    ],
)
def test_wishes_without_sense(wish: dict[str, Any]) -> None:
    """A time that no timer can take would break the run that is to be tested, in another way."""
    with pytest.raises(UserError):
        Fault.parse(wish)


@pytest.mark.parametrize("fault", ["kill-worker", "kill-rank", "preempt", "hang", "cut-network"])
async def test_nobody_is_there(tmp_path: Path, fault: str) -> None:
    """Before the first worker runs, and for a name that does not exist, it says so."""

    async def send(_worker: str, _request: Request) -> None:
        raise AssertionError("nobody to send to")

    async with LocalCluster(tmp_path, SystemClock(), Machines(1, 1)) as cluster:
        faults = Faults(cluster, SystemClock(), send)
        for wish in ({"fault": fault}, {"fault": fault, "worker": "nobody"}, {"fault": fault, "rank": 99}):
            answer = await faults.answer(wish)
            assert (answer["ok"], "runs now" in answer["message"]) == (False, True)
        assert not cluster.files.faults.exists()


async def test_what_was_done_is_told(tmp_path: Path) -> None:
    """The run's own display shows each fault that happened, and none that did not."""

    async def send(_worker: str, _request: Request) -> None:
        raise AssertionError("nobody to send to")

    told: list[str] = []
    async with LocalCluster(tmp_path, SystemClock(), Machines(1, 2)) as cluster:
        faults = Faults(cluster, SystemClock(), send, told.append)
        assert (await faults.answer({"fault": "add-worker"}))["ok"]
        assert not (await faults.answer({"fault": "add-worker"}))["ok"]
    assert len(told) == 1
    assert told[0].startswith("fault add-worker: ")
