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
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import aiohttp

from resumable_operator.agent_client import AgentClient, Endpoint, new_session
from resumable_operator.clock import Clock
from resumable_operator.decide.observation import Agent, Distrust, TimedEvent
from resumable_operator.errors import AgentNotBelieved, AgentUnreachable
from resumable_training.contract import CONTRACT_VERSION, events
from resumable_training.contract.assignment import Assignment, Request
from resumable_training.contract.codec import from_plain
from resumable_training.contract.events import AgentState, Event

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
LAST_WORDS_SECONDS = 0.5
TICK_SECONDS = 0.5
LARGEST_MS = 2**53  # of an agent's clock; beyond it, it is nonsense
GAP_SECONDS = 3.0  # between ticks: this process was paused


class AgentPool:
    """Agents of all jobs. Use within one event loop; ``close`` ends all streams."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, _Link]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._on_change: Callable[[str], None] = lambda _key: None
        self._on_progress: Callable[[str], None] = lambda _key: None
        self._ticked_at, self._awake_since = time.monotonic(), clock.now()
        self._ticker: asyncio.Task[None] | None = None

    def subscribe(
        self, on_change: Callable[[str], None], on_progress: Callable[[str], None] | None = None
    ) -> None:
        """Call ``on_change(job_key)`` when an agent says something new or its stream breaks or is back.

        Progress reports, most of all events by far, are told to ``on_progress`` instead, if that is given.
        """
        self._on_change = on_change
        self._on_progress = on_progress or on_change

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
        return link.answered(await link.client.assign(assignment))

    async def request(self, job_key: str, worker: str, request: Request) -> AgentState:
        """Send a request to a worker's agent.

        Raises:
            AgentUnreachable, AgentRefused
        """
        link = self._link(job_key, worker)
        return link.answered(await link.client.request(request))

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

    def _open(self, job_key: str, endpoint: Endpoint, cursors: dict[str, int]) -> _Link:
        if self._session is None:
            self._session = new_session()
            self._ticker = asyncio.create_task(self._tick(), name="clock of the agent pool")
        client = AgentClient(self._session, endpoint)
        link = _Link(
            client,
            self._clock,
            dict(cursors),
            lambda: self._on_change(job_key),
            lambda: self._on_progress(job_key),
        )
        link.start()
        return link

    async def _tick(self) -> None:
        while True:
            self._look_at_clock()
            await asyncio.sleep(TICK_SECONDS)

    def _look_at_clock(self) -> float:
        """Since when this process has run without a pause.

        While it was stopped, or its loop blocked, nobody could have been heard: that silence proves nothing.
        """
        ticked_at, self._ticked_at = self._ticked_at, time.monotonic()
        if self._ticked_at - ticked_at > GAP_SECONDS:
            self._awake_since = self._clock.now()
        return self._awake_since

    def _link(self, job_key: str, worker: str) -> _Link:
        link = self._jobs.get(job_key, {}).get(worker)
        if link is None or link.finished:
            raise AgentUnreachable(f"agent of {worker}: no address is known")
        return link


@dataclass
class _Link:
    """One agent: its client, its stream, what came from it."""

    client: AgentClient
    clock: Clock
    cursors: dict[str, int]
    changed: Callable[[], None]
    progressed: Callable[[], None]
    events: list[TimedEvent] = field(default_factory=list)
    state: AgentState | None = None
    connected: bool = False
    last_heard: float | None = None
    finished: bool = False
    distrust: Distrust | None = None
    _held: AgentState | None = None  # a state ahead of the events
    _received: int = 0  # newest event number received of this boot
    _boot_id: str = ""
    _offset: float | None = None  # operator's clock minus the agent's
    _task: asyncio.Task[None] | None = None
    _retry: float = FIRST_RETRY_SECONDS
    _broken: asyncio.Event = field(default_factory=asyncio.Event)  # the stream is not open now

    def __post_init__(self) -> None:
        self._broken.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name=f"events of {self.worker}")

    @property
    def worker(self) -> str:
        return self.client.endpoint.worker

    def view(self, awake_since: float) -> Agent:
        state = self.state
        outdated = state is not None and state.contract_version < CONTRACT_VERSION
        heard = None if self.last_heard is None else max(self.last_heard, awake_since)
        return Agent(self.worker, self.connected, state, heard, outdated, self.distrust)

    def answered(self, state: AgentState) -> AgentState:
        """Take note of the state in a reply."""
        self.last_heard = self.clock.now()
        if state.boot_id == self._boot_id:
            self._take(state)
        return state

    async def finish(self) -> None:
        """Read what is left in the stream, for a bounded time, then end it; the events stay."""
        try:
            await asyncio.wait_for(self._broken.wait(), LAST_WORDS_SECONDS)
        except TimeoutError:
            logger.info("%s: its stream did not end although its worker did", self.worker)
        await self.close()

    async def close(self) -> None:
        self.finished, self.connected = True, False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        """Keep the stream open, with a pause that grows from break to break."""
        while True:
            try:
                await self._read_stream()
            except AgentNotBelieved as error:
                self._distrust(Distrust(error.kind, str(error)))
            except AgentUnreachable as error:
                logger.debug("%s", error)
                self._distrust(None)
            self._set_connected(False)
            await asyncio.sleep(self._retry * random.uniform(0.5, 1.0))  # noqa: S311 -- spreads reconnects
            self._retry = min(2 * self._retry, LAST_RETRY_SECONDS)

    async def _read_stream(self) -> None:
        boot_id = await self.client.hello()
        if boot_id != self._boot_id:
            self._boot_id, self._received = boot_id, self.cursors.get(boot_id, 0)
            self._held, self._offset = None, None
        async with self.client.events(after=self._received) as lines:
            async for event in lines:
                if event.boot_id != boot_id:
                    raise AgentUnreachable(f"{self.worker} restarted within a stream")
                self._retry = FIRST_RETRY_SECONDS
                self._hear(event)

    def _distrust(self, distrust: Distrust | None) -> None:
        before, self.distrust = self.distrust, distrust
        if (before.kind if before else None) == (distrust.kind if distrust else None):
            return
        if distrust is not None:
            logger.warning("%s", distrust.message)
        self.changed()

    def _hear(self, event: Event) -> None:
        if not 0 <= event.at_ms <= LARGEST_MS:
            raise AgentNotBelieved("words", f"{self.worker}: {event.at_ms} is no time")
        self.last_heard = now = self.clock.now()
        self._distrust(None)
        if event.kind == events.SNAPSHOT:
            state = from_plain(AgentState, event.data)
            if not 0 <= state.now_ms <= LARGEST_MS:
                raise AgentNotBelieved("words", f"{self.worker}: {state.now_ms} is no time")
            self._hear_snapshot(state, now)
        elif event.seq > self._received:
            self._received = event.seq
            self._keep(event, now)
            self._fold(event)
            if event.kind == events.PROGRESS:
                self.progressed()
            else:
                self.changed()
        self._set_connected(True)

    def _hear_snapshot(self, state: AgentState, now: float) -> None:
        offset = now - state.now_ms / 1000
        self._offset = offset if self._offset is None else min(offset, self._offset)
        if self._held is not None:  # an event that it waited for will not come any more
            self._show(self._held)
        self._take(state)

    def _take(self, state: AgentState) -> None:
        """Show ``state``, or hold it back until the events that it counts have arrived."""
        if (
            self.state is not None
            and self.state.boot_id == state.boot_id
            and state.last_seq < self.state.last_seq
        ):
            return
        if state.last_seq > self._received:
            self._held = state
        else:
            self._show(state)

    def _show(self, state: AgentState) -> None:
        self._held = None
        if self.state is None or replace(state, now_ms=0) != replace(self.state, now_ms=0):
            self.changed()
        self.state = state

    def _fold(self, event: Event) -> None:
        if self._held is not None and self._held.last_seq <= event.seq:
            self._show(self._held)
        if self.state is not None and self.state.boot_id == event.boot_id and event.seq > self.state.last_seq:
            self.state = fold_state(self.state, event)

    def _keep(self, event: Event, now: float) -> None:
        at = now if self._offset is None else min(now, event.at_ms / 1000 + self._offset)
        if self.events:
            at = max(at, self.events[-1].at)
        if event.kind == events.PROGRESS:
            self.events = [kept for kept in self.events if not _supersedes(event, kept.event)]
        self.events.append(TimedEvent(self.worker, at, event))

    def _set_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self.changed()
        if connected:
            self._broken.clear()
        else:
            self._broken.set()


def fold_state(state: AgentState, event: Event) -> AgentState:
    """The state after ``event``, as far as the event tells; the next snapshot has the rest."""
    state = replace(state, last_seq=event.seq)
    if event.kind == events.PEER_UNREACHABLE:
        return replace(state, unreachable_peer=str(event.data.get("worker", "")) or None)
    if event.kind == events.PEER_REACHABLE:
        return replace(state, unreachable_peer=None)
    if event.kind == events.UNFIT:
        return replace(state, unfit=True)
    if event.kind == events.DRAIN_REQUESTED and event.data.get("reason") == "sigterm":
        state = replace(state, terminating=True)
    if event.attempt != state.attempt:
        return state
    if event.kind == events.RANKS_STARTED:
        return replace(state, state="running", ranks_alive=len(event.data.get("ranks", ())))
    if event.kind == events.DRAIN_REQUESTED and state.state == "running":
        return replace(state, state="draining")
    if event.kind == events.RANK_EXITED:
        return replace(state, ranks_alive=max(0, state.ranks_alive - 1))
    if event.kind == events.ATTEMPT_ENDED:
        return replace(state, state="ended", outcome=event.data.get("outcome"), ranks_alive=0)
    return state


def _folded(event: TimedEvent, cursors: dict[str, int]) -> bool:
    return event.event.seq <= cursors.get(event.event.boot_id, 0)


def _supersedes(new: Event, old: Event) -> bool:
    """A progress report holds totals: a newer one of that rank and attempt makes an older one worthless."""
    return (
        old.kind == events.PROGRESS
        and (old.boot_id, old.attempt) == (new.boot_id, new.attempt)
        and old.data.get("rank") == new.data.get("rank")
    )
