"""What the watches bring into the cache, seen on a real API server: all of it, in order, and nothing written.

Objects here have their status written by the test; there is no kubelet.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import load_kube_config

from bed.api import path
from bed.control_plane import ControlPlane
from resumable_operator import handlers
from resumable_operator.errors import FatalError, RetryableError
from resumable_training.contract.labels import GROUP, KIND, PLURAL, VERSION

OURS = {"app.kubernetes.io/managed-by": "resumable-training"}
API_VERSION = f"{GROUP}/{VERSION}"
Raw = dict[str, Any]


pytestmark = pytest.mark.usefixtures("job_kind")  # who watches a kind that is not there gives up


@dataclass
class Recorder:
    """A cache that keeps what it was told, in order."""

    told: list[tuple[str, str | None, Raw]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def apply(self, kind: str, event_type: str | None, obj: Raw) -> None:
        self.told.append((kind, event_type, obj))
        self.news.set()

    def of(self, kind: str, name: str) -> list[tuple[str | None, Raw]]:
        return [
            (event, obj)
            for told_kind, event, obj in self.told
            if told_kind == kind and obj["metadata"]["name"] == name
        ]

    def versions(self, kind: str, name: str) -> list[str]:
        return list(dict.fromkeys(obj["metadata"]["resourceVersion"] for _, obj in self.of(kind, name)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watching(
    kubeconfig: Path, *namespaces: str, nodes: bool = False
) -> AsyncIterator[tuple[Recorder, asyncio.Task[None]]]:
    """Watch, from after the first events have been told (a watched pod is made and awaited by the caller)."""
    login = Configuration()
    await load_kube_config(config_file=str(kubeconfig), client_configuration=login)
    recorder = Recorder()
    registry = handlers.registry(recorder, login, nodes=nodes)  # type: ignore[arg-type]
    task = asyncio.create_task(handlers.watch(registry, namespaces))
    try:
        yield recorder, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pod(name: str, labels: Raw | None = None) -> Raw:
    """A pod bound to a node that does not exist, so that nobody but the test touches it for a while."""
    container = {"name": "worker", "image": "none"}
    spec = {"containers": [container], "nodeName": "nowhere", "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def job(name: str) -> Raw:
    template = {"spec": {"containers": [{"name": "worker", "image": "none", "command": ["true"]}]}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "workers": {"replicas": 1},
            "template": template,
            "checkpoint": {"persistentVolumeClaim": {"claimName": "c"}},
        },
    }


async def test_a_pods_last_state_is_told_with_its_end(control_plane: ControlPlane, namespace: str) -> None:
    """Every state of a pod is told in order; the deletion carries what only the state before it showed."""
    api, pods, one = control_plane.api, path("v1", "pods", namespace), path("v1", "pods", namespace, "mine")
    async with watching(control_plane.kubeconfig, namespace) as (told, _):
        await asyncio.to_thread(api.create, pods, pod("mine", OURS))
        await told.until(lambda: bool(told.of("pod", "mine")))

        def live_quickly() -> None:
            for number in range(20):
                api.patch_status(one, {"status": {"message": str(number)}})
            notice = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            api.patch_status(one, {"status": {"conditions": [notice]}}, "strategic")
            api.delete(one)

        await asyncio.to_thread(live_quickly)
        await told.until(lambda: told.of("pod", "mine")[-1][0] == "DELETED")
    states = [obj.get("status", {}).get("message") for _, obj in told.of("pod", "mine")]
    assert list(dict.fromkeys(state for state in states if state)) == [str(number) for number in range(20)]
    last = told.of("pod", "mine")[-1][1]
    assert "DisruptionTarget" in [condition["type"] for condition in last["status"]["conditions"]]


async def test_only_our_pods_are_told(control_plane: ControlPlane, namespace: str) -> None:
    """Pods without our label are filtered by the server: they do not even reach this process."""
    pods = path("v1", "pods", namespace)
    async with watching(control_plane.kubeconfig, namespace) as (told, _):
        for name, labels in (("stranger", {}), ("mine", OURS)):
            await asyncio.to_thread(control_plane.api.create, pods, pod(name, labels))
        await told.until(lambda: bool(told.of("pod", "mine")))
    assert told.of("pod", "stranger") == []


async def test_relabelled_pod_is_gone(control_plane: ControlPlane, namespace: str) -> None:
    """A pod that loses our label is told as deleted."""
    api, pods = control_plane.api, path("v1", "pods", namespace)
    async with watching(control_plane.kubeconfig, namespace) as (told, _):
        await asyncio.to_thread(api.create, pods, pod("mine", OURS))
        await told.until(lambda: bool(told.of("pod", "mine")))
        label = {"app.kubernetes.io/managed-by": None}
        await asyncio.to_thread(api.patch, f"{pods}/mine", {"metadata": {"labels": label}})
        await told.until(lambda: told.of("pod", "mine")[-1][0] == "DELETED")


@pytest.mark.usefixtures("job_kind")
@pytest.mark.parametrize("kind", ["job", "pod"])
async def test_nothing_is_written(control_plane: ControlPlane, namespace: str, kind: str) -> None:
    """The versions told are those that the test wrote: nobody else has touched the object.

    Nor the finalizer that another operator of the same framework has put there.
    """
    api, body = control_plane.api, {"job": job("one"), "pod": pod("one", OURS)}[kind]
    where = path(API_VERSION if kind == "job" else "v1", PLURAL if kind == "job" else "pods", namespace)
    finalizer = {"metadata": {"finalizers": ["kopf.zalando.org/KopfFinalizerMarker"]}}
    versions: list[str] = []
    async with watching(control_plane.kubeconfig, namespace) as (told, _):

        async def write(verb: Callable[[str, Raw], Raw], place: str, what: Raw) -> None:
            versions.append((await asyncio.to_thread(verb, place, what))["metadata"]["resourceVersion"])
            await told.until(lambda: versions[-1] in told.versions(kind, "one"))

        await write(api.create, where, body)
        await write(api.patch, f"{where}/one", finalizer)
        for number in range(5):
            await write(api.patch, f"{where}/one", {"metadata": {"labels": {"n": str(number)}}})
        assert told.versions(kind, "one") == versions
    found = api.patch(f"{where}/one", {"metadata": {"finalizers": None}})
    assert "kopf" not in str(found["metadata"].get("annotations"))
    assert [event for event in api.list(path("v1", "events", namespace)) if "kopf" in str(event)] == []


async def test_nodes_are_told_when_asked_for(control_plane: ControlPlane) -> None:
    """A node that comes, changes and goes is told, and kept as it is."""
    api, name = control_plane.api, f"node-{secrets.token_hex(4)}"
    async with watching(control_plane.kubeconfig, nodes=True) as (told, _):
        await asyncio.to_thread(api.create, path("v1", "nodes"), {"metadata": {"name": name}})
        await told.until(lambda: bool(told.of("node", name)))
        cordon = {"spec": {"unschedulable": True}}
        await asyncio.to_thread(api.patch, path("v1", "nodes", name=name), cordon)
        await told.until(lambda: told.of("node", name)[-1][1]["spec"].get("unschedulable") is True)
        await asyncio.to_thread(api.delete, path("v1", "nodes", name=name))
        await told.until(lambda: told.of("node", name)[-1][0] == "DELETED")
    last = told.of("node", name)[-1][1]["metadata"]
    assert "kopf" not in str((last.get("finalizers"), last.get("annotations")))


def may_watch(control_plane: ControlPlane, namespace: str, *resources: str) -> Path:
    """Kubeconfig of an account that may list and watch these in the namespace, and nothing else."""
    api, rbac, meta = control_plane.api, "rbac.authorization.k8s.io/v1", {"name": "watcher"}
    rule = {"apiGroups": ["", GROUP], "resources": resources, "verbs": ["list", "watch"]}
    binding = {
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "watcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": namespace}],
    }
    api.create(path("v1", "serviceaccounts", namespace), {"metadata": meta})
    api.create(path(rbac, "roles", namespace), {"metadata": meta, "rules": [rule]})
    api.create(path(rbac, "rolebindings", namespace), binding)
    return control_plane.kubeconfig_for("watcher", namespace)


async def test_namespaced_watch_needs_no_cluster_rights(control_plane: ControlPlane, namespace: str) -> None:
    """With rights in one namespace only, its pods are told; nothing is asked for beyond it."""
    kubeconfig = may_watch(control_plane, namespace, "pods", PLURAL)
    async with watching(kubeconfig, namespace) as (told, task):
        await asyncio.to_thread(control_plane.api.create, path("v1", "pods", namespace), pod("mine", OURS))
        await told.until(lambda: task.done() or bool(told.of("pod", "mine")))
        assert not task.done()


@pytest.mark.usefixtures("job_kind")
async def test_refused_watch_ends_with_a_reason(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to watch, all ends in an error that says so, but for other tasks of the loop.

    The watch that failed is the second one: the first was running.
    """
    monkeypatch.setattr(handlers, "RETRY_SECONDS", (0.01,))
    kubeconfig = may_watch(control_plane, namespace, PLURAL)
    bystander = asyncio.create_task(asyncio.Event().wait())
    before = asyncio.all_tasks()
    async with watching(kubeconfig, namespace) as (_, task), asyncio.timeout(30):
        with pytest.raises(FatalError, match="cannot list resource"):
            await task
    assert asyncio.all_tasks() == before
    bystander.cancel()


async def test_signals_are_given_back(control_plane: ControlPlane, namespace: str) -> None:
    """The process's own handling of SIGTERM holds while watches run."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    login = Configuration()
    await load_kube_config(config_file=str(control_plane.kubeconfig), client_configuration=login)
    taken = asyncio.Event()

    def take() -> None:
        loop.add_signal_handler(signal.SIGTERM, asked.set)
        taken.set()

    registry = handlers.registry(Recorder(), login, nodes=False)  # type: ignore[arg-type]
    task = asyncio.create_task(handlers.watch(registry, [namespace], take))
    try:
        async with asyncio.timeout(30):
            await taken.wait()
            signal.raise_signal(signal.SIGTERM)
            await asked.wait()
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def test_watch_survives_an_absent_api_server(control_plane: ControlPlane, namespace: str) -> None:
    """A server that goes away and comes back is watched on, and what happened since is told."""
    api, pods = control_plane.api, path("v1", "pods", namespace)
    async with watching(control_plane.kubeconfig, namespace) as (told, task):
        await asyncio.to_thread(api.create, pods, pod("before", OURS))
        await told.until(lambda: bool(told.of("pod", "before")))
        control_plane.stop_apiserver()
        control_plane.start_apiserver()
        await asyncio.to_thread(api.create, pods, pod("after", OURS))
        await told.until(lambda: task.done() or bool(told.of("pod", "after")))
        assert not task.done()


@pytest.mark.parametrize(("is_watched", "kind"), [(False, RetryableError), (True, FatalError)])
async def test_a_connection_that_breaks(
    is_watched: bool, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is watched kopf gives up at once, and is begun again; later it retries by itself."""
    goes_on = asyncio.Event()

    async def breaks() -> None:
        await goes_on.wait()
        raise aiohttp.ClientPayloadError("Response payload is not completed")

    async def spawn(**_: object) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(breaks())]

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    monkeypatch.setattr(handlers, "LOOK_SECONDS", 0.0)
    names = [PLURAL, "pods"] if is_watched else []
    watchers = [
        asyncio.create_task(asyncio.Event().wait(), name=f"{handlers.WATCHER}{one}.v1") for one in names
    ]
    watch = asyncio.create_task(handlers.watch(kopf.OperatorRegistry(), ["here"]))
    for _ in range(10):  # turns of the loop, in which it looks whether all are watched
        await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(kind, match="Response payload"):
        await watch
    await asyncio.gather(*watchers, return_exceptions=True)
