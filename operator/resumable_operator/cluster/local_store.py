"""The job of a run directory: spec and status as stored, and the lines that people and the report read.

Nothing is kept in memory: the files are the truth, also for the process that writes them.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import ValidationError

from resumable_operator.clock import Clock
from resumable_operator.cluster.local_files import RunFiles, append_lines, read_json, write_json
from resumable_operator.decide.observation import Job, TimedEvent
from resumable_operator.errors import ConflictError, FatalError
from resumable_operator.model import JobSpec, JobStatus
from resumable_training.contract.events import PROGRESS

NAMESPACE = "local"
HISTORY_PROGRESS_SECONDS = 1.0


class JobStore:
    """Reads and writes ``job.json``, ``status.json``, ``events.jsonl`` and ``history.jsonl``.

    Raises (all that read):
        FatalError: a file is damaged.
    """

    def __init__(self, files: RunFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._history_at: dict[str, float] = {}

    def job(self) -> Job | None:
        """The job as stored now; None when there is none."""
        plain: dict[str, Any] | None = read_json(self._files.job)
        stored = read_json(self._files.status) or {}
        if plain is None:
            return None
        try:
            return Job(
                namespace=plain["namespace"],
                name=plain["name"],
                uid=plain["uid"],
                generation=plain["generation"],
                spec=JobSpec.model_validate(plain["spec"]),
                status=JobStatus.model_validate(stored.get("status", {})),
                resource_version=str(stored.get("resourceVersion", 0)),
            )
        except (KeyError, ValidationError) as error:
            message = f"the files of {self._files.root} are damaged ({error}); start over with --fresh"
            raise FatalError(message) from error

    def submit(self, name: str, spec: JobSpec) -> Job:
        """Create the job, or change the spec of the one that is there (its generation grows then)."""
        plain: dict[str, Any] = read_json(self._files.job) or {
            "namespace": NAMESPACE,
            "name": name,
            "uid": str(uuid.uuid4()),
            "created": self._clock.now(),
            "generation": 0,
        }
        if plain.get("spec") != spec.plain():
            generation = plain["generation"] + 1
            write_json(self._files.job, {**plain, "spec": spec.plain(), "generation": generation})
        return self._stored()

    def write_status(self, job: Job, status: JobStatus) -> Job:
        """Store ``status`` if nobody has written one since ``job`` was read.

        Raises:
            ConflictError: somebody has.
        """
        stored = self.job()
        if stored is None or (stored.uid, stored.resource_version) != (job.uid, job.resource_version):
            raise ConflictError(f"{job.key}: the status was written by another since it was read")
        version = int(job.resource_version or 0) + 1
        write_json(self._files.status, {"resourceVersion": version, "status": status.plain()})
        return self._stored()

    def record_event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """A line for people."""
        line = {"at": self._clock.now(), "kind": kind, "reason": reason, "message": message}
        append_lines(self._files.events, [line])

    def record_history(self, events: list[TimedEvent]) -> None:
        """Keep folded agent events for the report; progress of a worker at most once a second."""
        lines = [
            {
                "at": event.at,
                "worker": event.worker,
                "kind": event.event.kind,
                "attempt": event.event.attempt,
                "data": event.event.data,
            }
            for event in events
            if event.event.kind != PROGRESS or self._progress_is_due(event)
        ]
        append_lines(self._files.history, lines)

    def _progress_is_due(self, event: TimedEvent) -> bool:
        if event.at - self._history_at.get(event.worker, float("-inf")) < HISTORY_PROGRESS_SECONDS:
            return False
        self._history_at[event.worker] = event.at
        return True

    def _stored(self) -> Job:
        job = self.job()
        assert job is not None
        return job
