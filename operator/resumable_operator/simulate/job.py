"""One job's life from event to event: a machine is lost, a save is durable, a worker is ready, a timer runs
out. In between nothing happens, so nothing is computed, however long it takes.

At each event that the operator would hear of, ``decide`` is asked as the reconciler asks it, and what it
wants is done at once. Progress and checkpoints are folded from agents' events as always; they wait until
something else is told, since the totals that they hold lose nothing by it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from resumable_operator.decide import actions as act
from resumable_operator.decide.observation import Job, Observation, Worker
from resumable_operator.decide.plan import decide
from resumable_operator.decide.validity import check_due
from resumable_operator.model import JobStatus
from resumable_operator.simulate.account import Account, Outcome
from resumable_operator.simulate.failures import Failure
from resumable_operator.simulate.fleet import Fleet, Machine, SimWorker
from resumable_operator.simulate.landing import Landing
from resumable_operator.simulate.parameters import SECONDS_PER_DAY, Parameters
from resumable_operator.simulate.ranks import Ranks, Timing, Told
from resumable_training.contract import events
from resumable_training.contract.assignment import (
    REQUEST_DRAIN,
    REQUEST_SHUTDOWN,
    REQUEST_STOP,
    Assignment,
    CheckpointConfig,
    Request,
)
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import RankExit
from resumable_training.contract.formulas import auto_interval

_MOST_PASSES = 100  # at one moment
_KILLED = -9


def simulate_job(parameters: Parameters, failures: Iterator[Failure], uid: str) -> Outcome:
    """The life of one job, until it is ``parameters.days`` old or gives up.

    Args:
        failures: in order of time, seconds from the job's start.
        uid: of the job; its waits are jittered by it.
    """
    return _Life(parameters, failures, uid).run()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _step_ms(seconds: float) -> int:
    return max(1, _ms(seconds))


class _Life:
    """All times are integer milliseconds from the job's start."""

    def __init__(self, parameters: Parameters, failures: Iterator[Failure], uid: str) -> None:
        self._parameters = parameters
        self._costs = parameters.costs
        self._failures = failures
        self._failure = next(failures, None)
        self._fleet = Fleet(parameters.slots)
        self._account = Account(max(1, parameters.gpus_per_worker))
        self._job = Job("simulated", "job", uid, 1, parameters.spec, JobStatus())
        self._now = 0
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._wake: int | None = None
        self._ranks: Ranks | None = None  # of the newest attempt that all members began
        self._members: tuple[str, ...] = ()  # of it, in order of rank
        self._attempt = 0
        self._begun: dict[int, int] = {}  # members that have their part, by attempt
        self._committed, self._has_checkpoint = 0, False
        self._landing: Landing | None = None  # of what the ranks that died last held
        self._interval = 0
        self._told = False  # something that the operator hears of
        self._passes = 0

    def run(self) -> Outcome:
        end = _ms(self._parameters.days * SECONDS_PER_DAY)
        self._look()
        while self._job.status.phase != "Failed":
            at = self._next_at()
            if at is None or at >= end:
                self._pass_time(end)
                self._look()
                break
            self._pass_time(at)
            self._happen()
            if self._told or (self._wake is not None and self._wake <= self._now):
                self._look()
        age = self._now / 1000
        ideal = age * 1000 / _step_ms(self._costs.step)
        return self._account.outcome(self._job.status, age, ideal, self._interval / 1000, self._passes)

    # ---- time ----------------------------------------------------------------------------------------

    def _next_at(self) -> int | None:
        times = [self._due[0][0]] if self._due else []
        if self._failure is not None:
            times.append(_ms(self._failure.at))
        if self._ranks is not None and not self._ranks.stopped:
            times.append(self._ranks.next_at)
        if self._wake is not None:
            times.append(self._wake)
        return max(self._now, min(times)) if times else None

    def _pass_time(self, at: int) -> None:
        self._account.pay(self._fleet.count(), at - self._now)
        self._now = at

    def _happen(self) -> None:
        """All that is due now."""
        while self._failure is not None and _ms(self._failure.at) <= self._now:
            failure, self._failure = self._failure, next(self._failures, None)
            self._fail(failure)
        while self._due and self._due[0][0] <= self._now:
            _, _, what, arguments = heapq.heappop(self._due)
            what(*arguments)
        ranks = self._ranks
        while ranks is not None and not ranks.stopped and ranks.next_at <= self._now:
            self._hear(ranks, ranks.proceed())

    def _later(self, after: float, what: Callable[..., None], *arguments: Any) -> None:
        """``after`` seconds from now."""
        self._number += 1
        heapq.heappush(self._due, (self._now + _ms(after), self._number, what, arguments))

    # ---- machines fail and come back -----------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        for slot in failure.slots:
            machine = self._fleet.machine(slot)
            if not machine.alive or machine.gone_at is not None:
                continue
            if failure.in_place:
                self._kill_process(machine)
            elif failure.notice > 0:
                machine.gone_at = self._now + _ms(failure.notice)
                self._later(failure.notice, self._lose, slot, failure)
                self._told = True
            else:
                self._lose(slot, failure)

    def _kill_process(self, machine: Machine) -> None:
        """Its ranks die, and all of the attempt with them; the machine and its agent live on."""
        worker = self._fleet.workers.get(machine.worker or "")
        if worker is not None and self._trains(worker):
            self._keep_copy()
            self._kill_ranks()
            self._later(self._costs.restart.detect, self._show_exit, worker, self._attempt)

    def _show_exit(self, worker: SimWorker, attempt: int) -> None:
        if not worker.trains_in(attempt) or not worker.reachable:
            return
        rank = worker.assignment.member().first_rank if worker.assignment else 0
        worker.say(self._now, events.RANK_EXITED, to_plain(RankExit(rank, _KILLED, own=True)))
        worker.change(state="ended", outcome=events.FAILED)
        self._told = True

    def _lose(self, slot: int, failure: Failure) -> None:
        machine = self._fleet.lose(slot)
        worker = self._fleet.workers.get(machine.worker or "")
        if worker is not None:
            self._lose_writer(worker)
        if worker is not None and self._trains(worker):
            self._kill_ranks()
        back = self._costs.replace if failure.back is None else failure.back
        if failure.kind == "spot":
            back = max(back - failure.notice, self._costs.replace)
        self._later(self._costs.restart.detect, self._reveal, machine)
        self._later(back, self._bring_back, slot)

    def _reveal(self, machine: Machine) -> None:
        self._fleet.reveal(machine)
        self._told = True

    def _bring_back(self, slot: int) -> None:
        self._fleet.bring_back(slot)
        self._place()

    def _place(self, avoid: tuple[str, ...] = ()) -> None:
        for worker in self._fleet.place_pending(avoid):
            self._later(self._costs.reschedule, self._ready, worker)
            self._told = True

    def _ready(self, worker: SimWorker) -> None:
        if worker.machine is not None and worker.machine.alive:
            worker.change(phase="running")
            self._told = True

    # ---- ranks ---------------------------------------------------------------------------------------

    def _trains(self, worker: SimWorker) -> bool:
        alive = self._ranks is not None and not self._ranks.stopped
        return alive and worker.name in self._members

    def _kill_ranks(self) -> None:
        """They end; what they had done is known from the progress page."""
        ranks = self._ranks
        if ranks is not None and not ranks.stopped:
            ranks.kill(self._now)
            self._report(ranks)

    def _keep_copy(self) -> None:
        """What all ranks hold in memory when they die is stored, as no machine went with them."""
        ranks = self._ranks
        held = ranks.held(self._now) if ranks is not None else None
        if ranks is None or held is None:
            return
        self._landing = landing = Landing.of(
            before=self._committed if self._has_checkpoint else None,
            held=held,
            worth=(held - self._committed) * ranks.timing.step,
            needed=_ms(self._costs.durable),
            dead_at=self._now + _ms(self._costs.restart.detect),
            writers=frozenset(self._members),
        )
        self._begin_at(landing.step)

    def _lose_writer(self, worker: SimWorker) -> None:
        """One that goes while it stores: the others give up, and who waits for them goes on without."""
        landing = self._landing
        if landing is None or not landing.needs(worker.name, self._now):
            return
        self._landing = None
        self._begin_at(landing.before)
        if self._ranks is not None and not self._ranks.stopped:
            self._ranks.go_back(self._now, self._committed, self._has_checkpoint)

    def _begin_at(self, checkpoint: int | None) -> None:
        """The next attempt does, or those that have not restored yet; None: there is no checkpoint."""
        self._committed, self._has_checkpoint = checkpoint or 0, checkpoint is not None

    def _hear(self, ranks: Ranks, told: Told) -> None:
        """What they told on the way."""
        if told == "restored":
            self._say(events.RANK_CONNECTED, {"rank": 0, "pid": 1})
            landing, self._landing = self._landing, None
            if landing is not None and landing.lands:
                self._say_committed()
            self._say(events.RESTORED, {"step": ranks.committed, "samples": ranks.committed})
        elif told == "first step":
            self._told = True
        elif told == "committed":
            self._commit(ranks)
        elif told == "drained":
            for worker in self._fleet.members(self._members):
                if worker.trains_in(self._attempt):
                    worker.change(state="ended", outcome=events.DRAINED)
            self._report(ranks)
            self._told = True

    def _commit(self, ranks: Ranks) -> None:
        """A checkpoint is durable. A job that waits for one to grow is told at once."""
        self._committed, self._has_checkpoint = ranks.committed, True
        self._say_committed()
        attempt = self._job.status.attempt
        self._told |= attempt.grow_ready_since is not None or attempt.state != "running"

    def _say_committed(self) -> None:
        made = {
            "step": self._committed,
            "samples": self._committed,
            "checkpoint": f"step-{self._committed}",
            "blocking_ms": _ms(self._costs.blocking),
            "durable_ms": _ms(self._costs.durable),
        }
        said = self._fleet.workers[self._members[0]].said
        said[:] = [timed for timed in said if timed.event.kind != events.CHECKPOINT]  # the newest counts
        self._say(events.CHECKPOINT, made)

    def _report(self, ranks: Ranks) -> None:
        self._say(events.PROGRESS, to_plain(ranks.report(self._now)))

    def _say(self, kind: str, data: dict[str, Any]) -> None:
        """By the agent of rank 0."""
        worker = self._fleet.workers.get(self._members[0])
        if worker is not None:
            worker.say(self._now, kind, data)

    def _begin_ranks(self, assignment: Assignment) -> None:
        """All members have their part."""
        size = len(assignment.members)
        restart, full = self._costs.restart, self._parameters.spec.workers.replicas
        begun = self._now
        timing = Timing(
            setup=_ms(restart.setup),
            rendezvous=_ms(restart.rendezvous),
            restoring=_ms(restart.restore),
            warmup=_ms(restart.warmup),
            step=_step_ms(self._costs.step * full / size),
            blocking=_ms(self._costs.blocking),
            durable=_ms(self._costs.durable),
            interval=lambda measured: self._interval_of(assignment.checkpoint, begun, measured),
            copy=_ms(self._costs.copy_seconds),
            copy_every=self._parameters.memory_every,
        )
        self._attempt = assignment.attempt
        self._members = tuple(member.worker for member in assignment.members)
        self._ranks = Ranks(
            timing,
            self._now,
            self._committed,
            self._job.status.high_water_step,
            self._has_checkpoint,
            restores_at=self._landing.until if self._landing is not None else 0,
        )

    def _interval_of(self, config: CheckpointConfig, begun: int, measured: bool) -> int:
        """As the library chooses it, which got ``config`` when its attempt had ``begun``."""
        if self._parameters.interval == "auto":
            seconds = auto_interval(
                blocking_seconds=self._costs.blocking if measured else None,
                durable_seconds=self._costs.durable if measured else 0.0,
                mtbf_seconds=config.mtbf_seconds + (self._now - begun) / 1000 / (1 + config.interruptions),
                cap_seconds=config.longest_seconds,
            ).seconds
        else:
            seconds = self._parameters.interval
        self._interval = max(_ms(seconds), _ms(self._parameters.interval_in_force or 0.0))
        return _ms(seconds)  # ranks wait until the save before is durable

    # ---- the operator --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Passes, until what they did leads to no other."""
        for _ in range(_MOST_PASSES):
            self._told = False
            self._step()
            if not self._told:
                return
        raise AssertionError(f"decisions go round in circles: {self._job.status.reason}")

    def _step(self) -> None:
        """One pass: observe, decide, write, act."""
        if self._ranks is not None and not self._ranks.stopped:
            self._report(self._ranks)
        now = self._now / 1000
        plan = decide(self._observe(now), now)
        self._passes += 1
        self._account.passed(self._job.status, plan.status, self._fleet.count())
        self._job = replace(self._job, status=plan.status)
        for worker in self._fleet.workers.values():
            worker.said.clear()
        for action in plan.actions:
            self._do(action)
        due = plan.due_at
        self._wake = None if due is None else max(self._now + 1, math.ceil(due * 1000 - 1e-3))

    def _observe(self, now: float) -> Observation:
        workers = self._fleet.sorted_workers()
        views: list[Worker] = []
        agents = {}
        for worker in workers:
            view, agent = worker.view()
            views.append(view)
            if agent is not None:
                agents[worker.name] = agent
        return Observation(
            job=self._job,
            workers=tuple(views),
            nodes=self._fleet.nodes(),
            agents=agents,
            events=tuple(timed for worker in workers for timed in worker.said),
            problems=() if check_due(self._job, now) else None,
        )

    def _do(self, action: act.Action) -> None:
        match action:
            case act.CreateWorker():
                self._fleet.create(action.name, action.place, action.incarnation, self._now)
                self._place(action.avoid)
            case act.DeleteWorker():
                self._delete(action.name)
            case act.SendAssignment():
                self._assign(action.assignment)
            case act.SendRequest():
                self._ask(action.worker, action.request)
            case act.EmitEvent() | act.DeleteJob():
                pass

    def _delete(self, name: str) -> None:
        worker = self._fleet.delete(name)
        if worker is not None:
            self._lose_writer(worker)
        if worker is not None and self._trains(worker):
            self._kill_ranks()
        self._told = True
        self._place()

    def _assign(self, assignment: Assignment) -> None:
        worker = self._fleet.workers.get(assignment.worker)
        if worker is None or not worker.reachable or worker.attempt >= assignment.attempt:
            return
        worker.change(assignment=assignment, state="running", outcome=None)
        self._told = True
        self._begun[assignment.attempt] = self._begun.get(assignment.attempt, 0) + 1
        if self._begun[assignment.attempt] == len(assignment.members):
            members = self._fleet.members(member.worker for member in assignment.members)
            if sum(member.trains_in(assignment.attempt) for member in members) == len(assignment.members):
                self._begin_ranks(assignment)

    def _ask(self, name: str, request: Request) -> None:
        worker = self._fleet.workers.get(name)
        if worker is None or not worker.reachable:
            return
        if request.kind == REQUEST_SHUTDOWN:
            worker.change(phase="succeeded")
        elif request.attempt != worker.attempt or worker.state not in ("running", "draining"):
            return
        elif request.kind == REQUEST_STOP:
            if self._trains(worker):
                self._kill_ranks()
            worker.change(state="ended", outcome=events.STOPPED)
            self._told = True
        elif request.kind == REQUEST_DRAIN:
            worker.change(state="draining")
            if self._ranks is not None and self._trains(worker):
                self._ranks.drain(self._now)
