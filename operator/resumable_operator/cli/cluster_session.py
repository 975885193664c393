"""One command's way into a cluster: credentials, namespace, an event loop, and errors that say what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from resumable_operator.cli.cluster_errors import NO_KIND, NoSuchJob, explained, no_such_job
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place
from resumable_operator.errors import ClusterRefused, FatalError, ResumableError
from resumable_operator.words import counted

try:
    from resumable_operator.cluster.kube_api import JOBS, PODS, KubeApi
    from resumable_operator.cluster.kube_errors import NotFound, Raw
except ModuleNotFoundError as error:  # the extra is for clusters only
    if not (error.name or "").startswith("kubernetes"):
        raise
    raise UsageProblem(
        "for jobs in a cluster install also the extra: pip install 'resumable-training[operator]'"
    ) from error

from resumable_training.contract.labels import LABEL_JOB_UID, LABEL_MANAGED_BY, MANAGED_BY

T = TypeVar("T")
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Session:
    """Use as a ``with`` block. ``run`` and what it awaits raise ``ResumableError`` with a hint in it.

    Attributes:
        namespace: of the job.
        api: one client for requests, and ``streams`` another for many logs at a time.

    Raises:
        UsageProblem: there is no kubeconfig, no such context, or it can't be read.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._runner = asyncio.Runner()
        self._where = "the cluster"
        self.namespace = ""

    def __enter__(self) -> Self:
        config = find_config(self._place.kubeconfig, os.environ, Path.home())
        default = _pod_namespace() if config is None else _context_namespace(config, self._place.context)
        self.namespace = self._place.namespace or default or "default"
        try:
            self.run(self._login(config))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; Ctrl-C cancels it first."""
        try:
            return self._runner.run(work)
        except ResumableError as error:
            told = explained(error, self._where)
            if told is error:
                raise
            raise told from error
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # by SIGTERM

    async def job(self, name: str) -> Raw:
        """The job as stored.

        Raises:
            UsageProblem: there is none; names those that may be meant.
            FatalError: the cluster does not know the kind.
        """
        found = await self.api.get(JOBS, name, self.namespace)
        if found is None:
            raise await self._no_such_job(name)
        return found

    async def pods(self, job: Raw) -> list[Raw]:
        """The job's workers' pods."""
        uid = job["metadata"]["uid"]
        labels = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_JOB_UID}={uid}"
        return (await self.api.list(PODS, self.namespace, labels=labels)).items

    async def _login(self, config: Path | None) -> None:
        self.api = await KubeApi.login(config, self._place.context)
        self._where = f"the API server {self.api.configuration.host}"
        self.api.configuration.connection_pool_maxsize = 0  # each log that is followed takes a connection
        self.streams = KubeApi(self.api.configuration)

    async def _close(self) -> None:
        for client in (getattr(self, "api", None), getattr(self, "streams", None)):
            if client is not None:
                await client.close()

    async def _no_such_job(self, name: str) -> ResumableError:
        try:
            jobs = (await self.api.list(JOBS)).items
        except NotFound:
            return FatalError(NO_KIND)
        except ClusterRefused:  # who may see one namespace need not see all
            try:
                jobs = (await self.api.list(JOBS, self.namespace)).items
            except ClusterRefused:
                return NoSuchJob(f"namespace {self.namespace} has no job {name}")
        at = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in jobs]
        here = [other for namespace, other in at if namespace == self.namespace]
        return no_such_job(name, self.namespace, here, [space for space, other in at if other == name])


def find_config(given: Path | None, environment: Mapping[str, str], home: Path) -> Path | None:
    """The kubeconfig to use (several are joined by ``:``, as in $KUBECONFIG); None: a pod's own account.

    Raises:
        UsageProblem: there is none.
    """
    if given is not None:
        if not given.is_file():
            raise UsageProblem(f"no kubeconfig {given}")
        return given
    named = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    if any(Path(path).is_file() for path in named):
        return Path(os.pathsep.join(path for path in named if Path(path).is_file()))
    if not named and (home / ".kube" / "config").is_file():
        return home / ".kube" / "config"
    if not named and "KUBERNETES_SERVICE_HOST" in environment:
        return None
    looked = (
        f"$KUBECONFIG names {counted(len(named), 'file')} that can't be found"
        if named
        else ("there is neither $KUBECONFIG nor ~/.kube/config")
    )
    raise UsageProblem(f"no way into a cluster: {looked}; give --kubeconfig FILE")


def _pod_namespace() -> str:
    try:
        return POD_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def _context_namespace(config: Path, wanted: str | None) -> str:
    """Of the context; empty: it names none.

    Raises:
        UsageProblem: no such context, or it can't be read; names those that are there.
    """
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    try:
        contexts, current = list_kube_config_contexts(str(config))  # type: ignore[no-untyped-call]
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise UsageProblem(f"kubeconfig {config} can't be used: {why}") from error
    by_name = {str(each["name"]): each for each in contexts}
    if wanted is not None and wanted not in by_name:
        raise UsageProblem(
            f"kubeconfig {config} has no context {wanted}; it has {', '.join(by_name) or 'none'}"
        )
    chosen = by_name[wanted] if wanted is not None else current
    return str((chosen.get("context") or {}).get("namespace") or "")
