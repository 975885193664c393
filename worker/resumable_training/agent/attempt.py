"""One attempt on this worker: its ranks from start to the last reaped process.

``core`` makes one for each accepted assignment, feeds it what ``waitpid`` says, and calls ``tick`` several
times a second. Deciding is in ``hang``, ``drain`` and ``reports``; here things are done.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from resumable_training.agent import drain as draining
from resumable_training.agent import gpus, reap, reports, stacks
from resumable_training.agent.context import Context
from resumable_training.agent.drain import Drain
from resumable_training.agent.files import write_json
from resumable_training.agent.hang import Hang, find_hang
from resumable_training.agent.logfile import forget_old_attempts
from resumable_training.agent.ports import HeldPort
from resumable_training.agent.procfs import start_ticks
from resumable_training.agent.rank import Rank, Reporter
from resumable_training.agent.ranklink import RankLink
from resumable_training.agent.ranks import RankFiles, RankPlan, StartedRank, log_path, log_root, rank_plan
from resumable_training.contract import env, events, exitcodes, rankwire
from resumable_training.contract.assignment import Assignment, CheckpointConfig, Limits
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import RankExit
from resumable_training.contract.output import lead
from resumable_training.contract.progress import ProgressPage

_OUTPUT_SECONDS = 1.0  # for the last lines, should the log's disk hang
WARNINGS_LIMIT = 200  # passed on from the ranks of one attempt
_LEFTOVER_TURNS = 200
_GPU_SECONDS = 30.0  # for the driver to take back what a killed process held
PreparedRank = Tuple[RankPlan, ProgressPage, RankFiles]  # all but its process


class Attempt:
    """Ranks of one assignment. ``finished`` is set when all are reaped and their leftovers killed.

    ``port``: of the master, held until ranks are started, which may first have to wait for imports.
    """

    def __init__(self, context: Context, assignment: Assignment, port: Optional[HeldPort] = None) -> None:
        self.assignment = assignment
        self.limits = assignment.limits
        self.outcome: Optional[str] = None
        self.drain_state: Optional[Drain] = None
        self.unfit = False
        self.finished = asyncio.Event()
        self.ranks: List[Rank] = []
        self._context = context
        self._port = port
        self._pending: Optional[str] = None  # outcome that is decided while ranks are still being ended
        self._exits: "asyncio.Queue[Rank]" = asyncio.Queue()
        self._link = self._make_link()
        self._warnings = 0
        self._reporter: Optional[Reporter] = None
        self._signalled: Optional[Rank] = None  # got SIGTERM as part of a drain
        self._hang_task: "Optional[asyncio.Task[None]]" = None
        self._last_stacks: "Optional[asyncio.Task[None]]" = None

    @property
    def number(self) -> int:
        return self.assignment.attempt

    @property
    def resume_from(self) -> str:
        """What its ranks are offered; empty: nothing."""
        return self.assignment.env.get(env.RESUME_FROM, "")

    @property
    def alive(self) -> List[Rank]:
        return [rank for rank in self.ranks if rank.alive]

    @property
    def ending(self) -> bool:
        """Its end is decided, or it is over."""
        return self._pending is not None or self.finished.is_set()

    # starting -----------------------------------------------------------------------------------------

    async def start(self, trouble: str = "") -> None:
        """Start all ranks. One that can't be started is a failure of the attempt, not an exception.

        Args:
            trouble: of the storage, for which none is to be started.
        """
        try:
            await self._start(trouble)
        finally:
            self._let_go_of_port()

    async def _start(self, trouble: str) -> None:
        member = self.assignment.member()
        numbers = [member.first_rank + local for local in range(member.ranks)]
        self._emit(
            events.ASSIGNED,
            {
                "world_size": self.assignment.world_size,
                "ranks": numbers,
                "master_port": self.assignment.master_port,
                "resume_from": self.resume_from,
            },
        )
        if trouble:
            self._not_started(numbers[0], trouble, exitcodes.STORAGE)
            return
        spec = self._context.spec
        forget_old_attempts(log_root(spec), self.number, spec.log_attempts)
        prepared: List[PreparedRank] = []
        try:
            await self._link.open()
            self._context.keeper.begin(self.number, self._leaders)
            await self._context.starter.until_ready(lambda: self.ending or self.drain_state is not None)
            if self.drain_state is not None and not self.ending:
                self.end(events.DRAINED)  # nothing has begun
            self._let_go_of_port()
            if not self.ending:  # it may have been stopped meanwhile
                prepared.extend(map(self._prepare, range(member.ranks)))
                self._start_ranks(prepared)
        except (OSError, ValueError) as error:  # ValueError: what no process can be given, a zero byte
            users = isinstance(error, ValueError) or error.errno == errno.E2BIG
            code = exitcodes.USER_ERROR if users else exitcodes.START_TIMEOUT
            for _, page, _ in prepared[len(self.ranks) :]:
                page.close()
            ready = len(prepared) == len(numbers)
            self._not_started(numbers[len(self.ranks if ready else prepared)], str(error), code)
        else:
            self._emit(events.RANKS_STARTED, {"ranks": [rank.number for rank in self.ranks]})
        self._reporter = Reporter(self.ranks[0]) if self.ranks else None
        self._record()

    def _let_go_of_port(self) -> None:
        """Rank 0 is about to bind it, or nobody will."""
        if self._port is not None:
            self._port.let_go()

    async def supervise(self) -> None:
        """Tell every exit in order, then clean up; runs until ``finished``."""
        for _ in range(len(self.ranks)):
            rank = await self._exits.get()
            if not rank.abandoned:
                await self._tell_exit(rank)
        await self._clean_up()
        self.outcome = self._pending or self._peaceful_outcome()
        storing = self._context.keeper.stores(self.number)
        self._emit(events.ATTEMPT_ENDED, {"outcome": self.outcome, "storing": storing})
        self.finished.set()

    def _start_ranks(self, prepared: Sequence[PreparedRank]) -> None:
        plans = [plan for plan, _, _ in prepared]
        with contextlib.closing(self._context.starter.start(plans)) as processes:
            for (plan, page, files), started in zip(prepared, processes):
                self._add_rank(plan.rank, page, files, started)

    def _prepare(self, local: int) -> PreparedRank:
        spec, assignment = self._context.spec, self.assignment
        number = assignment.member().first_rank + local
        page_path = Path(spec.directory, "progress-%d-%d" % (assignment.attempt, number))
        stacks_path = Path(spec.directory, "stacks-%d.txt" % number)
        stacks_path.write_bytes(b"")
        page = ProgressPage(page_path, create=True)
        files = RankFiles(self._link.path, str(page_path), str(stacks_path))
        inherited = {**os.environ, **self._context.keeper.environment()}
        plan = rank_plan(spec, assignment, local, files, inherited, time.monotonic_ns())
        return plan, page, files

    def _add_rank(self, number: int, page: ProgressPage, files: RankFiles, started: StartedRank) -> None:
        self._context.guard.add(started.pid)
        front = lead(self.number, number)
        log = log_path(self._context.spec, self.number, number)
        output = self._context.pump.add(started.output, front, log)
        paths = Path(files.progress), Path(files.stacks)
        self.ranks.append(Rank(number, started, page, *paths, output, time.monotonic()))

    def _not_started(self, number: int, why: str, code: int) -> None:
        """Told as a rank that never came up: the machine's fault (no processes, no disk), or the user's."""
        tail = ("the agent could not start rank %d: %s" % (number, why),)
        self._emit(events.RANK_EXITED, RankExit(number, code, own=True, early=True, tail=tail))
        self.end(events.FAILED)

    def _make_link(self) -> RankLink:
        name = "a%d.sock" % self.assignment.attempt
        return RankLink(
            str(self._context.socket_directory / name), self._leaders, self._on_message, self._on_nonsense
        )

    def _leaders(self) -> Dict[int, int]:
        return {rank.number: rank.started.pid for rank in self.ranks}

    def _record(self) -> None:
        """``ranks.json``: who runs, with start times, so that a bare pid is never trusted."""
        ranks = {
            str(rank.number): {"pid": rank.started.pid, "start_ticks": start_ticks(rank.started.pid)}
            for rank in self.alive
        }
        path = Path(self._context.spec.directory, "ranks.json")
        try:
            write_json(path, {"attempt": self.number, "ranks": ranks})
        except OSError as error:
            self._warn("%s can't be written: %s" % (path, error.strerror))

    # what ranks say -----------------------------------------------------------------------------------

    def _on_message(self, number: int, pid: int, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == rankwire.HELLO:
            self._rank(number).speaker = pid
            self._emit(events.RANK_CONNECTED, {"rank": number, "pid": pid})
            self._ask_to_drain([number])
        elif kind != rankwire.WARNING or self._may_warn():
            fields = {key: value for key, value in message.items() if key != "kind"}
            self._emit(kind, dict(fields, rank=number))
            if kind in (rankwire.CHECKPOINT, rankwire.CHECKPOINT_FAILED):
                self._context.keeper.heard(fields.get("step"))

    def _on_nonsense(self, message: str) -> None:
        if self._may_warn():
            self._warn(message)

    def _may_warn(self) -> bool:
        """Bounded: a rank that warns at every step must not push everything else out of the event log."""
        self._warnings += 1
        if self._warnings == WARNINGS_LIMIT:
            self._warn("%d warnings in this attempt; further ones are not passed on" % WARNINGS_LIMIT)
        return self._warnings < WARNINGS_LIMIT

    def _rank(self, number: int) -> Rank:
        return next(rank for rank in self.ranks if rank.number == number)

    # what the operator asks ---------------------------------------------------------------------------

    def drain(self, reason: str, seconds: float, asked_by: Optional[str]) -> None:
        """Ask for a planned end within ``seconds``. Asking again can only make the window shorter.

        ``asked_by``: as ``Request.asked_by``; the operator reads it in the event.
        """
        if self.ending:
            return
        now = time.monotonic()
        if self.drain_state is None:
            self.drain_state = Drain(reason, now, now + seconds)
            data = {"reason": reason, "seconds": seconds, "asked_by": asked_by}
            self._emit(events.DRAIN_REQUESTED, data)
        elif now + seconds < self.drain_state.deadline:
            self.drain_state = replace(self.drain_state, deadline=now + seconds)
        else:
            return
        self._ask_to_drain([rank.number for rank in self.alive])

    def _ask_to_drain(self, numbers: Sequence[int]) -> None:
        if self.drain_state is None:
            return
        left = max(0.0, self.drain_state.deadline - time.monotonic())
        for number in numbers:
            self._link.send(number, rankwire.DRAIN, reason=self.drain_state.reason, seconds=left)

    def settings(self, limits: Optional[Limits], checkpoint: Optional[CheckpointConfig]) -> None:
        """New limits for this agent, new checkpoint settings for its ranks."""
        self.limits = limits or self.limits
        if checkpoint:
            for rank in self.alive:
                self._link.send(rank.number, rankwire.SETTINGS, checkpoint=to_plain(checkpoint))

    async def stop(self, with_stacks: bool) -> None:
        """Kill all ranks; before that, once, have them say where they are."""
        if with_stacks and not self.ending:
            if self._last_stacks is None:
                self._last_stacks = asyncio.get_running_loop().create_task(self.dump_stacks())
            await asyncio.shield(self._last_stacks)
        self.end(events.STOPPED)

    def end(self, outcome: str) -> None:
        """Kill all ranks. The first outcome that is given stays."""
        if self._pending is None:
            self._pending = outcome
        for rank in self.alive:
            rank.kill(self._context.starter)
        if self.alive:
            reap.kill_groups({rank.started.pid for rank in self.alive})
        asyncio.get_running_loop().call_later(self._context.reap_seconds, self._give_up)

    def _give_up(self) -> None:
        for rank in self.alive:
            rank.abandoned = True
            self.unfit = True
            self._emit(events.UNFIT, {"rank": rank.number, "pid": rank.started.pid})
            self._exits.put_nowait(rank)

    # time ---------------------------------------------------------------------------------------------

    def tick(self, now: float, awake_since: float) -> None:
        """Look at the ranks; report, drain and find hangs. ``awake_since``: see ``hang.find_hang``."""
        for rank in self.alive:
            rank.look(now)
        report = (
            self._reporter.due(now, self._slowest_step_seconds()) if self._reporter and self.alive else None
        )
        if report:
            self._emit(events.PROGRESS, report)
        if not self.ending:
            self._advance_drain(now)
            self._watch_for_hang(now, awake_since)

    def _advance_drain(self, now: float) -> None:
        drain = self.drain_state
        if drain is None or not self.alive:
            return
        age = now - self.ranks[0].started_at
        step = draining.next_step(drain, now, self._uses_library(), age, self._not_begun())
        if step == draining.SIGNAL:
            self.drain_state = replace(drain, signalled=True)
            self._signalled = self.alive[0]
            reap.send(self._signalled.started.pid, signal.SIGTERM)
        elif step == draining.END:
            self.end(events.DRAINED)
        elif step == draining.KILL:
            self._warn("the drain window is over; %d ranks still ran and were killed" % len(self.alive))
            self.end(events.STOPPED)

    def _slowest_step_seconds(self) -> float:
        """The longest recent step of the ranks here; 0 while none has done one."""
        steps = [rank.progress.step_seconds for rank in self.ranks if rank.progress]
        return max((step for step in steps if step < float("inf")), default=0.0)

    def _uses_library(self) -> bool:
        return any(rank.speaker for rank in self.ranks)

    def _not_begun(self) -> bool:
        """Ranks that use the library wait for one that has yet to connect: none can have done a step."""
        absent = any(rank.speaker is None for rank in self.alive)
        return absent and all(rank.idle() for rank in self.ranks)

    def _watch_for_hang(self, now: float, awake_since: float) -> None:
        if self._hang_task is not None or self.ending:
            return
        hang = find_hang([rank.view() for rank in self.alive], self.limits, now, awake_since)
        if hang is not None:
            self._hang_task = asyncio.get_running_loop().create_task(self._end_by_hang(hang))

    async def _end_by_hang(self, hang: Hang) -> None:
        await self.dump_stacks()
        if self.ending:
            return
        self._emit(
            events.HANG,
            {
                "rank": hang.rank,
                "phase": hang.phase,
                "silent_ms": int(hang.silent_seconds * 1000),
                "stopped": hang.stopped,
                "limit_ms": int(hang.limit_seconds * 1000),
            },
        )
        self.end(events.FAILED)

    async def dump_stacks(self) -> None:
        """Stacks of all ranks that answer: into their logs, and as events."""
        for number, text in (await stacks.collect(self.alive)).items():
            self._context.pump.append(self._rank(number).output, "[agent] stacks:\n" + text + "\n")
            self._emit(events.STACKS, {"rank": number, "text": text})

    # the end ------------------------------------------------------------------------------------------

    def reaped(self, ended: Sequence[Tuple[int, int]]) -> None:
        """Children that ended, as (pid, code); pids of others are ignored.

        All codes are noted before anything is killed, so that ranks which ended together all count as having
        ended by themselves.
        """
        codes = dict(ended)
        mine = [rank for rank in self.alive if rank.started.pid in codes]
        for rank in mine:
            rank.code = codes[rank.started.pid]
        if any(self._is_failure(rank) for rank in mine):
            self.end(events.FAILED)
        for rank in mine:
            self._exits.put_nowait(rank)

    def _is_failure(self, rank: Rank) -> bool:
        """Judge one exit, and note the end of a rank that was asked by signal."""
        assert rank.code is not None
        drain = self.drain_state
        if not self._own(rank):
            return False
        if drain is None or not drain.signalled:
            return not reports.clean_exit(rank.code, asked_by_signal=False)
        if drain.leader_ended_at is not None:
            return False  # the others follow the signalled rank, each in its way
        if rank is not self._signalled:
            return False
        self.drain_state = replace(drain, leader_ended_at=time.monotonic())
        return not reports.clean_exit(rank.code, asked_by_signal=True)

    def _own(self, rank: Rank) -> bool:
        return not (rank.killed and rank.code == -signal.SIGKILL)

    def _ended_by_drain(self, rank: Rank) -> bool:
        return rank is self._signalled and rank.code is not None and reports.left_by_sigterm(rank.code)

    async def _tell_exit(self, rank: Rank) -> None:
        """Everything that the rank left behind, then its exit."""
        await self._link.settle(rank.number)
        tail = await self._last_lines(rank)
        now = time.monotonic()
        rank.read_page()
        report = self._reporter.final(now, self._slowest_step_seconds()) if self._reporter else None
        if report:
            self._emit(events.PROGRESS, report)
        assert rank.code is not None
        own = self._own(rank) and not self._ended_by_drain(rank)
        self._emit(
            events.RANK_EXITED,
            RankExit(
                rank=rank.number,
                code=rank.code,
                own=own,
                peer_suspect=own and reports.peer_suspect(rank.code, tail),
                early=rank.early(now),
                seconds=round(now - rank.started_at, 3),
                tail=tail,
                asked=self.drain_state is not None,
                idle=rank.idle(),
                in_loop=rank.in_loop(),
            ),
        )

    async def _last_lines(self, rank: Rank) -> Tuple[str, ...]:
        future = asyncio.wrap_future(self._context.pump.finish(rank.output))
        done, _ = await asyncio.wait([future], timeout=_OUTPUT_SECONDS)
        return future.result() if done else tuple(rank.output.tail)

    async def _clean_up(self) -> None:
        """Kill what ranks left behind, but for writers that may land; close what was opened for them."""
        sessions = {rank.started.pid for rank in self.ranks}
        held = self._context.keeper.end(self.number, sessions)
        held |= {rank.started.pid for rank in self.ranks if rank.abandoned}
        on_gpus: Set[int] = set()
        trackers: List[int] = []
        for _ in range(_LEFTOVER_TURNS):
            keep = [*self._context.guard.keep(), *self._context.keeper.pids(), *held]  # there may be new ones
            if gpus.present():
                on_gpus.update(gpus.holders(sessions, keep))  # now: a dying one shows no open files
            killed, trackers = reap.kill_leftovers(sessions, keep)
            if not killed:
                break
            await asyncio.sleep(0.01)
        held |= self._context.trackers.see_off(trackers, sessions - held)
        await self._await_gpus(on_gpus)
        self._link.close()
        for rank in self.ranks:
            if rank.started.pid not in held:
                self._context.guard.remove(rank.started.pid)
            self._context.pump.close(rank.output)
            rank.page.close()
            with contextlib.suppress(OSError):  # a scratch file; whoever removes the directory has it too
                rank.page_path.unlink()
        self._record()

    async def _await_gpus(self, killed: Set[int]) -> None:
        """Ranks of the next attempt would find the memory taken that a dying process has not given back."""
        deadline = time.monotonic() + _GPU_SECONDS
        while holders := sorted(filter(gpus.is_there, killed)):
            if time.monotonic() >= deadline:
                self.unfit = True
                self._warn("killed processes %s still hold a GPU after %d s" % (holders, _GPU_SECONDS))
                self._emit(events.UNFIT, {"rank": self.assignment.member().first_rank, "pid": holders[0]})
                return
            await asyncio.sleep(0.02)

    def _peaceful_outcome(self) -> str:
        """Nothing failed and nothing was stopped: finished or drained.

        A script without the library that was asked to end and returned 0 may or may not have finished; it is
        started once more to find out, for a job that is wrongly called finished is lost.
        """
        codes = {rank.code for rank in self.ranks}
        doubtful = self.drain_state is not None and self.drain_state.signalled
        return events.SUCCEEDED if codes == {exitcodes.SUCCESS} and not doubtful else events.DRAINED

    def _emit(self, kind: str, data: Any) -> None:
        self._context.emit(kind, self.number, data)

    def _warn(self, message: str) -> None:
        self._emit(events.WARNING, {"message": message})
