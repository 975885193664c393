"""A cluster that `rtj` can be pointed at without one: objects in memory, logs as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from resumable_operator.cli.cluster_errors import NoSuchJob
from resumable_operator.cluster.kube_errors import NotFound
from resumable_operator.errors import ResumableError

Raw = dict[str, Any]


class Body:
    """The body of an answer that ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def iter_any(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), 7):  # lines are cut anywhere
            yield self._data[start : start + 7]


class FakeSession:
    """Stands for `cluster_session.Session`.

    Attributes:
        states: what is there at each look, the last for ever: the job (None: deleted) and its pods.
        logs: by pod: lines with their times, or an error.
        reads: queries of the reads of each pod's log.
    """

    def __init__(self, *states: tuple[Raw | None, list[Raw]], logs: dict[str, Any] | None = None) -> None:
        self.states = list(states)
        self.logs = logs or {}
        self.namespace = "team"
        self.reads: list[tuple[str, dict[str, str]]] = []
        self.streams = self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    async def job(self, name: str) -> Raw:
        found, _ = self.states[0]
        if found is None:
            raise NoSuchJob(f"namespace team has no job {name}")
        return found

    async def pods(self, job: Raw) -> list[Raw]:
        _, found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return found

    @asynccontextmanager
    async def stream(self, call: object, path: str) -> AsyncIterator[Body]:
        """The log of a pod from `sinceTime` on, which is compared as text."""
        parts = urlsplit(path)
        name = parts.path.split("/")[-2]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.reads.append((name, query))
        log = self.logs.get(name, NotFound(f"no pod {name}"))
        if isinstance(log, ResumableError):
            raise log
        lines = [line for line in log if line.partition(" ")[0] >= query.get("sinceTime", "")]
        yield Body("".join(f"{line}\n" for line in lines).encode())
