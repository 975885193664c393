"""The short pod that reads a claim: what it is made of, what its state means, what its answer says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from job_objects import in_phase, stored_job, worker_pod

from resumable_operator.cli.exitcodes import UsageProblem, for_error
from resumable_operator.cli.reader import ReaderStore, parsed, title_of
from resumable_operator.cli.reader_life import Output
from resumable_operator.cli.reader_pod import (
    CONTAINER,
    Needs,
    Standing,
    misnamed,
    model_from,
    model_of,
    reader_pod,
    standing,
    worker_image,
)
from resumable_operator.cluster.kube_api import Page
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.errors import ClusterRefused, ResumableError
from resumable_operator.manifests import PodSettings, pod
from resumable_training.contract.labels import LABEL_JOB, LABEL_JOB_UID, LABEL_MANAGED_BY, MANAGED_BY

Raw = dict[str, Any]
JOB = job_of(stored_job())


def real_pod(settings: PodSettings | None = None, **template: Any) -> Raw:
    """A worker's pod as the operator makes it."""
    container = {"name": "worker", "image": "train:1", "command": ["python", "train.py"]}
    job = job_of(stored_job(template={"spec": {"containers": [container], **template}}))
    return pod(job, "train-0-1", 0, 1, "key", settings or PodSettings("operator:1"))


def made(model_pod: Raw, node: str = "") -> Raw:
    model = model_from(model_pod)
    assert model is not None
    return reader_pod(JOB, "train-reader-abc", ["list", "--json", "/checkpoints"], model, node, 60)


def test_it_is_no_worker() -> None:
    """Nothing that the operator, a disruption budget or a network policy selects by is on it."""
    meta = made(real_pod())["metadata"]
    assert {LABEL_JOB, LABEL_JOB_UID} & meta["labels"].keys() == set()
    assert meta["labels"][LABEL_MANAGED_BY] != MANAGED_BY


def test_it_goes_with_its_job_and_ends_by_itself() -> None:
    """Even if `rtj` is killed. As an owner only: to block the job's deletion takes rights of its own."""
    body = made(real_pod())
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "resumable.dev/v1alpha1",
            "kind": "ResumableTrainingJob",
            "name": "train",
            "uid": "uid-1",
        }
    ]
    assert body["spec"]["activeDeadlineSeconds"] == 60
    assert body["spec"]["restartPolicy"] == "Never"


def test_it_can_only_read() -> None:
    """No token, a read-only root and volume, no privileges; the claim that the job has."""
    spec = made(real_pod())["spec"]
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [
        {"name": "resumable-checkpoints", "mountPath": "/checkpoints", "readOnly": True}
    ]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "ckpt"}
    assert spec["automountServiceAccountToken"] is False
    context = container["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"].keys() == {"requests", "limits"}


KEY = {
    "name": "AWS_ACCESS_KEY_ID",
    "valueFrom": {"secretKeyRef": {"name": "keys", "key": "AWS_ACCESS_KEY_ID"}},
}


def on_bucket(env: list[Raw], **s3: Any) -> Raw:
    """The reader's spec of a job in a bucket, whose worker has those variables."""
    container = {"name": "worker", "image": "train:1", "command": ["x"], "env": env}
    template = {"spec": {"containers": [container], "serviceAccountName": "trainer"}}
    storage = {"s3": {"bucket": "models", "prefix": "a/b", **s3}}
    job = job_of(stored_job(template=template, checkpoint=storage))
    model = model_of(job, "operator:1", None)
    spec: Raw = reader_pod(job, "n", ["list", "s3://models/a/b"], model, "", 60)["spec"]
    return spec


def test_in_a_bucket_it_gets_the_environment_instead_of_a_volume() -> None:
    """Keys by reference only, and the endpoint; what the template sets for S3 wins, as in a worker."""
    region = {"name": "AWS_REGION", "value": "eu-west-1"}
    spec = on_bucket([region, {"name": "LR", "value": "1"}], endpoint="http://minio:9000", secretName="keys")
    (container,) = spec["containers"]
    assert (spec["volumes"], container["volumeMounts"]) == ([], [])
    assert KEY in container["env"]
    by_name = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert len(by_name) == len(container["env"])
    assert (by_name["AWS_REGION"], by_name["AWS_ENDPOINT_URL"]) == ("eu-west-1", "http://minio:9000")
    assert "LR" not in by_name
    assert "serviceAccountName" not in spec


def test_in_a_bucket_without_keys_it_is_known_as_the_workers_are() -> None:
    """By their service account; no token for the Kubernetes API comes with it."""
    spec = on_bucket([])
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", False)
    assert "serviceAccountName" not in made(real_pod(serviceAccountName="trainer"))["spec"]


async def test_a_bucket_is_read_anywhere_and_by_its_url(cluster) -> None:
    """No claim is asked for, and no node."""
    job = job_of(stored_job(checkpoint={"s3": {"bucket": "models", "prefix": "a"}}))
    session = cluster((stored_job(), []))
    session.api = None  # nothing is asked
    pods = [in_phase(worker_pod(stored_job(), 0), "Running")]
    assert await ReaderStore(session, "train", None, None)._node(job, pods) == ""
    assert title_of(job) == "s3://models/a"


def test_it_takes_image_and_way_to_pull_from_a_worker() -> None:
    """The operator's image has the reader's program, and can be pulled there."""
    settings = PodSettings("op:2", agent_image_pull_policy="Always", image_pull_secrets=("s",))
    spec = made(real_pod(settings, tolerations=[{"key": "gpu"}]))["spec"]
    assert (spec["containers"][0]["image"], spec["containers"][0]["imagePullPolicy"]) == ("op:2", "Always")
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert {"key": "gpu"} in spec["tolerations"]
    assert model_from({"spec": {"initContainers": [{"name": "other", "image": "x"}]}}) is None


@pytest.mark.parametrize(
    ("context", "worker", "user", "groups"),
    [
        ({}, {}, 1000, [1000]),
        ({"runAsUser": 5, "fsGroup": 7, "supplementalGroups": [9]}, {}, 5, [9, 7]),
        ({}, {"runAsUser": 6}, 6, [1000]),
        ({"runAsUser": 0, "fsGroup": None}, {}, 0, None),
    ],
)
def test_it_reads_as_who_writes(context: Raw, worker: Raw, user: int, groups: list[int] | None) -> None:
    """Users and groups of the worker's container; the volume's group without touching the volume's files."""
    container = {"name": "worker", "image": "i", "command": ["x"], "securityContext": worker}
    template = {"spec": {"securityContext": context, "containers": [container]}}
    job = job_of(stored_job(template=template))
    written = pod(job, "train-0-1", 0, 1, "key", PodSettings("operator:1"))
    for model in (model_from(written), model_of(job, "operator:1", None)):
        assert model is not None
        spec = reader_pod(job, "n", [], model, "", 60)["spec"]
        inner = spec["containers"][0]["securityContext"]
        assert spec["securityContext"].get("runAsUser") == user
        assert inner["runAsUser"] == user
        assert inner["runAsNonRoot"] is (user != 0)
        assert spec["securityContext"].get("supplementalGroups") == groups
        assert "fsGroup" not in spec["securityContext"]


def test_the_cluster_may_have_chosen_the_user() -> None:
    """Where an installation leaves users to the cluster, so does the reader."""
    spec = made(real_pod(PodSettings("operator:1", run_as_user=None)))["spec"]
    assert "runAsUser" not in spec["securityContext"]
    assert "runAsUser" not in spec["containers"][0]["securityContext"]


def test_on_one_node_through_the_scheduler() -> None:
    """By the node's name, which the scheduler weighs with the room there; else anywhere."""
    affinity = made(real_pod(), "node-3")["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-3"]}]
    assert "affinity" not in made(real_pod())["spec"]


def copying(needs: Needs, **template: Any) -> Raw:
    """The spec of a pod that does more than to read."""
    model = model_from(real_pod(**template))
    assert model is not None
    spec: Raw = reader_pod(JOB, "n", ["copy"], model, "", 60, needs)["spec"]
    return spec


def test_one_that_copies_has_the_target_claim_too() -> None:
    """It is given to the workers' group, as the job's own was; to mount one claim twice takes one volume."""
    spec = copying(Needs(writes=True, claim="kept"))
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]] == ["ckpt", "kept"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert [(mount["mountPath"], mount.get("readOnly", False)) for mount in mounts] == [
        ("/checkpoints", False),
        ("/target", False),
    ]
    context = spec["securityContext"]
    assert (context["fsGroup"], context["fsGroupChangePolicy"]) == (1000, "OnRootMismatch")
    same = copying(Needs(writes=True, claim="ckpt"))
    assert len(same["volumes"]) == 1
    assert {mount["name"] for mount in same["containers"][0]["volumeMounts"]} == {"resumable-checkpoints"}


def test_one_that_copies_has_keys_and_memory_as_asked_for() -> None:
    """Memory is reserved only where somebody said how much; a default is but a limit."""
    entry = {"name": "TARGET_AWS_REGION", "value": "x"}
    spec = copying(Needs(env=(entry,), memory=2 << 30, reserved=True))
    (container,) = spec["containers"]
    assert entry in container["env"]
    assert container["resources"]["requests"]["memory"] == str(2 << 30)
    asked = copying(Needs(memory=16 << 30))["containers"][0]["resources"]
    assert (asked["requests"]["memory"], asked["limits"]["memory"]) == (str(256 << 20), str(16 << 30))


def test_the_workers_image_has_torch() -> None:
    """And is pulled as they pull it."""
    container = {"name": "worker", "image": "train:1", "command": ["x"], "imagePullPolicy": "Always"}
    job = job_of(stored_job(template={"spec": {"containers": [container]}}))
    assert worker_image(job) == ("train:1", "Always")


def state(phase: str = "Running", reason: str = "", **told: Any) -> Raw:
    status: Raw = {"phase": phase, "containerStatuses": [{"name": CONTAINER, "state": told}]}
    return {"status": {**status, **({"reason": reason} if reason else {})}}


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
NO_CLAIM = '0/4 nodes are available: persistentvolumeclaim "c" not found.'
BACK_OFF = {"reason": "ImagePullBackOff", "message": "no such image"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({}, Standing("waiting", "Pending")),
        ({"status": {"conditions": [UNSCHEDULED]}}, Standing("waiting", "Unschedulable: 0/4 nodes")),
        (
            {"status": {"conditions": [{**UNSCHEDULED, "message": NO_CLAIM}]}},
            Standing("hopeless", f"Unschedulable: {NO_CLAIM}"),
        ),
        (
            state("Failed", terminated={"exitCode": 128, "reason": "StartError", "message": "no python"}),
            Standing("hopeless", "StartError: no python"),
        ),
        (
            state("Pending", waiting={"reason": "ContainerCreating"}),
            Standing("waiting", "ContainerCreating"),
        ),
        (
            state("Pending", waiting={"reason": "ErrImagePull", "message": "m"}),
            Standing("waiting", "ErrImagePull: m"),
        ),
        (state("Pending", waiting=BACK_OFF), Standing("hopeless", "ImagePullBackOff: no such image")),
        (state(running={}), Standing("running")),
        (state("Succeeded", terminated={"exitCode": 0, "reason": "Completed"}), Standing("ended", code=0)),
        (state("Failed", terminated={"exitCode": 1, "reason": "Error"}), Standing("ended", code=1)),
        (
            state("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}),
            Standing("failed", "OOMKilled"),
        ),
        (
            state("Failed", "DeadlineExceeded", terminated={"exitCode": 143, "reason": "Error"}),
            Standing("failed", "DeadlineExceeded"),
        ),
        (
            {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}},
            Standing("failed", "Evicted: disk"),
        ),
        (
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [{"name": "mesh", "state": {"running": {}}}],
                }
            },
            Standing("waiting", "Pending"),
        ),
    ],
)
def test_what_its_state_means(pod: Raw, expected: Standing) -> None:
    """By its own container; what goes on by itself, what ended, and what never will."""
    assert standing(pod) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Unschedulable: {NO_CLAIM}", True),
        ('CreateContainerConfigError: secret "keys" not found', True),
        ("CreateContainerConfigError: couldn't find key AWS_ACCESS_KEY_ID in Secret ns/keys", True),
        ("InvalidImageName: Upper/Case", True),
        ("ImagePullBackOff: no such image", False),
        ("Unschedulable: 0/4 nodes are available: 4 Insufficient memory.", False),
    ],
)
def test_what_is_named_wrong_is_told_from_trouble(text: str, expected: bool) -> None:
    """A Secret or claim that is not there is the command line's fault; a registry's silence is not."""
    assert misnamed(text) is expected


# ---- its answer ----------------------------------------------------------------------------------------

ITEMS = [{"name": "step-00000010.1", "foreign": False}]


@pytest.mark.parametrize("text", ["", "a warning on standard error\n", "[W] a warning\n"])
@pytest.mark.parametrize("code", [0, 1, 6])
def test_the_list_is_found_among_other_words(text: str, code: int) -> None:
    """A pod's log has standard error in it. 1 and 6 are verdicts of `verify`."""
    assert parsed(Output(f"{text}{json.dumps(ITEMS, indent=2)}\nbye\n", code), "claim c") == ITEMS


@pytest.mark.parametrize(
    ("text", "code", "message", "exit_code"),
    [
        ("Error: /checkpoints/a holds no complete checkpoint\n", 2, "holds no complete checkpoint", 2),
        ("Error: /checkpoints/a: no such directory; give x\n", 2, "no checkpoint was made there yet", 2),
        ("warning\nError: Input/output error\n", 6, "claim c: Input/output error", 6),
        ("Error: step-1 is damaged: x\n", 1, "claim c: step-1 is damaged: x", 1),
        ("python: No module named resumable_operator\n", 1, "No module named", 6),
        ("Traceback\nZeroDivisionError\n", 6, "claim c: ZeroDivisionError", 6),
        ("", 0, "the reader said nothing", 6),
        ("nonsense\n", 0, "claim c: nonsense (exit code 0)", 6),
    ],
)
def test_its_errors_are_told_as_if_they_had_happened_here(
    text: str, code: int, message: str, exit_code: int
) -> None:
    """With the exit code that the same error has in a directory."""
    with pytest.raises(ResumableError) as caught:
        parsed(Output(text, code), "claim c")
    assert message in str(caught.value)
    assert for_error(caught.value) == exit_code


# ---- before there is one -------------------------------------------------------------------------------


class Claims:
    """An API that knows one claim, or whose user may not look at claims; and other pods of the namespace."""

    def __init__(self, *modes: str, forbidden: bool = False, others: Iterable[Raw] = ()) -> None:
        self.modes, self.forbidden, self.others = modes, forbidden, others

    async def get(self, resource: object, name: str, namespace: str) -> Raw | None:
        if self.forbidden:
            raise ClusterRefused("Forbidden", "no")
        return {"spec": {"accessModes": list(self.modes)}} if self.modes else None

    async def list(self, resource: object, namespace: str) -> Page:
        return Page(list(self.others), "1")


@pytest.mark.parametrize(
    ("claims", "pods", "node"),
    [
        (Claims("ReadWriteMany"), ["Running"], ""),
        (Claims("ReadWriteOnce"), ["Running"], "node-1"),
        (Claims("ReadWriteOnce"), ["Succeeded", "Pending"], ""),
        (Claims("ReadWriteOnce", "ReadOnlyMany"), ["Running"], ""),
        (Claims("ReadWriteOncePod"), ["Failed"], ""),
        (Claims(forbidden=True), ["Running"], "node-1"),
    ],
)
async def test_where_it_must_run(cluster, claims: Claims, pods: list[str], node: str) -> None:
    """Where the claim is mounted, unless several nodes can mount it; also if one may not know."""
    session = cluster((stored_job(), []))
    session.api = claims
    store = ReaderStore(session, "train", None, None)
    workers = [in_phase(worker_pod(stored_job(), place), phase) for place, phase in enumerate(pods)]
    assert await store._node(JOB, workers) == node


def user_of(claim: str, node: str, phase: str = "Running") -> Raw:
    """Another pod of the namespace."""
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}, {"name": "w", "emptyDir": {}}]
    meta, spec = {"name": f"user-{node}"}, {"nodeName": node, "volumes": volumes}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("others", "node"),
    [
        ([user_of("ckpt", "node-2")], "node-2"),
        ([user_of("kept", "node-3")], "node-3"),
        ([user_of("ckpt", "node-2"), user_of("kept", "node-2")], "node-2"),
        ([user_of("ckpt", "node-2", "Succeeded"), user_of("x", "node-4")], ""),
        ([user_of("ckpt", "")], ""),
    ],
)
async def test_anybody_may_have_a_claim_mounted(cluster, others: list[Raw], node: str) -> None:
    """The job's, while it is suspended, or the target's."""
    session = cluster((stored_job(), []))
    session.api = Claims("ReadWriteOnce", others=others)
    store = ReaderStore(session, "train", None, None)
    assert await store._place(JOB, [], Needs(claim="kept")) == node


@pytest.mark.parametrize(
    ("modes", "others", "message"),
    [
        (
            "ReadWriteOnce",
            [user_of("ckpt", "node-2"), user_of("kept", "node-3")],
            "on node node-2 and claim kept",
        ),
        (
            "ReadWriteOncePod",
            [user_of("kept", "node-3")],
            "claim kept is ReadWriteOncePod and in use by user-node-3",
        ),
    ],
)
async def test_no_node_can_have_both(cluster, modes: str, others: list[Raw], message: str) -> None:
    """Said before a pod waits for ever."""
    session = cluster((stored_job(), []))
    session.api = Claims(modes, others=others)
    with pytest.raises(UsageProblem, match=message):
        await ReaderStore(session, "train", None, None)._place(JOB, [], Needs(claim="kept"))


@pytest.mark.parametrize(
    ("job", "claims", "message"),
    [
        ({}, Claims(), "namespace team has no claim ckpt"),
        ({}, Claims("ReadWriteOncePod"), "ReadWriteOncePod and in use by train-0-1"),
        (
            {"checkpoint": {"directory": {"path": "/data"}}},
            Claims(),
            "in /data: only claims and buckets can be read",
        ),
        ({"checkpoint": {}}, Claims(), "no place that its spec tells"),
    ],
)
def test_what_can_not_be_read_is_said_before_a_pod_is_made(
    cluster, rtj, job: Raw, claims: Claims, message: str
) -> None:
    """With the reason; a usage error."""
    session = cluster((stored_job(**job), [in_phase(worker_pod(stored_job(), 0), "Running")]))
    session.api = claims
    result = rtj("checkpoints", "list", "train", "-n", "team")
    assert result.exit_code == 2
    assert message in result.output
