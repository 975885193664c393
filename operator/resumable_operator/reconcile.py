"""The operator's loop: look at a job, decide, write down, act. One job at a time, any number of jobs.

``step`` is the whole operator in one function. Nothing here is remembered that could not be forgotten: a new
``Reconciler`` over the same cluster at any moment goes on where the old one stopped. What it holds in memory
(when a status is to be written, failures for the backoff) only saves work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from resumable_operator.act import Actor, Done
from resumable_operator.agents import AgentPool
from resumable_operator.calls import Calls
from resumable_operator.changes import Changes, may_wait
from resumable_operator.clock import Clock
from resumable_operator.cluster.port import Change, Cluster
from resumable_operator.decide.actions import Action, Plan, Rows
from resumable_operator.decide.claim import hands_off_seconds, hands_off_text
from resumable_operator.decide.observation import Job, Observation, Refusal, TimedEvent
from resumable_operator.decide.plan import decide
from resumable_operator.decide.reflex import begins_to_end, to_stop
from resumable_operator.errors import (
    AgentRefused,
    AgentUnreachable,
    ConflictError,
    FatalError,
    ResumableError,
    SpecError,
    first_leaf,
    raise_if_fatal,
)
from resumable_operator.model import AttemptStatus
from resumable_operator.observe import SpecChecks, endpoint_of, observe
from resumable_operator.queue import WorkQueue
from resumable_operator.status_times import StatusTimes
from resumable_training.contract.assignment import REQUEST_STOP, Request
from resumable_training.contract.events import Event

logger = logging.getLogger(__name__)

SHORTEST_WAIT_SECONDS = 0.01  # a wake-up in the past must not become a busy loop
END_SECONDS = 0.1  # ranks that are stopped end within milliseconds; more is not worth a status write
ANSWER_SECONDS = 0.25  # agents answer at once; one that first has to end ranks, or is gone, holds up nobody
ROUTINE_PART = 4  # one of so many who work may do a routine beside news, and two at least

Decide = Callable[[Observation, float], Plan]


async def _nothing(_moment: str) -> None:
    return None


@dataclass(frozen=True)
class Settings:
    """What differs between a cluster and one machine, and the hooks of whoever runs the loop."""

    status_seconds: float = 30.0  # that a changed status stays unwritten; longer with very many jobs
    relist_seconds: float = 30.0
    jobs_at_once: int = 4
    actions_at_once: int = 64
    isolate_jobs: bool = True  # an unexpected error in one job is logged and does not end the loop
    on_pass: Callable[[Observation, Plan], None] = lambda _observation, _plan: None
    on_wait: Callable[[float], None] = lambda _seconds: None  # of a job with news, until its pass
    on_folded: Callable[[Job, list[TimedEvent]], None] = lambda _job, _events: None  # events now in status
    moment: Callable[[str], Awaitable[None]] = _nothing  # awaited between any two effects of a pass


class Reconciler:
    """Runs ``observe -> decide -> act`` for every job that something happened to.

    Raises (``run``):
        FatalError: only a person can mend it. With ``isolate_jobs`` off any unexpected error, too.
    """

    def __init__(
        self,
        cluster: Cluster,
        agents: AgentPool,
        clock: Clock,
        settings: Settings | None = None,
        decide: Decide = decide,
    ) -> None:
        self._settings = settings or Settings()
        beside = max(2, self._settings.jobs_at_once // ROUTINE_PART)
        self.queue = WorkQueue(waited=self._settings.on_wait, routines_beside_news=beside)
        self._cluster = cluster
        self._agents = agents
        self._clock = clock
        self._decide = decide
        self._looked_at: dict[str, float] = {}  # start of the newest pass, on the loop's clock
        self._moving: set[str] = set()  # jobs whose ranks have done a step of the attempt that runs
        self._status_times = StatusTimes(self._settings.status_seconds, lambda: len(self._moving))
        at_once, moment = self._settings.actions_at_once, self._settings.moment
        self._actor = Actor(cluster, agents, clock, at_once, moment)
        self._refusals: dict[str, Refusal] = {}
        self._others: dict[str, str] = {}  # jobs that another operator looks after: its name
        self._uids: dict[str, str] = {}  # by key
        self._checks = SpecChecks(cluster)
        self._calls = Calls(self._called)
        self._changes = Changes(self._changed)
        self._is_running = False
        self._attempts: dict[str, AttemptStatus] = {}  # by key, as the last pass left them
        agents.subscribe(self.queue.add, self._progressed, self._stop_at_once)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name="watch")
                group.create_task(self._relist(), name="relist")
                group.create_task(self._changes.broken(), name="changes")
                self._is_running = True
                for number in range(self._settings.jobs_at_once):
                    news_only = number < self._settings.jobs_at_once // 2
                    group.create_task(self._work(news_only), name=f"reconcile {number}")
        except BaseExceptionGroup as group_error:
            raise first_leaf(group_error) from group_error
        finally:
            self._is_running = False
            self._calls.close()
            self._changes.close()
            self.queue.close()

    async def step(self, key: str) -> Plan | None:
        """One pass over one job; None: nothing to decide. What it leaves undone, the next pass does."""
        self._looked_at[key] = asyncio.get_running_loop().time()
        observation = await self._observe(key)
        if observation is None:
            return None
        plan, now, rows = self._plan(observation)
        calls = list[asyncio.Task[int]]()
        try:
            calls += self._call(observation.job, rows.stops)  # of what is over: nothing is to be reserved
            if rows.stops and begins_to_end(observation.job.status.attempt, plan.status.attempt):
                asked = rows.stops
                observation = await self._see_the_end(observation, plan.status.attempt.number, list(asked))
                plan, now, rows = self._plan(observation)
                more = {agent: row for agent, row in rows.stops.items() if agent not in asked}
                calls += self._call(observation.job, more)
            job, unwritten = await self._write(observation.job, plan, now)
            calls += self._call(job, rows.calls)
            failures, left = await self._change(job, rows)
            failures += await self._calls.answers(key, calls, ANSWER_SECONDS)
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        self._schedule(key, plan, now, unwritten)
        if failures:
            self.queue.add_failed(key)
        elif not left:
            self.queue.succeeded(key)
        return plan

    def _plan(self, observation: Observation) -> tuple[Plan, float, Rows]:
        """With the time that it was made at, and its actions in rows."""
        key, now = observation.job.key, self._clock.now()
        plan = self._decide(observation, now)
        self._settings.on_pass(observation, plan)
        self._attempts[key] = plan.status.attempt
        return plan, now, Rows.of(plan.actions)

    async def _see_the_end(self, seen: Observation, attempt: int, asked: list[str]) -> Observation:
        """The same job once the ranks of the workers that were asked to stop them have ended, or after a
        moment. The lost are not asked, and not waited for."""
        key = seen.job.key
        await self._agents.stopped(key, attempt, asked, END_SECONDS)
        return await observe(self._cluster, self._agents, seen.job, seen.problems, self._refusals.get(key))

    async def _observe(self, key: str) -> Observation | None:
        """None when there is nothing to decide: the job is gone, or another operator's, or it can't be read,
        which is said on it."""
        try:
            job = await self._cluster.job(key)
        except SpecError as error:
            logger.warning("%s: %s", key, error)
            await self._cluster.report_invalid(key, error)
            return None
        if job is None:
            await self._forget(key)
            return None
        if self._uids.setdefault(key, job.uid) != job.uid:
            await self._forget(key)  # another job of that name, deleted and made again between two looks
            self._uids[key] = job.uid
        if await self._is_anothers(job):
            return None
        problems = await self._checks.problems(job, self._clock.now())
        return await observe(self._cluster, self._agents, job, problems, self._refusals.get(key))

    async def _is_anothers(self, job: Job) -> bool:
        """Another operator looks after it, which is said once; looked at again when that may be over."""
        operators = self._cluster.operators()
        wait = hands_off_seconds(job.status, operators, self._clock.now())
        if not wait:
            self._others.pop(job.key, None)
            return False
        self._moving.discard(job.key)
        self.queue.add_after(job.key, wait, routine=True)
        if self._others.get(job.key) != job.status.operator:
            self._others[job.key] = job.status.operator
            await self._agents.forget(job.key)
            text = hands_off_text(job.status, operators)
            logger.warning("%s: %s", job.key, text)
            await self._cluster.emit_event(job, "Warning", "OtherOperator", text)
        return True

    def _stop_at_once(self, key: str, worker: str, event: Event) -> None:
        """What ends an attempt beyond doubt ends it now; the pass that follows does all the rest."""
        attempt = self._attempts.get(key)
        members = to_stop(attempt, worker, event) if attempt is not None else ()
        if attempt is None or not members:
            return
        wish = Request(REQUEST_STOP, attempt.number, f"a rank of {worker} has failed")
        gate = self._actor.gate()
        calls = self._calls.begin(key, {name: partial(self._stop, key, name, wish, gate) for name in members})
        self._calls.leave(key, calls)

    async def _stop(self, key: str, worker: str, wish: Request, gate: asyncio.Semaphore) -> int:
        """Passes try again where it fails."""
        async with gate:
            try:
                await self._agents.request(key, worker, wish)
            except (AgentUnreachable, AgentRefused) as error:
                logger.info("%s: %s", key, error)
        return 0

    def _progressed(self, key: str) -> None:
        """Progress is for status, and waits with it: of many reports in the meantime the newest counts. That
        an attempt has done its first step is told earlier."""
        wait = self._status_times.progress_wait(key, self._clock.now(), moving=key in self._moving)
        self.queue.add_after(key, wait, routine=True)

    # ---- where work comes from -----------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async for change in self._cluster.watch():
                    self.queue.add(change.job_key)
                    await self._meet(change)
                logger.info("the watch ended; watching again")
            except ResumableError as error:
                raise_if_fatal(error)
                logger.warning("the watch broke: %s", error)
            await asyncio.sleep(1.0)

    async def _meet(self, change: Change) -> None:
        """A worker that has come is connected to at once; the pass that needs it finds it connected."""
        key, worker = change.job_key, change.worker
        if worker is None or change.gone or key in self._others:
            return
        try:
            job = await self._cluster.job(key)
        except ResumableError as error:
            raise_if_fatal(error)
            return  # told by its pass
        endpoint = endpoint_of(self._cluster, job, worker) if job is not None else None
        if job is not None and endpoint is not None and self._uids.get(key) == job.uid:
            self._agents.meet(key, endpoint, job.status.cursors)

    async def _relist(self) -> None:
        """Look at every job now and then that nothing else made anybody look at; at all at once only at the
        start."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while True:
            jobs: list[Job] = []
            try:
                jobs = await self._cluster.jobs()
            except ResumableError as error:
                raise_if_fatal(error)
                logger.warning("jobs could not be listed: %s", error)
            for job in jobs:
                looked_at = self._looked_at.get(job.key, float("-inf"))
                if loop.time() >= looked_at + self._settings.relist_seconds:
                    self.queue.add(job.key, routine=True)
                await asyncio.sleep(pause)
            pause = self._settings.relist_seconds / (len(jobs) + 1)
            await asyncio.sleep(pause)

    async def _work(self, news_only: bool) -> None:
        while True:
            key = await self.queue.get(news_only=news_only)
            try:
                await self._attempt_step(key)
            finally:
                self.queue.done(key)

    async def _attempt_step(self, key: str) -> None:
        try:
            await self.step(key)
        except ConflictError as error:
            logger.info("%s: %s", key, error)
            self.queue.add_failed(key)
        except ResumableError as error:
            raise_if_fatal(error)
            logger.warning("%s: %s", key, error)
            self.queue.add_failed(key)
        except Exception:  # one job's trouble must not become every job's
            if not self._settings.isolate_jobs:
                raise
            logger.exception("%s: unexpected error in a pass", key)
            self.queue.add_failed(key)

    # ---- what a pass does ----------------------------------------------------------------------------

    async def _write(self, job: Job, plan: Plan, now: float) -> tuple[Job, bool]:
        """Store the status when something is reserved or worth telling, else now and then.

        Returns the job as stored, and whether changes are left for a later write.
        """
        changed = plan.status != job.status
        if plan.soon:
            self._status_times.soon(job.key, now)
        if not changed or not (plan.must_write or self._status_times.wait(job.key, now) <= 0):
            return job, changed
        await self._settings.moment("write")
        stored = await self._cluster.write_status(job, plan.status)
        self._status_times.written(job.key, now, for_a_reason=plan.must_write)
        folded = self._agents.consume(job.key, plan.status.cursors)
        if folded:
            self._settings.on_folded(stored, folded)
        await self._settings.moment("written")
        return stored, False

    def _call(self, job: Job, rows: dict[str, list[Action]]) -> list[asyncio.Task[int]]:
        """Begin calls to agents."""
        gate = self._actor.gate()

        async def answer(row: list[Action]) -> int:
            done = Done()
            await self._actor.in_order(job, row, gate, done)
            return done.failures

        return self._calls.begin(job.key, {agent: partial(answer, row) for agent, row in rows.items()})

    async def _change(self, job: Job, rows: Rows) -> tuple[int, bool]:
        """Change the cluster. A pass that asks agents waits for those alone: it is part of a recovery.

        Returns the number of failures, and whether the changes were left behind, for nobody to wait for.
        """
        if not rows.changes:
            return 0, False
        asks, wait = rows.stops or rows.calls, self._changes.pending(job.key)
        left = bool(self._is_running and asks and not wait and may_wait(rows.changes))
        act = self._act_for_nobody if left else self._act
        task = self._changes.begin(job.key, lambda: act(job, rows.changes))
        if not left:
            return await task, False
        self._changes.leave(job.key, task)
        return 0, True

    async def _act_for_nobody(self, job: Job, rows: dict[str, list[Action]]) -> int:
        try:
            return await self._act(job, rows)
        except FatalError:
            raise
        except Exception:
            if not self._settings.isolate_jobs:
                raise
            logger.exception("%s: unexpected error in what a pass has left", job.key)
            return 1

    async def _act(self, job: Job, rows: dict[str, list[Action]]) -> int:
        """Change the cluster, and remember what it refused; the number of failures."""
        done = await self._actor.all(job, rows)
        if done.refusal is not None:
            self._refusals[job.key] = done.refusal
            self.queue.add(job.key)
        elif done.created:
            self._refusals.pop(job.key, None)
        return done.failures

    def _schedule(self, key: str, plan: Plan, now: float, unwritten: bool) -> None:
        """Look again when the plan wants it, and when what was not written is due."""
        attempt = plan.status.attempt
        if attempt.state == "running" and attempt.first_step_at is not None:
            self._moving.add(key)
        else:
            self._moving.discard(key)
        if plan.wake_at is not None:
            wait = max(SHORTEST_WAIT_SECONDS, plan.wake_at - now)
            self.queue.add_after(key, wait, routine=key in self._moving)
        if unwritten:
            wait = max(SHORTEST_WAIT_SECONDS, self._status_times.wait(key, now))
            self.queue.add_after(key, wait, routine=True)

    def _changed(self, key: str, failures: int) -> None:
        """What an earlier pass has left has ended; what came of it, the cluster's own watch tells."""
        if failures:
            self.queue.add_failed(key)

    def _called(self, key: str, failures: int) -> None:
        """A call of an earlier pass has ended."""
        if failures:
            self.queue.add_failed(key)
        else:
            self.queue.add(key)

    async def _forget(self, key: str) -> None:
        await self._agents.forget(key)
        self.queue.forget(key)
        self._uids.pop(key, None)
        self._status_times.forget(key)
        self._looked_at.pop(key, None)
        self._moving.discard(key)
        self._refusals.pop(key, None)
        self._others.pop(key, None)
        self._attempts.pop(key, None)
        self._checks.forget(key)
