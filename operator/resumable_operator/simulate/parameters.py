"""What is simulated: a job, what its saves and restarts cost, and how long machines take to be replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from resumable_operator.model import JobSpec, parse_spec

STAGES = ("detect", "setup", "rendezvous", "restore", "warmup")  # of a restart with all workers there
SECONDS_PER_DAY = 86_400.0
COPY_SHARE = 0.01  # of training; as in the worker's ``schedule``


@dataclass(frozen=True)
class Restart:
    """R by stage, in seconds: what every restart costs before the first new step is done.

    Getting another worker is not part of it: that is ``Costs.reschedule`` and ``Costs.replace``.
    """

    detect: float = 10.0  # the failure until the operator knows of it
    setup: float = 20.0  # processes start, imports, model and data are made
    rendezvous: float = 10.0
    restore: float = 30.0
    warmup: float = 10.0  # restored until the first step is done

    @property
    def total(self) -> float:
        return sum(float(getattr(self, stage)) for stage in STAGES)

    def scaled(self, total: float) -> Self:
        """With this sum and the same proportions between the stages; without any, all of it is ``setup``."""
        if not self.total:
            return replace(self, setup=total)
        return replace(self, **{stage: getattr(self, stage) * total / self.total for stage in STAGES})


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    step: float = 1.0  # at full size; a smaller job needs longer for the same global batch
    blocking: float = 5.0  # d, what one save takes from training
    durable: float = 30.0  # from the start of a save until it is committed
    reschedule: float = 30.0  # a worker on a machine that is there: pulled, started, agent heard
    replace: float = 900.0  # a lost machine until there is another in its stead
    copy: float | None = (
        None  # what one copy in memory takes; None: as ``blocking``, as a save begins with one
    )
    restart: Restart = field(default_factory=Restart)

    @property
    def copy_seconds(self) -> float:
        return self.blocking if self.copy is None else self.copy


@dataclass(frozen=True)
class Parameters:
    """One job. ``interval`` in seconds of work between saves, or ``auto``. ``gpus_per_worker`` 0: none, or
    not known; time is then weighted with workers. ``memory_every``: steps between copies in memory, which
    failures leave whole that kill ranks alone; 0: none are made."""

    spec: JobSpec
    costs: Costs = field(default_factory=Costs)
    interval: float | Literal["auto"] = "auto"
    gpus_per_worker: int = 8
    days: float = 30.0
    memory_every: int = 0

    @property
    def interval_in_force(self) -> float | None:
        """Seconds of work between saves; None: ``auto``. A save begins when the last is durable."""
        if isinstance(self.interval, str):
            return None
        return max(self.interval, self.costs.durable - self.costs.blocking)

    @property
    def is_bounded(self) -> bool:
        """Whether saves come less often than ``interval`` says."""
        return self.interval_in_force not in (None, self.interval)

    @property
    def hours_of(self) -> str:
        """What lost hours are counted in."""
        return "GPU" if self.gpus_per_worker else "worker"

    @property
    def slots(self) -> int:
        """Machines that the job has: one for each worker, and for each spare."""
        return self.spec.workers.replicas + self.spec.workers.spares


def auto_memory_every(step: float, copy: float) -> int:
    """Steps between copies in memory as ``auto`` has it: they take COPY_SHARE of the steps' time. Seconds."""
    return max(1, math.ceil(copy / (COPY_SHARE * step)))


def make_spec(
    base: Mapping[str, Any], replicas: int | None = None, least: int | None = None, spares: int | None = None
) -> JobSpec:
    """``spec`` of a job from ``base`` (as in YAML) with other numbers of workers.

    Raises:
        SpecError: the numbers do not go together.
    """
    workers = dict(base.get("workers") or {})
    if replicas is not None:
        grown = {"max": replicas} if workers.get("max", replicas) < replicas else {}
        workers |= {"replicas": replicas, **grown}
    if least is not None:
        workers["min"] = least
    if spares is not None:
        workers["spares"] = spares
    return parse_spec({**base, "workers": workers})
