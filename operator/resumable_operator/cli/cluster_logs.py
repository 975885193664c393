"""The output of a job's ranks, from the logs of its pods.

The agent in each pod puts attempt and rank in front of every line that a rank prints. What sidecars print,
and what the agent says about itself, is left to ``kubectl logs``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import urlencode

import aiohttp
import click

from resumable_operator.cli.cluster_errors import NoSuchJob
from resumable_operator.cli.cluster_session import Session
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.lines import Cursor, Splitter, is_over, listed, prefix
from resumable_operator.cli.source import Wanted
from resumable_operator.cluster.kube_api import PODS
from resumable_operator.cluster.kube_errors import Call, NotFound, Raw
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.cluster.kube_pods import worker_container, worker_of
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused, ResumableError, RetryableError
from resumable_operator.times import rfc3339
from resumable_training.contract.labels import worker_name
from resumable_training.contract.output import AGENT_LEAD, parse_line

_AGENT = AGENT_LEAD.encode()
POLL_SECONDS = 2.0  # how often new pods are looked for
GONE_SHOWN = 3  # names of pods
SKEW_SECONDS = 300.0  # by which the clocks of a node and of the operator may differ


@dataclass
class Tail:
    """Where the reader is in one pod's log."""

    pod: str
    container: str
    place: int
    incarnation: int
    ended: bool = False  # the container prints no more
    finished: bool = False  # and all of it was read
    gone: bool = False  # the pod, with its log
    cursor: Cursor = field(default_factory=Cursor)
    task: asyncio.Task[None] | None = None
    complained: str = ""


class PodLogs:
    """One reading of one job's output."""

    def __init__(self, session: Session, name: str, wanted: Wanted, output: IO[bytes]) -> None:
        self._session = session
        self._name = name
        self._wanted = wanted
        self._output = output
        self._tails: dict[str, Tail] = {}
        self._there: set[str] = set()  # workers with a pod, as it was last looked
        self._attempt = 0  # the one to show
        self._later = False  # and those after it
        self._since = ""  # what was printed before is not asked for
        self._shown = 0  # lines
        self._seen: dict[int, set[int]] = {}  # attempt -> ranks that printed something

    # ---- what is there ---------------------------------------------------------------------------------

    async def show(self) -> None:
        """Pod after pod, in order of their places."""
        job = await self._look()
        self._begin_with(job)
        await self._read_all(self._holders(job))
        if not self._shown and self._wanted.attempt is None and self._wanted.rank is None:
            await self._show_before()  # the newest attempt has printed nothing yet
        if not self._shown:
            raise self._nothing(job)
        self._tell_gone(job)

    async def _show_before(self) -> None:
        self._since = ""
        newest, self._attempt = self._attempt, 0
        await self._read_all(self._tails.values())
        if self._seen:
            self._attempt = max(self._seen)
            _say(f"attempt {newest} has printed nothing yet; this is attempt {self._attempt}")
            for tail in self._tails.values():
                tail.cursor = Cursor()
            await self._read_all(self._tails.values())

    async def _read_all(self, tails: Iterable[Tail]) -> None:
        for tail in sorted(tails, key=lambda each: (each.place, each.incarnation)):
            await self._read(tail, follow=False)

    def _holders(self, job: Job) -> Iterable[Tail]:
        """The pods that can have printed what is wanted: of a rank of the newest attempt that is one."""
        if self._wanted.rank is None or self._attempt != job.status.attempt.number:
            return self._tails.values()
        names = [
            member.worker
            for member in job.status.attempt.members
            if member.first_rank <= self._wanted.rank < member.first_rank + member.ranks
        ]
        found = [tail for name, tail in self._tails.items() if name in names]
        return found or self._tails.values()

    def _tell_gone(self, job: Job) -> None:
        gone = self._gone(job)
        if gone:
            _say(gone)

    def _gone(self, job: Job) -> str:
        """Of pods that printed, as far as one can know, and are no more; empty: there are none."""
        status = job.status
        if self._attempt == status.attempt.number:
            names = [member.worker for member in status.attempt.members if member.ranks]
        else:
            names = [
                worker_name(job.name, int(place), incarnation)
                for place, newest in status.incarnations.items()
                for incarnation in range(1, newest + 1)
            ]
        gone = [name for name in names if self._is_gone(name)]
        if not gone:
            return ""
        more = f" and {len(gone) - GONE_SHOWN} more" if len(gone) > GONE_SHOWN else ""
        pods, verb, it = ("pod", "is", "it") if len(gone) == 1 else ("pods", "are", "them")
        return f"{pods} {', '.join(gone[:GONE_SHOWN])}{more} {verb} gone, and the output went with {it}"

    def _is_gone(self, name: str) -> bool:
        return name not in self._there or (name in self._tails and self._tails[name].gone)

    def _is_starting(self, job: Job) -> bool:
        """The attempt that is wanted goes on, and what it will print comes."""
        newest = job.status.attempt
        going = newest.number and newest.state in ("forming", "running", "draining")
        members = [member.worker for member in newest.members if member.ranks]
        of_it = self._wanted.attempt in (None, newest.number)
        return bool(going and of_it and members and not any(map(self._is_gone, members)))

    def _nothing(self, job: Job) -> ResumableError:
        unread = [tail for tail in self._tails.values() if tail.complained]
        if unread:
            return RetryableError(f"the output of {len(unread)} of {len(self._tails)} pods can't be read")
        gone, why = self._gone(job), job.status.reason or job.status.phase
        if not self._tails:
            return UsageProblem(f"job {job.name} has no pods: {why}" + (f"; {gone}" if gone else ""))
        wanted, ranks = self._wanted, self._seen.get(self._attempt)
        if ranks:
            there = ("rank " if len(ranks) == 1 else "ranks ") + listed(sorted(ranks))
            what = f"rank {wanted.rank} printed nothing in attempt {self._attempt}"
            if gone:  # then it may have printed something
                what = f"no output of rank {wanted.rank} in attempt {self._attempt} is left ({gone})"
            return UsageProblem(f"{what}; there is output of {there}")
        if self._is_starting(job):
            number = job.status.attempt.number
            return UsageProblem(f"job {job.name}: attempt {number} has not written anything yet ({why})")
        if wanted.attempt is not None and self._seen:
            return UsageProblem(
                f"attempt {wanted.attempt} left no output; there is that of {listed(sorted(self._seen))}"
            )
        if gone:
            return UsageProblem(f"job {job.name} ({why}) has no output: {gone}")
        return UsageProblem(f"job {job.name} has no output: no rank has printed anything yet")

    # ---- what comes ------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Lines as they come, of all pods, also of new ones, until the job (or the attempt) has ended."""
        job = await self._look()
        self._begin_with(job)
        self._later = self._wanted.attempt is None
        self._tell_gone(job)
        try:
            while not is_over(job.status, self._wanted.attempt):
                self._tend()
                await asyncio.sleep(POLL_SECONDS)
                job = await self._look_again() or job
        except NoSuchJob:
            _say("the job was deleted")
        finally:
            await self._stop()
        for tail in self._tails.values():
            if not tail.finished:
                await self._read(tail, follow=False)  # what came since, and a last line without its end

    def _tend(self) -> None:
        """Every pod that prints has somebody who reads."""
        for tail in self._tails.values():
            if tail.task is not None and tail.task.done():
                tail.task.result()  # raises what it can't go on from
                tail.task = None
            if not tail.finished and tail.task is None:
                tail.task = asyncio.create_task(self._read(tail, follow=not tail.ended))

    async def _look_again(self) -> Job | None:
        """None: the API server is away; connections that hang since then are given up."""
        try:
            return await self._look()
        except RetryableError as error:
            await self._stop()
            _say(f"{error}; trying again")
            return None

    async def _stop(self) -> None:
        tasks = [tail.task for tail in self._tails.values() if tail.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for tail in self._tails.values():
            tail.task = None

    # ---- both ------------------------------------------------------------------------------------------

    async def _look(self) -> Job:
        obj = await self._session.job(self._name)
        pods = await self._session.pods(obj)
        self._there = {worker.name for worker in map(worker_of, pods) if worker is not None}
        for pod in pods:
            self._know(pod)
        return job_of(obj)

    def _know(self, pod: Raw) -> None:
        worker = worker_of(pod)
        if worker is None or worker.phase == "pending":
            return
        container = str(worker_container(pod["spec"]).get("name"))
        tail = self._tails.setdefault(
            worker.name, Tail(worker.name, container, worker.place, worker.incarnation)
        )
        tail.ended = worker.phase in ("succeeded", "failed")

    def _begin_with(self, job: Job) -> None:
        newest = job.status.attempt
        self._attempt = self._wanted.attempt or newest.number
        if self._attempt == newest.number and newest.reserved_at:
            self._since = rfc3339(max(0.0, newest.reserved_at - SKEW_SECONDS))

    async def _read(self, tail: Tail, *, follow: bool) -> None:
        """Read one pod's log from where its reader is. Trouble is said once for each pod."""
        try:
            async for lines in self._lines(tail, follow=follow):
                self._write(tail, lines)
            tail.finished = tail.ended and not follow
            tail.complained = ""
        except NotFound:
            tail.finished = tail.gone = True
        except (ClusterRefused, RetryableError, aiohttp.ClientError) as error:
            if "is waiting to start" in str(error):
                return
            if isinstance(error, ClusterRefused) and error.reason == "Forbidden":
                raise
            if str(error) != tail.complained:
                _say(f"the log of pod {tail.pod} can't be read: {error}")
            tail.complained = str(error)

    async def _lines(self, tail: Tail, *, follow: bool) -> AsyncIterator[list[bytes]]:
        """New lines without their times, piece by piece."""
        tail.cursor.begin()
        query = {"container": tail.container, "timestamps": "true", "follow": str(follow).lower()}
        since = tail.cursor.since or self._since
        if since:
            query["sinceTime"] = since
        path = PODS.path(self._session.namespace, tail.pod, "log") + "?" + urlencode(query)
        splitter = Splitter()
        async with self._session.streams.stream(Call("get", "pods/log", tail.pod), path) as body:
            async for data in body.iter_any():
                yield [text for line in splitter.feed(data) if (text := tail.cursor.take(line)) is not None]
        yield [text for line in splitter.rest() if (text := tail.cursor.take(line)) is not None]

    def _write(self, tail: Tail, lines: list[bytes]) -> None:
        for line in lines:
            led = parse_line(line)
            if led is not None:
                self._take(*led)
            elif line.startswith(_AGENT):
                _say(f"{tail.pod}: {line.removeprefix(_AGENT).decode(errors='replace')}")
        self._output.flush()

    def _take(self, attempt: int, rank: int, text: bytes) -> None:
        self._seen.setdefault(attempt, set()).add(rank)
        of_rank = self._wanted.rank in (None, rank)
        if of_rank and (attempt == self._attempt or (self._later and attempt > self._attempt)):
            self._shown += 1
            front = prefix(attempt, rank) if self._wanted.rank is None else b""
            self._output.write(front + text + b"\n")


def _say(text: str) -> None:
    click.echo(text, err=True)
