"""The agent's state machine: assignments, requests, signals, time. One thread, one event loop.

It must run in the main thread: ranks are started from it, and PDEATHSIG follows the thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Coroutine, Dict, Optional, Set, Tuple

from resumable_training.agent import reap
from resumable_training.agent.accept import MASTER_PORT, Known, Refusal, judge
from resumable_training.agent.attempt import Attempt
from resumable_training.agent.auth import Gate
from resumable_training.agent.context import REAP_SECONDS, Context
from resumable_training.agent.files import write_json
from resumable_training.agent.log import EventLog, monotonic_ms
from resumable_training.agent.metrics import WorkerMetrics
from resumable_training.agent.neighbour import NeighbourWatch, next_member
from resumable_training.agent.newest import CannotTell, with_offer
from resumable_training.agent.ports import HeldPort, choose_master_port, hold_port
from resumable_training.agent.procfs import start_ticks
from resumable_training.agent.server import Answer, Server
from resumable_training.contract import SUPPORTED_CONTRACT_VERSIONS, assignment, events
from resumable_training.contract.assignment import AgentSpec, Assignment, Request
from resumable_training.contract.codec import ContractError, from_json
from resumable_training.contract.events import AgentState

TICK_SECONDS = 0.1
GAP_SECONDS = 1.0  # between ticks: the machine was paused, silence proves nothing
ANSWER_SECONDS = 1.0  # ranks may take longer to exist, as imports do, and the operator waits for our answer
FLUSH_SECONDS = 1.0  # for the last events, before the agent leaves
EXIT_FAILED = 1  # ranks failed while they drained
EXIT_LIFELINE = 1
EXIT_SIGTERM = 143  # ended by SIGTERM with no ranks to ask


class Agent:
    """Everything one worker does. ``run`` returns the exit code."""

    def __init__(
        self,
        spec: AgentSpec,
        boot_id: str,
        gate: Gate,
        context: Callable[["Agent"], Context],
        say: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.boot_id = boot_id
        self.log = EventLog(boot_id)
        self._say = say
        self._metrics = WorkerMetrics(spec.job)
        self._server = Server(self, gate, self.log, spec.worker)
        self._context = context(self)
        self._context.keeper.on_landed = self._on_landed
        self._attempt: Optional[Attempt] = None
        self._digest = ""
        self._unfit = False
        self._terminating = False
        self._held: Optional[HeldPort] = None  # for the next attempt with rank 0 here
        self._peer: Optional[NeighbourWatch] = None
        self._peer_task: "Optional[asyncio.Task[None]]" = None
        self._heard_at = time.monotonic()
        self._awake_since = self._ticked_at = time.monotonic()
        self._tasks: "Set[asyncio.Task[None]]" = set()

    # life ---------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until something ends this agent.

        Raises:
            OSError: the address can't be bound, or the run file can't be written.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._leaving: "asyncio.Future[int]" = loop.create_future()
        self._switching = asyncio.Lock()
        self._watch_process()
        port = await self._server.open(self.spec.address, self.spec.port)
        self._hold_port(port)
        self._introduce(port)
        self._context.starter.begin()
        self._spawn(self._keep_time())
        try:
            return await self._leaving
        finally:
            await self._last_steps()
            self._context.starter.close()

    async def _last_steps(self) -> None:
        """No rank outlives its agent; and what was seen is told, if somebody listens."""
        ended = self._loop.create_task(self._end_ranks(events.STOPPED))
        await asyncio.wait([ended], timeout=REAP_SECONDS + FLUSH_SECONDS)
        await self._server.flush(FLUSH_SECONDS)
        await self._context.trackers.ended()

    def _watch_process(self) -> None:
        """Signals and the lifeline."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_sigterm)
        if self.spec.lifeline_fd >= 0:
            os.set_inheritable(self.spec.lifeline_fd, False)
            os.set_blocking(self.spec.lifeline_fd, False)
            self._loop.add_reader(self.spec.lifeline_fd, self._on_lifeline)

    def _introduce(self, port: int) -> None:
        """``agent.json`` for those who look for us, and the first event."""
        write_json(
            Path(self.spec.directory, "agent.json"),
            {
                "pid": os.getpid(),
                "start_ticks": start_ticks(os.getpid()),
                "boot_id": self.boot_id,
                "address": self.spec.address,
                "port": port,
            },
        )
        self.emit(events.AGENT_STARTED, 0, {})
        if not reap.become_subreaper():
            self.warn(
                "on %s ranks do not die with a killed agent by themselves and their orphans are not found; "
                "the lifeline ends them when the parent goes" % sys.platform
            )

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        """Run beside; a failure there is a failure of the agent."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and not self._leaving.done():
            error = task.exception()
            assert error is not None
            self._leaving.set_exception(error)

    def leave(self, code: int) -> None:
        """End the agent; the first code stays."""
        if not self._leaving.done():
            self._leaving.set_result(code)

    def _reap(self) -> None:
        ended = reap.reap()
        if not ended:
            return
        self._context.starter.reaped(ended)
        if self._attempt is not None:
            self._attempt.reaped(ended)

    def _on_lifeline(self) -> None:
        """Only the end of the pipe matters."""
        try:
            if os.read(self.spec.lifeline_fd, 4096):
                return
        except BlockingIOError:
            return
        self._loop.remove_reader(self.spec.lifeline_fd)
        self._say("the process that started this agent is gone: ending ranks and leaving")
        self.leave(EXIT_LIFELINE)

    def _on_sigterm(self) -> None:
        """The worker is being ended: drain, then leave. Again: nothing new."""
        if self._terminating:
            return
        self._terminating = True
        self._spawn(self._terminate())

    async def _terminate(self) -> None:
        attempt = self._running()
        seconds = attempt.limits.drain_seconds if attempt else self.spec.drain_seconds
        if attempt is None or attempt.drain_state is not None:
            data = {"reason": "sigterm", "seconds": seconds, "asked_by": assignment.ASKED_BY_AGENT}
            self.emit(events.DRAIN_REQUESTED, self._number(), data)
        if attempt is None:
            self.leave(EXIT_SIGTERM)
            return
        attempt.drain("sigterm", seconds, assignment.ASKED_BY_AGENT)
        await attempt.finished.wait()
        self.leave(EXIT_FAILED if attempt.outcome == events.FAILED else 0)

    # time ---------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            now = time.monotonic()
            if now - self._ticked_at > GAP_SECONDS:
                self._awake_since = now
            self._ticked_at = now
            self._reap()
            attempt = self._running()
            if attempt:
                attempt.tick(now, self._awake_since)
                self._check_autonomy(attempt, now)
            await asyncio.sleep(TICK_SECONDS)

    def _check_autonomy(self, attempt: Attempt, now: float) -> None:
        alone = now - self._heard_at
        if alone > attempt.limits.autonomy_seconds and attempt.drain_state is None:
            self.warn("no operator for %d s: draining" % alone)
            attempt.drain("autonomy", attempt.limits.drain_seconds, assignment.ASKED_BY_AGENT)

    # what the server asks (server.Api) ------------------------------------------------------------------

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def metrics(self) -> str:
        attempt = self._attempt
        if attempt is None or attempt.assignment.member().first_rank != 0:
            return self._metrics.render(False)
        return self._metrics.render(True, self._context.starter.memory_bytes())

    def state(self) -> AgentState:
        attempt = self._attempt
        unreachable = self._peer is not None and not self._peer.view.reachable
        return AgentState(
            boot_id=self.boot_id,
            worker=self.spec.worker,
            attempt=self._number(),
            digest=self._digest,
            master_port=attempt.assignment.master_port if attempt else 0,
            resume_from=attempt.resume_from if attempt else "",
            state=self._state_word(),
            outcome=attempt.outcome if attempt else None,
            ranks_alive=len(attempt.alive) if attempt else 0,
            last_seq=self.log.last_seq,
            first_seq=self.log.first_seq,
            now_ms=monotonic_ms(),
            unreachable_peer=self._peer.peer.worker if self._peer and unreachable else None,
            unfit=self._unfit,
            terminating=self._terminating,
            next_port=self._held.number if self._held else 0,
            warming=self._context.starter.warming(),
        )

    def _state_word(self) -> str:
        attempt = self._attempt
        if attempt is None:
            return "idle"
        if attempt.finished.is_set():
            return "ended"
        return "draining" if attempt.drain_state else "running"

    async def assign(self, body: bytes) -> Answer:
        """Accept, recognise or refuse; answered when the new ranks exist, or are sure to come."""
        try:
            wanted = from_json(Assignment, body)
        except ContractError as error:
            return _refused(Refusal("contract", str(error)))
        async with self._switching:
            known = Known(self._number(), self._digest, self._unfit, self._terminating)
            verdict = judge(self.spec, known, wanted)
            refusal = verdict.refusal
            if refusal is None and not verdict.repeated:
                refusal = await self._switch(wanted)
        return _refused(refusal) if refusal else (200, self.state())

    async def _switch(self, wanted: Assignment) -> Optional[Refusal]:
        """From whatever runs to the new attempt, in place."""
        await self._end_ranks(events.STOPPED)
        refusal = self._unable(wanted)
        if refusal:
            return refusal
        notes: Tuple[str, ...] = ()
        trouble = ""
        try:
            wanted, notes = await with_offer(wanted)
        except CannotTell as error:
            trouble = str(error)
        refusal = self._unable(wanted)  # meanwhile
        if refusal:
            return refusal
        settled = self._with_port(wanted)
        if settled is None:
            return Refusal(MASTER_PORT, "no free port for the master on %s" % wanted.master_address)
        self._attempt = Attempt(self._context, settled, self._hand_over(settled.master_port))
        self._hold_port(settled.master_port)
        self._digest = wanted.digest
        self.heard()
        self._watch_neighbour(settled)
        begun = self._spawn(self._begin(self._attempt, trouble, notes))
        await asyncio.wait([begun], timeout=ANSWER_SECONDS)
        return None

    async def _begin(self, attempt: Attempt, trouble: str, notes: Tuple[str, ...]) -> None:
        await attempt.start(trouble)
        for note in notes:
            self.warn(note)
        self._spawn(self._supervise(attempt))

    def _with_port(self, wanted: Assignment) -> Optional[Assignment]:
        """The assignment with a master port, the one held here where none is given; None: no port is free."""
        if wanted.master_port:
            return wanted
        held = self._held.number if self._held else 0
        port = held or choose_master_port(wanted.master_address, wanted.job_uid, wanted.attempt)
        return None if port is None else dataclasses.replace(wanted, master_port=port)

    def _hold_port(self, but: int) -> None:
        """A port for the next attempt, unless one is held: each attempt gets a fresh one. ``but``: in use."""
        if self._held is None:
            seed = "%s/%s" % (self.spec.job_uid, self.spec.worker)
            self._held = hold_port(self.spec.address, seed, self._number() + 1, but)

    def _hand_over(self, port: int) -> Optional[HeldPort]:
        """The port that is held here, if it is the one of the attempt that begins."""
        held = self._held
        if held is None or held.number != port:
            return None
        self._held = None
        return held

    def _unable(self, wanted: Assignment) -> Optional[Refusal]:
        """Why this agent can start no ranks at all."""
        return judge(self.spec, Known(unfit=self._unfit, terminating=self._terminating), wanted).refusal

    async def _supervise(self, attempt: Attempt) -> None:
        await attempt.supervise()
        self._unfit = self._unfit or attempt.unfit

    async def request(self, body: bytes) -> Answer:
        """Do what is asked; one about an attempt that is not the current one changes nothing."""
        try:
            request = from_json(Request, body)
        except ContractError as error:
            return _refused(Refusal("contract", str(error)))
        refusal = self._refuse_request(request)
        if refusal:
            return _refused(refusal)
        if request.attempt in (0, self._number()):
            await self._obey(request)
        return 200, self.state()

    def _refuse_request(self, request: Request) -> Optional[Refusal]:
        if request.contract_version not in SUPPORTED_CONTRACT_VERSIONS:
            return Refusal("contract", "contract version %d" % request.contract_version)
        if request.kind not in assignment.REQUESTS:
            return Refusal("contract", "unknown request %r" % request.kind)
        if request.kind == assignment.REQUEST_CUT_NETWORK and not self.spec.allow_faults:
            return Refusal("faults", "this agent does not inject faults (allow_faults)")
        return None

    async def _obey(self, request: Request) -> None:
        attempt = self._running()
        if request.kind == assignment.REQUEST_SHUTDOWN:
            await self._end_ranks(events.STOPPED)
            self._loop.call_later(TICK_SECONDS, self.leave, 0)  # after the reply
        elif request.kind == assignment.REQUEST_CUT_NETWORK:
            self._loop.call_later(TICK_SECONDS, self._server.cut, request.seconds, request.scope)
        elif attempt is None:
            return
        elif request.kind == assignment.REQUEST_DRAIN:
            seconds = request.seconds or attempt.limits.drain_seconds
            attempt.drain(request.reason or "request", seconds, request.asked_by)
        elif request.kind == assignment.REQUEST_STOP:
            await attempt.stop(request.with_stacks)
        elif request.kind == assignment.REQUEST_SETTINGS:
            attempt.settings(request.limits, request.checkpoint)
        elif request.kind == assignment.REQUEST_STACKS:
            await attempt.dump_stacks()

    # helpers ------------------------------------------------------------------------------------------

    def _number(self) -> int:
        return self._attempt.number if self._attempt else 0

    def _running(self) -> Optional[Attempt]:
        """The current attempt while it is not over."""
        attempt = self._attempt
        return attempt if attempt and not attempt.finished.is_set() else None

    async def _end_ranks(self, outcome: str) -> None:
        attempt = self._running()
        if attempt:
            attempt.end(outcome)
            await attempt.finished.wait()

    def _watch_neighbour(self, settled: Assignment) -> None:
        """From now on the neighbour of this attempt."""
        if self._peer_task is not None:
            self._peer_task.cancel()
        member = next_member(settled)
        self._peer = self._peer_task = None
        if member is not None:
            worker = member.worker
            self._peer = NeighbourWatch(member, lambda kind: self._on_peer(kind, worker), self._server.is_cut)
            self._peer_task = self._spawn(self._peer.run())

    def _on_peer(self, kind: str, worker: str) -> None:
        """A neighbour may leave once the work is done; that is no news."""
        attempt = self._attempt
        if attempt and attempt.outcome not in (events.SUCCEEDED, events.DRAINED):
            self.emit(kind, attempt.number, {"worker": worker})

    def emit(self, kind: str, attempt: int, data: Any) -> None:
        """Append to the event log, fold into the metrics, and say it in the agent's own log."""
        event = self.log.append(kind, attempt, data)
        self._metrics.fold(kind, attempt, event.data)
        if kind not in (events.PROGRESS, events.STACKS):
            self._say("attempt %d: %s %s" % (attempt, kind, event.data))

    def _on_landed(self, attempt: int, told: Dict[str, Any]) -> None:
        """A checkpoint whose rank 0 does not live to tell of it."""
        data = {name: told[name] for name in ("step", "samples", "checkpoint")}
        data.update(bytes=told["bytes"] or 0, durable_ms=round((told["seconds"] or 0.0) * 1000))
        self.emit(events.CHECKPOINT, attempt, data)

    def warn(self, message: str) -> None:
        self.emit(events.WARNING, self._number(), {"message": message})

    def warn_from_thread(self, message: str) -> None:
        """The same, from the thread that pumps output."""
        self._loop.call_soon_threadsafe(self.warn, message)


def _refused(refusal: Refusal) -> Answer:
    return 409, {"code": refusal.code, "message": refusal.message}
