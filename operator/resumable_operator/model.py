"""The one definition of a ``ResumableTrainingJob``: its status here, its spec in ``spec.py``.

The CRD, ``rtj run job.yaml`` and all decisions use these models. Names in YAML are camelCase. Importing this
has no side effects and it does no I/O.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, SerializationInfo, WithJsonSchema

from resumable_operator.spec import (
    LONGEST_NAME,
    MOST_RANKS,
    MOST_WORKERS,
    Budget,
    Budgets,
    Checkpoint,
    DirectoryStorage,
    JobSpec,
    Model,
    PersistentVolumeClaimStorage,
    Recovery,
    S3Storage,
    SaveInterval,
    Workers,
    parse_spec,
)
from resumable_operator.times import LAST_SECOND, rfc3339, seconds_of

__all__ = [
    "LONGEST_NAME",
    "MOST_RANKS",
    "MOST_WORKERS",
    "STORED",
    "AttemptStatus",
    "Budget",
    "BudgetStatus",
    "Budgets",
    "Checkpoint",
    "CheckpointStatus",
    "Condition",
    "DirectoryStorage",
    "Evidence",
    "Interruption",
    "JobPhase",
    "JobSpec",
    "JobStatus",
    "LedgerStatus",
    "MemberStatus",
    "Model",
    "PersistentVolumeClaimStorage",
    "Recovery",
    "RecoveryStatus",
    "S3Storage",
    "SaveInterval",
    "Workers",
    "parse_spec",
]

STORED = {"times": "RFC 3339"}  # as context of a dump: the form that the API server keeps


def _read_time(value: Any) -> Any:
    return seconds_of(value) if isinstance(value, str) else value


def _write_time(value: float, info: SerializationInfo) -> float | str:
    """A time that no calendar has can only come from an agent's nonsense; it must not stop the write."""
    if info.context != STORED:
        return value
    return rfc3339(min(max(value, 0.0), LAST_SECOND) if math.isfinite(value) else 0.0)


Time = Annotated[
    float,
    BeforeValidator(_read_time),
    PlainSerializer(_write_time),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since 1970 on the operator's clock; people and the API server see RFC 3339."""


class StatusModel(Model):
    """Status is read back from the cluster: fields written by another version are kept out, not refused."""

    model_config = ConfigDict(extra="ignore")


JobPhase = Literal[
    "Pending", "Forming", "Running", "Draining", "Recovering", "Suspended", "Succeeded", "Failed"
]
AttemptState = Literal["forming", "running", "draining", "ending", "ended"]


class Condition(StatusModel):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition: Time = Field(
        default=0.0, validation_alias="lastTransitionTime", serialization_alias="lastTransitionTime"
    )


class MemberStatus(StatusModel):
    """One worker of the current attempt, as reserved."""

    worker: str
    place: int
    incarnation: int
    address: str
    agent_port: int
    first_rank: int
    ranks: int
    node: str = ""


class Evidence(StatusModel):
    """One witness of an attempt's ending."""

    at: Time  # seconds, operator's clock
    cause: str
    worker: str = ""
    rank: int | None = None
    code: int | None = None
    message: str = ""
    tail: tuple[str, ...] = ()
    primary: bool = True  # False: a consequence of another failure (peer lost)
    in_loop: bool = False  # the rank had steps to do or to commit
    last_progress: Time | None = None


class AttemptStatus(StatusModel):
    """The attempt that exists now, or existed last. Reserved before anything is sent."""

    number: int = 0
    digest: str = ""
    members: tuple[MemberStatus, ...] = ()
    state: AttemptState = "ended"
    world_size: int = 0
    master_port: int = 0
    reserved_at: Time = 0.0
    running_at: Time | None = None
    first_step_at: Time | None = None
    start_step: int = 0
    start_samples: int = 0
    restored: bool = False  # it has said where it starts
    draining_since: Time | None = None
    drain_cause: str | None = None  # a planned cause, or that of a notice
    drain_reason: str = ""
    drain_deadline: Time | None = None
    evidence: tuple[Evidence, ...] = ()
    ending_since: Time | None = None
    outcomes: dict[str, str] = Field(default_factory=dict)  # by worker that reported the attempt's end
    rank0_returned_at: Time | None = None  # rank 0 returned 0
    left: Evidence | None = None  # the first rank that left the others unasked, as a witness against itself
    asked: bool = False  # to drain, by the operator or by an agent of its own accord
    storing: bool = False  # what its dead ranks had copied may yet become a checkpoint
    not_begun: bool = False  # the drain ended a rank before it had done a step: none can have done one
    last_progress_at: Time | None = None  # newest report of a rank
    slowest_worker: str = ""  # the one with the slowest rank lately
    slowest_step_seconds: float = 0.0  # recent step time of that rank; 0: no step was told
    doomed: tuple[str, ...] = ()  # members whose agent got a SIGTERM
    silent_since: dict[str, Time] = Field(default_factory=dict)  # members never heard by this operator
    processes: int = 0  # ranks per worker, as applied
    settings_digest: str = ""  # limits and save settings, as applied
    settings_at: Time | None = None  # when they were last pushed live
    grow_ready_since: Time | None = None  # workers for a larger size are ready
    stages_before: dict[str, int] | None = None  # milliseconds by stage, when its end began (decide.stages)
    lost_before: int = 0  # GPU-milliseconds that made nothing new, then


class Interruption(StatusModel):
    """One unplanned (or, with ``planned``, planned) ending of an attempt, with exactly one cause."""

    attempt: int
    cause: str
    planned: bool = False
    worker: str = ""
    rank: int | None = None
    code: int | None = None
    message: str = ""
    tail: tuple[str, ...] = ()
    at: Time = 0.0  # when it was declared
    detect_seconds: float = 0.0  # last evidence of progress until declared
    recover_seconds: float | None = None  # declared until the next attempt's first step
    stages: dict[str, float] | None = None  # seconds of the recovery by stage; None: it goes on, or planned
    rework_steps: int = 0
    restored: bool = True  # its attempt had said where it starts
    committed: bool = True  # planned only: what had been done was in a checkpoint
    suspended_before: float | None = None  # seconds that the job had been suspended when it was declared
    resumed_step: int | None = None  # where the next one resumed; until then rework_steps is not known
    size_before: int = 0
    size_after: int | None = None


class CheckpointStatus(StatusModel):
    name: str
    step: int
    samples: int
    at: Time
    bytes: int = 0
    blocking_ms: int = 0
    durable_ms: int = 0
    interval_seconds: float = 0.0  # wanted until the next one, as the library chose it; 0: not known
    interval_bound: str = ""  # what it follows from: fixed, or of auto optimum, first, durable or cap


class BudgetStatus(StatusModel):
    """Times (seconds) of the endings charged and not yet given back."""

    user_error: tuple[Time, ...] = ()
    infrastructure: tuple[Time, ...] = ()
    preemption: tuple[Time, ...] = ()
    without_progress: int = 0
    last_causes: tuple[str, ...] = ()  # of the endings counted in without_progress


class LedgerStatus(StatusModel):
    """Where the job's time went. ``sum(phases) == settled_at - started_at`` always; milliseconds."""

    started_at: int = 0
    settled_at: int = 0
    open_phase: str = "queued"  # what unsettled time will be credited to unless evidence says otherwise
    phases: dict[str, int] = Field(default_factory=dict)
    attempt: int = 0  # attempt whose rank-0 totals were folded last
    folded: dict[str, int] = Field(default_factory=dict)  # those totals, by rank phase
    folded_rework_steps: int = 0  # of that attempt
    control_phase: str = "starting"  # starting, recovering or resizing: what a rank's set-up counts as
    rework_steps: int = 0
    committed_productive: int = 0  # productive milliseconds that the newest checkpoint holds
    lost: int = 0  # productive milliseconds that a job which died for good never committed
    gpus: int = 0  # held by the workers that train, or that wait to
    gpu_phases: dict[str, int] = Field(default_factory=dict)  # GPU-milliseconds, beside ``phases``


class RecoveryStatus(StatusModel):
    """What interruptions cost: milliseconds by stage, GPU-milliseconds by cause (``decide.stages``)."""

    stage_ms: dict[str, int] = Field(default_factory=dict)  # of all that are over
    since: dict[str, int] | None = None  # stage times of the ledger when the open one began; None: none is
    attempt: int = 0  # whose interruption the open one follows
    gpu_ms: dict[str, int] = Field(default_factory=dict)  # by cause, without what ``cause`` goes on to cost
    cause: str = ""  # of the newest interruption, while time can be lost to it
    gpu_before: int = 0  # GPU-milliseconds that made nothing new, when it began


class JobStatus(StatusModel):
    """``status``: all that a restarted operator needs.

    Defaults never change: what is stored may lean on them.
    """

    phase: JobPhase = Field(
        default="Pending",
        description="Pending, Forming, Running, Draining, Recovering, Suspended, Succeeded or Failed.",
    )
    reason: str = Field(default="", description="Where the job stands now, or why it ended.")
    conditions: tuple[Condition, ...] = Field(
        default=(), description="What holds or does not hold, one of each type."
    )
    observed_generation: int = Field(
        default=0, description="metadata.generation of the spec that this status is about."
    )
    workers: str = Field(default="", description="Workers that train, of those wanted, such as 3/4.")
    goodput: str = Field(
        default="", description="Share of the job's time (not suspended) that made new steps, such as 93.1%."
    )
    attempt: AttemptStatus = Field(
        default=AttemptStatus(), description="The group of ranks that trains now, or did last."
    )
    incarnations: dict[str, int] = Field(
        default_factory=dict, description="Newest pod reserved for each place; part of the pod's name."
    )
    size: int = Field(default=0, description="Workers of the attempt.")
    step: int = Field(default=0, description="Steps done, of those that count.")
    samples: int = Field(default=0, description="Samples done, of those that count.")
    high_water_step: int = Field(default=0, description="Most steps ever done; below it work is rework.")
    high_water_samples: int = Field(default=0, description="Most samples ever done; below it work is rework.")
    loss: float | None = Field(default=None, description="Newest loss that the script reported.")
    step_seconds: float = Field(default=0.0, description="Recent duration of a step.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest complete checkpoint.")
    saved_samples: int | None = Field(
        default=None,
        description="Most samples that a checkpoint has held: one that holds more gives budgets back. Begins "
        "anew where a person has the job go on from elsewhere: at what resumeFrom or a roll-back of the "
        "store has it resume, and at 0 where startFresh has it start over or a failed local run is started "
        "again.",
    )
    budgets: BudgetStatus = Field(
        default=BudgetStatus(),
        description="Endings charged and not yet given back; see spec.recovery.budgets.",
    )
    interruptions: tuple[Interruption, ...] = Field(
        default=(), description="Endings of attempts, newest last, at most 50."
    )
    interruption_counts: dict[str, int] = Field(
        default_factory=dict, description="All endings so far, by cause."
    )
    recovery: RecoveryStatus = Field(
        default=RecoveryStatus(), description="What interruptions cost, by stage and by cause."
    )
    resizes: dict[str, int] = Field(
        default_factory=dict, description="Changes of size so far, by direction: grow, shrink."
    )
    last_interruption: Interruption | None = Field(
        default=None, description="The newest ending that nobody planned: cause, witness, price."
    )
    ledger: LedgerStatus = Field(
        default=LedgerStatus(), description="Where the job's time went, in milliseconds by phase."
    )
    cursors: dict[str, int] = Field(
        default_factory=dict, description="Newest event taken in, by boot of an agent."
    )
    restart_seconds: float = Field(default=10.0, description="Measured cost of a restart (exponential mean).")
    last_grow_at: Time | None = Field(default=None, description="When the job grew last.")
    below_target_since: Time | None = Field(
        default=None, description="Since when fewer workers are ready than wanted."
    )
    below_min_since: Time | None = Field(
        default=None,
        description="Since when fewer workers are ready than the smallest allowed size; kept while waiting "
        "pods are given back.",
    )
    backoff_until: Time | None = Field(
        default=None, description="No pods are created before this, so that others get the room."
    )
    backoff_count: int = Field(default=0, description="Times in a row that waiting pods were given back.")
    started_at: Time | None = Field(default=None, description="When the operator first saw the job.")
    finished_at: Time | None = Field(default=None, description="When the job succeeded or failed.")
    failure_class: Literal["user", "budget", "deadline"] | None = Field(
        default=None, description="Of a failed job: user, budget or deadline."
    )
    uses_library: bool | None = Field(
        default=None, description="Whether the script uses the worker library; without it steps are unknown."
    )
    template_digest: str = Field(default="", description="Of the pod template that the newest pods have.")
    operator: str = Field(
        default="", description="Which operator looks after the job: a fingerprint of its master key."
    )
    operator_at: Time | None = Field(
        default=None, description="When it said so last; minutes later another operator may take over."
    )
    store: str = Field(
        default="", description="Root of the checkpoint store, as applied; changes only while suspended."
    )
    resumed_from: str | None = Field(
        default=None, description="The spec.checkpoint.resumeFrom that was already used."
    )
    started_fresh: bool = Field(
        default=False,
        description="Whether savedSamples began anew by spec.checkpoint.startFresh; it does so again only "
        "after an attempt that restored without it.",
    )
    start_failures: int = Field(
        default=0, description="Workers in a row that failed before they took part in an attempt."
    )
    create_after: Time | None = Field(
        default=None, description="No new worker before this, because of startFailures."
    )
    forced: tuple[str, ...] = Field(
        default=(), description="Pods whose deletion had to be forced: stuck on a dead node."
    )
    checked_generation: int = Field(
        default=0, description="metadata.generation of the spec that the cluster was asked about last."
    )
    checked_at: Time | None = Field(default=None, description="When the cluster was asked about it.")
    refusals: int = Field(default=0, description="Times in a row that the creation of workers was refused.")
    refused_at: Time | None = Field(default=None, description="When it was refused last.")
    node_troubles: dict[str, tuple[Time, ...]] = Field(
        default_factory=dict, description="When workers failed on each node, within an hour."
    )
    avoided: dict[str, Time] = Field(
        default_factory=dict,
        description="Nodes where workers failed repeatedly, and until when they get new ones only if there "
        "is no other.",
    )
    distrusted: dict[str, Time] = Field(
        default_factory=dict, description="Workers whose agent can't be believed, and since when."
    )
    replicas: int = Field(
        default=0, description="Running worker pods; read by kubectl scale and autoscalers."
    )
    selector: str = Field(default="", description="Label selector of the worker pods; read by autoscalers.")
