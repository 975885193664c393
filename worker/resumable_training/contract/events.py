"""What an agent reports: a numbered event log, and its state as a snapshot.

``GET /v1/events?after=N`` answers with JSON lines. The first is a ``snapshot`` (``seq`` 0) with the agent's
whole state; then every kept event with ``seq > N``, then new ones as they happen, and a ``snapshot`` at
least every ``HEARTBEAT_SECONDS`` so that silence means something. A reader of very many streams asks for
fewer with ``&heartbeat_ms=M``, up to ``SLOWEST_HEARTBEAT_SECONDS``; progress then comes with the snapshots,
of several reports of a rank the newest. Agents that do not know it go on as usual. Event numbers start at 1
for each boot of an agent; they grow, and not all of them come. Times are the agent's CLOCK_MONOTONIC in
milliseconds; the reader maps them to its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

HEARTBEAT_SECONDS = 0.5
SLOWEST_HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 2.75  # without a word: an agent that stands still for 2 s is not called silent

# Kinds of events, and what ``data`` holds ------------------------------------------------------------
AGENT_STARTED = "agent_started"  # {}
ASSIGNED = "assigned"  # {world_size, ranks, master_port, resume_from}
RANKS_STARTED = "ranks_started"  # {ranks: [int]}; the processes exist
RANK_CONNECTED = "rank_connected"  # {rank, pid}: the rank uses the library
PROGRESS = "progress"  # contract.events.ProgressReport, by the agent of rank 0 (others too, less often)
# {step, samples, checkpoint, record, seconds, fallback: [{checkpoint, why}], memory_bytes, storage_bytes,
# deliberate: by resumeFrom, or the first since a roll-back} by rank 0; bytes of all ranks: that were still on
# the job's workers, that were read from storage
RESTORED = "restored"
# {step, samples, checkpoint, bytes, blocking_ms, durable_ms, interval_seconds, interval_steps,
# interval_bound: fixed, or what bound the interval auto (contract.formulas)} by rank 0; of one that landed
# when rank 0 was dead by its agent, without rank, blocking_ms and what is known of intervals
CHECKPOINT = "checkpoint"
CHECKPOINT_FAILED = "checkpoint_failed"  # {step, message}
RANK_EXITED = "rank_exited"  # contract.events.RankExit
HANG = "hang"  # {rank, phase, silent_ms, stopped: bool, limit_ms}
PEER_UNREACHABLE = "peer_unreachable"  # {worker}: the ring neighbour does not answer
PEER_REACHABLE = "peer_reachable"  # {worker}
# {reason, seconds, asked_by: the request's, or assignment.ASKED_BY_AGENT}; reason "sigterm" when the pod is
# being ended
DRAIN_REQUESTED = "drain_requested"
# {outcome: one of OUTCOMES, storing: what a dead rank had copied may yet become a checkpoint}: all ranks of
# this worker are reaped
ATTEMPT_ENDED = "attempt_ended"
STACKS = "stacks"  # {rank, text}
WARNING = "warning"  # {message}; by agent or library
UNFIT = "unfit"  # {rank, pid}: a rank could not be reaped
SNAPSHOT = "snapshot"  # AgentState

# How an attempt ended on one worker -------------------------------------------------------------------
SUCCEEDED = "succeeded"  # every rank returned 0
DRAINED = "drained"  # every rank returned DRAINED (or 0)
FAILED = "failed"  # a rank failed by itself
STOPPED = "stopped"  # ended by request, or because the assignment was replaced
OUTCOMES = (SUCCEEDED, DRAINED, FAILED, STOPPED)


@dataclass(frozen=True)
class RankExit:
    """A rank's end as its parent saw it. ``own``: not killed by the agent itself."""

    rank: int
    code: int  # as subprocess: negative for a signal
    own: bool
    peer_suspect: bool = False  # exit code or output says that a peer was the cause
    early: bool = False  # before its first step of this attempt
    seconds: float = 0.0  # since it was started
    tail: Tuple[str, ...] = ()  # last lines of its output
    asked: Optional[bool] = None  # to drain, by this agent; None: an agent that does not tell
    idle: bool = False  # a script that uses the library is known to have done no step of this attempt
    in_loop: bool = False  # a script that uses the library is known to have been within its loop


@dataclass(frozen=True)
class ProgressReport:
    """State of one rank from its progress page; ``phase_ms`` are totals since the rank's start.

    ``settled_ms`` (monotonic) is where they end: their sum equals ``settled_ms - started_ms``. What goes on
    since then (a step, a save) is not counted until it is over.
    """

    rank: int
    started_ms: int
    settled_ms: int
    phase: str
    step: int  # steps done
    samples: int  # samples done
    phase_ms: Dict[str, int] = field(default_factory=dict)
    rework_steps: int = 0
    step_seconds: float = 0.0  # recent step time
    loss: Optional[float] = None
    slowest_step_seconds: float = 0.0  # of all ranks of its worker, the longest; 0: not known
    uses_library: bool = True


@dataclass(frozen=True)
class AgentState:
    """Everything an operator that knows nothing must know about one agent."""

    boot_id: str
    worker: str
    attempt: int = 0  # newest assignment seen; 0: none
    digest: str = ""
    master_port: int = 0
    resume_from: str = ""  # what ranks are offered as env.RESUME_FROM in this attempt; empty: nothing
    state: str = "idle"  # idle | running | draining | ended
    outcome: Optional[str] = None  # when ended
    ranks_alive: int = 0
    last_seq: int = 0
    first_seq: int = 1  # oldest event still kept
    now_ms: int = 0  # monotonic, when this was written
    unreachable_peer: Optional[str] = None
    unfit: bool = False
    terminating: bool = False  # got SIGTERM
    next_port: int = 0  # master port that it holds ready for an attempt with rank 0 here; 0: none
    warming: bool = False  # what its ranks are forked from still imports: they, and so all others, would wait
    contract_version: int = 1


@dataclass(frozen=True)
class Event:
    """One line of the log."""

    seq: int
    at_ms: int
    kind: str
    attempt: int
    boot_id: str
    data: Dict[str, Any] = field(default_factory=dict)
