"""PURE: a job and its pods, as the API server stores them -> the views that are rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resumable_operator.cli.report_model import Report, build_report
from resumable_operator.cli.report_story import Story, tell
from resumable_operator.cli.rundir import JobFile, moment
from resumable_operator.cli.status_model import PodLine, StatusView, build_view
from resumable_operator.cli.suspend import AGAIN
from resumable_operator.cluster.kube_objects import job_of, seconds
from resumable_operator.cluster.kube_pods import worker_of
from resumable_operator.decide.observation import Job, Worker
from resumable_operator.model import JobStatus, LedgerStatus
from resumable_training.checkpoint.history import AttemptHistory

Raw = dict[str, Any]

REASON_SHOWN = 160  # characters of a pod's message


def view_of(obj: Raw, pods: list[Raw], now: float) -> StatusView:
    """What the job is doing, at ``now`` (seconds since the epoch).

    Raises:
        SpecError: its spec or its status can't be read; names the field.
    """
    job = job_of(obj)
    status = counting(job.status, obj)
    workers = [worker for worker in map(worker_of, pods) if worker is not None]
    workers.sort(key=lambda worker: (worker.place, worker.incarnation))
    lines = tuple(pod_line(worker, status) for worker in workers)
    at = moment(status, True, now)
    return build_view(job_file(obj), job.spec, status, None, at, lines, notes(job))


def report_of(obj: Raw, now: float) -> Report:
    """Where the job's time went.

    Raises:
        SpecError: its spec or its status can't be read; names the field.
    """
    job = job_of(obj)
    status = counting(job.status, obj)
    at = moment(status, True, now)
    return build_report(job_file(obj), status, None, at, job.spec.checkpoint)


def story_of(obj: Raw, now: float, found: Sequence[AttemptHistory], notes: tuple[str, ...] = ()) -> Story:
    """The same with how it went, from what was ``found`` beside its checkpoints.

    Raises:
        SpecError: its spec or its status can't be read; names the field.
    """
    job = job_of(obj)
    status = counting(job.status, obj)
    at = moment(status, True, now)
    return tell(job_file(obj), status, at, None, found, job.spec.checkpoint, notes)


def job_file(obj: Raw) -> JobFile:
    """The job as a run directory would have it."""
    meta = obj["metadata"]
    created = seconds(meta.get("creationTimestamp")) or 0.0
    return JobFile(meta["namespace"], meta["name"], meta["uid"], created, obj.get("spec") or {})


def counting(status: JobStatus, obj: Raw) -> JobStatus:
    """The status of a job that no operator has looked at counts its time from its creation."""
    created = seconds(obj["metadata"].get("creationTimestamp"))
    if status.ledger.started_at or created is None:
        return status
    begin = round(created * 1000)
    return status.model_copy(update={"ledger": LedgerStatus(started_at=begin, settled_at=begin)})


def notes(job: Job) -> tuple[str, ...]:
    """What a reader of the status must know."""
    told = []
    if job.status.started_at is None:
        told.append("no operator has looked at this job yet: is one running that serves its namespace?")
    elif job.status.observed_generation < job.generation:
        told.append(
            "the spec was changed; what follows is about the one before"
            if job.status.finished_at is None
            else f"the spec was changed after the job had ended, which has no effect. {AGAIN}"
        )
    if job.deleting:
        told.append("the job is being deleted")
    return tuple(told)


def pod_line(worker: Worker, status: JobStatus) -> PodLine:
    """One pod for people."""
    phase = "ending" if worker.deleting and worker.phase == "running" else worker.phase
    why = ": ".join(part for part in (worker.reason, _short(worker.message)) if part)
    if worker.disruption is not None and worker.disruption.reason not in why:
        why = "; ".join(part for part in (worker.disruption.reason, why) if part)
    return PodLine(name=worker.name, node=worker.node, phase=phase, reason=why, ranks=_ranks(worker, status))


def _short(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= REASON_SHOWN else text[:REASON_SHOWN] + " ..."


def _ranks(worker: Worker, status: JobStatus) -> str:
    for member in status.attempt.members:
        if member.worker == worker.name and member.ranks:
            last = member.first_rank + member.ranks - 1
            return str(last) if member.ranks == 1 else f"{member.first_rank}-{last}"
    return ""
