"""PURE but for asking the job: what a run has measured, as the words of ``rtj simulate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from resumable_operator.cli.opening import job_at
from resumable_operator.cli.place import Place
from resumable_operator.cli.report_model import Report
from resumable_operator.cli.simulate_input import Wish
from resumable_operator.cli.status_model import StatusView
from resumable_operator.simulate.parameters import STAGES

_SETUP = ("starting", "recovering", "resizing")  # what the ledger has the start of ranks in
_STAGES = {"setup": "setup", "rendezvous": "rendezvous", "restore": "restoring", "warmup": "warmup"}
DEFAULTS = ("step", "blocking", "durable", *STAGES, "reschedule", "replace")


@dataclass(frozen=True)
class Measured:
    """As ``simulate_input.Wish`` has them; only what is known.

    ``least``: its smallest allowed size. ``gpus``: that a worker asks for.
    """

    axes: dict[str, str] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)
    least: int | None = None
    gpus: int | None = None


def measured_of(name: str, place: Place) -> Measured:
    """Of a run directory, or of a job in a cluster.

    Raises:
        UsageProblem: there is no such job.
    """
    with job_at(name, place) as source:
        report, view = source.report(), source.view()
    costs = costs_of(report, view)
    return Measured(axes_of(report, view), costs, min(view.allowed_sizes), view.gpus_per_worker)


def axes_of(report: Report, view: StatusView) -> dict[str, str]:
    """How large it is, how often it saved and copied, and how often it was interrupted, if it was."""
    axes = {"workers": str(view.wanted_size)}
    if view.memory_every_steps:
        axes["memory_every"] = str(view.memory_every_steps)
    advice = report.interval
    if advice is not None and advice.used_seconds:
        axes["interval"] = _time(advice.used_seconds)
    if advice is not None and advice.interruptions:
        axes["mtbf"] = _time(advice.mtbf_seconds)
    return axes


def costs_of(report: Report, view: StatusView) -> dict[str, str]:
    """Of a step, a save, and a restart by stage: means over all attempts; not of what never happened."""
    costs: dict[str, str] = {}
    if view.status.step_seconds > 0:
        costs["step"] = _time(view.status.step_seconds)
    if report.checkpoints.blocking_seconds is not None:
        costs["blocking"] = _time(report.checkpoints.blocking_seconds)
        costs["durable"] = _time(report.checkpoints.durable_seconds or 0.0)
    found = [item.detect_seconds for item in report.endings if not item.planned]
    if found:
        costs["detect"] = _time(fmean(found))
    spent = {share.phase: share.seconds for share in report.phases}
    spent["setup"] = sum(spent.get(phase, 0.0) for phase in _SETUP)
    for stage, phase in _STAGES.items():
        if report.attempts and spent.get(phase, 0.0) > 0:
            costs[stage] = _time(spent[phase] / report.attempts)
    return costs


def not_measured(wish: Wish, *, copies: bool) -> list[str]:
    """Names of what nobody measured and no option gives, so that a usual value is taken.

    ``copies``: some are made in memory; what they take is in no report.
    """
    known = {*wish.axes, *wish.costs, *(STAGES if "restart" in wish.axes else ())}
    names = [name for name in (*DEFAULTS, *(["copy"] if copies else [])) if name not in known]
    fails = {"mtbf", "machine_mtbf"} & known or wish.racks or wish.spot or wish.trace
    return names if fails else [*names, "machine MTBF"]


def _time(seconds: float) -> str:
    return f"{seconds:.3f}s"
