"""A tiny world for testing decisions: workers, agents and a training group under a fake clock, all in memory.

``World.step`` is one pass of an operator: observe, decide, write, act; ``tick`` lets time pass. Faults are
methods. An operator's crash at any point of a pass is an argument of ``step``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from world_parts import FakeAgent, Group

from resumable_operator.decide import actions as act
from resumable_operator.decide.observation import (
    Agent,
    Disruption,
    Distrust,
    Job,
    Node,
    Observation,
    Problem,
    Refusal,
    TimedEvent,
    Worker,
)
from resumable_operator.decide.plan import decide
from resumable_operator.decide.validity import check_due
from resumable_operator.model import JobStatus, parse_spec
from resumable_training.contract import events, exitcodes
from resumable_training.contract.assignment import (
    ASKED_BY_AGENT,
    REQUEST_DRAIN,
    REQUEST_SHUTDOWN,
    REQUEST_STOP,
    Assignment,
    Request,
)
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import AgentState, Event, ProgressReport, RankExit

START_SECONDS = 0.3  # creation of a worker until its agent speaks
STEP_SECONDS = 0.1
SAMPLES_PER_STEP = 8
HANG_SECONDS = 2.0
UNPLACED = ("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
HEARTBEAT_LOST_SECONDS = 2.5


class World:
    """``spec``: as in YAML. ``steps``: the job is done after this many."""

    def __init__(
        self, spec: dict[str, Any], capacity: int | None = None, steps: int = 100, save_every: int = 10
    ) -> None:
        self.now = 1000.0
        self.capacity = capacity
        self.steps, self.save_every = steps, save_every
        self.job = Job("local", "train", "uid-1", 1, parse_spec(spec), JobStatus())
        self.agents: dict[str, FakeAgent] = {}
        self.groups: dict[int, Group] = {}
        self.committed = 0
        self.high_water = 0
        self.nodes: dict[str, Node] = {}  # by name; worker of place 2 is on node-2
        self.machines: dict[str, str] = {}  # worker -> its node, if that is not the one of its place
        self.reasons: dict[str, str] = {}  # worker -> reason of its container or pod
        self.pending_reasons: dict[str, tuple[str, str]] = {}  # worker that can't start -> why, in what words
        self.unfit: set[str] = set()  # workers with a rank that can't be reaped
        self.warming: set[str] = set()  # workers that still import
        self.refused: list[Assignment] = []
        self.emitted: list[act.EmitEvent] = []
        self.plans: list[act.Plan] = []
        self.crash_code: int | None = None  # every rank 0 ends with it right after its start
        self.crash_steps = 0  # or after so many steps of its attempt
        self.final_step = 0
        self.holds_ports = True  # False: agents of an older version
        self.tells_who_asked = True  # so, too
        self.library = True  # False: the script knows torchrun's environment only
        self.problems: tuple[Problem, ...] | None = ()  # what the cluster would find in the spec
        self.quota: int | None = None  # workers that the cluster allows; more are refused
        self.refusal: Refusal | None = None
        self.room: int | None = (
            None  # workers that find a node; others stay pending. Unlike ``capacity`` untold
        )
        self.distrust: dict[str, Distrust] = {}  # by worker: answers, and is not believed
        self.job_deleted = False
        self.asked: dict[str, tuple[int, float]] = {}  # worker -> attempt sent to it, first try
        self.operator, self.operator_since = "", self.now  # its name, and when its process began
        self._boots = 0
        self._written_at = 0.0

    # ---- the operator ------------------------------------------------------------------------------

    def observation(self, duplicates: bool = False) -> Observation:
        """What an operator sees now. ``duplicates``: also events that are folded already."""
        cursors = {} if duplicates else self.job.status.cursors
        agents = sorted(self.agents.values(), key=lambda agent: (agent.place, agent.incarnation))
        seen = [
            TimedEvent(agent.name, at, event)
            for agent in agents
            if agent.last_heard is not None and agent.name not in self.distrust
            for at, event in agent.after(cursors.get(agent.boot_id, 0))
        ]
        return Observation(
            job=self.job,
            workers=tuple(self._worker(agent) for agent in agents),
            agents={agent.name: self._view(agent) for agent in agents if agent.phase != "pending"},
            events=tuple(sorted(_coalesced(seen), key=lambda timed: timed.at)),
            nodes=dict(self.nodes),
            capacity=self.capacity,
            problems=self.problems if check_due(self.job, self.now) else None,
            refusal=self.refusal,
            operator=self.operator,
        )

    def step(self, duplicates: bool = False, crash_after: int | None = None) -> act.Plan:
        """One pass. ``crash_after``: the operator dies after so many effects (0: before the write)."""
        plan = decide(self.observation(duplicates), self.now)
        self.plans.append(plan)
        effects = 0
        due = plan.must_write or self.now - self._written_at >= 1.0
        if crash_after == 0:
            self.restart_operator()
            return plan
        if due and plan.status != self.job.status:
            self.write(plan.status)
            effects = 1
        for action in plan.actions:
            if crash_after is not None and effects >= crash_after:
                self.restart_operator()
                return plan
            self.do(action)
            effects += 1
        return plan

    def write(self, status: JobStatus) -> None:
        """Store the status as JSON would."""
        stored = JobStatus.model_validate(json.loads(json.dumps(status.plain())))
        assert stored == status, "status must survive its JSON form"
        version = str(int(self.job.resource_version or 0) + 1)
        self.job = replace(self.job, status=stored, resource_version=version)
        self._written_at = self.now

    def restart_operator(self) -> None:
        """All memory of the operator is gone; streams open again at the next tick."""
        self.operator_since = self.now
        self.asked.clear()
        for agent in self.agents.values():
            agent.last_heard = None

    def run(self, seconds: float, until: str | None = None, tick: float = STEP_SECONDS) -> None:
        """Passes and ticks, until the job has that phase or the time is over. Long ticks for long waits."""
        end = self.now + seconds
        while self.now < end:
            self.step()
            if until is not None and self.job.status.phase == until:
                return
            self.tick(tick)

    def change_spec(self, **changes: Any) -> None:
        """Replace fields of the spec, given as in YAML."""
        plain = {**self.job.spec.plain(), **changes}
        self.job = replace(self.job, spec=parse_spec(plain), generation=self.job.generation + 1)

    def _worker(self, agent: FakeAgent) -> Worker:
        stuck = self.pending_reasons.get(agent.name, ("", ""))
        unplaced = ("", "") if agent.placed or self.room is None else UNPLACED
        return Worker(
            name=agent.name,
            place=agent.place,
            incarnation=agent.incarnation,
            phase=agent.phase,
            node=self._node(agent) if agent.phase != "pending" or stuck[0] else "",
            address=f"127.0.1.{agent.place}",
            agent_port=9000 + agent.incarnation,
            created_at=agent.born,
            deleting=agent.deleting,
            deleting_since=agent.deleting_since,
            exit_code=agent.exit_code,
            reason=self.reasons.get(agent.name) or stuck[0] or unplaced[0],
            message=stuck[1] or unplaced[1],
            disruption=agent.disruption,
        )

    def _node(self, agent: FakeAgent) -> str:
        return self.machines.get(agent.name, f"node-{agent.place}")

    def _view(self, agent: FakeAgent) -> Agent:
        heard = agent.last_heard
        connected = heard is not None and agent.alive and not agent.cut
        state = None if heard is None else (agent.shown_state or self._state(agent))
        distrust = self.distrust.get(agent.name)
        if distrust is not None:
            return Agent(agent.name, False, None, None, distrust=distrust)
        asked, since = self.asked.get(agent.name, (0, 0.0))
        return Agent(
            agent.name,
            connected,
            state,
            heard,
            known_since=self.operator_since,
            asked_attempt=asked,
            asked_since=since,
            refused=agent.cut == "dead",
        )

    def _state(self, agent: FakeAgent) -> AgentState:
        assignment = agent.assignment
        return AgentState(
            boot_id=agent.boot_id,
            worker=agent.name,
            attempt=assignment.attempt if assignment else 0,
            digest=assignment.digest if assignment else "",
            master_port=agent.master_port,
            next_port=agent.next_port,
            resume_from=agent.resume_from if assignment else "",
            state=agent.state,
            outcome=agent.outcome,
            last_seq=len(agent.log),
            now_ms=int(self.now * 1000),
            unreachable_peer=self._unreachable_peer(agent),
            terminating=agent.terminating,
            unfit=agent.name in self.unfit,
            warming=agent.name in self.warming,
        )

    def _unreachable_peer(self, agent: FakeAgent) -> str | None:
        if agent.assignment is None or not agent.training:
            return None
        names = [member.worker for member in agent.assignment.members]
        peer = self.agents.get(names[(names.index(agent.name) + 1) % len(names)])
        if peer is None or not peer.alive:
            return names[(names.index(agent.name) + 1) % len(names)]
        lost = peer.cut == "all" and self.now - peer.cut_since >= HEARTBEAT_LOST_SECONDS
        return peer.name if lost or peer.cut == "dead" else None

    # ---- what actions do ----------------------------------------------------------------------------

    def do(self, action: act.Action) -> None:
        """Carry one action out."""
        match action:
            case act.CreateWorker():
                self._create(action)
            case act.DeleteWorker():
                self._delete(action)
            case act.SendAssignment():
                self._assign(action.assignment)
            case act.SendRequest():
                self._request(action.worker, action.request)
            case act.DeleteJob():
                self.job_deleted = True
            case act.EmitEvent():
                self.emitted.append(action)

    def _create(self, action: act.CreateWorker) -> None:
        if action.name in self.agents:
            return
        reserved = self.job.status.incarnations.get(str(action.place), 0)
        assert action.incarnation <= reserved, "a name must be reserved before it is used"
        if self.quota is not None and len(self.agents) >= self.quota:
            self.refusal = Refusal("QuotaExceeded", f"exceeded quota: pods={self.quota}", self.now)
            return
        self.refusal = None
        self._boots += 1
        made = FakeAgent(action.name, action.place, action.incarnation, self.now, f"boot-{self._boots}")
        made.next_port = 21000 + 100 * self._boots if self.holds_ports else 0
        self.agents[action.name] = made

    def _delete(self, action: act.DeleteWorker) -> None:
        agent = self.agents.get(action.name)
        if agent is None:
            return
        agent.deleting = True
        agent.deleting_since = self.now if agent.deleting_since is None else agent.deleting_since
        if agent.stuck and action.grace_seconds > 0:
            return
        if action.grace_seconds == 0 or not agent.training:
            self._break_group(agent)
            del self.agents[action.name]
        else:
            self._sigterm(agent, action.grace_seconds)

    def _reachable(self, name: str) -> FakeAgent | None:
        agent = self.agents.get(name)
        if agent is None or not agent.alive or agent.cut or name in self.distrust:
            return None
        return agent

    def _assign(self, assignment: Assignment) -> None:
        status = self.job.status.attempt
        assert assignment.attempt <= status.number, "sent before reserved"
        assert assignment.attempt < status.number or assignment.digest == status.digest, (
            "sent and not reserved"
        )
        if self.asked.get(assignment.worker, (0, 0.0))[0] != assignment.attempt:
            self.asked[assignment.worker] = assignment.attempt, self.now
        agent = self._reachable(assignment.worker)
        if agent is None or agent.terminating:
            return
        old = agent.assignment
        if old is not None and assignment.attempt < old.attempt:
            self.refused.append(assignment)
            return
        if old is not None and assignment.attempt == old.attempt:
            assert assignment.digest == old.digest, "one attempt, two memberships"
            return
        self._break_group(agent)
        agent.assignment, agent.state, agent.outcome, agent.hung_since = assignment, "running", None, None
        agent.master_port = assignment.master_port or agent.next_port or 20000 + assignment.attempt
        if agent.master_port == agent.next_port:
            agent.next_port += 1
        assert assignment.master_port or assignment.members[0].worker == agent.name, (
            "port before rank 0 chose"
        )
        self._log(agent, events.ASSIGNED, {"master_port": agent.master_port})
        if self.library:
            self._log(agent, events.RANK_CONNECTED, {"rank": assignment.member().first_rank, "pid": 1})

    def _request(self, name: str, request: Request) -> None:
        agent = self._reachable(name)
        if agent is None:
            return
        if request.kind == REQUEST_SHUTDOWN:
            self._kill_ranks(agent, events.STOPPED)
            agent.phase, agent.exit_code = "succeeded", 0
            return
        current = agent.assignment.attempt if agent.assignment else 0
        if not agent.training or request.attempt not in (0, current):
            return
        if request.kind == REQUEST_STOP:
            self._kill_ranks(agent, events.STOPPED)
        elif request.kind == REQUEST_DRAIN:
            agent.state = "draining"
            self._drain_requested(agent, request.reason, request.seconds, request.asked_by)

    # ---- faults -------------------------------------------------------------------------------------

    def kill_worker(self, name: str) -> None:
        agent = self.agents[name]
        if agent.alive:
            self._break_group(agent)
            agent.phase, agent.exit_code, agent.state = "failed", -9, "ended"

    def kill_rank(self, name: str, code: int = -9, tail: tuple[str, ...] = ()) -> None:
        agent = self.agents[name]
        if agent.training:
            self._rank_exit(agent, code, tail=tail)
            self._end(agent, events.FAILED)

    def kill_agent(self, name: str) -> None:
        """With its ranks; its cluster does not know yet, and shows the worker as running."""
        agent = self.agents[name]
        self.cut(name, "dead")
        self._break_group(agent)
        agent.state = "ended"

    def hang(self, name: str) -> None:
        if self.agents[name].training:
            self.agents[name].hung_since = self.now

    def preempt(self, name: str, seconds: float) -> None:
        agent = self.agents[name]
        if agent.alive and agent.disruption is None:
            agent.disruption = Disruption("preempted", "PreemptionNotice", self.now + seconds)
            agent.die_at = self.now + seconds

    def sigterm(self, name: str, seconds: float = 10.0) -> None:
        if self.agents[name].alive:
            self._sigterm(self.agents[name], seconds)

    def cut(self, name: str, scope: str) -> None:
        """Nobody hears it: the operator, or its peers' agents too. Its ranks go on."""
        self.delay(name)
        self.agents[name].cut, self.agents[name].cut_since = scope, self.now

    def heal(self) -> None:
        """All connections work and deliver again."""
        for agent in self.agents.values():
            agent.cut, agent.shown, agent.shown_state = "", None, None

    def delay(self, name: str) -> None:
        """Its stream shows nothing new until ``heal``."""
        agent = self.agents[name]
        if agent.alive and agent.last_heard is not None and agent.shown is None:
            agent.shown, agent.shown_state = len(agent.log), self._state(agent)

    # ---- time ---------------------------------------------------------------------------------------

    def tick(self, seconds: float = STEP_SECONDS) -> None:
        """Let a little time pass."""
        self.now = round(self.now + seconds, 6)
        for agent in list(self.agents.values()):
            self._age(agent)
        for number in {agent.assignment.attempt for agent in self.agents.values() if agent.assignment}:
            self._train(number)

    def _age(self, agent: FakeAgent) -> None:
        if agent.phase == "pending" and not agent.placed and self._has_room():
            agent.placed, agent.born = True, self.now
        startable = agent.phase == "pending" and agent.placed and not self._cannot_start(agent)
        if startable and self.now - agent.born >= START_SECONDS:
            agent.phase = "running"
        if agent.die_at is not None and self.now >= agent.die_at and agent.alive:
            self._break_group(agent)
            agent.phase, agent.exit_code = "failed", 137
        if agent.alive and agent.terminating and not agent.training:
            agent.phase, agent.exit_code = "succeeded", 0
        if agent.alive and not agent.cut:
            agent.last_heard = self.now
        if agent.deleting and not agent.alive:
            self.agents.pop(agent.name)

    def _has_room(self) -> bool:
        taken = sum(agent.placed and agent.phase in ("pending", "running") for agent in self.agents.values())
        return self.room is None or taken < self.room

    def _cannot_start(self, agent: FakeAgent) -> bool:
        return self.pending_reasons.get(agent.name, ("", ""))[0] != ""

    def _train(self, number: int) -> None:
        """One step of the attempt, if all its ranks are there."""
        agents = [a for a in self.agents.values() if a.assignment and a.assignment.attempt == number]
        running = [agent for agent in agents if agent.training]
        if not running:
            return
        members = running[0].assignment.members  # type: ignore[union-attr]
        group = self.groups.get(number)
        if group is None:
            if len(running) < len(members):
                return
            group = self.groups[number] = Group(
                self.committed, self.committed, self.now, last_save=self.committed
            )
        hung = [agent for agent in running if agent.hung_since is not None]
        if group.broken:
            for agent in running:
                self._rank_exit(agent, exitcodes.PEER_LOST, peer=True)
                self._end(agent, events.FAILED)
        elif hung:
            self._find_hang(hung[0], group)
        elif len(running) == len(members):
            self._one_step(number, group, running)

    def _find_hang(self, agent: FakeAgent, group: Group) -> None:
        if agent.hung_since is not None and self.now - agent.hung_since >= HANG_SECONDS:
            self._log(
                agent, events.HANG, {"rank": self._rank(agent), "phase": "productive", "silent_ms": 2000}
            )
            self._end(agent, events.FAILED)
            group.broken = True

    def _one_step(self, number: int, group: Group, running: list[FakeAgent]) -> None:
        first = next(agent for agent in running if self._rank(agent) == 0)
        if self.crash_code is not None and group.steps_done >= self.crash_steps:
            self._rank_exit(first, self.crash_code, tail=("Traceback", "ValueError: boom"))
            self._end(first, events.DRAINED if self.crash_code == exitcodes.DRAINED else events.FAILED)
            return
        if number < max(self.groups):
            for agent in running:  # a zombie: a newer attempt owns the store
                self._rank_exit(agent, exitcodes.SUPERSEDED)
                self._end(agent, events.FAILED)
            return
        if any(agent.state == "draining" for agent in running):
            if not self.library:
                self._all_end(running, -15, events.FAILED)
                return
            self._save(first, group)
            self._all_end(running, exitcodes.DRAINED, events.DRAINED)
            return
        if group.step < self.steps:
            group.step += 1
            group.steps_done += 1
        self.high_water = max(self.high_water, group.step)
        self._report(first, group)
        if group.step >= self.steps:
            self._save(first, group)
            self.final_step = group.step
            self._all_end(running, 0, events.SUCCEEDED)
        elif group.step % self.save_every == 0:
            self._save(first, group)

    def _save(self, first: FakeAgent, group: Group) -> None:
        if group.step <= group.last_save:
            return
        group.last_save = self.committed = group.step
        if self.library:
            samples = group.step * SAMPLES_PER_STEP
            data = {"step": group.step, "samples": samples, "checkpoint": f"step-{group.step}"}
            self._log(first, events.CHECKPOINT, data)

    def _report(self, first: FakeAgent, group: Group) -> None:
        done = int(group.steps_done * STEP_SECONDS * 1000)
        report = ProgressReport(
            rank=0,
            started_ms=int(group.started_at * 1000),
            settled_ms=int(self.now * 1000),
            phase="productive" if self.library else "setup",
            step=group.step if self.library else 0,
            samples=group.step * SAMPLES_PER_STEP if self.library else 0,
            phase_ms={"productive": done} if self.library else {},
            step_seconds=STEP_SECONDS if self.library else 0.0,
            uses_library=self.library,
        )
        self._log(first, events.PROGRESS, to_plain(report))

    # ---- ranks --------------------------------------------------------------------------------------

    def _rank(self, agent: FakeAgent) -> int:
        return agent.assignment.member().first_rank if agent.assignment else -1

    def _rank_exit(
        self,
        agent: FakeAgent,
        code: int,
        peer: bool = False,
        tail: tuple[str, ...] = (),
        in_loop: bool = False,
    ) -> None:
        asked = agent.state == "draining"
        exit_ = RankExit(
            self._rank(agent), code, own=True, peer_suspect=peer, tail=tail, asked=asked, in_loop=in_loop
        )
        self._log(agent, events.RANK_EXITED, to_plain(exit_))

    def _all_end(self, running: list[FakeAgent], code: int, outcome: str) -> None:
        for agent in running:
            self._rank_exit(agent, code)
            agent.state, agent.outcome = "ended", outcome
            self._log(agent, events.ATTEMPT_ENDED, {"outcome": outcome})

    def _end(self, agent: FakeAgent, outcome: str) -> None:
        self._break_group(agent)
        agent.state, agent.outcome = "ended", outcome
        self._log(agent, events.ATTEMPT_ENDED, {"outcome": outcome})

    def _kill_ranks(self, agent: FakeAgent, outcome: str) -> None:
        if agent.training:
            self._end(agent, outcome)

    def _break_group(self, agent: FakeAgent) -> None:
        """Its ranks are gone; the others of the attempt will notice."""
        if agent.training and agent.assignment is not None:
            number = agent.assignment.attempt
            group = self.groups.setdefault(number, Group(self.committed, self.committed, self.now))
            group.broken = True

    def _sigterm(self, agent: FakeAgent, seconds: float) -> None:
        agent.terminating, agent.die_at = True, self.now + seconds
        self._drain_requested(agent, "sigterm", seconds, ASKED_BY_AGENT)
        if agent.training:
            agent.state = "draining"

    def _drain_requested(self, agent: FakeAgent, reason: str, seconds: float, asked_by: str | None) -> None:
        told = {"asked_by": asked_by} if self.tells_who_asked else {}
        self._log(agent, events.DRAIN_REQUESTED, {"reason": reason, "seconds": seconds, **told})

    def _log(self, agent: FakeAgent, kind: str, data: dict[str, Any]) -> None:
        attempt = agent.assignment.attempt if agent.assignment else 0
        at_ms = int(self.now * 1000)
        agent.log.append(Event(len(agent.log) + 1, at_ms, kind, attempt, agent.boot_id, data))
        agent.times.append(self.now)


def _coalesced(seen: list[TimedEvent]) -> list[TimedEvent]:
    """Of progress reports, which hold totals, only the newest of each attempt."""
    newest = {
        (timed.worker, timed.event.boot_id, timed.event.attempt): timed.event.seq
        for timed in seen
        if timed.event.kind == events.PROGRESS
    }
    return [
        timed
        for timed in seen
        if timed.event.kind != events.PROGRESS
        or timed.event.seq == newest[timed.worker, timed.event.boot_id, timed.event.attempt]
    ]
