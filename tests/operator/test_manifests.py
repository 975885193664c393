"""The pod of a worker: what is added to the user's template, and that all else reaches it untouched."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from worker_pods import KEY_ID, SETTINGS, by_name, job_of, pod_of, worker_of

from resumable_operator.manifests import key_secret, key_secret_name, owner_reference, template_field
from resumable_training.agent.__main__ import read_spec
from resumable_training.agent.auth import read_keys
from resumable_training.contract import env, labels, signing

CHOSEN: dict[str, Any] = {
    "schedulerName": "gang",
    "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
    "priorityClassName": "low",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"},
    "hostNetwork": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "subdomain": "ring",
    "imagePullSecrets": [{"name": "registry"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "affinity": {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h"}]}
    },
    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
}


def test_the_template_reaches_the_pod() -> None:
    """All that decides where and how a pod is placed is the template's; the template stays as it was."""
    job = job_of(CHOSEN, {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "annotations": {"a": "b"}})
    before = copy.deepcopy(job.spec.template)
    made = pod_of(job)
    assert {name: made["spec"][name] for name in CHOSEN} == CHOSEN
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert made["metadata"]["annotations"]["a"] == "b"
    assert job.spec.template == before


def test_sidecars_and_init_containers_stay() -> None:
    """Containers of the template keep their order; only the worker runs the agent, and ours comes last."""
    sidecar = {"name": "proxy", "image": "p", "command": ["proxy"], "ports": [{"containerPort": 80}]}
    worker = {"name": "worker", "image": "train:1", "command": ["python"]}
    first = {"name": "fetch", "image": "f", "restartPolicy": "Always"}
    made = pod_of(job_of({"containers": [sidecar, worker], "initContainers": [first]}))
    assert [each["name"] for each in made["spec"]["containers"]] == ["proxy", "worker"]
    proxy = by_name(made["spec"]["containers"])["proxy"]
    assert {name: proxy[name] for name in sidecar} == sidecar
    assert [each["name"] for each in made["spec"]["initContainers"]] == ["fetch", "resumable-agent"]
    assert made["spec"]["initContainers"][0]["restartPolicy"] == "Always"


def test_identity() -> None:
    """Name, labels, annotations and owner are what the operator finds its pods by."""
    job = job_of()
    meta = pod_of(job)["metadata"]
    assert (meta["name"], meta["namespace"]) == ("train-1-1", "team")
    assert meta["labels"] == {
        "app.kubernetes.io/managed-by": "resumable-training",
        "resumable.dev/job": "train",
        "resumable.dev/job-uid": "uid-1",
        "resumable.dev/place": "1",
        "resumable.dev/incarnation": "1",
    }
    assert meta["annotations"] == {
        "resumable.dev/key-id": KEY_ID,
        "kubectl.kubernetes.io/default-container": "worker",
    }
    assert meta["ownerReferences"] == [owner_reference(job)]
    assert owner_reference(job) == {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "name": "train",
        "uid": "uid-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_finalizers_of_the_template_are_kept() -> None:
    """As other controllers do it."""
    assert pod_of(job_of(metadata={"finalizers": ["a/b"]}))["metadata"]["finalizers"] == ["a/b"]
    assert "finalizers" not in pod_of(job_of())["metadata"]


def test_the_agent_is_in_front_of_the_command() -> None:
    """The agent runs the user's argv, which stays in ``args``, so that the kubelet expands it."""
    made = pod_of(job_of(worker={"command": ["python", "train.py"], "args": ["--name", "$(NAME)"]}))
    worker = worker_of(made)
    assert worker["command"] == ["python3", "-I", "-S", "/opt/resumable/agent.pyz", "--"]
    assert worker["args"] == ["python", "train.py", "--name", "$(NAME)"]
    assert worker["ports"] == [{"name": "rtj-agent", "containerPort": 8470, "protocol": "TCP"}]
    assert worker["image"] == "train:1"


def as_started(made: dict[str, Any], address: str) -> tuple[str, list[str]]:
    """Configuration and arguments of the agent, expanded as the kubelet does it."""
    worker = worker_of(made)
    variables = by_name(worker["env"])
    text = variables[env.AGENT_SPEC]["value"]
    pieces = [piece.replace("$(RESUMABLE_POD_ADDRESS)", address) for piece in text.split("$$")]
    return "$".join(pieces), [*worker["command"][4:], *worker["args"]]


def test_the_agent_understands_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own reader finds job, worker, command, address, directories and window in the pod."""
    monkeypatch.setattr("pathlib.Path.mkdir", lambda *_args, **_named: None)
    workers = {"replicas": 2, "preload": {"enabled": False, "modules": ["my.model"]}}
    made = pod_of(job_of(worker={"args": ["--a"]}, recovery={"drainSeconds": 25}, workers=workers))
    spec = read_spec(*as_started(made, "fd00::7"))
    assert (spec.job, spec.job_uid, spec.worker) == ("team/train", "uid-1", "train-1-1")
    assert (spec.place, spec.incarnation, spec.drain_seconds) == (1, 1, 25.0)
    assert spec.command == ("python", "train.py", "--a")
    assert (spec.address, spec.port) == ("fd00::7", 8470)
    mounts = {mount["name"]: mount["mountPath"] for mount in worker_of(made)["volumeMounts"]}
    assert spec.directory == mounts["resumable-scratch"]
    assert spec.log_directory.startswith(spec.directory + "/")
    assert spec.key_file == mounts["resumable-key"] + "/key"
    assert not spec.allow_faults
    assert (spec.preload, spec.preload_modules) == (False, ("my.model",))


def test_the_address_comes_before_what_refers_to_it() -> None:
    """The kubelet expands only variables that are listed earlier; the user's own come first of all."""
    worker = worker_of(pod_of(job_of(worker={"env": [{"name": "NAME", "value": "x"}]})))
    names = [entry["name"] for entry in worker["env"]]
    assert names == ["NAME", env.POD_ADDRESS, env.AGENT_SPEC]
    assert by_name(worker["env"])[env.POD_ADDRESS]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_nothing_else_of_the_configuration_is_expanded() -> None:
    """A dollar sign in a name is not taken for a reference to a variable."""
    job = replace(job_of(), uid="$(HOME)-$$-$(RESUMABLE")
    text, _ = as_started(pod_of(job), "10.0.0.1")
    assert json.loads(text)["job_uid"] == job.uid
    assert json.loads(text)["address"] == "10.0.0.1"


def test_the_agent_is_brought_by_its_image() -> None:
    """The init container writes the bundle to where the worker starts it from."""
    made = pod_of(job_of())
    (init,) = made["spec"]["initContainers"]
    assert init["image"] == "operator:1"
    assert init["imagePullPolicy"] == "IfNotPresent"
    assert init["command"] == ["python", "-m", "resumable_training.agent.bundle", "/opt/resumable/agent.pyz"]
    assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"
    (mount,) = init["volumeMounts"]
    assert mount == {"name": "resumable-agent", "mountPath": "/opt/resumable"}
    assert by_name(made["spec"]["volumes"])["resumable-agent"] == {"name": "resumable-agent", "emptyDir": {}}
    (theirs,) = [each for each in worker_of(made)["volumeMounts"] if each["name"] == "resumable-agent"]
    assert theirs["readOnly"] is True


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, {}),
        ({}, {}),
        (
            {
                "requests": {"cpu": "8", "memory": "64Gi"},
                "limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
            },
            {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"cpu": "8", "memory": "64Gi"}},
        ),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1Gi"}}),
        ({"limits": {"nvidia.com/gpu": 1}}, {}),
    ],
)
def test_the_init_container_needs_nothing_extra(resources: Any, expected: dict[str, Any]) -> None:
    """It asks for the worker's CPU and memory, and no GPU: quota, QoS and placement are as without it."""
    made = pod_of(job_of(worker={"resources": resources}))
    assert made["spec"]["initContainers"][0]["resources"] == expected
    assert worker_of(made).get("resources") == resources


@pytest.mark.parametrize(
    ("own", "drain_seconds", "expected"),
    [(None, 60, 75), (None, 0.2, 16), (30, 60, 75), (300, 60, 300), (0, 10, 25)],
)
def test_grace_period(own: int | None, drain_seconds: float, expected: int) -> None:
    """The drain's window and a margin fit into it; a longer one of the template stays."""
    job = job_of({"terminationGracePeriodSeconds": own}, recovery={"drainSeconds": drain_seconds})
    assert pod_of(job)["spec"]["terminationGracePeriodSeconds"] == expected


def test_never_restarted_by_the_kubelet() -> None:
    """The operator decides about each end of a worker."""
    assert pod_of(job_of())["spec"]["restartPolicy"] == "Never"
    assert pod_of(job_of({"restartPolicy": "Never"}))["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, False),
        ({"serviceAccountName": "storage"}, None),
        ({"serviceAccount": "storage"}, None),
        ({"automountServiceAccountToken": True}, True),
        ({"serviceAccountName": "storage", "automountServiceAccountToken": False}, False),
    ],
)
def test_token_only_for_who_wants_an_identity(own: dict[str, Any], expected: bool | None) -> None:
    """No token, unless the template names a service account or says otherwise."""
    assert pod_of(job_of(own))["spec"].get("automountServiceAccountToken") is expected


def test_service_links() -> None:
    """No variable for each Service, unless the template wants them."""
    assert pod_of(job_of())["spec"]["enableServiceLinks"] is False
    assert pod_of(job_of({"enableServiceLinks": True}))["spec"]["enableServiceLinks"] is True


NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("own", "added"),
    [
        (None, {NOT_READY, UNREACHABLE}),
        ([{"key": "spot", "operator": "Exists"}], {NOT_READY, UNREACHABLE}),
        ([{"key": NOT_READY, "effect": "NoExecute", "tolerationSeconds": 600}], {UNREACHABLE}),
        ([{"key": NOT_READY, "operator": "Exists"}], {UNREACHABLE}),
        ([{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}], {NOT_READY, UNREACHABLE}),
        ([{"operator": "Exists"}], set()),
        ([{"operator": "Exists", "effect": "NoSchedule"}], {NOT_READY, UNREACHABLE}),
    ],
)
def test_tolerations(own: list[dict[str, Any]] | None, added: set[str]) -> None:
    """A pod leaves a lost node after seconds, not five minutes; a template that says something wins."""
    made = pod_of(job_of({"tolerations": own}), replace(SETTINGS, not_ready_seconds=7))["spec"]["tolerations"]
    given = own or []
    assert made[: len(given)] == given
    assert {each["key"] for each in made[len(given) :]} == added
    for each in made[len(given) :]:
        assert (each["operator"], each["effect"], each["tolerationSeconds"]) == ("Exists", "NoExecute", 7)


def test_avoided_nodes_are_a_wish() -> None:
    """They are added to the template's preferences, and demand nothing."""
    preferred = {"weight": 1, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
    own = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": [preferred],
        }
    }
    node = pod_of(job_of({"affinity": own}), avoid=("bad-1", "bad-2"))["spec"]["affinity"]["nodeAffinity"]
    assert node["requiredDuringSchedulingIgnoredDuringExecution"] == required
    first, second = node["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first == preferred
    assert second["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["bad-1"]},
        {"key": "metadata.name", "operator": "NotIn", "values": ["bad-2"]},
    ]
    assert "affinity" not in pod_of(job_of())["spec"]


def test_pull_secrets() -> None:
    """Those of the installation come behind the template's, once each."""
    settings = replace(SETTINGS, image_pull_secrets=("one", "two"), agent_image_pull_policy="Always")
    made = pod_of(job_of({"imagePullSecrets": [{"name": "own"}, {"name": "one"}]}), settings)["spec"]
    assert made["imagePullSecrets"] == [{"name": "own"}, {"name": "one"}, {"name": "two"}]
    assert made["initContainers"][0]["imagePullPolicy"] == "Always"
    assert "imagePullSecrets" not in pod_of(job_of())["spec"]


def test_readiness() -> None:
    """The agent's health, unless the template has a probe of its own."""
    probe = worker_of(pod_of(job_of()))["readinessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": labels.AGENT_PORT_NAME}
    own = {"exec": {"command": ["true"]}}
    assert worker_of(pod_of(job_of(worker={"readinessProbe": own})))["readinessProbe"] == own


def test_ports_are_added_to() -> None:
    """The user's ports stay."""
    own = {"name": "board", "containerPort": 6006}
    assert worker_of(pod_of(job_of(worker={"ports": [own]})))["ports"][0] == own


def test_key_secret(tmp_path: Any) -> None:
    """The agent reads the job's key from it; it belongs to the job and never changes."""
    job, key = job_of(), bytes(range(32))
    secret = key_secret(job, KEY_ID, key)
    assert secret["metadata"]["name"] == key_secret_name(job, KEY_ID) == f"train-key-{KEY_ID}"
    assert secret["metadata"]["ownerReferences"] == [owner_reference(job)]
    assert secret["immutable"] is True
    file = tmp_path / "key"
    file.write_bytes(base64.b64decode(secret["data"]["key"]))
    assert read_keys(file) == {signing.key_id(key): key}


def test_the_key_is_only_in_the_file() -> None:
    """Neither environment nor arguments of the pod hold the key; only the volume names its Secret."""
    job, key = job_of(), bytes(range(32))
    made = pod_of(job)
    text = json.dumps(made)
    assert key.hex() not in text
    assert base64.b64encode(key).decode() not in text
    assert text.count(key_secret_name(job, KEY_ID)) == 1
    volume = by_name(made["spec"]["volumes"])["resumable-key"]
    assert volume["secret"] == {"secretName": key_secret_name(job, KEY_ID), "defaultMode": 0o440}


def test_deterministic() -> None:
    """The same arguments give the same pod, so that creating it twice is harmless."""
    assert pod_of(job_of(CHOSEN)) == pod_of(job_of(CHOSEN))


def test_fields_are_found_in_the_template() -> None:
    """What the API server says about the pod has the same path below the template: nothing is put before."""
    own = {"initContainers": [{"name": "a"}, {"name": "b"}], "volumes": [{"name": "v"}]}
    worker = {
        "env": [{"name": "A"}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "ports": [{"name": "p"}],
    }
    job = job_of(own, worker=worker)
    made, template = pod_of(job)["spec"], job.spec.template["spec"]
    for kind in ("initContainers", "volumes"):
        assert [each["name"] for each in made[kind]][: len(template[kind])] == [
            each["name"] for each in template[kind]
        ]
    for kind in ("env", "volumeMounts", "ports"):
        assert made["containers"][0][kind][0] == template["containers"][0][kind][0]
    assert template_field("spec.containers[0].image") == "spec.template.spec.containers[0].image"
