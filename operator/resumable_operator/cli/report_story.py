"""PURE: a report together with how the job came to it, from all that is left of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resumable_operator.cli.report_course import Course, build_course
from resumable_operator.cli.report_facts import gather
from resumable_operator.cli.report_model import Report, build_report
from resumable_operator.cli.run_history import HistoryEvent, Lines
from resumable_operator.cli.rundir import JobFile
from resumable_operator.model import Checkpoint, JobStatus
from resumable_operator.words import counted
from resumable_training.checkpoint.history import AttemptHistory


@dataclass(frozen=True)
class Story:
    """``notes``: what a reader must know, such as that a history could not be read."""

    report: Report
    course: Course
    notes: tuple[str, ...] = ()


def tell(
    job: JobFile,
    status: JobStatus,
    now: float,
    history: Lines[HistoryEvent] | None,
    found: Sequence[AttemptHistory],
    saving: Checkpoint | None = None,
    notes: tuple[str, ...] = (),
    runs: bool = True,
) -> Story:
    """The story of a job up to ``now`` (seconds on the operator's clock).

    Args:
        history: of all agents' events; None: none is kept.
        found: beside the checkpoints; that of an earlier job of the same name is left out.
        runs: somebody looks after it now: an `rtj run`, or a cluster.
    """
    ours = tuple(item for item in found if item.begin.job_uid in ("", job.uid))
    report = build_report(job, status, history, now, saving, ours, runs)
    facts = gather(status, history.items if history is not None else (), ours, job.uid)
    damaged = sum(item.damaged for item in ours)
    if damaged:
        lines = counted(damaged, "damaged line")
        notes = (*notes, f"Skipped {lines} of the histories beside the checkpoints.")
    if report.damaged_lines:
        notes = (*notes, f"Skipped {counted(report.damaged_lines, 'damaged line')} of history.jsonl.")
    return Story(report, build_course(status, facts, now), notes)
