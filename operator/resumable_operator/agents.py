"""What the operator knows of the agents, and how it talks to them. ``reconcile`` and ``observe`` use it.

The pool keeps one event stream per known worker. It holds, in memory only, each agent's newest state and the
events that are not yet folded into a job's status; both can be had again from the agents at any time, which
is what a restarted operator does. Two promises make decisions simple:

- An agent's state is never shown ahead of its events: a state that counts events which have not arrived yet
  is held back until they have, so "ended" always comes together with the reason.
- A worker that the cluster calls ended is read to the end of its stream first: last words are not lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from resumable_operator.agent_client import AgentClient, Endpoint, new_session
from resumable_operator.agent_http import Session
from resumable_operator.agent_link import Gates, Link
from resumable_operator.clock import Clock
from resumable_operator.decide.observation import Agent, TimedEvent
from resumable_operator.errors import AgentUnreachable
from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Request
from resumable_training.contract.events import (
    HEARTBEAT_SECONDS,
    SLOWEST_HEARTBEAT_SECONDS,
    AgentState,
    Event,
)

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
TURNS_A_SECOND = 1500  # of all streams together; about a tenth of a core
GAP_SECONDS = 1.5  # between ticks: this process was paused


class AgentPool:
    """Agents of all jobs. Use within one event loop; ``close`` ends all streams."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, Link]] = {}
        self._session: Session | None = None
        self._on_change: Callable[[str], None] = lambda _key: None
        self._on_progress: Callable[[str], None] = lambda _key: None
        self._on_event: Callable[[str, str, Event], None] = lambda _key, _worker, _event: None
        self._ticked_at, self._awake_since = time.monotonic(), clock.now()
        self._ticker: asyncio.Task[None] | None = None
        self._heartbeat_seconds = HEARTBEAT_SECONDS
        self._gates = Gates()
        self._spoke: dict[str, asyncio.Event] = {}  # by job, while somebody waits for its agents' words

    def subscribe(
        self,
        on_change: Callable[[str], None],
        on_progress: Callable[[str], None] | None = None,
        on_event: Callable[[str, str, Event], None] | None = None,
    ) -> None:
        """Call ``on_change(job_key)`` when an agent says something new or its stream breaks or is back.

        Progress reports, most of all events by far, are told to ``on_progress`` instead, if that is given.
        ``on_event(job_key, worker, event)`` gets each other event as it comes.
        """
        self._on_change = on_change
        self._on_progress = on_progress or on_change
        if on_event is not None:
            self._on_event = on_event

    async def sync(self, job_key: str, endpoints: Iterable[Endpoint], cursors: dict[str, int]) -> None:
        """Make the streams those of ``endpoints``: open new ones, end those of workers that are gone.

        ``cursors`` (boot id -> newest event folded) says where a new stream begins.
        """
        links = self._jobs.setdefault(job_key, {})
        wanted = {endpoint.worker: endpoint for endpoint in endpoints}
        ended = [
            link for link in links.values() if wanted.get(link.client.endpoint.worker) != link.client.endpoint
        ]
        await asyncio.gather(*(link.finish() for link in ended))
        for link in ended:
            if link.worker in wanted or not link.events:
                links.pop(link.worker, None)
        for worker, endpoint in wanted.items():
            if worker not in links:
                links[worker] = self._open(job_key, endpoint, cursors)

    def meet(self, job_key: str, endpoint: Endpoint, cursors: dict[str, int]) -> None:
        """Open the stream of a worker that has just come, for a job that is followed. ``sync`` would when the
        job's turn comes: in a recovery that may have to wait for a write, which connecting need not."""
        links = self._jobs.get(job_key)
        if links is not None and endpoint.worker not in links:
            links[endpoint.worker] = self._open(job_key, endpoint, cursors)

    async def stopped(self, job_key: str, attempt: int, workers: Iterable[str], seconds: float) -> None:
        """Wait until no agent of these that is heard says that ranks of the attempt run; at most so long."""
        spoke = self._spoke[job_key] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                for worker in workers:
                    while self._runs(job_key, worker, attempt):
                        spoke.clear()
                        await spoke.wait()
        except TimeoutError:
            logger.debug("%s: not all ranks of attempt %d have ended in %g s", job_key, attempt, seconds)
        finally:
            del self._spoke[job_key]

    def _runs(self, job_key: str, worker: str, attempt: int) -> bool:
        link = self._jobs.get(job_key, {}).get(worker)
        if link is None or not link.connected or link.state is None:
            return False
        return link.state.attempt == attempt and link.state.state in ("running", "draining")

    def connected(self) -> int:
        """Number of agents, of all jobs, whose stream is open now."""
        return sum(link.connected for links in self._jobs.values() for link in links.values())

    def agents(self, job_key: str) -> dict[str, Agent]:
        """What is known of each agent."""
        awake_since = self._look_at_clock()
        return {worker: link.view(awake_since) for worker, link in self._jobs.get(job_key, {}).items()}

    def events(self, job_key: str, cursors: dict[str, int]) -> tuple[TimedEvent, ...]:
        """Events above the cursors, in order of time (of one agent: in order of number)."""
        links = self._jobs.get(job_key, {}).values()
        found = [event for link in links for event in link.events if not _folded(event, cursors)]
        return tuple(sorted(found, key=lambda event: event.at))

    def consume(self, job_key: str, cursors: dict[str, int]) -> list[TimedEvent]:
        """Drop the events that a written status has folded; returns them in order of time."""
        dropped: list[TimedEvent] = []
        for worker, link in list(self._jobs.get(job_key, {}).items()):
            dropped += [event for event in link.events if _folded(event, cursors)]
            link.events = [event for event in link.events if not _folded(event, cursors)]
            if link.finished and not link.events:
                del self._jobs[job_key][worker]
        return sorted(dropped, key=lambda event: event.at)

    async def assign(self, job_key: str, assignment: Assignment) -> AgentState:
        """Send an assignment to its worker's agent.

        Raises:
            AgentUnreachable, AgentRefused
        """
        link = self._link(job_key, assignment.worker)
        link.ask(assignment.attempt)
        spoken = replace(assignment, contract_version=link.contract_version)
        return link.answered(await link.client.assign(spoken))

    async def request(self, job_key: str, worker: str, request: Request) -> AgentState:
        """Send a request to a worker's agent.

        Raises:
            AgentUnreachable, AgentRefused
        """
        link = self._link(job_key, worker)
        spoken = replace(request, contract_version=link.contract_version)
        return link.answered(await link.client.request(spoken))

    async def forget(self, job_key: str) -> None:
        """The job is gone."""
        for link in self._jobs.pop(job_key, {}).values():
            await link.close()

    async def close(self) -> None:
        """End all streams."""
        for job_key in list(self._jobs):
            await self.forget(job_key)
        if self._ticker is not None:
            self._ticker.cancel()
        if self._session is not None:
            await self._session.close()

    def _open(self, job_key: str, endpoint: Endpoint, cursors: dict[str, int]) -> Link:
        if self._session is None:
            self._session = new_session()
            self._ticker = asyncio.create_task(self._tick(), name="clock of the agent pool")
        client = AgentClient(self._session, endpoint)
        link = Link(
            client,
            self._clock,
            dict(cursors),
            lambda: self._changed(job_key),
            lambda: self._on_progress(job_key),
            lambda event: self._heard(job_key, endpoint.worker, event),
            lambda: self._heartbeat_seconds,
            self._gates,
        )
        link.start()
        return link

    def _changed(self, job_key: str) -> None:
        self._on_change(job_key)
        if job_key in self._spoke:
            self._spoke[job_key].set()

    def _heard(self, job_key: str, worker: str, event: Event) -> None:
        """Whom another agent can't reach is asked by us, too: a stream that beats seldom would tell late."""
        self._on_event(job_key, worker, event)
        peer = event.data.get("worker") if event.kind == events.PEER_UNREACHABLE else None
        link = self._jobs.get(job_key, {}).get(str(peer))
        if link is not None and not link.finished:
            link.check()

    async def _tick(self) -> None:
        while True:
            self._look_at_clock()
            streams = sum(len(links) for links in self._jobs.values())
            self._heartbeat_seconds = heartbeat_seconds(streams)
            await asyncio.sleep(TICK_SECONDS)

    def _look_at_clock(self) -> float:
        """Since when this process has run without a pause.

        While it was stopped, or its loop blocked, nobody could have been heard: that silence proves nothing.
        """
        ticked_at, self._ticked_at = self._ticked_at, time.monotonic()
        if self._ticked_at - ticked_at > GAP_SECONDS:
            self._awake_since = self._clock.now()
        return self._awake_since

    def _link(self, job_key: str, worker: str) -> Link:
        link = self._jobs.get(job_key, {}).get(worker)
        if link is None or link.finished:
            raise AgentUnreachable(f"agent of {worker}: no address is known")
        return link


def heartbeat_seconds(streams: int) -> float:
    """How often each of so many streams is to speak: together so many times a second, at most."""
    slowest = min(SLOWEST_HEARTBEAT_SECONDS, streams / TURNS_A_SECOND)
    return max(HEARTBEAT_SECONDS, slowest)


def _folded(event: TimedEvent, cursors: dict[str, int]) -> bool:
    return event.event.seq <= cursors.get(event.event.boot_id, 0)
