"""The Kubernetes cluster on a real API server, without nodes: what it writes, checks, refuses and finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kube_world import RING, Kube, claim, kube, plain_job, template

from bed.api import Api, path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator.cluster import kubernetes
from resumable_operator.cluster.port import Change
from resumable_operator.crd import crd
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused, ConflictError, RetryableError, SpecError
from resumable_operator.manifests import key_secret_name
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus
from resumable_training.contract.labels import LABEL_MANAGED_BY, MANAGED_BY

pytestmark = pytest.mark.usefixtures("job_kind")

Raw = dict[str, Any]
JOBS = ("resumable.dev/v1alpha1", "resumabletrainingjobs")


@pytest.fixture
async def made(control_plane: ControlPlane, namespace: str) -> AsyncIterator[Kube]:
    """A cluster of the whole API server, not watched."""
    async with kube(control_plane.kubeconfig) as made:
        yield made


class Bench:
    """Short hands for one namespace."""

    def __init__(self, api: Api, made: Kube, namespace: str) -> None:
        self.api, self.made, self.cluster, self.namespace = api, made, made.cluster, namespace

    async def submit(self, body: Raw, *, claimed: bool = True) -> Job:
        """Create it, and tell the cache, as a watch would."""
        if claimed and not self.find("v1", "persistentvolumeclaims", "ckpt"):
            self.create("v1", "persistentvolumeclaims", claim())
        stored = self.create(*JOBS, body)
        self.made.cache.apply("job", "ADDED", stored)
        job = await self.cluster.job(f"{self.namespace}/{body['metadata']['name']}")
        assert job is not None
        return job

    def create(self, version: str, plural: str, body: Raw) -> Raw:
        return self.api.create(path(version, plural, self.namespace), body)

    def find(self, version: str, plural: str, name: str) -> Raw | None:
        return self.api.find(path(version, plural, self.namespace, name))

    def list(self, version: str, plural: str) -> list[Raw]:
        return self.api.list(path(version, plural, self.namespace))

    def pod(self, name: str) -> Raw | None:
        return self.find("v1", "pods", name)

    def events(self, reason: str) -> list[Raw]:
        return [event for event in self.list("v1", "events") if event["reason"] == reason]

    async def problems(self, body: Raw) -> list[tuple[str, str, bool]]:
        job = await self.submit(body, claimed=False)
        return [(x.field, x.reason, x.fatal) for x in await self.cluster.check(job)]


@pytest.fixture
def bench(control_plane: ControlPlane, made: Kube, namespace: str) -> Bench:
    return Bench(control_plane.api, made, namespace)


# ---- status ------------------------------------------------------------------------------------------


async def test_status_is_replaced(bench: Bench) -> None:
    """Entries of maps that are no more are gone from the API server, too."""
    job = await bench.submit(plain_job())
    job = await bench.cluster.write_status(job, JobStatus(cursors={"a": 1, "b": 2}))
    job = await bench.cluster.write_status(job, JobStatus(cursors={"b": 2}))
    assert job.status.cursors == {"b": 2}
    stored = bench.find(*JOBS, "train")
    assert stored is not None
    assert stored["status"]["cursors"] == {"b": 2}
    assert job.spec == (await bench.submit(plain_job("other"))).spec


async def test_conflict_brings_the_cache_up_to_date(bench: Bench) -> None:
    """After a lost race the next look sees what the other wrote, even with no watch."""
    job = await bench.submit(plain_job())
    change = {"spec": {"workers": {"replicas": 3}}}
    bench.api.patch(path(*JOBS, bench.namespace, "train"), change)
    with pytest.raises(ConflictError):
        await bench.cluster.write_status(job, JobStatus(step=1))
    seen = await bench.cluster.job(job.key)
    assert seen is not None
    assert seen.spec.workers.replicas == 3
    assert (await bench.cluster.write_status(seen, JobStatus(step=1))).status.step == 1


async def test_status_of_a_deleted_job(bench: Bench) -> None:
    """Writing to a job that is gone is a conflict, and the job is not seen any more; nor to its successor."""
    job = await bench.submit(plain_job())
    bench.api.delete(path(*JOBS, bench.namespace, "train"))
    with pytest.raises(ConflictError):
        await bench.cluster.write_status(job, JobStatus(step=1))
    assert await bench.cluster.job(job.key) is None
    successor = await bench.submit(plain_job())
    with pytest.raises(ConflictError):
        await bench.cluster.write_status(job, JobStatus(step=1))
    seen = await bench.cluster.job(job.key)
    assert seen is not None
    assert (seen.uid, seen.status.step) == (successor.uid, 0)


async def test_unreadable_job_is_told_once(bench: Bench) -> None:
    """A spec that can't be read becomes Valid=False and an Event, once; all else in status stays."""
    job = await bench.submit(plain_job())
    job = await bench.cluster.write_status(job, JobStatus(step=7))
    error = SpecError("spec.workers", "is nonsense")
    for _ in range(3):
        await bench.cluster.report_invalid(job.key, error)
    stored = bench.find(*JOBS, "train")
    assert stored is not None
    [condition] = stored["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == ("Valid", "False", 1)
    assert "spec.workers: is nonsense" in condition["message"]
    assert stored["status"]["step"] == 7
    assert [event.get("count") for event in bench.events("SpecInvalid")] == [1]


async def test_unreadable_jobs_are_pointed_at(bench: Bench, control_plane: ControlPlane) -> None:
    """A job that can't be read is not listed, but each comparison points at it."""
    job = await bench.submit(plain_job())
    raw = bench.find(*JOBS, "train")
    assert raw is not None
    newer = {"resourceVersion": str(2**62), "generation": 2}
    broken = {**raw, "metadata": {**raw["metadata"], **newer}, "spec": {}}
    bench.made.cache.apply("job", "MODIFIED", broken)
    told: list[Change] = []
    bench.made.cache.subscribe(told.append)
    assert job.key not in [found.key for found in await bench.cluster.jobs()]
    await bench.cluster.relist()
    assert Change(job.key, "relist") in told


async def test_ttl(bench: Bench) -> None:
    """Deleting a job is success when it is gone; another one of its name is left alone."""
    job = await bench.submit(plain_job())
    await bench.cluster.delete_job(job)
    await bench.cluster.delete_job(job)
    await bench.submit(plain_job())
    await bench.cluster.delete_job(job)
    assert bench.find(*JOBS, "train") is not None


# ---- events ------------------------------------------------------------------------------------------


async def test_events_are_counted(bench: Bench, control_plane: ControlPlane) -> None:
    """The same said again is counted on one Event, also by another process; what differs is another Event."""
    job = await bench.submit(plain_job())
    for _ in range(3):
        await bench.cluster.emit_event(job, "Warning", "WorkerLost", "train-0-1 is lost")
    async with kube(control_plane.kubeconfig) as other:
        await other.cluster.emit_event(job, "Warning", "WorkerLost", "train-0-1 is lost")
    await bench.cluster.emit_event(job, "Warning", "WorkerLost", "train-1-1 is lost")
    found = {event["message"]: event["count"] for event in bench.events("WorkerLost")}
    assert found == {"train-0-1 is lost": 4, "train-1-1 is lost": 1}
    [about] = {event["involvedObject"]["uid"] for event in bench.events("WorkerLost")}
    assert about == job.uid


async def test_expired_event_is_told_anew(bench: Bench) -> None:
    """An Event that the API server has forgotten is created again."""
    job = await bench.submit(plain_job())
    await bench.cluster.emit_event(job, "Normal", "Resumed", "step 7")
    [event] = bench.events("Resumed")
    bench.api.delete(path("v1", "events", bench.namespace, event["metadata"]["name"]))
    await bench.cluster.emit_event(job, "Normal", "Resumed", "step 7")
    assert [event["count"] for event in bench.events("Resumed")] == [1]


@pytest.mark.parametrize("message", ["", "x" * 5000, "ünïcode\nand lines", "\x00 zero", "half \ud800"])
async def test_any_message_can_be_told(bench: Bench, message: str) -> None:
    """Whatever is in it, an Event is told."""
    job = await bench.submit(plain_job())
    await bench.cluster.emit_event(job, "Normal", "Odd", message)
    assert len(bench.events("Odd")) == 1


async def test_untellable_event(bench: Bench) -> None:
    """An Event that the API server won't take does not raise."""
    job = await bench.submit(plain_job())
    gone = Job("no-such-namespace", job.name, job.uid, 1, job.spec, job.status)
    await bench.cluster.emit_event(gone, "Normal", "Odd", "x")


# ---- workers -----------------------------------------------------------------------------------------


async def create(bench: Bench, job: Job, place: int = 0, incarnation: int = 1) -> str:
    name = f"{job.name}-{place}-{incarnation}"
    await bench.cluster.create_worker(job, name, place, incarnation)
    return name


async def test_own_writes_are_seen_at_once(bench: Bench) -> None:
    """With no watch at all the next look shows what was created and what is being deleted."""
    job = await bench.submit(plain_job())
    name = await create(bench, job)
    [worker] = await bench.cluster.workers(job)
    assert (worker.name, worker.place, worker.incarnation, worker.phase) == (name, 0, 1, "pending")
    bind(bench, name)
    await bench.cluster.delete_worker(job, name, 20)
    [worker] = await bench.cluster.workers(job)
    assert worker.deleting
    before = bench.made.api.requests["delete", "pods", 200]
    await bench.cluster.delete_worker(job, name, 20)
    assert bench.made.api.requests["delete", "pods", 200] == before
    await bench.cluster.delete_worker(job, name, 0)
    assert await bench.cluster.workers(job) == []
    assert bench.pod(name) is None


def bind(bench: Bench, name: str) -> None:
    """Put the pod on a node, so that its deletion waits for a kubelet."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    bench.api.create(path("v1", "pods", bench.namespace, name, "binding"), body)


async def test_job_key(bench: Bench) -> None:
    """The Secret with the agents' key is there before the first pod, and comes back when it is removed."""
    job = await bench.submit(plain_job())
    name = await create(bench, job)
    [worker] = await bench.cluster.workers(job)
    secret = key_secret_name(job, RING.current_key_id(job.uid))
    assert worker.key_id == RING.current_key_id(job.uid)
    assert bench.cluster.agent_key(job, worker) == RING.key(job.uid, worker.key_id)
    stored, shown = bench.find("v1", "secrets", secret), bench.pod(name)
    assert stored is not None
    assert shown is not None
    assert int(stored["metadata"]["resourceVersion"]) < int(shown["metadata"]["resourceVersion"])
    bench.api.delete(path("v1", "secrets", bench.namespace, secret))
    bench.cluster._made_keys.clear()  # as after KEY_SECONDS
    await create(bench, job, place=1)
    assert bench.find("v1", "secrets", secret) is not None


async def test_job_key_of_a_pod_that_cannot_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose Secret is gone waits for it; the next comparison makes it again."""
    monkeypatch.setattr(kubernetes, "KEY_SECONDS", -60.0)  # all pods are older
    job = await bench.submit(plain_job())
    bind(bench, await create(bench, job))
    secret = key_secret_name(job, RING.current_key_id(job.uid))
    bench.api.delete(path("v1", "secrets", bench.namespace, secret))
    await bench.cluster.relist()  # sees that the pod has a node
    assert bench.find("v1", "secrets", secret) is not None


async def test_many_at_once_ask_for_the_key_once(bench: Bench) -> None:
    """Ten workers created at the same time cost one try at the Secret."""
    job = await bench.submit(plain_job())
    await asyncio.gather(*(create(bench, job, place=place) for place in range(10)))
    assert bench.made.api.requests["create", "secrets", 201] == 1
    assert len(await bench.cluster.workers(job)) == 10


async def test_pod_that_is_there_already(bench: Bench, control_plane: ControlPlane) -> None:
    """A pod that a predecessor created counts as created, though nobody told us of it."""
    job = await bench.submit(plain_job())
    async with kube(control_plane.kubeconfig) as other:
        await create(bench, job)
        await other.cluster.create_worker(job, "train-0-1", 0, 1)
        assert [worker.name for worker in await other.cluster.workers(job)] == ["train-0-1"]


async def test_name_is_taken(bench: Bench) -> None:
    """A pod of somebody else under our name is refused, with the fix, and is not deleted by us."""
    job = await bench.submit(plain_job())
    container = {"name": "a", "image": "b"}
    bench.create("v1", "pods", {"metadata": {"name": "train-0-1"}, "spec": {"containers": [container]}})
    with pytest.raises(ClusterRefused, match="delete it, or give the job another name") as error:
        await create(bench, job)
    assert error.value.reason == "NameTaken"
    await bench.cluster.delete_worker(job, "train-0-1", 0)
    assert bench.pod("train-0-1") is not None


async def test_a_pod_without_our_label(bench: Bench) -> None:
    """One that somebody took our label from, and the watch so calls deleted, is told of, and is a worker
    again with the label."""
    job = await bench.submit(plain_job())
    name, cache = await create(bench, job), bench.made.cache
    where = path("v1", "pods", bench.namespace, name)
    bench.api.patch(where, {"metadata": {"labels": {LABEL_MANAGED_BY: None}}})
    cache.apply("pod", "DELETED", bench.api.get(where))
    assert await bench.cluster.workers(job) == []
    with pytest.raises(ClusterRefused, match="back, or delete the pod") as error:
        await create(bench, job)
    assert error.value.reason == "LabelRemoved"
    bench.api.patch(where, {"metadata": {"labels": {LABEL_MANAGED_BY: MANAGED_BY}}})
    await create(bench, job)
    assert [worker.name for worker in await bench.cluster.workers(job)] == [name]


async def test_pod_of_an_earlier_job(bench: Bench) -> None:
    """A pod of the job that had the name before is waited for, not taken over."""
    first = await bench.submit(plain_job())
    await create(bench, first)
    stored = bench.find(*JOBS, "train")
    assert stored is not None
    bench.api.delete(path(*JOBS, bench.namespace, "train"), propagationPolicy="Orphan")
    await asyncio.to_thread(wait_until, lambda: not bench.find(*JOBS, "train"), 60, "the job to go")
    bench.made.cache.apply("job", "DELETED", stored)
    second = await bench.submit(plain_job())
    assert second.uid != first.uid
    with pytest.raises(RetryableError, match="earlier job"):
        await create(bench, second)
    assert await bench.cluster.workers(second) == []


async def test_quota(bench: Bench) -> None:
    """A full quota is a refusal that names it, and no problem of the spec."""
    bench.create("v1", "resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}})
    job = await bench.submit(plain_job())

    async def refused() -> ClusterRefused | None:
        try:
            await create(bench, job)
        except ClusterRefused as error:
            return error
        await bench.cluster.delete_worker(job, "train-0-1", 0)  # the quota was not in force yet
        return None

    async with asyncio.timeout(20):
        while (error := await refused()) is None:
            await asyncio.sleep(0.05)
    assert error.reason == "QuotaExceeded"
    assert "few" in str(error)
    assert await bench.cluster.check(job) == ()


# ---- comparing ---------------------------------------------------------------------------------------


async def test_relist_finds_what_nobody_told(bench: Bench, control_plane: ControlPlane) -> None:
    """Jobs and pods that came or went unseen are found; what others do in between is kept."""
    job = await bench.submit(plain_job())
    name = await create(bench, job)
    async with kube(control_plane.kubeconfig) as other:
        assert (await other.cluster.job(job.key)) is not None
        assert [worker.name for worker in await other.cluster.workers(job)] == [name]
        bench.api.delete(path("v1", "pods", bench.namespace, name), gracePeriodSeconds=0)
        bench.create(*JOBS, plain_job("second"))
        await other.cluster.relist()
        assert await other.cluster.workers(job) == []
        assert await other.cluster.job(f"{bench.namespace}/second") is not None


async def test_orphans_are_deleted(bench: Bench) -> None:
    """A pod whose job is gone is deleted, though somebody has cut its ties to it; others are not."""
    job, other = await bench.submit(plain_job()), await bench.submit(plain_job("other"))
    name, kept = await create(bench, job), await create(bench, other)
    for pod in (name, kept):
        bench.api.patch(path("v1", "pods", bench.namespace, pod), {"metadata": {"ownerReferences": None}})
    bench.api.delete(path(*JOBS, bench.namespace, "train"))
    await bench.cluster.relist()
    assert bench.pod(name) is None
    assert bench.pod(kept) is not None


async def test_last_words_of_a_member(bench: Bench) -> None:
    """A member whose pod was found gone by a list stays visible as one that has ended."""
    job = await bench.submit(plain_job())
    name = await create(bench, job)
    member = MemberStatus(
        worker=name, place=0, incarnation=1, address="a", agent_port=1, first_rank=0, ranks=1
    )
    attempt = AttemptStatus(number=1, members=(member,), state="running")
    job = await bench.cluster.write_status(job, JobStatus(attempt=attempt))
    bench.api.delete(path("v1", "pods", bench.namespace, name), gracePeriodSeconds=0)
    await bench.cluster.relist()
    [worker] = await bench.cluster.workers(job)
    assert (worker.name, worker.phase, worker.deleting) == (name, "failed", True)
    before = bench.made.api.requests.total()
    await bench.cluster.delete_worker(job, name, 0)
    assert bench.made.api.requests.total() == before


# ---- checks ------------------------------------------------------------------------------------------


async def test_good_job_has_no_problems(bench: Bench) -> None:
    """A job that can run has none, and the check leaves nothing behind."""
    job = await bench.submit(plain_job())
    assert await bench.cluster.check(job) == ()
    assert bench.list("v1", "pods") == []


CLAIM = "spec.checkpoint.persistentVolumeClaim.claimName"
WORKER = {"name": "worker", "image": "x", "command": ["a"]}


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"containers": [{**WORKER, "imge": "y"}]}, "containers[0].imge", "TemplateInvalid"),
        (
            {"containers": [{**WORKER, "image": ""}]},
            "spec.template.spec.containers[0].image",
            "TemplateInvalid",
        ),
        (
            {"containers": [{**WORKER, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
            "spec.template.spec.containers[0].resources.requests",
            "TemplateInvalid",
        ),
        (
            {"containers": [{**WORKER, "volumeMounts": [{"name": "no", "mountPath": "/no"}]}]},
            "spec.template.spec.containers[0].volumeMounts[0].name",
            "TemplateInvalid",
        ),
        ({"serviceAccountName": "nobody"}, "spec.template.spec.serviceAccountName", "ServiceAccountNotFound"),
        ({"priorityClassName": "no"}, "spec.template.spec.priorityClassName", "PriorityClassNotFound"),
    ],
)
async def test_bad_templates(bench: Bench, spec: Raw, field: str, reason: str) -> None:
    """What the API server objects to is told with the field of the job, before anything is created."""
    bench.create("v1", "persistentvolumeclaims", claim())
    found = await bench.problems(plain_job(template=template(**spec)))
    assert [(name.endswith(field), told, fatal) for name, told, fatal in found] == [(True, reason, True)]


async def test_pod_security(control_plane: ControlPlane, made: Kube, restricted_namespace: str) -> None:
    """What the namespace's security standard forbids is told with the field."""
    bench = Bench(control_plane.api, made, restricted_namespace)
    bench.create("v1", "persistentvolumeclaims", claim())
    [problem] = await bench.problems(plain_job(template=template(hostNetwork=True)))
    assert problem == ("spec.template.spec", "PodSecurity", True)


async def test_claims(bench: Bench) -> None:
    """No claim, one that can't be shared, and one that can."""
    assert await bench.problems(plain_job("none")) == [(CLAIM, "ClaimNotFound", True)]
    bench.create("v1", "persistentvolumeclaims", claim("once", "ReadWriteOnce"))
    once = {"persistentVolumeClaim": {"claimName": "once"}}
    assert await bench.problems(plain_job("many", checkpoint=once)) == [(CLAIM, "ClaimNotShared", True)]
    apart = {"persistentVolumeClaim": {"claimName": "once", "path": "apart"}}
    assert await bench.problems(plain_job("alone", checkpoint=apart, workers={"replicas": 1})) == []


async def test_shared_store(bench: Bench) -> None:
    """Of two jobs with one store one is refused, the younger; of two of the same second always the same."""
    jobs = [await bench.submit(plain_job(name)) for name in ("one", "two")]
    for _ in range(2):
        found = [problem.reason for job in jobs for problem in await bench.cluster.check(job)]
        assert found == ["StoreShared"]


async def test_secret_of_object_storage(bench: Bench) -> None:
    """A missing Secret is told, one that is there is not; its data is not asked for."""
    s3 = {"s3": {"bucket": "bucket", "secretName": "keys"}}
    [problem] = await bench.problems(plain_job("a", checkpoint=s3))
    assert problem == ("spec.checkpoint.s3.secretName", "SecretNotFound", True)
    bench.create("v1", "secrets", {"metadata": {"name": "keys"}, "stringData": {"a": "b"}})
    assert await bench.problems(plain_job("b", checkpoint={"s3": {**s3["s3"], "prefix": "b"}})) == []


# ---- rights ------------------------------------------------------------------------------------------

OPERATOR = [
    {"apiGroups": ["resumable.dev"], "resources": [JOBS[1]], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": ["resumable.dev"], "resources": [f"{JOBS[1]}/status"], "verbs": ["update"]},
    {"apiGroups": ["resumable.dev"], "resources": [f"{JOBS[1]}/finalizers"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
]


def allow(bench: Bench, plane: ControlPlane, rules: list[Raw]) -> Any:
    """A service account with these rights in the namespace alone; its kubeconfig."""
    bench.create("v1", "serviceaccounts", {"metadata": {"name": "operator"}})
    group = "rbac.authorization.k8s.io/v1"
    bench.create(group, "roles", {"metadata": {"name": "operator"}, "rules": rules})
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": bench.namespace}],
    }
    bench.create(group, "rolebindings", binding)
    return plane.kubeconfig_for("operator", bench.namespace)


async def test_rights_in_one_namespace_suffice(bench: Bench, control_plane: ControlPlane) -> None:
    """With rights in one namespace and none beyond it all works, without nodes; Secrets are not read."""
    config = allow(bench, control_plane, OPERATOR)
    s3 = {"s3": {"bucket": "bucket", "secretName": "keys"}}
    bench.create(*JOBS, plain_job("stored", checkpoint=s3))
    bench.create(*JOBS, plain_job())
    bench.create("v1", "persistentvolumeclaims", claim())
    async with kube(config, namespaces=(bench.namespace,)) as made:
        jobs = {job.name: job for job in await made.cluster.jobs()}
        job = jobs["train"]
        assert [await made.cluster.check(found) for found in jobs.values()] == [(), ()]
        job = await made.cluster.write_status(job, JobStatus(step=1))
        await made.cluster.create_worker(job, "train-0-1", 0, 1)
        await made.cluster.emit_event(job, "Normal", "Odd", "x")
        await made.cluster.emit_event(job, "Normal", "Odd", "x")
        assert await made.cluster.nodes(job) == {}
        assert not made.cluster.node_signals
        await made.cluster.delete_worker(job, "train-0-1", 0)
        await made.cluster.relist()
        await made.cluster.delete_job(job)
        refused = {key for key in made.api.requests if key[2] == 403}
    assert refused == {("get", "secrets", 403)}
    assert [event["count"] for event in bench.events("Odd")] == [2]


async def test_missing_rights_are_told(bench: Bench, control_plane: ControlPlane) -> None:
    """Without the right to create pods the check says which right is missing, and so does creating."""
    rules = [rule for rule in OPERATOR if rule["resources"] not in (["pods"], ["persistentvolumeclaims"])]
    watch = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    config = allow(bench, control_plane, [*rules, watch])
    bench.create(*JOBS, plain_job())
    async with kube(config, namespaces=(bench.namespace,)) as made:
        [job] = await made.cluster.jobs()
        problems = await made.cluster.check(job)
        assert [(x.reason, x.fatal) for x in problems] == [("Forbidden", True), ("Forbidden", False)]
        assert "Grant create on pods" in problems[0].message
        with pytest.raises(ClusterRefused, match="Grant create on pods"):
            await made.cluster.create_worker(job, "train-0-1", 0, 1)


async def test_no_right_to_list(control_plane: ControlPlane, namespace: str, bench: Bench) -> None:
    """An account that may not even list is refused at the first comparison, with the right that it lacks."""
    config = allow(bench, control_plane, OPERATOR[3:])
    with pytest.raises(ClusterRefused, match="Grant list on resumabletrainingjobs"):
        async with kube(config, namespaces=(namespace,)):
            raise AssertionError("it was let in")


async def test_unknown_worker_is_looked_for(bench: Bench, control_plane: ControlPlane) -> None:
    """A pod that was never told of is found and deleted all the same, if it is the job's own."""
    job = await bench.submit(plain_job())
    async with kube(control_plane.kubeconfig) as other:
        name = await create(bench, job)
        assert await other.cluster.workers(job) == []
        await other.cluster.delete_worker(job, name, 0)
        await other.cluster.delete_worker(job, "train-7-7", 0)
    assert bench.pod(name) is None


async def test_api_server_is_away(own_plane: ControlPlane) -> None:
    """With no API server what is known stays known, writes are retryable, telling does not raise."""
    own_plane.define_kind(crd())  # the bed's processes die with the thread that starts them
    async with kube(own_plane.kubeconfig) as made:
        bench = Bench(own_plane.api, made, "default")
        job = await bench.submit(plain_job())
        await create(bench, job)
        own_plane.stop_apiserver()
        with pytest.raises(RetryableError):
            await made.cluster.relist()
        with pytest.raises(RetryableError):
            await made.cluster.write_status(job, JobStatus(step=1))
        with pytest.raises(RetryableError):
            await create(bench, job, place=1)
        await made.cluster.emit_event(job, "Normal", "Odd", "x")
        assert await made.cluster.job(job.key) == job
        assert [worker.name for worker in await made.cluster.workers(job)] == ["train-0-1"]
        own_plane.start_apiserver()
        await made.cluster.relist()
        assert (await made.cluster.write_status(job, JobStatus(step=1))).status.step == 1
        await create(bench, job, place=1)
        assert len(await made.cluster.workers(job)) == 2
