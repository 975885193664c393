"""PURE but for asking the job: what a run has measured, as the words of ``rtj simulate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from resumable_operator.cli.place import Place, job_at
from resumable_operator.cli.report_model import Report
from resumable_operator.cli.status_model import StatusView

_SETUP = ("starting", "recovering", "resizing")  # what the ledger has the start of ranks in
_STAGES = {"rendezvous": "rendezvous", "restore": "restoring", "warmup": "warmup"}


@dataclass(frozen=True)
class Measured:
    """As ``simulate_input.Wish`` has them; only what is known. ``least``: its smallest allowed size."""

    axes: dict[str, str] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)
    least: int | None = None


def measured_of(name: str, place: Place) -> Measured:
    """Of a run directory, or of a job in a cluster.

    Raises:
        UsageProblem: there is no such job.
    """
    with job_at(name, place) as source:
        report, view = source.report(), source.view()
    return Measured(axes_of(report, view), costs_of(report, view), min(view.allowed_sizes))


def axes_of(report: Report, view: StatusView) -> dict[str, str]:
    """How large it is, how often it saved, and how often it was interrupted, if it was."""
    axes = {"workers": str(view.wanted_size)}
    advice = report.interval
    if advice is not None and advice.used_seconds:
        axes["interval"] = _time(advice.used_seconds)
    if advice is not None and advice.interruptions:
        axes["mtbf"] = _time(advice.mtbf_seconds)
    return axes


def costs_of(report: Report, view: StatusView) -> dict[str, str]:
    """Of a step, a save, and a restart by stage: means over all attempts."""
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
    if report.attempts:
        costs["setup"] = _time(sum(spent.get(phase, 0.0) for phase in _SETUP) / report.attempts)
        for stage, phase in _STAGES.items():
            costs[stage] = _time(spent.get(phase, 0.0) / report.attempts)
    return costs


def _time(seconds: float) -> str:
    return f"{seconds:.3f}s"
