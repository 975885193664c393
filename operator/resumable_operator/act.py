"""Doing what was decided: a pass's actions, in rows. ``reconcile`` is the only caller.

Rows are done at once, each in its order. What fails ends its row and no other; the next pass decides anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from resumable_operator.agents import AgentPool
from resumable_operator.clock import Clock
from resumable_operator.cluster.port import Cluster
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
from resumable_operator.errors import ClusterRefused, ResumableError, first_leaf, raise_if_fatal

logger = logging.getLogger(__name__)


@dataclass
class Done:
    """What came of rows of actions. ``failures``: actions that were not done, but for workers refused."""

    failures: int = 0
    created: int = 0
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Actor:
    """Acts on the cluster and on agents.

    Args:
        at_once: actions of one job that are under way together.
        moment: awaited before each of them, with the name of its kind.
    """

    cluster: Cluster
    agents: AgentPool
    clock: Clock
    at_once: int
    moment: Callable[[str], Awaitable[None]]

    def gate(self) -> asyncio.Semaphore:
        """Lets through as many actions as may be under way together."""
        return asyncio.Semaphore(self.at_once)

    async def all(self, job: Job, rows: dict[str, list[Action]]) -> Done:
        """All rows at once, each in its order.

        Raises:
            FatalError: an action met what only a person can mend.
        """
        gate, done = self.gate(), Done()
        try:
            async with asyncio.TaskGroup() as group:
                for row in rows.values():
                    group.create_task(self.in_order(job, row, gate, done))
        except BaseExceptionGroup as group_error:
            raise first_leaf(group_error) from group_error
        return done

    async def in_order(self, job: Job, actions: list[Action], gate: asyncio.Semaphore, done: Done) -> None:
        """One row, until something fails: what was not done then, all behind it too, is told in ``done``."""
        for number, action in enumerate(actions):
            async with gate:
                await self.moment(type(action).__name__)
                try:
                    await self._one(job, action, done)
                except ResumableError as error:
                    raise_if_fatal(error)
                    logger.warning("%s: %s failed: %s", job.key, type(action).__name__, error)
                    done.failures += len(actions) - number
                    return

    async def _one(self, job: Job, action: Action, done: Done) -> None:
        match action:
            case CreateWorker():
                await self._create(job, action, done)
            case DeleteWorker():
                logger.info("%s: deleting %s: %s", job.key, action.name, action.reason)
                await self.cluster.delete_worker(job, action.name, action.grace_seconds)
            case DeleteJob():
                logger.info("%s: deleting the job: %s", job.key, action.reason)
                await self.cluster.delete_job(job)
            case SendAssignment():
                await self.agents.assign(job.key, action.assignment)
            case SendRequest():
                await self.agents.request(job.key, action.worker, action.request)
            case EmitEvent():
                await self.cluster.emit_event(job, action.kind, action.reason, action.message)

    async def _create(self, job: Job, action: CreateWorker, done: Done) -> None:
        """A refusal is not a failure: the next pass sees it, says it and tries again when it is time."""
        if done.refusal is not None:
            return  # this one would be refused as well
        try:
            await self.cluster.create_worker(job, action.name, action.place, action.incarnation, action.avoid)
            done.created += 1
        except ClusterRefused as error:
            done.refusal = Refusal(error.reason, str(error), self.clock.now())
