"""What the operator knows of the cluster: jobs, pods and nodes as last told, by watch, list or own write.

Synchronous and for one event loop. Older versions of a known object are ignored, and an object that was
deleted never comes back, in whatever order watch events, lists and answers to own writes arrive. (One that
had only lost the labels by which it is watched does, when it has them again: as a newer version.) Of pods and
nodes only what decisions see is kept, read once for each version; every look-up is by key.

A pod that vanishes while its job has an attempt stays visible for a while as a worker that has ended: what
its last watch event said about the reason is said nowhere else.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from resumable_operator.clock import Clock
from resumable_operator.cluster.kube_entries import JobEntry, NodeEntry, PodEntry, Raw, pod_entry, store_of
from resumable_operator.cluster.kube_objects import node_of, version_of
from resumable_operator.cluster.kube_pods import vanished, with_node
from resumable_operator.cluster.port import Change
from resumable_operator.decide.observation import Job, Node, Worker

Kind = Literal["job", "pod", "node"]
Owner = tuple[str, str]  # namespace and uid of a job: a pod that names one of another namespace is not its
Listener = Callable[[Change], None]

MOST_DELETED = 20_000  # uids of deleted objects that are remembered
TOMBSTONE_SECONDS = 600.0
MOST_TOMBSTONES = 2_000  # of one job
_KEPT_META = (
    "namespace",
    "name",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


@dataclass
class _Pods:
    """The pods of one job, and those that have vanished."""

    living: dict[str, PodEntry] = field(default_factory=dict)  # by name
    gone: OrderedDict[str, tuple[float, Worker]] = field(default_factory=OrderedDict)  # by name; when


class KubeCache:
    """Filled by ``apply`` and ``replace`` (or ``prune`` after a list in parts), read by the cluster."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._deleted: OrderedDict[str, float] = OrderedDict()  # uid -> version up to which it is gone
        self._listed: dict[
            tuple[Kind, str | None], int
        ] = {}  # version of the newest list, by namespace or all
        self._jobs: dict[str, JobEntry] = {}  # by key
        self._job_keys: dict[str, str] = {}  # by uid
        self._pods: dict[Owner, _Pods] = {}
        self._pod_names: dict[tuple[str, str], PodEntry] = {}  # by namespace and name
        self._nodes: dict[str, NodeEntry] = {}
        self._on_node: dict[str, dict[str, str]] = {}  # node -> uid of pod -> key of its job
        self._stores: dict[tuple[str, ...], set[str]] = {}  # checkpoint store -> keys of jobs

    # ---- filling -------------------------------------------------------------------------------------

    def apply(self, kind: Kind, event_type: str | None, obj: Raw, *, quiet: bool = False) -> None:
        """Take in one object: a watch event (``ADDED``, ``MODIFIED``, ``DELETED``, None of a first list) or
        the answer to an own write (None). ``obj`` is not kept and not changed.

        Args:
            quiet: of a job: don't tell; who wrote it knows.
        """
        uid = str(obj["metadata"].get("uid") or "")
        if not uid or version_of(obj) <= self._deleted.get(uid, -1):
            return
        deleted = event_type == "DELETED"
        if deleted:
            self._remember_deleted(uid, version_of(obj))
        elif self._is_past(kind, obj, uid):
            return
        match kind:
            case "job":
                self._apply_job(obj, uid, deleted, quiet)
            case "pod":
                self._apply_pod(obj, uid, deleted)
            case "node":
                self._apply_node(obj, uid, deleted)

    def replace(
        self, kind: Kind, objects: Iterable[Raw], resource_version: str, namespace: str | None = None
    ) -> None:
        """Take in a full list, of one namespace or of all; what it lacks is gone, unless it is newer."""
        seen = set()
        for obj in objects:
            self.apply(kind, None, obj)
            seen.add(str(obj["metadata"].get("uid") or ""))
        self.prune(kind, seen, resource_version, namespace)

    def prune(self, kind: Kind, seen: set[str], resource_version: str, namespace: str | None = None) -> int:
        """Drop what a full list of that version, all of it applied, did not have; returns how many.

        What is newer than the list stays: it was created after it.
        """
        version = int(resource_version) if resource_version.isdecimal() else 0
        self._listed[kind, namespace] = version
        ghosts = [
            (name, uid)
            for name, uid, known, where in self._known(kind)
            if uid not in seen and known <= version and namespace in (None, where)
        ]
        for name, uid in ghosts:
            self.drop(kind, name, uid, version)
        return len(ghosts)

    def drop(self, kind: Kind, name: str, uid: str, version: float = math.inf) -> None:
        """The object of that uid is gone, as an answer has shown. ``name``: with its namespace, ``a/b``.

        Args:
            version: that it was gone at; a newer word shows that it is there and had lost our labels.
        """
        self._remember_deleted(uid, version)
        match kind:
            case "job":
                self._drop_job(name)
            case "pod":
                namespace, _, pod = name.partition("/")
                self._drop_pod(self._pod_names[namespace, pod])
            case "node":
                self._drop_node(name)

    def listed_version(self, kind: Kind, namespace: str | None = None) -> int:
        """Of the newest full list; 0: there was none."""
        return self._listed.get((kind, namespace), 0)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` at every change; the answer unsubscribes."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def tell(self, change: Change) -> None:
        for listener in tuple(self._listeners):
            listener(change)

    def _is_past(self, kind: Kind, obj: Raw, uid: str) -> bool:
        """An object that is not known although it is older than a list: it was gone before that."""
        namespace = obj["metadata"].get("namespace")
        listed = max(self.listed_version(kind), self.listed_version(kind, namespace))
        return version_of(obj) <= listed and not self._knows(kind, obj["metadata"], uid)

    def has(self, kind: Kind, obj: Raw) -> bool:
        """Whether this object tells nothing new: known at this version or a newer one, or deleted since. Its
        metadata is enough."""
        uid, version = str(obj["metadata"].get("uid") or ""), version_of(obj)
        if version <= self._deleted.get(uid, -1):
            return True
        known = self._entry(kind, obj["metadata"])
        return known is not None and known.uid == uid and version <= known.version

    def _knows(self, kind: Kind, meta: Raw, uid: str) -> bool:
        known = self._entry(kind, meta)
        return known is not None and known.uid == uid

    def _entry(self, kind: Kind, meta: Raw) -> JobEntry | PodEntry | NodeEntry | None:
        """What is known under that name."""
        match kind:
            case "job":
                return self._jobs.get(f"{meta['namespace']}/{meta['name']}")
            case "pod":
                return self._pod_names.get((meta["namespace"], meta["name"]))
            case "node":
                return self._nodes.get(meta["name"])

    def _known(self, kind: Kind) -> Iterator[tuple[str, str, int, str]]:
        """Name, uid, version and namespace of all objects of a kind."""
        match kind:
            case "job":
                for job in self._jobs.values():
                    yield job.key, job.uid, job.version, job.raw["metadata"]["namespace"]
            case "pod":
                for pod in self._pod_names.values():
                    yield f"{pod.namespace}/{pod.worker.name}", pod.uid, pod.version, pod.namespace
            case "node":
                for name, node in self._nodes.items():
                    if node.node.exists:
                        yield name, node.uid, node.version, ""

    def _remember_deleted(self, uid: str, version: float = math.inf) -> None:
        self._deleted[uid] = max(version, self._deleted.get(uid, -1))
        if len(self._deleted) > MOST_DELETED:
            self._deleted.popitem(last=False)

    # ---- jobs ----------------------------------------------------------------------------------------

    def job_entry(self, key: str) -> JobEntry | None:
        return self._jobs.get(key)

    def job_entries(self) -> list[JobEntry]:
        return list(self._jobs.values())

    def has_job(self, uid: str) -> bool:
        return uid in self._job_keys

    def sharers(self, store: tuple[str, ...]) -> list[JobEntry]:
        """Jobs that name this checkpoint store (see ``store_of``)."""
        return [self._jobs[key] for key in sorted(self._stores.get(store, ()))]

    def _apply_job(self, obj: Raw, uid: str, deleted: bool, quiet: bool) -> None:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        old, version = self._jobs.get(key), version_of(obj)
        if deleted:
            if old is not None and old.uid == uid:
                self._drop_job(key)
            return
        if old is not None:
            if version <= old.version:
                return
            if old.uid != uid:
                self._remember_deleted(old.uid)
                self._drop_job(key)
                old = None
        raw = {
            "metadata": {name: meta[name] for name in _KEPT_META if name in meta},
            "spec": obj.get("spec"),
            "status": obj.get("status") or {},
        }
        self._unindex_store(old)
        entry = JobEntry(key, uid, version, raw, old.spec if old else None)
        self._jobs[key] = entry
        self._job_keys[uid] = key
        store = store_of(raw)
        if store:
            self._stores.setdefault(store, set()).add(key)
        if not quiet:
            self.tell(Change(key, "job"))

    def _drop_job(self, key: str) -> None:
        entry = self._jobs.pop(key)
        self._job_keys.pop(entry.uid, None)
        self._unindex_store(entry)
        owner = (entry.namespace, entry.uid)
        pods = self._pods.get(owner)
        if pods is not None:
            pods.gone.clear()
            self._forget_if_empty(owner)
        self.tell(Change(key, "job", gone=True))

    def _unindex_store(self, entry: JobEntry | None) -> None:
        store = store_of(entry.raw) if entry else ()
        if entry is not None and store in self._stores:
            self._stores[store].discard(entry.key)
            if not self._stores[store]:
                del self._stores[store]

    # ---- pods ----------------------------------------------------------------------------------------

    def pod(self, namespace: str, name: str) -> PodEntry | None:
        return self._pod_names.get((namespace, name))

    def orphans(self) -> list[PodEntry]:
        """Pods of jobs that are not known."""
        found = [pods for owner, pods in self._pods.items() if not self._has_owner(owner)]
        return [entry for pods in found for entry in pods.living.values()]

    def _has_owner(self, owner: Owner) -> bool:
        namespace, uid = owner
        return self._job_keys.get(uid, "").startswith(f"{namespace}/")

    def starting_pods(self) -> list[PodEntry]:
        """Those that have a node and do not run yet."""
        pods = self._pod_names.values()
        return [entry for entry in pods if entry.worker.phase == "pending" and entry.worker.node]

    def workers(self, job: Job) -> list[Worker]:
        """Pods of the job, and those that vanished while they had a part in its attempt."""
        pods = self._pods.get((job.namespace, job.uid))
        if pods is None:
            return []
        found = [self._settled(entry.worker) for entry in pods.living.values()]
        attempt = job.status.attempt
        if pods.gone and attempt.state != "ended":
            found += [
                self._settled(pods.gone[member.worker][1])
                for member in attempt.members
                if member.worker in pods.gone and member.worker not in pods.living
            ]
        return found

    def is_tombstone(self, owner: Owner, name: str) -> bool:
        """A pod of that name has vanished lately, and none has come in its place."""
        pods = self._pods.get(owner)
        return pods is not None and name in pods.gone and name not in pods.living

    def _settled(self, worker: Worker) -> Worker:
        entry = self._nodes.get(worker.node)
        return with_node(worker, entry.node if entry else None)

    def _apply_pod(self, obj: Raw, uid: str, deleted: bool) -> None:
        name = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        old, version = self._pod_names.get(name), version_of(obj)
        if old is not None and old.uid != uid:
            if deleted or version < old.version:
                return  # of an older pod of that name
            self._remember_deleted(old.uid)
            self._drop_pod(old)
            old = None
        if old is not None and version <= old.version and not deleted:
            return
        entry = pod_entry(obj, uid, version)
        if deleted:
            if old is not None:
                self._drop_pod(_newest(old, entry))
        elif entry is not None:
            self._keep_pod(entry, old)
            self.tell(Change(entry.job_key, "worker", self._settled(entry.worker)))
        elif old is not None:
            self._drop_pod(old)  # somebody has taken our labels from it

    def _keep_pod(self, entry: PodEntry, old: PodEntry | None) -> None:
        if old is not None:
            self._forget_pod(old)
        self._pod_names[entry.namespace, entry.worker.name] = entry
        pods = self._pods.setdefault(entry.owner, _Pods())
        pods.living[entry.worker.name] = entry
        pods.gone.pop(entry.worker.name, None)
        if entry.worker.node:
            self._on_node.setdefault(entry.worker.node, {})[entry.uid] = entry.job_key

    def _forget_pod(self, entry: PodEntry) -> None:
        self._pod_names.pop((entry.namespace, entry.worker.name), None)
        pods = self._pods.get(entry.owner)
        if pods is not None:
            pods.living.pop(entry.worker.name, None)
            self._forget_if_empty(entry.owner)
        on_node = self._on_node.get(entry.worker.node)
        if on_node is not None:
            on_node.pop(entry.uid, None)
            if not on_node:
                del self._on_node[entry.worker.node]

    def _drop_pod(self, entry: PodEntry) -> None:
        """It is gone; ``entry``: as it was seen last."""
        self._forget_pod(self._pod_names.get((entry.namespace, entry.worker.name), entry))
        last = vanished(self._settled(entry.worker))
        if self._has_owner(entry.owner):
            self._bury(entry.owner, last)
        self.tell(Change(entry.job_key, "worker", last, gone=True))

    def _bury(self, owner: Owner, worker: Worker) -> None:
        gone = self._pods.setdefault(owner, _Pods()).gone
        now = self._clock.now()
        gone[worker.name] = (now, worker)
        gone.move_to_end(worker.name)
        while gone and (
            len(gone) > MOST_TOMBSTONES or now - next(iter(gone.values()))[0] > TOMBSTONE_SECONDS
        ):
            gone.popitem(last=False)

    def expire(self) -> None:
        """Forget what vanished long ago; called now and then."""
        limit = self._clock.now() - TOMBSTONE_SECONDS
        for owner, pods in list(self._pods.items()):
            while pods.gone and next(iter(pods.gone.values()))[0] < limit:
                pods.gone.popitem(last=False)
            self._forget_if_empty(owner)
        for name in [name for name, entry in self._nodes.items() if not entry.node.exists]:
            if name not in self._on_node:
                del self._nodes[name]

    def _forget_if_empty(self, owner: Owner) -> None:
        pods = self._pods.get(owner)
        if pods is not None and not pods.living and not pods.gone:
            del self._pods[owner]

    # ---- nodes ---------------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """The node; with ``exists=False`` when it is gone, None when it was never seen."""
        entry = self._nodes.get(name)
        return entry.node if entry else None

    def unknown_nodes(self) -> set[str]:
        """Nodes that pods are on and that were never seen. Those that a list from now on lacks are gone."""
        return {name for name in self._on_node if name not in self._nodes}

    def mark_gone(self, name: str) -> None:
        """There is no node of that name."""
        if name in self._on_node and name not in self._nodes:
            self._nodes[name] = NodeEntry("", 0, Node(name, exists=False, ready=False), 0.0)
            self._tell_on_node(name)

    @property
    def node_count(self) -> int:
        return sum(entry.node.exists for entry in self._nodes.values())

    def _apply_node(self, obj: Raw, uid: str, deleted: bool) -> None:
        name = obj["metadata"]["name"]
        old, version = self._nodes.get(name), version_of(obj)
        if deleted:
            if old is not None and old.uid == uid:
                self._drop_node(name)
            return
        if old is not None and old.node.exists and version <= old.version:
            return
        noticed = old is not None and old.uid == uid and old.node.notice_deadline is not None
        noticed_at = old.noticed_at if old is not None and noticed else self._clock.now()
        node = node_of(obj, noticed_at)
        self._nodes[name] = NodeEntry(uid, version, node, noticed_at)
        if old is None or old.node != node:
            self._tell_on_node(name)

    def _drop_node(self, name: str) -> None:
        """What it was last noticed to be stays: it tells why its pods are gone."""
        entry = self._nodes.get(name)
        if entry is None:
            return
        if name in self._on_node:
            self._nodes[name] = replace(entry, node=replace(entry.node, exists=False, ready=False))
        else:
            del self._nodes[name]
        self._tell_on_node(name)

    def _tell_on_node(self, name: str) -> None:
        for key in sorted(set(self._on_node.get(name, {}).values())):
            self.tell(Change(key, "node"))


def _newest(old: PodEntry, last: PodEntry | None) -> PodEntry:
    """What was seen last of a deleted pod, as the one that was known."""
    if last is None or last.version < old.version:
        return old
    return replace(last, job_uid=old.job_uid, job_key=old.job_key)
