"""The job of a run directory: spec and status as stored, and the lines that people and the report read.

Nothing is kept in memory: the files are the truth, also for the process that writes them.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any, Literal

from resumable_operator.clock import Clock
from resumable_operator.cluster.local_files import RunFiles, append_lines, read_json, write_json
from resumable_operator.cluster.local_paths import LAYOUT, localized, recorded
from resumable_operator.decide.observation import Job, TimedEvent
from resumable_operator.errors import ConflictError, FatalError, RetryableError
from resumable_operator.model import JobSpec, JobStatus
from resumable_training.contract.events import PROGRESS

logger = logging.getLogger(__name__)

NAMESPACE = "local"
HISTORY_PROGRESS_SECONDS = 1.0


class StoreUnwritable(RetryableError):
    """The run directory can't be written now. What runs goes on; nothing new is begun."""


class JobStore:
    """Reads and writes ``job.json``, ``status.json``, ``events.jsonl`` and ``history.jsonl``.

    Raises (all that read):
        FatalError: a file is damaged.
        RetryableError: a file can't be read now.
    """

    def __init__(self, files: RunFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._history_at: dict[str, float] = {}

    def job(self) -> Job | None:
        """The job as stored now; None when there is none."""
        try:
            plain = localized(read_json(self._files.job), self._files)
            stored = self._stored_status()
        except OSError as error:
            raise RetryableError(f"the files of {self._files.root} can't be read: {error}") from error
        if plain is None:
            return None
        try:
            return Job(
                namespace=plain["namespace"],
                name=plain["name"],
                uid=plain["uid"],
                generation=int(plain["generation"]),
                spec=JobSpec.model_validate(plain["spec"]),
                status=JobStatus.model_validate(stored["status"]),
                resource_version=str(int(stored["resourceVersion"])),
                suspended_by=str(plain.get("suspended_by", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of pydantic: a ValueError
            message = f"the files of {self._files.root} are damaged ({error}); start over with --fresh"
            raise FatalError(message) from error

    def submit(self, name: str, spec: JobSpec, suspended_by: str = "") -> Job:
        """Create the job, or change the spec of the one that is there (its generation grows then).

        Args:
            suspended_by: what wants ``spec.suspend``, if it is not who wrote the spec.

        Raises:
            StoreUnwritable
        """
        plain: dict[str, Any] = localized(read_json(self._files.job), self._files) or {
            "namespace": NAMESPACE,
            "name": name,
            "uid": str(uuid.uuid4()),
            "created": self._clock.now(),
            "generation": 0,
        }
        wanted = localized(recorded({"spec": spec.plain()}, self._files), self._files)["spec"]
        changed = plain.get("spec") != wanted
        if changed or plain.get("layout") != LAYOUT:
            generation = plain["generation"] + (1 if changed else 0)
            told = {"spec": wanted, "generation": generation, "suspended_by": suspended_by}
            self._replace(self._files.job, {**plain, **told})
        return self._stored()

    def write_status(self, job: Job, status: JobStatus) -> Job:
        """Store ``status`` if nobody has written one since ``job`` was read.

        Raises:
            ConflictError: somebody has.
            StoreUnwritable
        """
        stored = self._stored()
        if (stored.uid, stored.resource_version) != (job.uid, job.resource_version):
            raise ConflictError(f"{job.key}: the status was written by another since it was read")
        version = int(job.resource_version or 0) + 1
        self._replace(self._files.status, {"resourceVersion": version, "status": status.plain()})
        return self._stored()

    def record_event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """A line for people."""
        line = {"at": self._clock.now(), "kind": kind, "reason": reason, "message": message}
        append_lines(self._files.events, [line])

    def record_history(self, events: list[TimedEvent]) -> None:
        """Keep folded agent events for the report; progress of a worker at most once a second.

        Those that can't be written are lost, to the report alone.
        """
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
        try:
            append_lines(self._files.history, lines)
        except OSError as error:
            logger.warning("%d events for the report could not be written: %s", len(lines), error)

    def _progress_is_due(self, event: TimedEvent) -> bool:
        if event.at - self._history_at.get(event.worker, float("-inf")) < HISTORY_PROGRESS_SECONDS:
            return False
        self._history_at[event.worker] = event.at
        return True

    def _stored_status(self) -> dict[str, Any]:
        """As in the file. A new job has none; without it, attempts that were made would be numbered anew."""
        stored = read_json(self._files.status)
        if stored is None and any(self._files.logs.glob("attempt-*")):
            raise FatalError(f"{self._files.status} is missing; start over with --fresh")
        return {"status": {}, "resourceVersion": 0} if stored is None else localized(stored, self._files)

    def _replace(self, path: Path, value: dict[str, Any]) -> None:
        try:
            write_json(path, recorded(value, self._files))
        except OSError as error:
            raise StoreUnwritable(
                f"{path} can't be written ({error.strerror}): what runs goes on, nothing new begins"
            ) from error

    def _stored(self) -> Job:
        job = self.job()
        if job is None:
            raise FatalError(f"{self._files.job} was removed while its job ran")
        return job
