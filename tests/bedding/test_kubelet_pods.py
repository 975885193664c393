"""Pods on the bed's nodes: what their containers see and how they end, on the real API server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bed.api import Api, ApiError, path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.pod_testing import PodWatch, condition, container, phase, pod, reason, restarts, shell, state
from bed.processes import wait_until

Object = dict[str, Any]

SECONDS = 20.0
IGNORES_TERM = "trap '' TERM; while true; do sleep 0.1; done"


@pytest.fixture
def pods(control_plane: ControlPlane, nodes: Nodes, namespace: str) -> Iterator[PodWatch]:
    """A watch on the pods of a fresh namespace."""
    with PodWatch(control_plane.api, namespace) as watch:
        yield watch


def _create(api: Api, kind: str, namespace: str, name: str, **fields: Any) -> None:
    api.create(path("v1", kind, namespace), {"metadata": {"name": name}, **fields})


def _output(nodes: Nodes, pods: PodWatch, name: str, container_name: str | None = None) -> str:
    """What a container had printed when its pod had ended."""
    pods.until(name, phase("Succeeded", "Failed"))
    return nodes.log_path(pods.namespace, name, container_name).read_text()


def _await_event(api: Api, namespace: str, name: str, why: str) -> None:
    """An event of pod `name` with reason `why`."""

    def seen() -> bool:
        selector = f"involvedObject.name={name}"
        items = api.list(path("v1", "events", namespace), fieldSelector=selector)
        return why in {item["reason"] for item in items}

    wait_until(seen, SECONDS, f"event {why} of {name}")


def _claim(mode: str) -> Object:
    return {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}


def test_endings(nodes: Nodes, pods: PodWatch) -> None:
    """Phase, reason and exit code say how the only container ended."""
    sleeps = "echo up; sleep 1000 & wait"
    cases = {
        "zero": (shell("exit 0"), "Succeeded", "Completed", 0),
        "three": (shell("exit 3"), "Failed", "Error", 3),
        "nothing": (container("no-such-command"), "Failed", "StartError", 128),
        "child": (shell("bash -c 'kill -SEGV $BASHPID'; exit $?"), "Failed", "Error", 139),
        "killed": (shell(sleeps), "Failed", "Error", 137),
        "memory": (shell(sleeps), "Failed", "OOMKilled", 137),
    }
    pods.create(*(pod(name, case[0]) for name, case in cases.items()))
    for name in ("killed", "memory"):
        pods.until(name, phase("Running"))
    os.kill(nodes.pids(pods.namespace, "killed")[0], signal.SIGKILL)
    nodes.oom(pods.namespace, "memory")
    for name, (_, wanted, why, code) in cases.items():
        found = pods.until(name, phase("Succeeded", "Failed"))
        ended = state(found)["terminated"]
        assert (found["status"]["phase"], ended["reason"], ended["exitCode"]) == (wanted, why, code), name
        assert condition(found, "Ready")["status"] == "False"
    assert (
        "executable file not found" in state(pods.until("nothing", phase("Failed")))["terminated"]["message"]
    )


def test_killing_the_first_process_kills_its_children(nodes: Nodes, pods: PodWatch) -> None:
    """PID 1 is the container's command; nothing of a container survives it."""
    script = "bash -c 'setsid sleep 1000 & sleep 1000 & wait' & echo $BASHPID; wait"
    pods.create(pod("family", shell(script), shell("sleep 1000", name="other")))
    pods.until("family", phase("Running"))
    wait_until(lambda: len(nodes.pids(pods.namespace, "family", "main")) == 4, SECONDS, "four processes")
    family = nodes.pids(pods.namespace, "family", "main")
    other = nodes.pids(pods.namespace, "family", "other")
    assert nodes.log_path(pods.namespace, "family").read_text() == "1\n"
    os.kill(family[0], signal.SIGKILL)
    pods.until("family", lambda found: "terminated" in state(found))
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    assert all(Path(f"/proc/{pid}").exists() for pid in other)


def test_environment(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """The environment is what the pod says, a few basics, and nothing of this machine's."""
    _create(control_plane.api, "secrets", pods.namespace, "s", stringData={"k": "secret", "K2": "v2"})
    _create(control_plane.api, "configmaps", pods.namespace, "m", data={"k": "mapped"})
    fields = {
        "IP": "status.podIP",
        "HOST_IP": "status.hostIP",
        "NAME": "metadata.name",
        "NODE": "spec.nodeName",
    }
    env = [
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": value}}} for key, value in fields.items()),
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "URL", "value": "http://$(IP):80/$(MISSING)"},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    main = container(
        "python",
        "-c",
        "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd(), sys.prefix]))",
        args=["$(NAME)", "$$(NAME)"],
        env=env,
        envFrom=[{"prefix": "FROM_", "secretRef": {"name": "s"}}],
        resources={"limits": {"cpu": "2"}},
        workingDir="/opt/made/for/it",
    )
    pods.create(pod("env", main))
    found, arguments, directory, prefix = json.loads(_output(nodes, pods, "env"))
    ended = pods.until("env", phase("Succeeded"))
    address = ended["status"]["podIP"]
    assert arguments == ["env", "$(NAME)"]
    assert directory == "/opt/made/for/it"
    assert prefix in found["PATH"].split(":")[0]
    assert address.startswith("127.")
    basics = {"PATH", "HOME", "LANG", "HOSTNAME"}
    server = {f"KUBERNETES_SERVICE_{part}" for part in ("HOST", "PORT", "PORT_HTTPS")}
    assert {key: value for key, value in found.items() if key not in basics | server} == {
        "IP": address,
        "NAME": "env",
        "NODE": ended["spec"]["nodeName"],
        "HOST_IP": ended["status"]["hostIP"],
        "S": "secret",
        "M": "mapped",
        "URL": f"http://{address}:80/$(MISSING)",
        "CPU": "2",
        "FROM_k": "secret",
        "FROM_K2": "v2",
    }
    assert found["HOSTNAME"] == "env"
    port = control_plane.url.rsplit(":", 1)[1]
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", port)


VOLUMES_SCRIPT = """
cat /data/from-init /claim/from-before /config/one /secret/renamed /single.txt; echo
cat /etc/podinfo/labels; echo
stat -Lc %a /secret/renamed
df --output=size -k /dev/shm /memory | tail -n 2 | xargs
touch /secret/x 2>/dev/null || echo read-only
echo later > /claim/from-main; echo host > /on-host/file
getent hosts $HOSTNAME | awk '{print $1}'
ls /proc | grep -c '^[0-9]' ; ls -A /tmp | wc -l
"""


def test_volumes(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch, tmp_path: Path) -> None:
    """Every kind of volume is mounted where the pod says, inside only, with the content it should have."""
    api, namespace = control_plane.api, pods.namespace
    _create(api, "configmaps", namespace, "m", data={"one": "config ", "two": "single "})
    _create(api, "secrets", namespace, "s", stringData={"key": "secret "})
    _create(api, "persistentvolumeclaims", namespace, "c", spec=_claim("ReadWriteMany"))
    claim_mount = {"name": "c", "mountPath": "/claim"}
    writer = shell("echo -n 'claim ' > /claim/from-before", volumeMounts=[claim_mount])
    claim_volume = {"name": "c", "persistentVolumeClaim": {"claimName": "c"}}
    pods.create(pod("writer", writer, volumes=[claim_volume]))
    pods.until("writer", phase("Succeeded"))

    mounts = {"c": "/claim", "d": "/data", "m": "/config", "s": "/secret", "mem": "/memory", "h": "/on-host"}
    main = shell(
        VOLUMES_SCRIPT,
        volumeMounts=[
            *({"name": name, "mountPath": where} for name, where in mounts.items()),
            {"name": "m", "mountPath": "/single.txt", "subPath": "two"},
            {"name": "p", "mountPath": "/etc/podinfo"},
        ],
    )
    data_mount = {"name": "d", "mountPath": "/d"}
    before = shell("echo -n 'init ' > /d/from-init", name="before", volumeMounts=[data_mount])
    renamed = {"key": "key", "path": "renamed", "mode": 0o400}
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [
        claim_volume,
        {"name": "d", "emptyDir": {}},
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "s", "secret": {"secretName": "s", "items": [renamed]}},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "h", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        {"name": "p", "downwardAPI": {"items": [labels]}},
    ]
    reader = pod("reader", main, initContainers=[before], volumes=volumes)
    reader["metadata"]["labels"] = {"x": "y"}
    pods.create(reader)
    text = _output(nodes, pods, "reader")
    ended = pods.until("reader", phase("Succeeded", "Failed"))
    assert text.splitlines() == [
        "init claim config secret single ",
        'x="y"',
        "400",
        f"{64 << 10} {8 << 10}",
        "read-only",
        ended["status"]["podIP"],
        "3",  # bash, ls, grep: no process of the host
        "0",
    ]
    assert (tmp_path / "file").read_text() == "host\n"
    assert not any(Path(where).exists() for where in ("/claim", "/config", "/secret", "/memory", "/on-host"))


def test_shared_memory_is_as_large_as_its_volume(nodes: Nodes, pods: PodWatch) -> None:
    """A Memory volume at /dev/shm replaces the 64 MiB that a container has."""
    mount = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}]
    script = "df --output=size -k /dev/shm | tail -n 1"
    pods.create(pod("shm", shell(script, volumeMounts=mount), volumes=volumes))
    assert int(_output(nodes, pods, "shm")) == 256 << 10


def test_the_service_account_token_is_accepted(
    control_plane: ControlPlane, nodes: Nodes, pods: PodWatch
) -> None:
    """A pod can speak to the API server with what is mounted for it, as its service account."""
    script = "cat $D/token; echo; cat $D/namespace; echo; cat $D/ca.crt"
    folder = {"name": "D", "value": "/var/run/secrets/kubernetes.io/serviceaccount"}
    pods.create(pod("token", shell(script, env=[folder])))
    token, namespace, *authority = _output(nodes, pods, "token").splitlines()
    assert namespace == pods.namespace
    assert "\n".join(authority).strip() == control_plane.ca_file.read_text().strip()
    with pytest.raises(ApiError) as refused:
        Api(control_plane.url, token, control_plane.ca_file).get(path("v1", "nodes"))
    assert refused.value.status == 403
    assert f"system:serviceaccount:{namespace}:default" in refused.value.message
    assert not Path("/var/run/secrets/kubernetes.io").exists()


def test_a_changed_secret_reaches_a_running_pod(
    control_plane: ControlPlane, nodes: Nodes, pods: PodWatch
) -> None:
    """Mounted Secrets follow the API within some seconds, environment variables do not."""
    api, namespace = control_plane.api, pods.namespace
    _create(api, "secrets", namespace, "s", stringData={"key": "old"})
    main = shell(
        "until grep -q new /secret/key; do sleep 0.1; done; cat /secret/key; echo $KEY",
        volumeMounts=[{"name": "s", "mountPath": "/secret"}],
        env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}],
    )
    pods.create(pod("follows", main, volumes=[{"name": "s", "secret": {"secretName": "s"}}]))
    pods.until("follows", phase("Running"))
    api.patch(path("v1", "secrets", namespace, "s"), {"stringData": {"key": "new"}})
    assert _output(nodes, pods, "follows") == "newold\n"


def test_init_containers_and_sidecars(nodes: Nodes, pods: PodWatch) -> None:
    """In order, each after the one before; a sidecar runs from its turn until all others have ended."""
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    sidecar = shell(
        "echo sidecar >> /d/log; trap 'echo ended >> /d/log; exit 0' TERM; touch /d/ready; sleep 1000 & wait",
        name="sidecar",
        restartPolicy="Always",
        startupProbe={"exec": {"command": ["test", "-e", "/d/ready"]}, "periodSeconds": 1},
        **mount,
    )
    steps = [shell("echo first >> /d/log", name="first", **mount), sidecar]
    steps.append(shell("echo last >> /d/log", name="last", **mount))
    volumes = [{"name": "d", "emptyDir": {}}]
    main = shell("cat /d/log", **mount)
    pods.create(
        pod("order", main, initContainers=steps, volumes=volumes),
        pod("fails", main, initContainers=[shell("exit 4", name="first")], volumes=volumes),
    )
    assert _output(nodes, pods, "order").split() == ["first", "sidecar", "last"]
    found = pods.until("order", phase("Succeeded", "Failed"))
    assert found["status"]["phase"] == "Succeeded"
    assert state(found, "sidecar")["terminated"]["exitCode"] == 0
    failed = pods.until("fails", phase("Succeeded", "Failed"))
    assert failed["status"]["phase"] == "Failed"
    assert state(failed, "first")["terminated"]["exitCode"] == 4
    assert condition(failed, "Initialized")["status"] == "False"
    assert not any("running" in state(item) for _, item in pods.events if item["metadata"]["name"] == "fails")


def test_restart_policies(nodes: Nodes, pods: PodWatch) -> None:
    """OnFailure restarts until 0, Always for ever with a growing delay, and the pod's volumes stay."""
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    third = shell("echo x >> /d/runs; [ $(wc -l < /d/runs) = 3 ]", **mount)
    pods.create(
        pod("third", third, restartPolicy="OnFailure", volumes=[{"name": "d", "emptyDir": {}}]),
        pod("always", shell("exit 5"), restartPolicy="Always"),
    )
    found = pods.until("third", phase("Succeeded", "Failed"))
    assert found["status"]["phase"] == "Succeeded"
    assert [(item["name"], item["restartCount"]) for item in found["status"]["containerStatuses"]] == [
        ("main", 2)
    ]
    waiting = pods.until("always", lambda item: reason(item) == "CrashLoopBackOff")
    assert waiting["status"]["phase"] == "Running"
    assert waiting["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 5


def test_probes(nodes: Nodes, pods: PodWatch) -> None:
    """Readiness decides Ready, liveness restarts, start-up holds both back."""
    serve: Object = {
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": 8123}],
    }
    often = {"periodSeconds": 1, "failureThreshold": 1}
    ready = {
        "http": {"httpGet": {"port": "http"}, **often},
        "missing": {"httpGet": {"port": 8123, "path": "/no"}, **often},
        "tcp": {"tcpSocket": {"port": 8123}, **often},
    }
    server = "python -m http.server --directory /srv --bind $IP 8123"
    pods.create(*(pod(name, shell(server, readinessProbe=probe, **serve)) for name, probe in ready.items()))
    alive = {"exec": {"command": ["test", "-e", "/tmp/alive"]}, **often}
    dies = "trap 'exit 9' TERM; touch /tmp/alive; sleep 1.5; rm /tmp/alive; sleep 1000 & wait"
    slow = shell(
        "sleep 1.5; touch /tmp/alive; sleep 1000",
        livenessProbe=alive,
        startupProbe={**alive, "failureThreshold": 9},
    )
    pods.create(
        pod("dies", shell(dies, livenessProbe=alive), restartPolicy="Always"),
        pod("slow", slow, restartPolicy="Always"),
    )
    for name in ("http", "tcp", "slow"):
        found = pods.until(name, lambda item: condition(item, "Ready").get("status") == "True")
        assert restarts(found) == 0
    assert condition(pods.until("http", phase("Running")), "Ready")["status"] == "False"
    again = pods.until("dies", lambda item: restarts(item) == 1)
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 9
    never = [item for _, item in pods.events if item["metadata"]["name"] == "missing"]
    assert all(condition(item, "Ready").get("status") != "True" for item in never)


def test_what_is_missing_is_waited_for(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """A pod that lacks something stays Pending with the kubelet's reason, and runs when it is there."""
    api, namespace = control_plane.api, pods.namespace
    key = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    mapped = {"name": "v", "configMap": {"name": "late"}}
    claimed = {"name": "v", "persistentVolumeClaim": {"claimName": "late"}}
    pods.create(
        pod("secret", shell("true", env=[key])),
        pod("volume", shell("true", **mount), volumes=[mapped]),
        pod("image", {**shell("true"), "image": "nowhere.example/none:1"}),
        pod("root", shell("true"), securityContext={"runAsNonRoot": True}),
        pod("claim", shell("true", **mount), node="node-1", volumes=[claimed]),
    )
    for name, why in (
        ("secret", "CreateContainerConfigError"),
        ("root", "CreateContainerConfigError"),
        ("image", "ErrImagePull"),
        ("image", "ImagePullBackOff"),
        ("volume", "ContainerCreating"),
        ("claim", "ContainerCreating"),
    ):
        pods.until(name, lambda item, why=why: reason(item) == why)  # type: ignore[misc]
    for name in ("volume", "claim"):
        _await_event(api, namespace, name, "FailedMount")
    assert not any(phase("Running", "Succeeded", "Failed")(item) for _, item in pods.events)
    _create(api, "secrets", namespace, "late", stringData={"k": "v"})
    _create(api, "configmaps", namespace, "late", data={"k": "v"})
    _create(api, "persistentvolumeclaims", namespace, "late", spec=_claim("ReadWriteOnce"))
    for name in ("secret", "volume", "claim"):
        pods.until(name, phase("Succeeded"))


def test_users_and_rights(nodes: Nodes, pods: PodWatch) -> None:
    """User, group, capabilities and a read-only root are real."""
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    script = (
        "id -u; id -G; touch /v/file && stat -c %g /v/file; touch /opt/x 2>/dev/null || echo no; "
        "awk '/^CapEff|^NoNewPrivs/ {print $2}' /proc/self/status; python -c 'print(1)'"
    )
    mount = [{"name": "v", "mountPath": "/v"}]
    main = shell(script, volumeMounts=mount, securityContext=restricted)
    volumes = [{"name": "v", "emptyDir": {}}]
    pods.create(pod("user", main, volumes=volumes, securityContext={"fsGroup": 2000}))
    assert _output(nodes, pods, "user").split() == ["65532", "0", "2000", "2000", "no", "0" * 16, "1", "1"]


def test_termination_messages(nodes: Nodes, pods: PodWatch) -> None:
    """What is written to the termination log, or the end of the log if asked for, is in the status."""
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    pods.create(
        pod("file", shell("echo -n because > /dev/termination-log; exit 1")),
        pod("log", shell("echo last words; exit 1", **fallback)),
        pod("none", shell("echo last words; exit 1")),
    )
    messages = {}
    for name in ("file", "log", "none"):
        messages[name] = state(pods.until(name, phase("Failed")))["terminated"].get("message")
    assert messages == {"file": "because", "log": "last words\n", "none": None}


def test_active_deadline(nodes: Nodes, pods: PodWatch) -> None:
    """activeDeadlineSeconds fails the pod, whatever its containers say."""
    main = shell("trap 'exit 0' TERM; sleep 1000 & wait")
    pods.create(pod("late", main, activeDeadlineSeconds=1))
    found = pods.until("late", phase("Succeeded", "Failed"))
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_claim_for_one_node_is_not_mounted_on_two(
    control_plane: ControlPlane, nodes: Nodes, pods: PodWatch
) -> None:
    """The second node's pod waits until the first's is gone; a pod on the same node does not."""
    _create(control_plane.api, "persistentvolumeclaims", pods.namespace, "c", spec=_claim("ReadWriteOnce"))
    main = shell("sleep 1000", volumeMounts=[{"name": "c", "mountPath": "/c"}])
    fields: Object = {
        "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
        "terminationGracePeriodSeconds": 0,
    }
    pods.create(pod("first", main, node="node-1", **fields))
    pods.until("first", phase("Running"))
    pods.create(pod("same", main, node="node-1", **fields), pod("other", main, node="node-2", **fields))
    pods.until("same", phase("Running"))
    _await_event(control_plane.api, pods.namespace, "other", "FailedMount")
    pods.delete("same")
    pods.delete("first")
    pods.until("other", phase("Running"))


def test_deletion(nodes: Nodes, pods: PodWatch) -> None:
    """SIGTERM, the grace, SIGKILL; the last state is written before the object goes."""
    ends = "trap 'exit 7' TERM; sleep 1000 & wait"
    hook = {"preStop": {"exec": {"command": ["touch", "/tmp/told"]}}}
    told = "trap '[ -e /tmp/told ] && exit 8' TERM; sleep 1000 & wait"
    cases = {
        "cooperates": (shell(ends), {}, 7),
        "ignores": (shell(IGNORES_TERM), {"gracePeriodSeconds": 2}, 137),
        "first-process": (container("sleep", "1000"), {"gracePeriodSeconds": 2}, 137),
        "hook": (shell(told, lifecycle=hook), {}, 8),
    }
    pods.create(*(pod(name, case[0]) for name, case in cases.items()))
    for name in cases:
        pods.until(name, phase("Running"))
    pids = {name: nodes.pids(pods.namespace, name) for name in cases}
    began = time.monotonic()
    for name, (_, params, _) in cases.items():
        pods.delete(name, **params)
    for name, (_, params, code) in cases.items():
        last = pods.gone(name)
        ended = state(last)["terminated"]
        assert (last["status"]["phase"], ended["exitCode"]) == ("Failed", code), name
        assert condition(last, "DisruptionTarget") == {}
        if params:
            assert time.monotonic() - began > 1.9
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids[name])


def test_forced_deletion_kills_too(nodes: Nodes, pods: PodWatch) -> None:
    """An object removed at once takes its processes with it, a moment later."""
    pods.create(pod("forced", shell(IGNORES_TERM)))
    pods.until("forced", phase("Running"))
    pids = nodes.pids(pods.namespace, "forced")
    pods.delete("forced", gracePeriodSeconds=0)
    pods.gone("forced")
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), SECONDS, "their end")


def test_images_bring_their_settings(nodes: Nodes, pods: PodWatch) -> None:
    """The worker's image has the user and the environment of its Dockerfile, and no command of its own."""
    image = {"image": "resumable-training/worker:0.1.0"}
    main = shell("id -u; echo $PYTHONUNBUFFERED; python -c 'import resumable_training'; touch ~/file")
    pods.create(pod("own", {**main, **image}), pod("silent", {"name": "main", **image}))
    assert _output(nodes, pods, "own").split() == ["1000", "1"]
    found = pods.until("silent", lambda item: reason(item) == "CreateContainerError")
    assert state(found)["waiting"]["message"] == "no command specified"
