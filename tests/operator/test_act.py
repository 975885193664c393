"""A pass's actions are done: rows at once, each in its order, and what fails ends its own row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from one_job import FakeAgents, FakeClock, FakeCluster

from resumable_operator.act import Actor, Done
from resumable_operator.decide.actions import (
    Action,
    CreateWorker,
    DeleteJob,
    DeleteWorker,
    EmitEvent,
    SendAssignment,
    SendRequest,
)
from resumable_operator.decide.observation import Job, Refusal
from resumable_operator.errors import ClusterRefused, FatalError, RetryableError
from resumable_training.contract.assignment import Assignment, Request


async def _nothing(_kind: str) -> None:
    pass


@dataclass
class Scene:
    cluster: FakeCluster = field(default_factory=FakeCluster)
    agents: FakeAgents = field(default_factory=FakeAgents)
    clock: FakeClock = field(default_factory=FakeClock)
    at_once: int = 64
    moment: Callable[[str], Awaitable[None]] = _nothing

    @property
    def job(self) -> Job:
        assert self.cluster.stored is not None
        return self.cluster.stored

    def actor(self) -> Actor:
        return Actor(self.cluster, self.agents, self.clock, self.at_once, self.moment)

    async def act(self, *rows: list[Action]) -> Done:
        return await self.actor().all(self.job, {str(number): row for number, row in enumerate(rows)})


def create(name: str, *avoid: str) -> CreateWorker:
    return CreateWorker(name, 0, 1, avoid)


def delete(name: str) -> DeleteWorker:
    return DeleteWorker(name, 30.0, "it is lost")


def ask(worker: str) -> SendRequest:
    return SendRequest(worker, Request("stop", attempt=1))


async def test_each_kind_of_action_reaches_whom_it_is_for() -> None:
    """The cluster or an agent; before each its moment is awaited, by name."""
    moments: list[str] = []

    async def moment(kind: str) -> None:
        moments.append(kind)

    scene = Scene(moment=moment)
    assignment = Assignment("ns/train", "uid", 1, "digest", "w", (), "10.0.0.1", 29500)
    told = EmitEvent("Normal", "Grown", "one more")
    done = await scene.act(
        [delete("a"), create("b", "node-1"), told, SendAssignment(assignment), ask("w"), DeleteJob("old")]
    )
    assert scene.cluster.done == ["delete a", "create b not on node-1", "tell Grown", "delete job"]
    assert (scene.agents.assigned, scene.agents.sent) == ([assignment], [("w", "stop")])
    assert done == Done(failures=0, created=1, refusal=None)
    assert moments == [
        "DeleteWorker",
        "CreateWorker",
        "EmitEvent",
        "SendAssignment",
        "SendRequest",
        "DeleteJob",
    ]


async def test_a_row_that_waits_holds_up_no_other() -> None:
    """Each in its order: what stands behind an answer that is not there yet is not done."""
    scene = Scene()
    mute = scene.agents.mute["slow"] = asyncio.Event()
    under_way = asyncio.create_task(scene.act([ask("slow"), delete("slow")], [delete("a"), create("b")]))
    async with asyncio.timeout(30):
        while len(scene.cluster.done) < 2:
            await asyncio.sleep(0)
    assert scene.cluster.done == ["delete a", "create b"]
    mute.set()
    assert await under_way == Done(created=1)
    assert scene.cluster.done == ["delete a", "create b", "delete slow"]


async def test_so_many_actions_are_under_way_together_and_no_more() -> None:
    """Two of four, until one of these is done."""
    scene = Scene(at_once=2)
    names = ["a", "b", "c", "d"]
    scene.agents.mute = {name: asyncio.Event() for name in names}
    under_way = asyncio.create_task(scene.act(*([ask(name)] for name in names)))
    for let_go, sent in [("", 2), ("a", 3), ("b", 4)]:
        if let_go:
            scene.agents.mute[let_go].set()
        for _ in range(100):  # turns of the loop, in each of which all that may go on does
            await asyncio.sleep(0)
        assert len(scene.agents.sent) == sent
    for mute in scene.agents.mute.values():
        mute.set()
    assert await under_way == Done()


async def test_a_failure_ends_its_row_and_no_other() -> None:
    """All that was not done in it is counted: the next pass decides anew."""
    scene = Scene()
    scene.cluster.failures["delete a"] = RetryableError("timed out")
    scene.agents.unreachable = {"c"}
    done = await scene.act([delete("a"), create("a"), ask("a")], [create("b")], [ask("c")])
    assert done == Done(failures=4, created=1)
    assert sorted(scene.cluster.done) == ["create b", "delete a"]
    assert scene.agents.sent == [("c", "stop")]


@pytest.mark.parametrize("in_one_row", [True, False])
async def test_after_a_refusal_nothing_more_is_created(in_one_row: bool) -> None:
    """It would be refused as well; that is no failure, and all else is done. The time is the operator's."""
    scene = Scene(at_once=1)
    scene.clock.time = 123.0
    scene.cluster.failures["create a"] = ClusterRefused("ExceededQuota", "no more than 3")
    row: list[Action] = [create("a"), create("b"), delete("c")]
    done = await scene.act(row) if in_one_row else await scene.act(*([action] for action in row))
    assert scene.cluster.done == ["create a", "delete c"]
    assert done == Done(refusal=Refusal("ExceededQuota", "no more than 3", 123.0))


async def test_what_only_a_person_can_mend_ends_the_pass() -> None:
    """It is raised as itself, not in a group; rows that wait are given up."""
    scene = Scene()
    scene.agents.mute["slow"] = asyncio.Event()
    scene.cluster.failures["create a"] = FatalError("no right to create pods")
    with pytest.raises(FatalError, match="no right to create pods"):
        await scene.act([ask("slow"), delete("slow")], [create("a"), create("b")])
    assert scene.cluster.done == ["create a"]
