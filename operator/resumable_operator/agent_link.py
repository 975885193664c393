"""One agent as the operator knows it: its stream, its newest state, its events not yet folded into status.

``agents.AgentPool`` holds one for each worker. An agent's state is never shown ahead of its events: a state
that counts events which have not arrived yet is held back until they have.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from resumable_operator.agent_client import AgentClient, Beat, EventStream, silent_after
from resumable_operator.clock import Clock, Offset
from resumable_operator.decide.observation import Agent, Distrust, TimedEvent
from resumable_operator.errors import AgentNotBelieved, AgentRefused, AgentUnreachable
from resumable_training.contract import CONTRACT_VERSION, SUPPORTED_CONTRACT_VERSIONS, events
from resumable_training.contract.codec import from_plain
from resumable_training.contract.events import HEARTBEAT_SECONDS, AgentState, Event

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
LASTED_SECONDS = 1.0  # a stream that was open for so long is opened again at once when it breaks
FRESH_SECONDS = 1.0  # since its last word: two beats of a stream at its quickest
LAST_WORDS_SECONDS = 0.5
OPENED_AT_ONCE = 100
LARGEST = 2**53  # of an agent's numbers and of its clock; what is beyond is nonsense
LONGEST_BOOT_ID = 64
_UNTOLD: dict[str, Any] = {"now_ms": 0, "last_seq": 0}
MOST_EVENTS = 5000  # not yet folded: more than an agent's log holds


@dataclass
class Gates:
    """How many streams are opened at once, of all agents.

    A loop that opens thousands together is so late that its own timeouts end them all, again and again.
    Agents that did not answer have a gate of their own: waiting for them must not keep others waiting.
    """

    first: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENED_AT_ONCE))
    again: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENED_AT_ONCE))


@dataclass
class Link:
    """One agent: its client, its stream, what came from it."""

    client: AgentClient
    clock: Clock
    cursors: dict[str, int]
    changed: Callable[[], None]
    progressed: Callable[[], None]
    told: Callable[[Event], None]  # an event that is no progress
    wanted_heartbeat: Callable[[], float]
    gates: Gates
    events: list[TimedEvent] = field(default_factory=list)
    state: AgentState | None = None
    connected: bool = False
    last_heard: float | None = None
    finished: bool = False
    refused: bool = False  # when asked just now nobody listened, or, called lost by its neighbour, answered
    distrust: Distrust | None = None
    opened_at: float = field(init=False)
    _asked: tuple[int, float] = (0, 0.0)  # attempt whose assignment was sent first when
    _heartbeat: float = HEARTBEAT_SECONDS  # as asked for
    _held: AgentState | None = None  # a state ahead of the events
    _folded: int = 0  # newest event that is in ``state``
    _queued: bool = False  # waits until fewer streams are being opened
    _received: int = 0  # newest event number received of this boot
    _boot_id: str = ""
    _offset: Offset = field(default_factory=Offset)  # operator's clock minus the agent's
    _task: asyncio.Task[None] | None = None
    _check_task: asyncio.Task[None] | None = None
    _open_since: float = 0.0
    _retry: float = FIRST_RETRY_SECONDS
    _broken: asyncio.Event = field(default_factory=asyncio.Event)  # the stream is not open now

    def __post_init__(self) -> None:
        self.opened_at = self.clock.now()
        self._broken.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name=f"events of {self.worker}")

    @property
    def worker(self) -> str:
        return self.client.endpoint.worker

    @property
    def contract_version(self) -> int:
        """What to speak with it: its own version where it is older and still spoken here."""
        told = self.state.contract_version if self.state else CONTRACT_VERSION
        return told if told in SUPPORTED_CONTRACT_VERSIONS else CONTRACT_VERSION

    def view(self, awake_since: float) -> Agent:
        state = self.state
        outdated = state is not None and state.contract_version < CONTRACT_VERSION
        heard = None if self.last_heard is None else max(self.last_heard, awake_since)
        if self._queued:
            heard = self.clock.now()  # it was not asked yet: that it says nothing proves nothing
        return Agent(
            self.worker,
            self.connected,
            state,
            heard,
            outdated,
            silent_after=silent_after(self._heartbeat),
            distrust=self.distrust,
            known_since=max(self.opened_at, awake_since),
            asked_attempt=self._asked[0],
            asked_since=self._asked[1],
            refused=self.refused,
        )

    def ask(self, attempt: int) -> None:
        """Its assignment of ``attempt`` is being sent, perhaps not for the first time."""
        if attempt != self._asked[0]:
            self._asked = attempt, self.clock.now()

    def answered(self, state: AgentState) -> AgentState:
        """Take note of the state in a reply."""
        self._check_state(state)
        self.last_heard = self.clock.now()
        self._set_refused(False)
        if state.boot_id == self._boot_id:
            self._take(state)
        return state

    async def finish(self) -> None:
        """Read what is left in the stream, for a bounded time, then end it; the events stay."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._broken.wait()
        except TimeoutError:
            logger.info("%s: its stream did not end although its worker did", self.worker)
        await self.close()

    async def close(self) -> None:
        self.finished, self.connected = True, False
        tasks = [task for task in (self._task, self._check_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        """Keep the stream open, with a pause that grows from break to break."""
        while True:
            try:
                if await self._read_stream():
                    continue
            except AgentNotBelieved as error:
                self._distrust(Distrust(error.kind, str(error)))
            except AgentUnreachable as error:
                logger.debug("%s", error)
                self._distrust(None)
                self._set_refused(isinstance(error.__cause__, ConnectionRefusedError))
            lasted = self.connected and self.clock.now() - self._open_since >= LASTED_SECONDS
            self._set_connected(False)
            if lasted:
                continue  # who is there now? It may tell at once that nobody is
            await asyncio.sleep(self._retry * random.uniform(0.5, 1.0))  # noqa: S311 -- spreads reconnects
            self._retry = min(2 * self._retry, LAST_RETRY_SECONDS)

    def check(self) -> None:
        """Ask it now, whatever its stream says; ``refused`` is what comes of it."""
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.create_task(self._check_now(), name=f"check of {self.worker}")

    async def _check_now(self) -> None:
        began = self.clock.now()
        try:
            self.answered(await self.client.state())
        except (AgentNotBelieved, AgentRefused) as error:
            logger.debug("%s", error)  # somebody is there
        except AgentUnreachable as error:
            logger.debug("%s", error)
            if self._is_gone(error, began):
                self._set_refused(True)

    def _is_gone(self, error: AgentUnreachable, asked_at: float) -> bool:
        """A call that fails proves nothing against a stream that has just spoken, unless nobody is there."""
        if self.last_heard is None:
            return True
        refused = isinstance(error.__cause__, ConnectionRefusedError)
        return self.last_heard < (asked_at if refused else asked_at - FRESH_SECONDS)

    async def _read_stream(self) -> bool:
        """Read until it ends; true when it is to be opened again, with other heartbeats."""
        fresh = self._retry == FIRST_RETRY_SECONDS
        self._queued = fresh
        async with self.gates.first if fresh else self.gates.again:
            self._queued = False
            stream = await self._open()
        try:
            await stream.read(self._hear_line)
        finally:
            stream.close()
        return self._is_other_wanted()

    async def _open(self) -> EventStream:
        boot_id = await self.client.hello()
        if len(boot_id) > LONGEST_BOOT_ID:  # it is kept in status
            raise AgentNotBelieved("words", f"{self.worker}: no boot has a name of {len(boot_id)} characters")
        if boot_id != self._boot_id:
            self._boot_id, self._received = boot_id, self.cursors.get(boot_id, 0)
            self._held, self._offset = None, Offset()
        self._heartbeat = self.wanted_heartbeat()
        return await self.client.events(self._received, self._heartbeat)

    def _hear_line(self, line: Event | Beat) -> bool:
        """True when the stream is to be opened again, with other heartbeats."""
        self._retry = FIRST_RETRY_SECONDS
        if isinstance(line, Beat):
            self._hear_beat(line)
        elif line.boot_id != self._boot_id:
            raise AgentUnreachable(f"{self.worker} restarted within a stream")
        else:
            self._hear(line)
        return self._is_other_wanted()

    def _is_other_wanted(self) -> bool:
        fits = self._heartbeat / 2 < self.wanted_heartbeat() < 2 * self._heartbeat
        return not fits and not self.gates.first.locked()

    def _distrust(self, distrust: Distrust | None) -> None:
        before, self.distrust = self.distrust, distrust
        if (before.kind if before else None) == (distrust.kind if distrust else None):
            return
        if distrust is not None:
            logger.warning("%s", distrust.message)
        self.changed()

    def _set_refused(self, refused: bool) -> None:
        if refused != self.refused:
            self.refused = refused
            self.changed()

    def _hear_beat(self, beat: Beat) -> None:
        now = self._heard_at(beat.now_ms)
        self._offset.note(beat.now_ms / 1000, now)
        if self._held is not None:  # an event that it waited for will not come any more
            self._show(self._held)
        self._set_connected(True)

    def _heard_at(self, agent_ms: int) -> float:
        """Something came that the agent signed, at this time of its own.

        Raises:
            AgentNotBelieved: that is no time.
        """
        self._check(agent_ms)
        self.last_heard = self.clock.now()
        self._distrust(None)
        self._set_refused(False)
        return self.last_heard

    def _check_state(self, state: AgentState) -> None:
        self._check(
            state.now_ms,
            state.attempt,
            state.last_seq,
            state.first_seq,
            state.master_port,
            state.next_port,
        )

    def _check(self, *numbers: int) -> None:
        """Raises: AgentNotBelieved: they count nothing that there is, and would spoil what is counted."""
        for number in numbers:
            if not 0 <= number <= LARGEST:
                raise AgentNotBelieved("words", f"{self.worker}: a number or time is out of all bounds")

    def _hear(self, event: Event) -> None:
        now = self._heard_at(event.at_ms)
        if event.kind == events.SNAPSHOT:
            state = from_plain(AgentState, event.data)
            self._check_state(state)
            self._hear_snapshot(state, now)
        elif event.seq > self._received:
            self._check(event.seq, event.attempt)
            if len(self.events) >= MOST_EVENTS:  # it will be asked for them again
                raise AgentNotBelieved("words", f"{self.worker} tells more than can be taken in")
            self._received = event.seq
            self._keep(event, now)
            self._fold(event)
            if event.kind == events.PROGRESS:
                self.progressed()
            else:
                self.changed()
                self.told(event)
        self._set_connected(True)

    def _hear_snapshot(self, state: AgentState, now: float) -> None:
        self._offset.note(state.now_ms / 1000, now)
        if self._held is not None:  # an event that it waited for will not come any more
            self._show(self._held)
        self._take(state)

    def _take(self, state: AgentState) -> None:
        """Show ``state``, or hold it back until the events that it counts have arrived."""
        if self.state is not None and self.state.boot_id == state.boot_id and state.last_seq < self._folded:
            return
        if state.last_seq > self._received:
            self._held = state
        else:
            self._show(state)

    def _show(self, state: AgentState) -> None:
        """It is news if more than time and count of events is different: events are told as they come."""
        self._held = None
        if self.state is None or replace(state, **_UNTOLD) != replace(self.state, **_UNTOLD):
            self.changed()
        self.state, self._folded = state, state.last_seq

    def _fold(self, event: Event) -> None:
        if self._held is not None and self._held.last_seq <= event.seq:
            self._show(self._held)
        if self.state is None or self.state.boot_id != event.boot_id or event.seq <= self._folded:
            return
        self._folded = event.seq
        if event.kind != events.PROGRESS:  # most events by far; they change nothing of it
            self.state = fold_state(self.state, event)

    def _keep(self, event: Event, now: float) -> None:
        at = self._offset.here(event.at_ms / 1000, now)
        if self.events:
            at = max(at, self.events[-1].at)
        if event.kind == events.PROGRESS:
            self.events = [kept for kept in self.events if not _supersedes(event, kept.event)]
        self.events.append(TimedEvent(self.worker, at, event))

    def _set_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected, self._open_since = connected, self.clock.now()
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
        ranks = event.data.get("ranks")
        return replace(state, state="running", ranks_alive=len(ranks) if isinstance(ranks, list) else 0)
    if event.kind == events.DRAIN_REQUESTED and state.state == "running":
        return replace(state, state="draining")
    if event.kind == events.RANK_EXITED:
        return replace(state, ranks_alive=max(0, state.ranks_alive - 1))
    if event.kind == events.ATTEMPT_ENDED:
        outcome = event.data.get("outcome")
        known = outcome if outcome in events.OUTCOMES else None
        return replace(state, state="ended", outcome=known, ranks_alive=0)
    return state


def _supersedes(new: Event, old: Event) -> bool:
    """A progress report holds totals: a newer one of that rank and attempt makes an older one worthless."""
    return (
        old.kind == events.PROGRESS
        and (old.boot_id, old.attempt) == (new.boot_id, new.attempt)
        and old.data.get("rank") == new.data.get("rank")
    )
