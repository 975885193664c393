"""Wishes for faults: what is no time, no fault, or names nobody is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_faults import Fault, Faults
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.cluster.local_worker import LocalWorker
from resumable_operator.decide.observation import Disruption
from resumable_operator.errors import UserError
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus, parse_spec
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


@pytest.mark.parametrize(
    ("members", "leaving", "struck"),
    [
        pytest.param((0, 1), (), "train-1-1", id="not the spare"),
        pytest.param((0, 2), (), "train-2-1", id="the spare took a place"),
        pytest.param((0, 1), (1,), "train-0-1", id="one has notice already"),
        pytest.param((), (), "train-2-1", id="no attempt yet"),
        pytest.param((0, 1), (0, 1), "train-2-1", id="nobody else is left"),
    ],
)
async def test_who_is_struck_by_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: tuple[int, ...],
    leaving: tuple[int, ...],
    struck: str,
) -> None:
    """The last worker that holds ranks: a spare that goes is no fault of the job's."""
    asked: list[str] = []

    async def send(worker: str, _request: Request) -> None:
        asked.append(worker)

    def worker(place: int) -> LocalWorker:
        notice = Disruption("preempted", "PreemptionNotice", 5.0) if place in leaving else None
        name, directory = f"train-{place}-1", tmp_path / f"w{place}"
        return LocalWorker(name, "local/train", place, 1, directory, 0.0, "running", disruption=notice)

    def member(place: int, first_rank: int) -> MemberStatus:
        address = {"address": "127.0.0.1", "agent_port": 1}
        return MemberStatus(
            worker=f"train-{place}-1", place=place, incarnation=1, first_rank=first_rank, ranks=1, **address
        )

    workers = [worker(place) for place in range(3)]
    async with LocalCluster(tmp_path / "run", SystemClock(), Machines(3, 3)) as cluster:
        job = cluster.store.submit("train", parse_spec({"workers": {"replicas": 2}}))
        attempt = AttemptStatus(
            number=len(members),
            members=tuple(member(place, rank) for rank, place in enumerate(members)),
            state="running",
        )
        cluster.store.write_status(job, JobStatus(attempt=attempt))
        monkeypatch.setattr(cluster, "running_workers", lambda: workers)
        answer = await Faults(cluster, SystemClock(), send).answer({"fault": "cut-network"})
        assert (answer["ok"], answer["worker"], asked) == (True, struck, [struck])


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
