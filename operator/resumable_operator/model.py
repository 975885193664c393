"""The one definition of a ``ResumableTrainingJob``: its spec and its status.

The CRD, ``rtj run job.yaml`` and all decisions use these models. Names in YAML are camelCase. Importing this
has no side effects and it does no I/O.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from resumable_operator.errors import SpecError
from resumable_operator.template import check_template

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # JSON has no infinity
MOST_WORKERS = 10_000  # a slip of the finger must not become a list of that many
MOST_RANKS = 1024  # in one worker


class Model(BaseModel):
    """Base: camelCase aliases, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )

    def plain(self) -> dict[str, Any]:
        """JSON-ready dict with camelCase names."""
        return self.model_dump(mode="json", by_alias=True)


class StatusModel(Model):
    """Status is read back from the cluster: fields written by another version are kept out, not refused."""

    model_config = ConfigDict(extra="ignore")


# ---- spec --------------------------------------------------------------------------------------------


class Workers(Model):
    """How many workers, and which sizes are allowed."""

    replicas: int = Field(ge=1, le=MOST_WORKERS, description="Desired number of workers.")
    min: int | None = Field(default=None, ge=1, description="Train on with this few. Default: replicas.")
    max: int | None = Field(
        default=None, ge=1, le=MOST_WORKERS, description="Never more than this. Default: replicas."
    )
    multiple_of: int | None = Field(default=None, ge=1, description="Allowed sizes are multiples of this.")
    sizes: tuple[int, ...] | None = Field(default=None, description="The allowed sizes, listed.")
    processes_per_worker: int | Literal["auto"] = Field(default=1, description="Ranks in each worker.")
    spares: int = Field(
        default=0, ge=0, le=MOST_WORKERS, description="Extra warm workers that hold no ranks."
    )

    @property
    def min_size(self) -> int:
        return self.min if self.min is not None else self.replicas

    @property
    def max_size(self) -> int:
        return self.max if self.max is not None else self.replicas

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_size > self.max_size:
            raise ValueError(f"min ({self.min_size}) is above max ({self.max_size}): lower min or raise max")
        if not self.min_size <= self.replicas <= self.max_size:
            raise ValueError(
                f"replicas ({self.replicas}) must lie between min ({self.min_size}) and max ({self.max_size})"
            )
        if self.multiple_of is not None and self.sizes is not None:
            raise ValueError("give multipleOf or sizes, not both")
        processes = self.processes_per_worker
        if isinstance(processes, int) and not 1 <= processes <= MOST_RANKS:
            raise ValueError(f"processesPerWorker must be from 1 to {MOST_RANKS}, or 'auto'")
        if self.sizes is not None and (not self.sizes or min(self.sizes) < 1):
            raise ValueError("sizes must list at least one size, each at least 1")
        if not self.allowed_sizes():
            rule = (
                f"multiples of {self.multiple_of}" if self.multiple_of else f"sizes {list(self.sizes or ())}"
            )
            raise ValueError(
                f"no allowed size lies between min {self.min_size} and max {self.max_size} ({rule})"
            )
        if self.replicas not in self.allowed_sizes():
            raise ValueError(
                f"replicas ({self.replicas}) is not an allowed size; allowed: {list(self.allowed_sizes())}"
            )
        return self

    def allowed_sizes(self) -> tuple[int, ...]:
        """Every size this job may train at, ascending."""
        span = range(self.min_size, self.max_size + 1)
        if self.sizes is not None:
            return tuple(size for size in span if size in self.sizes)
        if self.multiple_of is not None:
            return tuple(size for size in span if size % self.multiple_of == 0)
        return tuple(span)


class PersistentVolumeClaimStorage(Model):
    claim_name: str = Field(min_length=1)
    path: str = Field(default="", description="Directory inside the volume.")


class S3Storage(Model):
    bucket: str = Field(min_length=3)
    prefix: str = ""
    endpoint: str | None = None
    secret_name: str | None = None


class DirectoryStorage(Model):
    """A directory on this machine or a mounted share; for ``rtj run`` only."""

    path: str = Field(min_length=1)


class SaveInterval(Model):
    steps: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.steps is None and self.seconds is None:
            raise ValueError("give steps, seconds, or both; or the word auto")
        return self


class Checkpoint(Model):
    """Where checkpoints live and how often they are made."""

    persistent_volume_claim: PersistentVolumeClaimStorage | None = None
    s3: S3Storage | None = None
    directory: DirectoryStorage | None = None
    interval: SaveInterval | Literal["auto"] = "auto"
    keep: int = Field(default=3, ge=2, description="Complete checkpoints kept on the chain; at least 2.")
    keep_every_steps: int | None = Field(default=None, ge=1)
    resume_from: str | None = Field(
        default=None, description="Resume from this checkpoint instead of the newest."
    )
    adopt: bool = Field(default=False, description="Take over a store that another job made.")
    start_fresh: bool = Field(
        default=False, description="Allow starting from nothing although checkpoints exist."
    )

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        given = [x for x in (self.persistent_volume_claim, self.s3, self.directory) if x is not None]
        if len(given) > 1:
            raise ValueError("give exactly one storage: persistentVolumeClaim, s3 or directory")
        return self


class Budget(Model):
    """At most ``limit`` endings of one class in ``windowSeconds``; checkpoint progress gives them back."""

    limit: int = Field(ge=0)
    window_seconds: float = Field(default=86400.0, gt=0, allow_inf_nan=False)


class Budgets(Model):
    user_error: Budget = Budget(limit=3)
    infrastructure: Budget = Budget(limit=100)
    preemption: Budget = Budget(limit=1000)
    without_progress: int = Field(
        default=5,
        ge=1,
        description="Stop after this many crash, oom, hang or numeric endings with no new checkpoint.",
    )


class Recovery(Model):
    """How failures are found and answered."""

    budgets: Budgets = Budgets()
    shrink_after_seconds: Seconds = Field(
        default=30.0, description="Longest wait for full size before going on smaller."
    )
    grow_cooldown_seconds: Seconds = Field(default=300.0, description="Shortest time between two growths.")
    forming_timeout_seconds: Seconds = Field(
        default=600.0, description="Below min this long: give waiting pods back."
    )
    drain_seconds: Seconds = Field(default=60.0, description="Window of a planned end.")
    hang_seconds: Seconds = Field(
        default=300.0, description="No progress this long outside known phases is a hang."
    )
    silent_seconds: Seconds = Field(
        default=30.0, description="A silent agent with no neighbour to ask is lost after this."
    )
    autonomy_seconds: Seconds = Field(
        default=86400.0, description="Agents train on this long without an operator."
    )
    drain_on_cordon: bool = False


class JobSpec(Model):
    """``spec`` of a ResumableTrainingJob."""

    workers: Workers
    template: dict[str, Any] = Field(
        default_factory=dict, description="Pod template; container 'worker', else the first."
    )
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()
    suspend: bool = False
    ttl_seconds_after_finished: Seconds | None = None
    active_deadline_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @field_validator("template")
    @classmethod
    def _readable(cls, template: dict[str, Any]) -> dict[str, Any]:
        check_template(template)
        return template

    def command(self) -> tuple[str, ...]:
        """``command + args`` of the worker container.

        Raises:
            SpecError: there is no container, or it has no command.
        """
        container = self.worker_container()
        command = container.get("command")
        if not command:
            raise SpecError(
                "spec.template.spec.containers[].command",
                "the worker container must set command: "
                "an image's own ENTRYPOINT is lost when the agent is put in front",
            )
        return (*command, *(container.get("args") or ()))

    def worker_container(self) -> dict[str, Any]:
        """The container named ``worker``, else the first."""
        containers = (self.template.get("spec") or {}).get("containers") or []
        if not containers:
            raise SpecError("spec.template.spec.containers", "give at least one container")
        named = [container for container in containers if container.get("name") == "worker"]
        chosen: dict[str, Any] = (named or containers)[0]
        return chosen


def parse_spec(data: Any) -> JobSpec:
    """Validate decoded YAML.

    Raises:
        SpecError: names the first wrong field, what is wrong and, for unknown names, the nearest known one.
    """
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise _as_spec_error(error) from error


def _as_spec_error(error: ValidationError) -> SpecError:
    import difflib

    problems = error.errors()
    problem = next(
        (p for p in problems if p["type"] == "extra_forbidden"), problems[0]
    )  # a typo explains the rest
    path = ".".join(["spec", *(str(part) for part in problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        name = str(problem["loc"][-1])
        near = difflib.get_close_matches(name, _known_names(JobSpec), n=1, cutoff=0.6)
        message = "unknown field" + (f"; did you mean {near[0]}?" if near else "")
    return SpecError(path, message)


def _known_names(model: type[BaseModel]) -> list[str]:
    names: list[str] = []
    for field in model.model_fields.values():
        names.append(str(field.alias))
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names += _known_names(kind)
    return names


# ---- status ------------------------------------------------------------------------------------------

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
    last_transition: float = 0.0


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

    at: float  # seconds, operator's clock
    cause: str
    worker: str = ""
    rank: int | None = None
    code: int | None = None
    message: str = ""
    tail: tuple[str, ...] = ()
    primary: bool = True  # False: a consequence of another failure (peer lost)
    last_progress: float | None = None


class AttemptStatus(StatusModel):
    """The attempt that exists now, or existed last. Reserved before anything is sent."""

    number: int = 0
    digest: str = ""
    members: tuple[MemberStatus, ...] = ()
    state: AttemptState = "ended"
    world_size: int = 0
    master_port: int = 0
    reserved_at: float = 0.0
    running_at: float | None = None
    first_step_at: float | None = None
    start_step: int = 0
    start_samples: int = 0
    restored: bool = False  # it has said where it starts
    draining_since: float | None = None
    drain_cause: str | None = None  # a planned cause, or "preempted"
    drain_reason: str = ""
    drain_deadline: float | None = None
    evidence: tuple[Evidence, ...] = ()
    ending_since: float | None = None
    outcomes: dict[str, str] = Field(default_factory=dict)  # by worker that reported the attempt's end
    rank0_returned_at: float | None = None  # rank 0 returned 0
    left: Evidence | None = None  # the first other rank that returned 0, as a witness against itself
    last_progress_at: float | None = None  # newest report of a rank
    doomed: tuple[str, ...] = ()  # members whose agent got a SIGTERM
    silent_since: dict[str, float] = Field(default_factory=dict)  # members never heard by this operator
    processes: int = 0  # ranks per worker, as applied
    settings_digest: str = ""  # limits and save settings, as applied
    settings_at: float | None = None  # when they were last pushed live
    grow_ready_since: float | None = None  # workers for a larger size are ready


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
    at: float = 0.0  # when it was declared
    detect_seconds: float = 0.0  # last evidence of progress until declared
    recover_seconds: float | None = None  # declared until the next attempt's first step
    rework_steps: int = 0
    restored: bool = True  # its attempt had said where it starts
    resumed_step: int | None = None  # where the next one resumed; until then rework_steps is not known
    size_before: int = 0
    size_after: int | None = None


class CheckpointStatus(StatusModel):
    name: str
    step: int
    samples: int
    at: float
    bytes: int = 0
    blocking_ms: int = 0
    durable_ms: int = 0


class BudgetStatus(StatusModel):
    """Times (seconds) of the endings charged and not yet given back."""

    user_error: tuple[float, ...] = ()
    infrastructure: tuple[float, ...] = ()
    preemption: tuple[float, ...] = ()
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


class JobStatus(StatusModel):
    """``status``: all that a restarted operator needs."""

    phase: JobPhase = "Pending"
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    attempt: AttemptStatus = AttemptStatus()
    incarnations: dict[str, int] = Field(default_factory=dict)  # place -> newest incarnation reserved
    size: int = 0
    step: int = 0
    samples: int = 0
    high_water_step: int = 0
    high_water_samples: int = 0
    loss: float | None = None
    step_seconds: float = 0.0
    checkpoint: CheckpointStatus | None = None
    budgets: BudgetStatus = BudgetStatus()
    interruptions: tuple[Interruption, ...] = ()  # newest last, at most 50
    interruption_counts: dict[str, int] = Field(default_factory=dict)
    last_interruption: Interruption | None = None
    ledger: LedgerStatus = LedgerStatus()
    cursors: dict[str, int] = Field(default_factory=dict)  # agent boot id -> newest event folded
    restart_seconds: float = 10.0  # measured cost of a restart (exponential mean)
    last_grow_at: float | None = None
    below_target_since: float | None = None
    below_min_since: float | None = None
    backoff_until: float | None = None
    backoff_count: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    failure_class: Literal["user", "budget", "deadline"] | None = None
    uses_library: bool | None = None
    template_digest: str = ""  # of the pod template that the newest incarnations have
    store: str = ""  # root of the checkpoint store, as applied; changes only while suspended
    resumed_from: str | None = None  # the deliberate resume point that was already used
    start_failures: int = 0  # workers in a row that failed before they took part in an attempt
    create_after: float | None = None  # no new worker before this, because of them
    forced: tuple[str, ...] = ()  # workers whose deletion had to be forced
    checked_generation: int = 0  # of the spec that the cluster was asked about last
    checked_at: float | None = None
    refusals: int = 0  # in a row, of creating workers
    refused_at: float | None = None
    node_troubles: dict[str, tuple[float, ...]] = Field(default_factory=dict)  # node -> when, within an hour
    avoided: dict[str, float] = Field(
        default_factory=dict,
        description="Nodes where workers failed repeatedly, and until when they get new ones only if there "
        "is no other (seconds since the epoch).",
    )
    distrusted: dict[str, float] = Field(default_factory=dict)  # worker -> since when it can't be believed
    replicas: int = 0
    selector: str = ""
