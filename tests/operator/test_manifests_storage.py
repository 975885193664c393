"""Volumes: where checkpoints, shared memory, the key and scratch space come from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_pods import by_name, job_of, pod_of, worker_of

from resumable_operator.decide.assign import store_root
from resumable_operator.manifests_storage import memory_bytes

GI = 1024**3


def mounted_at(made: dict[str, Any], path: str) -> dict[str, Any]:
    """The volume that the worker has at ``path``."""
    (mount,) = [each for each in worker_of(made)["volumeMounts"] if each["mountPath"] == path]
    return by_name(made["spec"]["volumes"])[mount["name"]]


def test_claim() -> None:
    """The claim is mounted where ranks look for the store."""
    job = job_of(checkpoint={"persistentVolumeClaim": {"claimName": "data", "path": "a/b"}})
    volume = mounted_at(pod_of(job), "/checkpoints")
    assert volume["persistentVolumeClaim"] == {"claimName": "data"}
    assert store_root(job.spec.checkpoint) == "/checkpoints/a/b"


def test_no_claim_no_mount() -> None:
    """Nothing is mounted there without one, and the template may use the place."""
    own = {"volumes": [{"name": "mine", "nfs": {}}]}
    made = pod_of(job_of(own, worker={"volumeMounts": [{"name": "mine", "mountPath": "/checkpoints"}]}))
    assert mounted_at(made, "/checkpoints") == {"name": "mine", "nfs": {}}


def test_s3_credentials_by_reference() -> None:
    """Values of the Secret never appear in the pod; what it need not hold is optional."""
    s3 = {"bucket": "models", "endpoint": "https://s3.example:9000/$(X)", "secretName": "creds"}
    variables = by_name(worker_of(pod_of(job_of(checkpoint={"s3": s3})))["env"])
    for name, optional in {
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
        "AWS_SESSION_TOKEN": True,
        "AWS_REGION": True,
    }.items():
        reference = variables[name]["valueFrom"]["secretKeyRef"]
        assert (reference["name"], reference["key"], reference.get("optional")) == ("creds", name, optional)
    assert variables["AWS_ENDPOINT_URL"]["value"] == "https://s3.example:9000/$$(X)"


def test_s3_with_the_workers_own_identity() -> None:
    """Without a Secret and an endpoint there is nothing to set."""
    names = by_name(worker_of(pod_of(job_of(checkpoint={"s3": {"bucket": "models"}})))["env"])
    assert not any(name.startswith("AWS_") for name in names)


def test_the_templates_variables_win() -> None:
    """A variable that the template sets is not set again."""
    s3 = {"bucket": "models", "endpoint": "https://a", "secretName": "creds"}
    own = [{"name": "AWS_REGION", "value": "eu-1"}, {"name": "AWS_ENDPOINT_URL", "value": "https://b"}]
    variables = by_name(worker_of(pod_of(job_of(worker={"env": own}, checkpoint={"s3": s3})))["env"])
    assert variables["AWS_REGION"] == own[0]
    assert variables["AWS_ENDPOINT_URL"] == own[1]
    assert "valueFrom" in variables["AWS_ACCESS_KEY_ID"]


@pytest.mark.parametrize(
    ("worker", "pods", "size"),
    [
        (None, None, None),
        ({"limits": {"memory": "64Gi"}}, None, 32 * GI),
        ({"limits": {"memory": 8 * GI}}, None, 4 * GI),
        ({"requests": {"memory": "64Gi"}}, None, None),
        (None, {"limits": {"memory": "2Gi"}}, GI),
        ({"limits": {"memory": "4Gi"}}, {"limits": {"memory": "64Gi"}}, 2 * GI),
    ],
)
def test_shared_memory(worker: Any, pods: Any, size: int | None) -> None:
    """In memory, half of the worker's limit; without a limit the kubelet sizes it by the node."""
    made = pod_of(job_of({"resources": pods} if pods else {}, worker={"resources": worker}))
    expected = {"medium": "Memory"} if size is None else {"medium": "Memory", "sizeLimit": str(size)}
    assert mounted_at(made, "/dev/shm")["emptyDir"] == expected


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/dev//shm", "//dev/shm"])
def test_own_shared_memory_wins(path: str) -> None:
    """A template that mounts something there, however it spells it, gets no second one."""
    own = {"volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]}
    made = pod_of(job_of(own, worker={"volumeMounts": [{"name": "dshm", "mountPath": path}]}))
    assert "resumable-shm" not in by_name(made["spec"]["volumes"])
    assert len([each for each in worker_of(made)["volumeMounts"] if "shm" in each["mountPath"]]) == 1


def test_only_the_worker_gets_our_mounts() -> None:
    """Sidecars see neither the key nor the agent."""
    containers = [{"name": "worker", "image": "i", "command": ["c"]}, {"name": "side", "image": "i"}]
    made = pod_of(job_of({"containers": containers}))
    assert "volumeMounts" not in by_name(made["spec"]["containers"])["side"]


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("64Gi", 64 * GI),
        ("1.5Gi", 3 * GI // 2),
        ("1G", 10**9),
        ("129M", 129 * 10**6),
        ("128974848", 128974848),
        (128974848, 128974848),
        ("129e6", 129 * 10**6),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("123Mi", 123 * 1024**2),
        ("1000m", 1),
        ("2k", 2000),
        ("0", None),
        ("-1Gi", None),
        ("1.2.3", None),
        ("Gi", None),
        ("9e99", None),
        (None, None),
        ("", None),
        ({}, None),
    ],
)
def test_quantities(quantity: object, expected: int | None) -> None:
    """Bytes of a memory quantity, in every form that Kubernetes takes."""
    assert memory_bytes(quantity) == expected


@given(st.text(max_size=12) | st.integers() | st.floats() | st.none())
def test_any_quantity(quantity: object) -> None:
    """Nonsense is no limit, and no error: the API server says it better."""
    found = memory_bytes(quantity)
    assert found is None or found >= 0
