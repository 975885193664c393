"""The API server's own judgement of the pods, and the scheduler's of the nodes to avoid."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from worker_pods import KEY_ID, SETTINGS, by_name, job_of, pod_of, worker_of

from bed.api import ApiError, path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator.decide.observation import Job
from resumable_operator.manifests import key_secret, template_field

SCHEDULE_SECONDS = 60.0

JOBS = {
    "plain": job_of(),
    "claim": job_of(checkpoint={"persistentVolumeClaim": {"claimName": "data", "path": "a"}}),
    "s3": job_of(checkpoint={"s3": {"bucket": "models", "endpoint": "http://s3:8333", "secretName": "s"}}),
    "resources": job_of(
        worker={
            "resources": {
                "requests": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2},
                "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2},
            }
        }
    ),
    "gang": job_of(
        {
            "schedulerName": "gang",
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "terminationGracePeriodSeconds": 600,
        },
        {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "annotations": {"a": "b"}},
    ),
    "sidecars": job_of(
        {
            "containers": [
                {"name": "worker", "image": "i", "command": ["python", "$(SCRIPT)"]},
                {"name": "side", "image": "i", "ports": [{"containerPort": 80}]},
            ],
            "initContainers": [{"name": "fetch", "image": "i", "restartPolicy": "Always"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
    ),
    "other user": job_of({"securityContext": {"runAsUser": 5000, "fsGroup": 7}}),
}


def dry_run(plane: ControlPlane, namespace: str, job: Job, **how: Any) -> dict[str, Any]:
    """The pod as the API server would store it."""
    made = pod_of(replace(job, namespace=namespace), **how)
    return plane.api.create(path("v1", "pods", namespace), made, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("name", JOBS)
def test_the_restricted_standard_admits_it(
    control_plane: ControlPlane, restricted_namespace: str, name: str
) -> None:
    """With no security settings of its own every template passes, and no field of ours is unknown."""
    stored = dry_run(control_plane, restricted_namespace, JOBS[name], avoid=("node-1", "node-2"))
    sent = pod_of(JOBS[name])
    assert worker_of(stored)["args"] == worker_of(sent)["args"]
    assert set(by_name(stored["spec"]["volumes"])) >= set(by_name(sent["spec"]["volumes"]))
    assert stored["spec"].get("schedulingGates") == sent["spec"].get("schedulingGates")


def test_quality_of_service_is_the_templates(control_plane: ControlPlane, namespace: str) -> None:
    """A worker whose requests are its limits stays Guaranteed, and the pod asks for no more than it does."""
    stored = dry_run(control_plane, namespace, JOBS["resources"])
    assert stored["status"]["qosClass"] == "Guaranteed"
    assert dry_run(control_plane, namespace, JOBS["plain"])["status"]["qosClass"] == "BestEffort"


def test_no_token_is_mounted(control_plane: ControlPlane, namespace: str) -> None:
    """Admission adds the volume of the service account's token only for a template that names an account."""
    plain = dry_run(control_plane, namespace, job_of())
    named = dry_run(control_plane, namespace, job_of({"serviceAccountName": "default"}))
    assert not any(name.startswith("kube-api-access") for name in by_name(plain["spec"]["volumes"]))
    assert any(name.startswith("kube-api-access") for name in by_name(named["spec"]["volumes"]))


def test_evicted_from_lost_nodes_when_we_say(control_plane: ControlPlane, namespace: str) -> None:
    """The API server adds no five minutes beside our seconds."""
    stored = dry_run(control_plane, namespace, job_of())
    seconds = {each["key"]: each.get("tolerationSeconds") for each in stored["spec"]["tolerations"]}
    assert seconds == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_an_errors_field_is_found_in_the_template(control_plane: ControlPlane, namespace: str) -> None:
    """What the API server refuses is at the same path below the template."""
    job = job_of(
        {"initContainers": [{"name": "a", "image": "i"}, {"name": "b"}], "volumes": [{"name": "V_"}]}
    )
    with pytest.raises(ApiError) as caught:
        dry_run(control_plane, namespace, job)
    fields = {template_field(cause["field"]) for cause in caught.value.causes}
    assert fields == {"spec.template.spec.initContainers[1].image", "spec.template.spec.volumes[0].name"}


def test_a_template_can_leave_the_standard(
    control_plane: ControlPlane, namespace: str, restricted_namespace: str
) -> None:
    """One that asks for privileges gets them where they are allowed, and a clear no elsewhere."""
    job = job_of(
        {"securityContext": {"runAsUser": 0}},
        worker={"securityContext": {"privileged": True}},
    )
    assert worker_of(dry_run(control_plane, namespace, job))["securityContext"] == {"privileged": True}
    with pytest.raises(ApiError, match="violates PodSecurity") as caught:
        dry_run(control_plane, restricted_namespace, job)
    assert "resumable-agent" not in caught.value.message


def test_the_cluster_may_choose_users(control_plane: ControlPlane, namespace: str) -> None:
    """Without a user for the installation the pod is still a valid one."""
    made = dry_run(control_plane, namespace, job_of(), settings=replace(SETTINGS, run_as_user=None))
    assert "runAsUser" not in made["spec"]["securityContext"]


def test_key_secret_is_accepted(control_plane: ControlPlane, namespace: str) -> None:
    """So is the Secret of the key."""
    secret = key_secret(replace(job_of(), namespace=namespace), KEY_ID, bytes(32))
    where = path("v1", "secrets", namespace)
    stored = control_plane.api.create(where, secret, dryRun="All", fieldValidation="Strict")
    assert (stored["immutable"], stored["data"]) == (True, secret["data"])


@pytest.fixture
def two_nodes(control_plane: ControlPlane) -> Iterator[tuple[str, str]]:
    """Two nodes that only pods with the toleration `mine` go to; nobody runs what is placed there."""
    names = [f"avoid-{secrets.token_hex(3)}-{letter}" for letter in "ab"]
    api = control_plane.api
    for name in names:
        node = {
            "metadata": {"name": name, "labels": {"mine": "yes", "only": name}},
            "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]},
        }
        api.create(path("v1", "nodes"), node)
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status = {"capacity": {"pods": "10", "cpu": "8", "memory": "8Gi"}, "conditions": [ready]}
        api.patch_status(path("v1", "nodes", name=name), {"status": status})
    yield names[0], names[1]
    for name in names:
        api.delete(path("v1", "nodes", name=name))


def test_avoided_nodes(control_plane: ControlPlane, namespace: str, two_nodes: tuple[str, str]) -> None:
    """The scheduler takes the other node while there is one, and an avoided one when there is no other."""
    first, second = two_nodes
    for node in two_nodes:  # the scheduler knows both as ready
        assert placed(control_plane, namespace, f"on-{node}", (), only=node) == node
    assert placed(control_plane, namespace, "one", (first,)) == second
    assert placed(control_plane, namespace, "two", (first,)) == second  # although it is fuller
    assert placed(control_plane, namespace, "three", (second,)) == first
    assert placed(control_plane, namespace, "four", (first, second)) in two_nodes


def placed(
    plane: ControlPlane, namespace: str, name: str, avoid: tuple[str, ...], only: str | None = None
) -> str:
    """Where the scheduler puts such a pod."""
    selector = {"mine": "yes"} if only is None else {"only": only}
    job = job_of({"nodeSelector": selector, "tolerations": [{"key": "mine", "operator": "Exists"}]})
    made = pod_of(replace(job, namespace=namespace), avoid=avoid)
    made["metadata"]["name"] = name
    del made["metadata"]["ownerReferences"]  # of no job that exists here
    plane.api.create(path("v1", "pods", namespace), made)
    where = path("v1", "pods", namespace, name)
    wait_until(lambda: "nodeName" in plane.api.get(where)["spec"], SCHEDULE_SECONDS, f"a node for {name}")
    return str(plane.api.get(where)["spec"]["nodeName"])
