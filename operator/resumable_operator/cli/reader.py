"""Checkpoints of a job in a cluster, read by a short pod that has the job's claim or its object storage."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from resumable_operator.cli import exitcodes
from resumable_operator.cli.cluster_exec import ExecChannel
from resumable_operator.cli.cluster_session import Session
from resumable_operator.cli.cluster_target import Bucket, ClaimPath, needs_of, with_memory
from resumable_operator.cli.directory_store import keeping_of
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.reader_life import Output, ReaderLife, progress
from resumable_operator.cli.reader_pod import (
    CONTAINER,
    HOLD,
    READS,
    RTJ,
    Model,
    Needs,
    model_from,
    model_of,
    reader_pod,
    worker_image,
)
from resumable_operator.cli.remote_store import RemoteStore
from resumable_operator.cli.source import Checked, Held, Listing, Pruned
from resumable_operator.cluster.kube_api import CLAIMS, PODS
from resumable_operator.cluster.kube_errors import Raw
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.cluster.kube_pods import worker_of
from resumable_operator.decide.assign import store_root
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused, FatalError, RetryableError
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.content import Content
from resumable_training.checkpoint.copying import Copied, Moved
from resumable_training.checkpoint.export_plan import Exported
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.verify import Verdict
from resumable_training.contract.labels import LABEL_MANAGED_BY, MANAGED_BY

T = TypeVar("T")
_JSON = re.compile(r"^(\[\]?|\{)$", re.MULTILINE)
TIME_LIMIT_SECONDS = 3600.0
EXPORT_BYTES = 16 << 30  # of memory, at most
COPY_SECONDS = 86400.0  # of a pod that copies, or serves this machine
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}
NO_RTJ = ": its image has no rtj; --image names one that has (pip install 'resumable-training')"
_NO_RTJ = re.compile("No module named '?resumable_")
NO_IMAGE = (
    "neither the job nor another one in namespace {} has a pod now that tells the operator's image;"
    " give it by --image"
)


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
        self._time_limit = time_limit
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
        return job_of(self._stored()).spec

    def _stored(self) -> Raw:
        return self._session.run(self._session.job(self._name))

    async def _output(self, arguments: list[str], writes: bool, after: Sequence[str]) -> Output:
        body = await self._body(arguments, after, replace(READS, writes=writes))
        with progress() as show:
            return await self._life(TIME_LIMIT_SECONDS).run(body, show)

    def _life(self, otherwise: float) -> ReaderLife:
        return ReaderLife(self._session, self._seconds(otherwise))

    def _seconds(self, otherwise: float) -> int:
        return math.ceil(self._time_limit or otherwise)

    def copy(self, target: Bucket | ClaimPath, options: Sequence[str], memory: str | None = None) -> Copied:
        """Let a pod copy one checkpoint.

        Args:
            options: of ``rtj checkpoints copy``.
            memory: of the pod, a quantity.
        """
        return _as(Copied, self._worked(["copy", *options], target, memory))

    def copy_all(
        self, target: Bucket | ClaimPath, options: Sequence[str], memory: str | None = None
    ) -> Moved:
        """The same with the whole store."""
        return _as(Moved, self._worked(["copy", "--all", *options], target, memory))

    def export(
        self, target: ClaimPath, options: Sequence[str], memory: str | None = None
    ) -> tuple[Exported, str]:
        """Let a pod with the image that trains export a checkpoint; also which one it was."""
        words = ["export", "--parents", *options]
        told = _as(dict[str, Any], self._worked(words, target, memory, EXPORT_BYTES, trains=True))
        checkpoint = str(told.get("checkpoint")).rpartition("/")[2]
        return _as(Exported, told), f"{location_of(job_of(self._stored()))}/{checkpoint}"

    def _worked(
        self,
        words: list[str],
        target: Bucket | ClaimPath,
        memory: str | None,
        otherwise: int = READS.memory,
        *,
        trains: bool = False,
    ) -> Any:
        """``trains``: in the image that does, which has torch; else in the operator's."""
        job = job_of(self._stored())
        needs, options = needs_of(job, target)
        needs = replace(with_memory(needs, memory, otherwise), scratch=trains)
        there = target.in_pod if isinstance(target, ClaimPath) else target.url
        image = worker_image(job) if trains else None

        async def work() -> Output:
            body = await self._body([*words, *options], [there], needs, image, COPY_SECONDS)
            with progress() as show:
                return await self._life(COPY_SECONDS).run(body, show)

        output = self._session.run(work())
        if isinstance(target, ClaimPath):  # as it was called here
            output = replace(output, text=target.named(output.text))
        return parsed(output, f"{self._title}, in the cluster")

    @contextmanager
    def served(self) -> Iterator[RemoteStore]:
        """The store, for the length of the block, behind a pod that has it. Raises CheckpointErrors, too."""
        job = job_of(self._stored())
        needs = replace(READS, writes=True, command=HOLD)
        body = self._session.run(self._body([], [], needs, None, COPY_SECONDS))
        with self._life(COPY_SECONDS).running(body) as pod:
            command = [*RTJ, "checkpoints", "serve", store_root(job.spec.checkpoint)]
            with ExecChannel(self._session.api, job.namespace, pod, CONTAINER, command) as channel:
                yield RemoteStore(channel.ask, location_of(job))

    # ---- what it is made of ----------------------------------------------------------------------------

    async def _body(
        self,
        arguments: list[str],
        after: Sequence[str],
        needs: Needs,
        image: tuple[str, str] | None = None,
        seconds: float = TIME_LIMIT_SECONDS,
    ) -> Raw:
        """The pod. ``image``: instead of the operator's, and how it is pulled."""
        obj = await self._session.job(self._name)
        job = job_of(obj)
        self._title = title_of(job)
        pods = await self._session.pods(obj)
        model = await self._model(job, pods, image)
        node = await self._place(job, pods, needs)
        name = f"{job.name}-reader-{secrets.token_hex(3)}"
        words = [] if needs.command else [*arguments, "--json", store_root(job.spec.checkpoint), *after]
        return reader_pod(job, name, words, model, node, self._seconds(seconds), needs)

    async def _model(self, job: Job, pods: list[Raw], image: tuple[str, str] | None = None) -> Model:
        found = next((model for pod in pods if (model := model_from(pod))), None)
        if self._image is not None:
            return model_of(job, self._image, found)
        if image is not None:
            return replace(model_of(job, image[0], found), pull_policy=image[1])
        if found is not None:
            return found
        labels = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
        others = (await self._session.api.list(PODS, job.namespace, labels=labels)).items
        other = next((model for pod in others if (model := model_from(pod))), None)
        if other is None:
            raise UsageProblem(NO_IMAGE.format(job.namespace))
        return model_of(job, other.image, None)

    async def _place(self, job: Job, pods: list[Raw], needs: Needs) -> str:
        """The node on which all its claims can be mounted; empty: any.

        Raises:
            UsageProblem: there is none; says who has which.
        """
        node, storage = await self._node(job, pods), job.spec.checkpoint.persistent_volume_claim
        if needs.claim is None or (storage is not None and needs.claim == storage.claim_name):
            return node
        other = await self._claim_node(needs.claim, job.namespace, await self._modes(needs.claim, job))
        if node and other and node != other:
            raise UsageProblem(
                f"the job's claim is in use on node {node} and claim {needs.claim} on node {other}, and no"
                f" other node can mount them: suspend the job (`rtj suspend {job.name} --wait`), or end the"
                f" pods that use {needs.claim}"
            )
        return node or other

    async def _node(self, job: Job, pods: list[Raw]) -> str:
        """Where the claim is mounted already, if it can't be mounted on two nodes; empty: anywhere."""
        storage = job.spec.checkpoint.persistent_volume_claim
        if storage is None:
            return ""
        modes = await self._modes(storage.claim_name, job)
        if modes & _SHARED:
            return ""
        running = [worker for pod in pods if (worker := worker_of(pod)) and worker.phase == "running"]
        if running and modes == {"ReadWriteOncePod"}:
            raise UsageProblem(
                f"the claim is ReadWriteOncePod and in use by {running[0].name}: nobody else can read it now"
            )
        if running:
            return running[0].node
        return await self._claim_node(storage.claim_name, job.namespace, modes)

    async def _claim_node(self, claim: str, namespace: str, modes: set[str]) -> str:
        """Where any pod has it, if it can't be mounted on two nodes; empty: anywhere."""
        if modes & _SHARED:
            return ""
        pods = (await self._session.api.list(PODS, namespace)).items
        pod = next((pod for pod in pods if _holds(pod, claim)), None)
        if pod is not None and modes == {"ReadWriteOncePod"}:
            raise UsageProblem(f"claim {claim} is ReadWriteOncePod and in use by {pod['metadata']['name']}")
        return str(pod["spec"]["nodeName"]) if pod is not None else ""

    async def _modes(self, name: str, job: Job) -> set[str]:
        """The claim's access modes; empty: who asks may not know."""
        try:
            claim = await self._session.api.get(CLAIMS, name, job.namespace)
        except ClusterRefused:
            return set()
        if claim is None:
            raise UsageProblem(f"namespace {job.namespace} has no claim {name}")
        return set((claim.get("spec") or {}).get("accessModes") or ())


def _holds(pod: Raw, claim: str) -> bool:
    """Whether the pod is on a node with that claim mounted there."""
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    claims = ((volume.get("persistentVolumeClaim") or {}) for volume in spec.get("volumes") or ())
    mounts = any(each.get("claimName") == claim for each in claims)
    return mounts and bool(spec.get("nodeName")) and phase not in ("Succeeded", "Failed")


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


def location_of(job: Job) -> str:
    """The store as one writes it: s3://BUCKET/PREFIX, claim://NAME/PATH."""
    claim = job.spec.checkpoint.persistent_volume_claim
    if claim is None:
        return store_root(job.spec.checkpoint)
    return str(ClaimPath(claim.claim_name, claim.path.strip("/")))


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
    told = NO_RTJ if _NO_RTJ.search(lines[-1]) else ""
    raise FatalError(f"{text} (exit code {output.code}){told}")


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
