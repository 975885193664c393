"""What the operator tells an agent: its assignment for one attempt, and requests in between."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from resumable_training.contract import CONTRACT_VERSION
from resumable_training.contract.codec import to_json


@dataclass(frozen=True)
class Member:
    """One worker of an attempt. Ranks ``first_rank .. first_rank + ranks - 1`` are its own."""

    worker: str
    place: int
    incarnation: int
    address: str
    agent_port: int
    first_rank: int
    ranks: int


@dataclass(frozen=True)
class Limits:
    """Times that bound an attempt, in seconds. May be changed live (request ``settings``)."""

    hang_seconds: float = 300.0  # outside the phases whose length is known from measurement
    drain_seconds: float = 60.0  # window of a planned end
    autonomy_seconds: float = 86400.0  # how long an agent trains on without an operator
    start_seconds: float = 600.0  # process start to first step, before it is called a hang


@dataclass(frozen=True)
class CheckpointConfig:
    """How the library saves: by ``every_steps`` or ``every_seconds``, whichever comes first; with both None
    at the interval ``auto``."""

    directory: str = ""  # root of the store; empty: no checkpoints
    every_steps: Optional[int] = None
    every_seconds: Optional[float] = None
    mtbf_seconds: float = 3600.0  # for ``auto``: the operator's estimate of M when it sent this
    interruptions: int = 0  # those that the estimate rests on; it grows by t / (1 + these) from then on
    longest_seconds: Optional[float] = None  # between saves, whatever the interval
    memory_every_steps: Optional[int] = None  # a copy in memory every so many steps; None: none
    memory_auto: bool = False  # or as often as they cost little
    keep_last: int = 3  # complete checkpoints on the chain, at least 2
    keep_every_steps: Optional[int] = None
    resume_from: Optional[str] = None  # a deliberate resume point (directory name or path)
    adopt: bool = False  # take over a store that another owner made
    known_checkpoint: bool = False  # status remembers one: starting from nothing needs the user's word
    newest_checkpoint: str = ""  # its name: a listing that lacks it, where the chain has it, is old
    blocking_ms: Optional[int] = None  # what that save cost, for ``auto`` until this attempt has measured one
    durable_ms: Optional[int] = None
    start_fresh: bool = False  # the user's word


@dataclass(frozen=True)
class Assignment:
    """One worker's part in one attempt. Idempotent: the same one twice changes nothing.

    An agent refuses an attempt older than the newest it has seen, the same attempt with another
    ``digest``, and one for another job. ``master_port`` is the one that rank 0's agent holds ready; where it
    holds none, 0 is sent to that agent only: it chooses and answers with the port; all others get that port.
    """

    job: str  # "namespace/name"
    job_uid: str
    attempt: int
    digest: str
    worker: str
    members: Tuple[Member, ...]
    master_address: str
    master_port: int
    high_water_samples: int = 0
    limits: Limits = field(default_factory=Limits)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    env: Dict[str, str] = field(default_factory=dict)
    contract_version: int = CONTRACT_VERSION

    @property
    def world_size(self) -> int:
        return sum(member.ranks for member in self.members)

    def member(self) -> Member:
        """This worker's own entry."""
        for member in self.members:
            if member.worker == self.worker:
                return member
        raise ValueError("worker %s is not a member of attempt %d" % (self.worker, self.attempt))


def membership_digest(job_uid: str, attempt: int, members: Tuple[Member, ...]) -> str:
    """Fingerprint of who takes part in an attempt; 32 hexadecimal digits."""
    return hashlib.sha256(to_json([job_uid, attempt, list(members)])).hexdigest()[:32]


REQUEST_DRAIN = "drain"  # commit at the agreed step, then exit with DRAINED
REQUEST_STOP = "stop"  # kill the ranks of the attempt now
REQUEST_SETTINGS = "settings"  # new limits and checkpoint settings, live
REQUEST_STACKS = "stacks"  # write the ranks' stacks to the log
REQUEST_SHUTDOWN = "shutdown"  # stop ranks, then exit the agent with 0
REQUEST_CUT_NETWORK = "cut-network"  # fault injection: refuse connections for ``seconds``
REQUESTS = (
    REQUEST_DRAIN,
    REQUEST_STOP,
    REQUEST_SETTINGS,
    REQUEST_STACKS,
    REQUEST_SHUTDOWN,
    REQUEST_CUT_NETWORK,
)

# Who wants a drain
ASKED_BY_OPERATOR = "operator"
ASKED_BY_AGENT = "agent"  # its pod is being ended, or it heard no operator for too long
ASKED_BY_RANKS = "ranks"  # some drain, and nobody is known to have asked: the others are to follow


@dataclass(frozen=True)
class Request:
    """A request about the current attempt; ``attempt`` 0 means "whatever runs". Repeating one is harmless."""

    kind: str
    attempt: int = 0
    reason: str = ""
    seconds: float = 0.0  # drain: the window; cut-network: how long
    scope: str = "all"  # cut-network: "all", or "operator" (neighbours' heartbeats still answered)
    asked_by: Optional[str] = None  # drain: one of ``ASKED_BY_...``; None: an operator that does not tell
    with_stacks: bool = False  # stop: first write the ranks' stacks to their logs
    limits: Optional[Limits] = None
    checkpoint: Optional[CheckpointConfig] = None
    contract_version: int = CONTRACT_VERSION


@dataclass(frozen=True)
class AgentSpec:
    """Configuration an agent is started with (JSON in ``RESUMABLE_AGENT_SPEC``, or in a file named there)."""

    job: str
    job_uid: str
    worker: str
    place: int
    incarnation: int
    command: Tuple[str, ...]  # argv of one rank, e.g. ("python", "train.py", "--lr", "1e-3")
    address: str  # address to bind and to be reached at
    port: int = 0  # 0: any free port; written to ``<directory>/agent.json`` with pid and boot id
    directory: str = ""  # scratch space of this agent: sockets, progress files, agent.json
    log_directory: str = ""  # rank logs: attempt-00001/rank-00000.log
    key_file: str = ""  # file with the job's key(s), hexadecimal, one a line, current first
    working_directory: str = ""  # of the ranks; empty: the agent's own
    lifeline_fd: int = -1  # read end of a pipe; end of file there means the parent died: kill ranks, exit
    drain_seconds: float = 60.0  # window of a SIGTERM when no assignment says otherwise
    allow_faults: bool = False  # accept ``cut-network``
    log_bytes: int = 0  # of a rank's log, before it is renamed and begun anew; 0: no bound
    log_attempts: int = 0  # logs of so many attempts are kept; 0: all
    environment: Dict[str, str] = field(default_factory=dict)
    preload: bool = True  # fork ranks from one process that has imported torch, where that is safe
    preload_modules: Tuple[str, ...] = ()  # to import there, too
    contract_version: int = CONTRACT_VERSION
