"""The faults that ``rtj fault`` injects: machines, ranks and the network of a local cluster break on request.

Each is a method of ``Faults``; each that happens is a line in ``faults.jsonl``, so that the report and the
tests can tell cause from coincidence.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from resumable_operator.clock import Clock
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_files import append_lines
from resumable_operator.cluster.local_machines import Machine
from resumable_operator.cluster.local_processes import ProcessId
from resumable_operator.cluster.local_worker import LocalWorker
from resumable_operator.errors import ResumableError, UserError
from resumable_training.contract.assignment import REQUEST_CUT_NETWORK, Request

SendRequest = Callable[[str, Request], Awaitable[object]]

KILL_WORKER = "kill-worker"
KILL_RANK = "kill-rank"
PREEMPT = "preempt"
HANG = "hang"
ADD_WORKER = "add-worker"
CUT_NETWORK = "cut-network"
LONGEST_SECONDS = 1e6


@dataclass(frozen=True)
class Fault:
    """One wish.

    ``worker`` None: the last one that holds ranks, or else the last that runs; ``rank`` None: the last.
    """

    fault: str
    worker: str | None = None
    rank: int | None = None
    grace: float = 30.0  # preempt: seconds of notice
    seconds: float = 10.0  # cut-network: how long
    scope: str = "all"  # cut-network: all, or operator
    back_after: float | None = None  # kill-worker, preempt: seconds until the machine is back

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> Fault:
        """From a decoded line of the control socket.

        Raises:
            UserError: no such fault, or a field it does not have.
        """
        if plain.get("fault") not in FAULTS:
            raise UserError(f"no such fault: {plain.get('fault')}; there are {', '.join(FAULTS)}")
        try:
            fault = cls(**plain)
        except TypeError as error:
            raise UserError(f"{plain.get('fault')}: {error}") from error
        for name in ("grace", "seconds", "back_after"):
            seconds = getattr(fault, name)
            if seconds is not None and not _is_time(seconds):
                raise UserError(f"{name} must be from 0 to {LONGEST_SECONDS:g} seconds, not {seconds}")
        return fault


class Faults:
    """Breaks ``cluster``. ``send`` posts a signed request to an agent; ``told`` gets what was done."""

    def __init__(
        self,
        cluster: LocalCluster,
        clock: Clock,
        send: SendRequest,
        told: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._send = send
        self._told = told

    async def answer(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Do what a line of the control socket asks; the reply says what was done, or why not."""
        try:
            fault = Fault.parse(plain)
            worker, rank, message = await FAULTS[fault.fault](self, fault)
        except ResumableError as error:
            return {"ok": False, "message": str(error)}
        line = {"at": self._clock.now(), "fault": fault.fault, "worker": worker, "rank": rank}
        try:
            append_lines(self._cluster.files.faults, [line])
        except OSError as error:
            message += f" (not recorded: {error.strerror})"
        self._told(f"fault {fault.fault}: {message}")
        return {"ok": True, "message": message, "worker": worker, "rank": rank}

    async def kill_worker(self, fault: Fault) -> Outcome:
        worker = self._worker(fault)
        machine = await self._cluster.lose_machine(worker)
        self._bring_back(machine, fault.back_after)
        return worker.name, None, f"killed {worker.name}; {machine.name} is gone{_until(fault)}"

    async def preempt(self, fault: Fault) -> Outcome:
        worker = self._worker(fault)
        machine = self._cluster.preempt_machine(worker, fault.grace)
        if fault.back_after is not None:
            self._bring_back(machine, fault.grace + fault.back_after)
        message = f"{worker.name} has {fault.grace:g} s; {machine.name} goes then{_until(fault)}"
        return worker.name, None, message

    async def kill_rank(self, fault: Fault) -> Outcome:
        return self._signal_rank(fault, signal.SIGKILL, "killed")

    async def hang(self, fault: Fault) -> Outcome:
        return self._signal_rank(fault, signal.SIGSTOP, "stopped")

    async def add_worker(self, fault: Fault) -> Outcome:
        machine = await self._cluster.bring_machine()
        if machine is None:
            raise UserError(
                f"all {self._cluster.machines.limit} machines that this job can use are there already"
            )
        return None, None, f"{machine.name} is there; room for {self._cluster.machines.capacity} workers"

    async def cut_network(self, fault: Fault) -> Outcome:
        worker = self._worker(fault)
        request = Request(REQUEST_CUT_NETWORK, seconds=fault.seconds, scope=fault.scope)
        await self._send(worker.name, request)
        message = (
            f"{worker.name} can't be reached for {fault.seconds:g} s (scope {fault.scope}); its ranks go on"
        )
        return worker.name, None, message

    def _worker(self, fault: Fault) -> LocalWorker:
        running = self._cluster.running_workers()
        if fault.worker is None:
            staying = [worker for worker in running if worker.disruption is None and not worker.deleting]
            if not staying:
                raise UserError("no worker runs now")
            members = self._members()
            return next((worker for worker in reversed(staying) if worker.name in members), staying[-1])
        named = [worker for worker in running if worker.name == fault.worker]
        if not named:
            names = ", ".join(worker.name for worker in running) or "none"
            raise UserError(f"no worker {fault.worker} runs now; running: {names}")
        return named[0]

    def _members(self) -> set[str]:
        """Of the newest attempt: a spare is none, and to break it would break nothing."""
        job = self._cluster.store.job()
        return {member.worker for member in job.status.attempt.members} if job else set()

    def _signal_rank(self, fault: Fault, number: signal.Signals, done: str) -> Outcome:
        worker, rank, process = self._rank(fault)
        if not process.signal(number):
            raise UserError(f"rank {rank} has just ended")
        return worker.name, rank, f"{done} rank {rank} (process {process.pid}) of {worker.name}"

    def _rank(self, fault: Fault) -> tuple[LocalWorker, int, ProcessId]:
        workers = self._cluster.running_workers() if fault.worker is None else [self._worker(fault)]
        ranks = {
            rank: (worker, rank, process)
            for worker in workers
            for rank, process in worker.ranks().items()
            if process.alive()
        }
        if not ranks:
            raise UserError("no rank runs now")
        rank = max(ranks) if fault.rank is None else fault.rank
        if rank not in ranks:
            raise UserError(f"no rank {rank} runs now; running: {', '.join(map(str, sorted(ranks)))}")
        return ranks[rank]

    def _bring_back(self, machine: Machine, seconds: float | None) -> None:
        if seconds is not None:
            self._cluster.spawn(self._bring_later(machine.number, seconds))

    async def _bring_later(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._cluster.bring_machine(number)


Outcome = tuple[str | None, int | None, str]  # worker, rank, what was done

FAULTS: dict[str, Callable[[Faults, Fault], Awaitable[Outcome]]] = {
    KILL_WORKER: Faults.kill_worker,
    KILL_RANK: Faults.kill_rank,
    PREEMPT: Faults.preempt,
    HANG: Faults.hang,
    ADD_WORKER: Faults.add_worker,
    CUT_NETWORK: Faults.cut_network,
}


def _is_time(seconds: object) -> bool:
    """Of NaN no comparison holds."""
    return isinstance(seconds, (int, float)) and 0 <= seconds <= LONGEST_SECONDS


def _until(fault: Fault) -> str:
    return f", back after {fault.back_after:g} s" if fault.back_after is not None else " until add-worker"
