"""Sees all that a job on the cluster ever was: every pod and every attempt, also those that are gone by now.

A thread follows the job and its pods with watches of its own while a test breaks things. ``check`` holds what
must be true whatever was broken: no name of a pod twice, no number of an attempt twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from cluster_run import JOBS, ClusterRun

from bed.api import ApiError, path
from resumable_operator.stored import from_stored
from resumable_training.contract.labels import LABEL_JOB, PLURAL

Raw = dict[str, Any]

WATCH_SECONDS = 2.0
PAUSE_SECONDS = 0.1


class Witness:
    """Use as a context manager around all that a job goes through.

    Attributes:
        pods: uids by name.
        attempts: membership digests by number.
        writes: of the job's status.
    """

    def __init__(self, run: ClusterRun) -> None:
        self._run = run
        self._end = threading.Event()
        self.pods: dict[str, set[str]] = {}
        self.attempts: dict[int, set[str]] = {}
        self._status: Raw = {}
        self.writes = 0
        pods, jobs = path("v1", "pods", run.namespace), path(JOBS, PLURAL, run.namespace)
        self._threads = [
            threading.Thread(target=self._follow, args=(pods, self._see_pod), daemon=True),
            threading.Thread(target=self._follow, args=(jobs, self._see_job), daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self.check()

    def check(self) -> None:
        """No two pods and no two attempts have one name."""
        assert self.pods, "no pod was seen at all"
        assert {name: uids for name, uids in self.pods.items() if len(uids) > 1} == {}
        assert {number: digests for number, digests in self.attempts.items() if len(digests) > 1} == {}

    def _follow(self, where: str, see: Callable[[Raw], None]) -> None:
        version: str | None = None
        while not self._end.is_set():
            try:
                if version is None:
                    listed = self._run.api.get(where)
                    version = listed["metadata"]["resourceVersion"]
                    for obj in listed["items"]:
                        see(obj)
                for event in self._run.api.watch(where, WATCH_SECONDS, resourceVersion=version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    see(event["object"])
            except ApiError as error:
                version = None if error.status else version  # 0: the server is away
                self._end.wait(PAUSE_SECONDS)

    def _see_pod(self, pod: Raw) -> None:
        meta = pod["metadata"]
        if meta.get("labels", {}).get(LABEL_JOB) == self._run.name:
            self.pods.setdefault(meta["name"], set()).add(meta["uid"])

    def _see_job(self, job: Raw) -> None:
        if job["metadata"]["name"] != self._run.name:
            return
        status = job.get("status") or {}
        self.writes += status != self._status
        self._status = status
        attempt = from_stored(status).attempt
        if attempt.number and attempt.digest:
            self.attempts.setdefault(attempt.number, set()).add(attempt.digest)
