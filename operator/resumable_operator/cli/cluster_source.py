"""A job in a cluster, as the commands see it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import IO

import click

from resumable_operator.cli.bucket_store import BucketStore
from resumable_operator.cli.cluster_errors import NoSuchJob
from resumable_operator.cli.cluster_logs import PodLogs
from resumable_operator.cli.cluster_session import Session
from resumable_operator.cli.cluster_views import report_of, story_of, view_of
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.reader import ReaderStore
from resumable_operator.cli.report_model import Report
from resumable_operator.cli.report_story import Story
from resumable_operator.cli.source import Wanted
from resumable_operator.cli.status_model import StatusView
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.decide.assign import store_root
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ResumableError, RetryableError
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.contract.labels import GROUP, KIND, PLURAL, SHORT_NAME

WATCH_SECONDS = 2.0
_KINDS = {SHORT_NAME, PLURAL, KIND.lower(), f"{PLURAL}.{GROUP}", f"{KIND.lower()}.{GROUP}"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def job_name(text: str) -> str:
    """A job's name, also as kubectl prints and takes it: ``rtj/gpt``.

    Raises:
        UsageProblem: it can't be one.
    """
    kind, slash, name = text.rpartition("/")
    if (slash and kind not in _KINDS) or not _NAME.fullmatch(name):
        raise UsageProblem(f"{text!r} is no name of a job in a cluster; without -n it would be a directory")
    return name


class ClusterSource:
    """``source.JobSource`` of a job in a cluster."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def view(self) -> StatusView:
        return self._session.run(self._look())

    def views(self) -> Iterator[StatusView]:
        """Suspended is no end: somebody may resume it. An API server that is away is waited for."""
        view = self.view()
        lost = False
        while True:
            if not lost:
                yield view
            if view.status.phase in ("Succeeded", "Failed"):
                return
            time.sleep(WATCH_SECONDS)
            try:
                view, lost = self.view(), False
            except NoSuchJob:
                click.echo("the job was deleted", err=True)
                return
            except RetryableError as error:
                if not lost:
                    click.echo(f"{error}; trying again", err=True)
                lost = True

    def report(self) -> Report:
        return report_of(self._session.run(self._session.job(self._name)), time.time())

    def story(self, image: str | None = None) -> Story:
        """What lies beside the checkpoints is read from here if it is in object storage that this process
        has credentials for, else by a short pod."""
        obj = self._session.run(self._session.job(self._name))
        found: tuple[AttemptHistory, ...] = ()
        notes: tuple[str, ...] = ()
        try:
            found = self._beside_the_checkpoints(job_of(obj), image)
        except ResumableError as error:
            click.echo(f"without the history beside the checkpoints: {error}", err=True)
            notes = (f"The history beside the checkpoints could not be read: {error}",)
        return story_of(obj, time.time(), found, notes)

    def _beside_the_checkpoints(self, job: Job, image: str | None) -> tuple[AttemptHistory, ...]:
        if job.status.uses_library is False:  # nothing writes one
            return ()
        storage = job.spec.checkpoint.s3
        if storage is not None and "AWS_ACCESS_KEY_ID" in os.environ:
            endpoint = {"AWS_ENDPOINT_URL": storage.endpoint} if storage.endpoint else {}
            try:
                return BucketStore(store_root(job.spec.checkpoint), endpoint).histories()
            except ResumableError as error:
                click.echo(f"{error}; asking a pod of the cluster", err=True)
        return ReaderStore(self._session, self._name, image, None).histories()

    def show_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        self._session.run(PodLogs(self._session, self._name, wanted, output).show())

    def follow_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        self._session.run(PodLogs(self._session, self._name, wanted, output).follow())

    async def _look(self) -> StatusView:
        job = await self._session.job(self._name)
        return view_of(job, await self._session.pods(job), time.time())
