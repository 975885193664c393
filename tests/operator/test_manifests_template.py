"""Templates that can't become workers are refused, with the field; any other nonsense is no crash."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_pods import job_of, pod_of, worker_of

from resumable_operator.decide.observation import Job
from resumable_operator.errors import SpecError
from resumable_operator.model import JobStatus, parse_spec
from resumable_training.contract import env

WORKER = "spec.template.spec.containers[0]"


@pytest.mark.parametrize(
    ("template_spec", "field", "says"),
    [
        ({"containers": [{"name": "worker"}]}, "spec.template.spec.containers[].command", "ENTRYPOINT"),
        ({"containers": []}, "spec.template.spec.containers", "at least one"),
        ({"restartPolicy": "OnFailure"}, "spec.template.spec.restartPolicy", "Never"),
        ({"volumes": [{"name": "resumable-shm"}]}, "spec.template.spec.volumes[0].name", "another name"),
        (
            {"volumes": [{"name": "a"}, {"name": "resumable-scratch"}]},
            "spec.template.spec.volumes[1].name",
            "resumable-scratch",
        ),
        (
            {"initContainers": [{"name": "resumable-agent"}]},
            "spec.template.spec.initContainers[0].name",
            "resumable-agent",
        ),
        ({"tolerations": "all"}, "spec.template.spec.tolerations", "list"),
        ({"tolerations": ["all"]}, "spec.template.spec.tolerations[0]", "mapping"),
        ({"securityContext": 1000}, "spec.template.spec.securityContext", "mapping"),
        ({"resources": {"limits": 3}}, "spec.template.spec.resources.limits", "mapping"),
        ({"affinity": {"nodeAffinity": []}}, "spec.template.spec.affinity.nodeAffinity", "mapping"),
        ({"volumes": {"name": "x"}}, "spec.template.spec.volumes", "list"),
        (
            {"terminationGracePeriodSeconds": "60"},
            "spec.template.spec.terminationGracePeriodSeconds",
            "number",
        ),
    ],
)
def test_refused_pods(template_spec: dict[str, Any], field: str, says: str) -> None:
    """What the operator could not make a worker of is said with its path and what to do."""
    with pytest.raises(SpecError, match=says) as caught:
        pod_of(job_of(template_spec))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("worker", "field", "says"),
    [
        ({"name": "resumable-agent"}, f"{WORKER}.name", "another name"),
        ({"restartPolicy": "Always"}, f"{WORKER}.restartPolicy", "Never"),
        ({"ports": [{"containerPort": 8470}]}, f"{WORKER}.ports[0].containerPort", "8470"),
        ({"ports": [{"containerPort": 1}, {"name": "rtj-agent"}]}, f"{WORKER}.ports[1].name", "rtj-agent"),
        ({"volumeMounts": [{"mountPath": "/opt/resumable"}]}, f"{WORKER}.volumeMounts[0].mountPath", "agent"),
        (
            {"volumeMounts": [{"mountPath": "/opt/resumable/x"}]},
            f"{WORKER}.volumeMounts[0].mountPath",
            "agent",
        ),
        (
            {"volumeMounts": [{"mountPath": "/etc//resumable/"}]},
            f"{WORKER}.volumeMounts[0].mountPath",
            "agent",
        ),
        ({"env": [{"name": "RESUMABLE_JOB", "value": "x"}]}, f"{WORKER}.env[0].name", "RESUMABLE_JOB"),
        ({"env": [{"name": "A"}, {"name": "WORLD_SIZE"}]}, f"{WORKER}.env[1].name", "WORLD_SIZE"),
        ({"env": [{"name": "RESUMABLE_TYPO", "value": "x"}]}, f"{WORKER}.env[0].name", "RESUMABLE_TYPO"),
        (
            {"resources": {"limits": 3}},
            "spec.template",
            r"containers\[0\].resources.limits must be a mapping",
        ),
        ({"securityContext": {"capabilities": []}}, f"{WORKER}.securityContext.capabilities", "mapping"),
    ],
)
def test_refused_workers(worker: dict[str, Any], field: str, says: str) -> None:
    """The same for the worker's container."""
    with pytest.raises(SpecError, match=says) as caught:
        pod_of(job_of(worker=worker))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "mine"}, "spec.template.metadata.name"),
        ({"ownerReferences": []}, "spec.template.metadata.ownerReferences"),
        ({"labels": {"resumable.dev/job": "x"}}, "spec.template.metadata.labels[resumable.dev/job]"),
        (
            {"labels": {"app.kubernetes.io/managed-by": "Helm"}},
            "spec.template.metadata.labels[app.kubernetes.io/managed-by]",
        ),
        (
            {"annotations": {"resumable.dev/key-id": "x"}},
            "spec.template.metadata.annotations[resumable.dev/key-id]",
        ),
        ({"labels": ["a"]}, "spec.template.metadata.labels"),
    ],
)
def test_refused_metadata(metadata: dict[str, Any], field: str) -> None:
    """Labels that the operator finds its pods by, and names, are not the template's to give."""
    with pytest.raises(SpecError) as caught:
        pod_of(job_of(metadata=metadata))
    assert caught.value.field == field


def test_null_creation_time_is_harmless() -> None:
    """Tools that print templates write it."""
    assert pod_of(job_of(metadata={"creationTimestamp": None}))["kind"] == "Pod"


def test_unknown_part_of_a_template() -> None:
    """A slip of the pen beside metadata and spec is not ignored."""
    spec = parse_spec({"workers": {"replicas": 1}, "template": {"specs": {}, **job_of().spec.template}})
    with pytest.raises(SpecError) as caught:
        pod_of(Job("team", "train", "uid-1", 1, spec, JobStatus()))
    assert caught.value.field == "spec.template.specs"


def test_claim_and_own_mount_at_one_place() -> None:
    """Both at /checkpoints can't be."""
    worker = {"volumeMounts": [{"name": "v", "mountPath": "/checkpoints/"}]}
    job = job_of(
        {"volumes": [{"name": "v"}]}, worker=worker, checkpoint={"persistentVolumeClaim": {"claimName": "c"}}
    )
    with pytest.raises(SpecError, match="persistentVolumeClaim is mounted") as caught:
        pod_of(job)
    assert caught.value.field == f"{WORKER}.volumeMounts[0].mountPath"


def test_sample_traces_may_be_asked_for() -> None:
    """The one variable of that family that is the user's."""
    own = {"name": env.TRACE_DIR, "value": "/checkpoints/traces"}
    assert own in worker_of(pod_of(job_of(worker={"env": [own]})))["env"]


def test_sidecars_may_have_their_own_directories_and_variables() -> None:
    """What the agent needs in the worker's container is free in others."""
    side = {
        "name": "side",
        "image": "i",
        "env": [{"name": "RANK", "value": "1"}],
        "volumeMounts": [{"name": "v", "mountPath": "/opt/resumable"}],
    }
    worker = {"name": "worker", "image": "i", "command": ["c"]}
    made = pod_of(job_of({"containers": [worker, side], "volumes": [{"name": "v", "emptyDir": {}}]}))
    assert made["spec"]["containers"][1]["env"] == side["env"]


def test_the_first_container_is_the_worker_without_a_name_for_it() -> None:
    """Two containers that look the same are still told apart."""
    same = {"image": "i", "command": ["c"]}
    made = pod_of(job_of({"containers": [{"name": "a", **same}, {"name": "a", **same}]}))
    commands = [container["command"][0] for container in made["spec"]["containers"]]
    assert commands == ["python3", "c"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "worker", "1Gi", "Exists"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "key", "limits", "memory", "add"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PATHS = [
    ("metadata",),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("metadata", "finalizers"),
    *(
        ("spec", name)
        for name in (
            "volumes",
            "tolerations",
            "affinity",
            "initContainers",
            "imagePullSecrets",
            "securityContext",
            "resources",
            "serviceAccountName",
            "terminationGracePeriodSeconds",
            "restartPolicy",
        )
    ),
    *(
        ("spec", "containers", 0, name)
        for name in (
            "ports",
            "volumeMounts",
            "resources",
            "securityContext",
            "readinessProbe",
            "restartPolicy",
        )
    ),
    ("spec", "affinity", "nodeAffinity"),
    ("spec", "containers", 0, "securityContext", "capabilities"),
    ("spec", "containers", 0, "resources", "limits"),
]


@given(st.lists(st.tuples(st.sampled_from(PATHS), JUNK), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_any_template(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """A template of any shape gives a pod, for the API server to judge, or an error with a field."""
    template: Any = copy.deepcopy(job_of().spec.template)
    template.setdefault("metadata", {})
    for where, value in changes:
        parent = template
        for step in where[:-1]:
            following = parent[step] if isinstance(step, int) else parent.setdefault(step, {})
            if not isinstance(following, dict | list):
                break
            parent = following
        else:
            if isinstance(parent, dict):
                parent[where[-1]] = value
    assert outcome(template).startswith("spec.template")


def outcome(template: dict[str, Any]) -> str:
    """The field that is refused; or that of the template, when a pod was made that JSON can hold."""
    try:
        spec = parse_spec({"workers": {"replicas": 1}, "template": template})
        job = Job("team", "train", "uid-1", 1, spec, JobStatus())
        made = pod_of(job, avoid=("node-1",))
    except SpecError as refused:
        return refused.field
    return "spec.template" if json.loads(json.dumps(made)) == made else "not JSON"
