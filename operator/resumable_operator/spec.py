"""What a user writes: ``spec`` of a ``ResumableTrainingJob``, and how it is read.

The CRD is made from these models (``resumable_operator.crd``), ``rtj run job.yaml`` reads the same. As in
Kubernetes a number is no string, and null is the same as nothing. Every field has a description: it is what
``kubectl explain`` shows.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from resumable_operator.errors import SpecError
from resumable_operator.template import check_template

MOST_WORKERS = 10_000  # a slip of the finger must not become a list of that many
MOST_RANKS = 1024  # in one worker
MOST_MODULES = 64  # to preload
MOST_SIZES = 256  # listed; bounds the cost of the CRD's rules
MOST_ENDINGS = 10_000  # of one class, remembered in status
MOST_SECONDS = 1_000_000_000  # 31 years: sums and products of times stay finite
MOST_STEPS = 1_000_000_000_000_000  # a double holds it exactly
LONGEST_NAME = 50  # worker names are host names of at most 63: 50 for the job, 13 for -<place>-<incarnation>

Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]  # JSON has no infinity
PositiveSeconds = Annotated[float, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
_MODULE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
ModuleName = Annotated[str, Field(max_length=256, pattern=_MODULE_NAME)]


def _stays_below(path: str) -> str:
    if "/../" in f"/{path}/":
        raise ValueError("path must not contain '..': name a directory inside the volume")
    return path


def _or_auto(most: int, what: str) -> Callable[[Any], Any]:
    """A check of a number from 1 to ``most``, or the word auto; ``what``: such a number, in words."""

    def check(value: Any) -> Any:
        is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
        if value != "auto" and not is_count:
            raise ValueError(f"must be {what}, or auto")
        return value

    return check


_count_or_auto = _or_auto(MOST_RANKS, f"a number from 1 to {MOST_RANKS}")
_steps_or_auto = _or_auto(MOST_STEPS, "a number of steps from 1 on")


def _object_or_auto(value: Any) -> Any:
    if value != "auto" and not isinstance(value, (dict, BaseModel)):
        raise ValueError("must be the word auto, or an object with steps, seconds, or both")
    return value


InnerPath = Annotated[str, Field(max_length=512), AfterValidator(_stays_below)]
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=_OBJECT_NAME)]


class Model(BaseModel):
    """Base: camelCase aliases, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )

    def plain(self) -> dict[str, Any]:
        """JSON-ready dict with camelCase names."""
        return self.model_dump(mode="json", by_alias=True)


class SpecModel(Model):
    """What users write: nothing is converted, and null means not given."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {name for key, field in cls.model_fields.items() for name in (key, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class Preload(SpecModel):
    """Ranks that are forked from a process which has imported what they need."""

    enabled: bool = Field(
        default=True,
        description="Where it is safe, each worker imports torch once, in a process of the job's own "
        "interpreter, and forks its ranks from it, so that restarts take a second and not many. Where it is "
        "not, ranks start cold and an Event says why.",
    )
    modules: Annotated[tuple[ModuleName, ...], Field(strict=False, max_length=MOST_MODULES)] = Field(
        default=(),
        description="Modules to import there beside torch, such as the one with the model. They must not "
        "start threads, use a GPU, seed a random generator or read RANK when they are imported.",
    )


class Workers(SpecModel):
    """How many workers, and which sizes are allowed."""

    replicas: Size = Field(
        description="Workers wanted, each one pod. Set by kubectl scale and by a HorizontalPodAutoscaler."
    )
    min: Size | None = Field(
        default=None,
        description="Train on with this few when there is no room for more. Default: replicas, that is "
        "no training below full size.",
    )
    max: Size | None = Field(
        default=None, description="Upper limit for replicas, for autoscalers. Default: replicas."
    )
    multiple_of: Size | None = Field(
        default=None,
        description="Allowed sizes are the multiples of this between min and max. Excludes sizes.",
    )
    sizes: Annotated[tuple[Size, ...], Field(strict=False, min_length=1, max_length=MOST_SIZES)] | None = (
        Field(default=None, description="The allowed sizes, listed. Excludes multipleOf.")
    )
    processes_per_worker: Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)] = Field(
        default=1,
        description=f"Ranks in each worker: a number from 1 to {MOST_RANKS}, or auto: as many as the worker "
        "container asks for GPUs, else one.",
    )
    spares: Annotated[int, Field(ge=0, le=MOST_WORKERS)] = Field(
        default=0,
        description="Extra workers that hold no ranks and take the place of a lost one at once. They use up "
        "resources all the time.",
    )
    preload: Preload = Field(
        default=Preload(),
        description="How ranks are started. A change is for workers that are made after it.",
    )

    @property
    def min_size(self) -> int:
        return self.min if self.min is not None else self.replicas

    @property
    def max_size(self) -> int:
        return self.max if self.max is not None else self.replicas

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """The CRD says the same in CEL: ``crd/rules.py``."""
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max}): lower min or raise max")
        if not self.min_size <= self.replicas <= self.max_size:
            raise ValueError(
                f"replicas ({self.replicas}) must lie between min ({self.min_size}) and max ({self.max_size})"
            )
        if self.multiple_of is not None and self.sizes is not None:
            raise ValueError("give multipleOf or sizes, not both")
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


class PersistentVolumeClaimStorage(SpecModel):
    """A directory on a volume that all workers can mount."""

    claim_name: ObjectName = Field(
        description="Name of a PersistentVolumeClaim in the job's namespace. With workers on more than one "
        "node its access mode must be ReadWriteMany."
    )
    path: InnerPath = Field(default="", description="Directory inside the volume. Default: its root.")


class S3Storage(SpecModel):
    """A prefix in an S3 bucket."""

    bucket: Annotated[str, Field(min_length=3, max_length=255, pattern=r"^[A-Za-z0-9._-]+$")] = Field(
        description="Name of the bucket. It must exist."
    )
    prefix: InnerPath = Field(default="", description="Prefix of all keys, such as team/run. Default: none.")
    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^https?://.+$")] | None = Field(
        default=None, description="URL of an S3 service other than AWS, such as https://minio.example:9000."
    )
    secret_name: ObjectName | None = Field(
        default=None,
        description="Secret in the job's namespace whose entries become environment of the workers: "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION. Without it the workers use the identity of "
        "their service account.",
    )


class DirectoryStorage(SpecModel):
    """A directory on this machine or a mounted share; for ``rtj run`` only."""

    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="The directory; it is made when it is not there."
    )


class SaveInterval(SpecModel):
    """Save after so many steps or seconds, whichever comes first."""

    steps: Steps | None = Field(default=None, description="Save every so many steps.")
    seconds: PositiveSeconds | None = Field(
        default=None, description="Save every so many seconds of training."
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.steps is None and self.seconds is None:
            raise ValueError("give steps, seconds, or both; or the word auto")
        return self


class Checkpoint(SpecModel):
    """Where checkpoints live and how often they are made."""

    persistent_volume_claim: PersistentVolumeClaimStorage | None = Field(
        default=None, description="Keep checkpoints on a volume. Excludes s3. Changes only while suspended."
    )
    s3: S3Storage | None = Field(
        default=None,
        description="Keep checkpoints in object storage. Excludes persistentVolumeClaim. Changes only while "
        "suspended.",
    )
    directory: DirectoryStorage | None = Field(
        default=None, description="For rtj run on one machine only; refused on a cluster."
    )
    interval: Annotated[SaveInterval | Literal["auto"], BeforeValidator(_object_or_auto)] = Field(
        default="auto",
        description="How often to save: the word auto (Daly's optimum from the measured cost of a save and "
        "the mean time between interruptions), or an object with steps, seconds, or both, such as "
        "{steps: 50}. A bare number is refused, for it has no unit.",
    )
    max_interval_seconds: PositiveSeconds | None = Field(
        default=None,
        description="Longest time of training between saves, whatever interval says, so that no failure "
        "costs more work than this. With auto, a save that takes longer to become durable goes beyond it. "
        "Default: no limit.",
    )
    memory_every_steps: Annotated[int | Literal["auto"], BeforeValidator(_steps_or_auto)] | None = Field(
        default=None,
        description="Between saves, copy the state every so many steps into memory that outlives a rank: a "
        "number, or auto: as often as copies take at most 1 % of training. When ranks die and no worker is "
        "lost, the last copy becomes a checkpoint and only the steps after it are done again. It stops the "
        "ranks for the copy alone, and takes no more memory than saves do. Default: no such copies.",
    )
    keep: Annotated[int, Field(ge=2, le=10_000)] = Field(
        default=3,
        description="Complete checkpoints kept, at least 2: one may turn out to be damaged.",
    )
    keep_every_steps: Steps | None = Field(
        default=None, description="Keep also the checkpoints of steps that are a multiple of this, for ever."
    )
    resume_from: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="Resume once from this checkpoint (its name in the store, or a path) instead of the "
        "newest, e.g. after a divergence.",
    )
    adopt: bool = Field(
        default=False,
        description="Take over a store that another job made. Without it that is refused: two jobs in one "
        "store would spoil each other's checkpoints.",
    )
    start_fresh: bool = Field(
        default=False,
        description="Allow to start from nothing although checkpoints are known of but can't be found.",
    )

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        storages = {
            "persistentVolumeClaim": self.persistent_volume_claim,
            "s3": self.s3,
            "directory": self.directory,
        }
        given = [name for name, value in storages.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"give exactly one storage: {' and '.join(given)} are given, leave out one")
        return self


class Budget(SpecModel):
    """At most ``limit`` endings of one class in ``windowSeconds``; checkpoint progress gives them back."""

    limit: Annotated[int, Field(ge=0, le=MOST_ENDINGS)] = Field(
        description="Endings allowed in the window; one more fails the job. A new checkpoint beyond all "
        "earlier ones gives them back."
    )
    window_seconds: PositiveSeconds = Field(
        default=86400.0, description="Endings longer ago than this no longer count."
    )


class Budgets(SpecModel):
    """How many endings of an attempt nobody planned are borne, by whose fault they are."""

    user_error: Budget = Field(
        default=Budget(limit=3),
        description="Crashes of the script and numeric errors (NaN or infinite loss).",
    )
    infrastructure: Budget = Field(
        default=Budget(limit=100),
        description="Lost nodes, ranks killed by SIGKILL, hangs, memory, storage, and what is not known.",
    )
    preemption: Budget = Field(default=Budget(limit=1000), description="Preemptions and evictions.")
    without_progress: Annotated[int, Field(ge=1, le=MOST_ENDINGS)] = Field(
        default=5,
        description="Fail after this many crash, oom, hang or numeric endings with no new checkpoint between "
        "them.",
    )


class Recovery(SpecModel):
    """How failures are found and answered."""

    budgets: Budgets = Field(
        default=Budgets(), description="How many failures are borne before the job fails for good."
    )
    shrink_after_seconds: Seconds = Field(
        default=30.0,
        description="Longest wait for full size before training goes on smaller (not below min).",
    )
    grow_cooldown_seconds: Seconds = Field(
        default=300.0,
        description="Shortest time from the last start or restart of the ranks, whatever its reason, to a "
        "growth, which costs another restart.",
    )
    forming_timeout_seconds: Seconds = Field(
        default=600.0,
        description="When fewer than min workers find room for this long, give the waiting pods back for a "
        "while, so that two half-placed jobs don't block each other.",
    )
    drain_seconds: Seconds = Field(
        default=60.0,
        description="Window of a planned end: to finish the step and save. Grace period of the pods too, "
        "unless the template sets a longer one.",
    )
    hang_seconds: Seconds = Field(
        default=300.0,
        description="No progress for this long, outside phases of measured length, is a hang: the ranks' "
        "stacks are kept and the attempt ends.",
    )
    silent_seconds: Seconds = Field(
        default=30.0, description="A silent agent that nobody else can be asked about is lost after this."
    )
    autonomy_seconds: Seconds = Field(
        default=86400.0, description="Agents train on for this long without an operator, then they drain."
    )
    drain_on_cordon: bool = Field(
        default=False,
        description="Drain and leave nodes that are cordoned; else running workers stay there.",
    )


class JobSpec(SpecModel):
    """``spec`` of a ResumableTrainingJob."""

    workers: Workers = Field(description="How many workers, and which sizes are allowed.")
    template: dict[str, Any] = Field(
        default_factory=dict,
        description="Pod template of the workers. The container named worker, else the first, runs the "
        "training script and must set command; others are sidecars. All else (scheduling, affinity, "
        "tolerations, volumes, labels) reaches the pods as it is.",
    )
    checkpoint: Checkpoint = Field(
        default=Checkpoint(), description="Where checkpoints live and how often they are made."
    )
    recovery: Recovery = Field(default=Recovery(), description="How failures are found and answered.")
    suspend: bool = Field(
        default=False,
        description="True: drain (save and stop), then keep no pods until it is false again. The job goes on "
        "where it was.",
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        default=None,
        description="Delete the job and its pods this long after it has ended. The checkpoints stay. "
        "Default: never.",
    )
    active_deadline_seconds: PositiveSeconds | None = Field(
        default=None, description="Drain the job and fail it when it is older than this. Default: no limit."
    )

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
    """Validate decoded YAML, or what the API server stores.

    Raises:
        SpecError: names each wrong field, unknown ones first, what is wrong and the nearest known name.
    """
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise _as_spec_error(error) from error


_UNION_PART = ("function-", "literal[")  # how pydantic names which alternative it tried
_MOST_TOLD = 10  # mistakes of one spec; of more, only how many there are


def _as_spec_error(error: ValidationError) -> SpecError:
    """Of all that is wrong; a typo comes first, for it explains the rest."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    told: dict[str, str] = {}
    meant: set[str] = set()  # fields that are there under a name which is nearly theirs
    for problem in problems:
        path = _path(problem)
        if any(known == path or known.startswith(f"{path}.") for known in told) or path in meant:
            continue  # another alternative of a union that was not meant
        told[path], near = _wrong(problem)
        meant |= {f"{path.rpartition('.')[0]}.{near}"} if near else set()
    (field, message), *more = told.items()
    lines = [f"{path}: {text}" for path, text in more[: _MOST_TOLD - 1]]
    left = len(more) - len(lines)
    return SpecError(field, message, [*lines, *([f"and {left} more"] if left else [])])


def _path(problem: ErrorDetails) -> str:
    parts = (part for part in map(str, problem["loc"]) if not part.startswith(_UNION_PART))
    return ".".join(["spec", *parts])


def _wrong(problem: ErrorDetails) -> tuple[str, str]:
    """(what is wrong with a field, the known name that an unknown one is near to, or "")."""
    if problem["type"] == "model_type":
        return "must be a mapping", ""
    if problem["type"] != "extra_forbidden":
        return problem["msg"].removeprefix("Value error, "), ""
    near = difflib.get_close_matches(str(problem["loc"][-1]), _known_names(JobSpec), n=1, cutoff=0.6)
    return ("unknown field" + (f"; did you mean {near[0]}?" if near else "")), (near or [""])[0]


def _known_names(model: type[BaseModel]) -> list[str]:
    names: list[str] = []
    for field in model.model_fields.values():
        names.append(str(field.alias))
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names += _known_names(kind)
    return names
