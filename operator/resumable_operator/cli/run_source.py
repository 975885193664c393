"""A job in a run directory, as the commands see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import IO

from resumable_operator.cli import run_logs
from resumable_operator.cli.bucket_store import bucket_of_run
from resumable_operator.cli.directory_store import DirectoryStore
from resumable_operator.cli.report_model import Report, build_report
from resumable_operator.cli.report_story import Story, tell
from resumable_operator.cli.rundir import RunDir, moment
from resumable_operator.cli.source import Wanted
from resumable_operator.cli.standing import ENDED
from resumable_operator.cli.status_model import StatusView, build_view
from resumable_operator.errors import ResumableError
from resumable_operator.model import JobStatus
from resumable_training.checkpoint.history import AttemptHistory

WATCH_SECONDS = 0.5


class RunSource:
    """``source.JobSource`` of a run directory; works on running, ended and killed runs.

    Whether somebody runs it is asked before its status is read: what is written in between is no last word.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def view(self) -> StatusView:
        owner = self._run.owner()
        return self._view(self._run.written_status(), owner)

    def views(self) -> Iterator[StatusView]:
        """A run that is only just beginning is waited for; one that nobody goes on with is shown once."""
        while True:
            owner = self._run.owner()
            status = self._run.status() if owner is not None else self._run.written_status()
            if status is not None:
                yield self._view(status, owner)
                if status.phase in ENDED or owner is None:
                    return
            time.sleep(WATCH_SECONDS)

    def report(self) -> Report:
        runs = self._run.owner() is not None
        status = self._run.written_status()
        now, saving = moment(status, runs, time.time()), self._run.spec().checkpoint
        return build_report(self._run.job(), status, self._run.history(), now, saving, runs=runs)

    def story(self, image: str | None = None) -> Story:
        runs = self._run.owner() is not None
        status = self._run.written_status()
        now = moment(status, runs, time.time())
        found: tuple[AttemptHistory, ...] = ()
        notes: tuple[str, ...] = ()
        try:
            found = self._beside_the_checkpoints()
        except ResumableError as error:
            notes = (f"The history beside the checkpoints could not be read: {error}",)
        saving = self._run.spec().checkpoint
        return tell(self._run.job(), status, now, self._run.history(), found, saving, notes, runs)

    def _beside_the_checkpoints(self) -> tuple[AttemptHistory, ...]:
        bucket = bucket_of_run(self._run.path)
        if bucket is not None:
            return bucket.histories()
        return DirectoryStore(self._run.path).histories() if self._run.checkpoints().is_dir() else ()

    def show_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        run_logs.show(self._run, wanted, output)

    def follow_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        run_logs.follow(self._run, wanted, output)

    def _view(self, status: JobStatus, owner: int | None) -> StatusView:
        now = moment(status, owner is not None, time.time())
        return build_view(self._run.job(), self._run.spec(), status, owner, now)
