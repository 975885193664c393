"""Checkpoints of a job in a cluster, read by a short pod that has the job's claim or its object storage."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from resumable_operator.cli import exitcodes
from resumable_operator.cli.cluster_session import Session
from resumable_operator.cli.directory_store import keeping_of
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.reader_pod import (
    CONTAINER,
    GRACE_SECONDS,
    Model,
    Standing,
    model_from,
    model_of,
    reader_pod,
    standing,
)
from resumable_operator.cli.source import Checked, Held, Listing, Pruned
from resumable_operator.cluster.kube_api import CLAIMS, EVENTS, PODS
from resumable_operator.cluster.kube_errors import Call, Raw
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.cluster.kube_pods import worker_of
from resumable_operator.decide.assign import store_root
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused, FatalError, ResumableError, RetryableError
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.content import Content
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.verify import Verdict
from resumable_training.contract.labels import LABEL_MANAGED_BY, MANAGED_BY

T = TypeVar("T")
_JSON = re.compile(r"^(\[\]?|\{)$", re.MULTILINE)
POLL_SECONDS = 0.5
START_SECONDS = 300.0  # until it must have begun to read
EVENTS_AFTER_SECONDS = 5.0  # of waiting without a reason
TIME_LIMIT_SECONDS = 3600.0
NO_IMAGE = (
    "neither the job nor another one in namespace {} has a pod now that tells the operator's image;"
    " give it by --image"
)


@dataclass(frozen=True)
class Output:
    """What the reader printed, and its exit code."""

    text: str
    code: int


class ReaderStore:
    """``source.CheckpointSource`` of a job in a cluster.

    Args:
        image: for the pod; None: that of the job's own pods, else of any job's in the namespace.
        time_limit: seconds for the pod.
    """

    def __init__(self, session: Session, name: str, image: str | None, time_limit: float | None) -> None:
        self.session = self._session = session
        self.name = self._name = name
        self._image = image
        self._seconds = math.ceil(time_limit or TIME_LIMIT_SECONDS)
        self._title = f"the store of job {name}"

    @property
    def title(self) -> str:
        return self._title

    def listing(self) -> Listing:
        items = _objects(self._read(["list"]))
        ours = [item for item in items if not item.get("foreign")]
        others = [str(item["name"]) for item in items if item.get("foreign")]
        offered = next((str(item["name"]) for item in items if item.get("offered")), None)
        return Listing(tuple(_as(CheckpointInfo, item) for item in ours), tuple(others), offered)

    def verify(
        self, step: int | None, tell: Callable[[Checked], None], jobs: int | None = None
    ) -> list[Checked]:
        options = [*([] if step is None else ["--step", str(step)]), *_option("--jobs", jobs)]
        results = []
        for item in _objects(self._read(["verify", *options])):
            verdict = _as(Verdict, item)
            checked = Checked(str(item.get("name")), item.get("step"), bool(item.get("foreign")), verdict)
            tell(checked)
            results.append(checked)
        return results

    def show(self, which: str | None) -> Content:
        return _as(Content, self._read(["show", *_option("--step", which)]))

    def prune(
        self, keep: int | None, act: bool, every: int | None = None, protect: Sequence[str] = ()
    ) -> Pruned:
        keeping = keeping_of(self.spec())
        options = _option("--keep", keep or keeping.keep_last)
        options += _option("--keep-every-steps", every or keeping.keep_every_steps)
        options += [word for name in (*keeping.protected, *protect) for word in ("--protect", name)]
        return _as(Pruned, self._write(["prune", *options, *(["--yes"] if act else [])], writes=act))

    def pin(self, which: str, holder: str, until: float) -> str:
        options = [*_option("--until", f"@{until:.0f}"), *_option("--holder", holder)]
        return str(_as(dict[str, str], self._write(["pin", *options], after=[which]))["checkpoint"])

    def histories(self) -> tuple[AttemptHistory, ...]:
        return tuple(_as(AttemptHistory, item) for item in self._read(["history"]))

    def pins(self) -> list[Held]:
        return [_as(Held, item) for item in _objects(self._read(["pins"]))]

    def unpin(self, which: str | None, holder: str | None) -> list[Held]:
        options = [*([] if which else ["--damaged"]), *(["--all"] if holder is None else [])]
        answer = self._write(
            ["unpin", *options, *_option("--holder", holder)], after=[which] if which else []
        )
        return [_as(Held, item) for item in _objects(answer)]

    def _read(self, arguments: list[str]) -> Any:
        return self._write(arguments, writes=False)

    def _write(self, arguments: list[str], *, writes: bool = True, after: Sequence[str] = ()) -> Any:
        """What ``rtj checkpoints ARGUMENTS --json STORE AFTER`` printed in the pod."""
        return parsed(self._session.run(self._output(arguments, writes, after)), self._title)

    def spec(self) -> JobSpec:
        """Of the job."""
        return self._session.run(self._job()).spec

    async def _job(self) -> Job:
        return job_of(await self._session.job(self._name))

    async def _output(self, arguments: list[str], writes: bool, after: Sequence[str]) -> Output:
        obj = await self._session.job(self._name)
        job = job_of(obj)
        self._title = title_of(job)
        pods = await self._session.pods(obj)
        model = await self._model(job, pods)
        node = await self._node(job, pods)
        name = f"{job.name}-reader-{secrets.token_hex(3)}"
        words = [*arguments, "--json", store_root(job.spec.checkpoint), *after]
        body = reader_pod(job, name, words, model, node, self._seconds, writes=writes)
        with progress() as show:
            return await self._run(body, show)

    # ---- what it is made of ----------------------------------------------------------------------------

    async def _model(self, job: Job, pods: list[Raw]) -> Model:
        found = next((model for pod in pods if (model := model_from(pod))), None)
        if self._image is not None:
            return model_of(job, self._image, found)
        if found is not None:
            return found
        labels = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
        others = (await self._session.api.list(PODS, job.namespace, labels=labels)).items
        other = next((model for pod in others if (model := model_from(pod))), None)
        if other is None:
            raise UsageProblem(NO_IMAGE.format(job.namespace))
        return model_of(job, other.image, None)

    async def _node(self, job: Job, pods: list[Raw]) -> str:
        """Where the claim is mounted already, if it can't be mounted on two nodes; empty: anywhere."""
        if job.spec.checkpoint.persistent_volume_claim is None:
            return ""
        modes = await self._modes(job)
        if modes and modes & {"ReadWriteMany", "ReadOnlyMany"}:
            return ""
        running = [worker for pod in pods if (worker := worker_of(pod)) and worker.phase == "running"]
        if running and modes == {"ReadWriteOncePod"}:
            raise UsageProblem(
                f"the claim is ReadWriteOncePod and in use by {running[0].name}: nobody else can read it now"
            )
        return running[0].node if running else ""

    async def _modes(self, job: Job) -> set[str]:
        """The claim's access modes; empty: who asks may not know."""
        storage = job.spec.checkpoint.persistent_volume_claim
        assert storage is not None
        try:
            claim = await self._session.api.get(CLAIMS, storage.claim_name, job.namespace)
        except ClusterRefused:
            return set()
        if claim is None:
            raise UsageProblem(f"namespace {job.namespace} has no claim {storage.claim_name}")
        return set((claim.get("spec") or {}).get("accessModes") or ())

    # ---- its life --------------------------------------------------------------------------------------

    async def _run(self, body: Raw, show: Callable[[str], None]) -> Output:
        name = body["metadata"]["name"]
        async with self._made(body):
            show(f"waiting for pod {name}")
            code = await self._await_end(name, show)
            return Output(await self._log(name), code)

    @asynccontextmanager
    async def _made(self, body: Raw) -> AsyncIterator[None]:
        """The pod, which is deleted whatever happens; also when its creation was not answered."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        made = True
        try:
            try:
                await self._session.api.create(PODS, body, namespace)
            except ClusterRefused:
                made = False
                raise
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            if made:
                await self._delete(name, namespace)

    async def _delete(self, name: str, namespace: str) -> None:
        try:
            await self._session.api.delete(PODS, name, namespace, grace_seconds=GRACE_SECONDS)
        except ResumableError as error:
            click.echo(f"pod {name} could not be deleted: {error}", err=True)

    async def _await_end(self, name: str, show: Callable[[str], None]) -> int:
        """Its exit code.

        Raises:
            RetryableError: it could not start, or was ended by something else; says by what.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            pod = await self._session.api.get(PODS, name, self._session.namespace)
            if pod is None:
                raise RetryableError(f"pod {name} was deleted by somebody else")
            now, waited = standing(pod), loop.time() - begun
            if now.kind == "ended":
                return now.code
            if now.kind in ("failed", "hopeless"):
                raise self._failure(name, now)
            if now.kind == "waiting":
                why = await self._why(name, now, waited)
                if waited > START_SECONDS:
                    raise RetryableError(f"pod {name} did not start within {START_SECONDS:.0f} s: {why}")
                show(f"waiting for pod {name}: {why}")
            else:
                show(f"pod {name} reads")
            await asyncio.sleep(POLL_SECONDS)

    def _failure(self, name: str, now: Standing) -> ResumableError:
        if now.kind == "hopeless":
            return RetryableError(f"pod {name} can't start: {now.text}; --image names another image")
        if now.text == "DeadlineExceeded":
            return RetryableError(f"pod {name} was ended after {self._seconds} s; allow more by --time-limit")
        return RetryableError(f"pod {name} was ended while it read: {now.text or 'no reason is known'}")

    async def _why(self, name: str, now: Standing, waited: float) -> str:
        """Why it waits. Of a volume that can't be mounted only an event tells."""
        if waited < EVENTS_AFTER_SECONDS or now.text not in ("ContainerCreating", "Pending"):
            return now.text
        fields = f"involvedObject.name={name},type=Warning"
        with suppress(ClusterRefused):  # who may make pods need not see events
            events = (await self._session.api.list(EVENTS, self._session.namespace, fields=fields)).items
            if events:
                newest = max(events, key=lambda event: str(event["metadata"].get("creationTimestamp")))
                return f"{newest.get('reason')}: {newest.get('message')}"
        return now.text

    async def _log(self, name: str) -> str:
        path = PODS.path(self._session.namespace, name, "log") + f"?container={CONTAINER}"
        async with self._session.api.stream(Call("get", "pods/log", name), path) as body:
            return (await body.read()).decode(errors="replace")


def title_of(job: Job) -> str:
    """The store, as people know it.

    Raises:
        UsageProblem: no pod could read it.
    """
    claim, root = job.spec.checkpoint.persistent_volume_claim, store_root(job.spec.checkpoint)
    if claim is not None:
        return f"claim {claim.claim_name}" + (f", path {claim.path}" if claim.path else "")
    if job.spec.checkpoint.s3 is not None:
        return root
    where = root or "no place that its spec tells"
    raise UsageProblem(f"job {job.key} keeps its checkpoints in {where}: only claims and buckets can be read")


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _objects(answer: Any) -> list[dict[str, Any]]:
    return answer if isinstance(answer, list) else [answer]


def parsed(output: Output, title: str) -> Any:
    """The object, or the list of objects, that ``rtj checkpoints ... --json`` printed.

    Raises:
        UsageProblem, DamagedFound, RetryableError, FatalError: as the reader's own exit code says, in its
            words.
    """
    if output.code in (exitcodes.SUCCESS, exitcodes.CHECK_FAILED, exitcodes.INTERNAL):
        found = _json(output.text)
        if found is not None:
            return found
    lines = output.text.strip().splitlines() or ["the reader said nothing"]
    text = f"{title}: {lines[-1].removeprefix('Error: ')}"
    if output.code == exitcodes.USAGE:
        if "no such directory" in text:
            text = f"{title}: there is no such directory: no checkpoint was made there yet"
        raise UsageProblem(text)
    if output.code == exitcodes.CHECK_FAILED and lines[-1].startswith("Error: "):  # not Python's own 1
        raise exitcodes.DamagedFound(text)
    if output.code == exitcodes.INTERNAL:
        raise RetryableError(text)
    raise FatalError(f"{text} (exit code {output.code})")


def _json(text: str) -> Any:
    """The first JSON that begins on a line of its own: a log has standard error in it, too."""
    for line in _JSON.finditer(text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text[line.start() :])
        except ValueError:
            continue
        if found and all(isinstance(item, dict) for item in (found if isinstance(found, list) else [found])):
            return found
        if found == []:
            return found
    return None


def _as(kind: type[T], plain: Any) -> T:
    """One of our dataclasses, of whichever version the reader was."""
    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        raise FatalError(f"the reader's answer is not understood: {error}; its image is too old") from error


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Call what it gives with what is going on now: shown in place on a terminal, else a line per change."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    shown = ""
    with console.status("") if console.is_terminal else nullcontext() as status:

        def show(text: str) -> None:
            nonlocal shown
            if text == shown:
                return
            shown = text
            if status is not None:
                status.update(Text(text))
            else:
                click.echo(text, err=True)

        yield show
