"""The pure parts of the fake kubelet (environments, users, phases, conditions), and logs of containers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bed import kubelet_node, pod_env, pod_status
from bed.containers_log import ContainerLog, LogOptions
from bed.kubelet_images import Image, Images
from bed.pod_env import ConfigError, expand, quantity
from bed.volumes import write_at_once

Object = dict[str, Any]

POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": {"b": "2", "a": 'x"y'},
        "annotations": {"k/l": "v"},
    },
    "spec": {
        "nodeName": "node-1",
        "serviceAccountName": "sa",
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}],
    },
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("cost: 5$", "cost: 5$"),
        ("$(A", "$(A"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    """`$(NAME)` is replaced, `$$` is a dollar, the rest stays as written."""
    assert expand(text, {"A": "1", "B": "2"}) == result


@given(st.text(alphabet="ab()", max_size=20))
def test_text_without_dollars_is_not_expanded(text: str) -> None:
    """No dollar, no change."""
    assert expand(text, {"a": "1"}) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", 0.5), ("1Gi", 2**30), ("64Mi", 64 << 20), ("2k", 2000), ("1e3", 1000)],
)
def test_quantities(text: str, value: float) -> None:
    """Kubernetes quantities, decimal and binary."""
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['b']", "2"),
        ("metadata.annotations['k/l']", "v"),
        ("metadata.labels", 'a="x\\"y"\nb="2"'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "127.9.1.1"),
    ],
)
def test_fields(path: str, value: str) -> None:
    """What the downward API offers."""
    assert pod_env.field(POD, {"podIP": "127.9.1.1"}, path) == value


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "requests.cpu"}, "0"),
        ({"resource": "limits.ephemeral-storage"}, "100"),
    ],
)
def test_resources(selector: Object, value: str) -> None:
    """Limits are rounded up to the divisor; a missing limit is what the node has."""
    assert pod_env.resource(POD, selector, "c", {"ephemeral-storage": "100"}) == value


def test_environment_is_built_in_order() -> None:
    """envFrom comes first, env overrides, a variable sees those before it, an optional one may be missing."""
    container = {
        "envFrom": [
            {"prefix": "P_", "configMapRef": {"name": "m"}},
            {"secretRef": {"name": "no", "optional": True}},
        ],
        "env": [
            {"name": "P_A", "value": "own"},
            {"name": "B", "value": "$(P_A)-$(LATER)-$(BASE)"},
            {"name": "LATER", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x", "optional": True}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    }
    objects = {("configmaps", "m"): {"A": b"a", "Z": b"z"}, ("secrets", "s"): {"k": b"v"}}
    assert pod_env.references(container) == {*objects, ("secrets", "no")}
    env = pod_env.environment(container, objects, {"BASE": "base"}, lambda origin: "looked-up")
    assert env == {
        "BASE": "base",
        "P_A": "own",
        "P_Z": "z",
        "B": "own-$(LATER)-base",
        "LATER": "v",
        "NODE": "looked-up",
    }


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ({"secretKeyRef": {"name": "no", "key": "k"}}, 'secret "no" not found'),
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"secretKeyRef": {"name": "s", "key": "x"}}, "couldn't find key x in Secret s"),
    ],
)
def test_missing_sources_are_named(origin: Object, message: str) -> None:
    """What is missing is said in the kubelet's words."""
    container = {"env": [{"name": "A", "valueFrom": origin}]}
    with pytest.raises(ConfigError) as caught:
        pod_env.environment(container, {("secrets", "s"): {}}, {}, str)
    assert str(caught.value) == message
    assert caught.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        ({"command": ["a", "$(X)"]}, ("a", "1")),
        ({"command": ["a"], "args": ["b"]}, ("a", "b")),
        ({"args": ["b"]}, ("entry", "b")),
        ({}, ("entry", "default")),
    ],
)
def test_command(container: Object, argv: tuple[str, ...]) -> None:
    """command replaces ENTRYPOINT and CMD, args replaces CMD."""
    assert pod_env.command(container, {"X": "1"}, ("entry",), ("default",)) == argv


def test_an_image_without_command_needs_one() -> None:
    """As a container runtime words it."""
    with pytest.raises(ConfigError, match="no command specified"):
        pod_env.command({}, {}, (), ())


@pytest.mark.parametrize(
    ("outer", "inner", "uid", "groups", "capabilities"),
    [
        ({}, {}, 0, (), len(pod_env.DEFAULT_CAPABILITIES)),
        ({"runAsUser": 5, "fsGroup": 9}, {}, 5, (9,), len(pod_env.DEFAULT_CAPABILITIES)),
        ({"runAsUser": 5}, {"runAsUser": 6, "capabilities": {"drop": ["ALL"]}}, 6, (), 0),
        ({}, {"capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}, 0, (), 1),
        ({}, {"privileged": True}, 0, (), None),
    ],
)
def test_identity(
    outer: Object, inner: Object, uid: int, groups: tuple[int, ...], capabilities: int | None
) -> None:
    """The container's security context wins over the pod's; privileged keeps all capabilities."""
    found = pod_env.identity({"spec": {"securityContext": outer}}, {"securityContext": inner}, 0)
    count = None if found.capabilities is None else len(found.capabilities)
    assert (found.uid, found.groups, count) == (uid, groups, capabilities)


@pytest.mark.parametrize(("image_user", "refused"), [(0, True), (65532, False)])
def test_run_as_non_root_looks_at_the_image(image_user: int, refused: bool) -> None:
    """runAsNonRoot without a user is decided by the image's."""
    pod = {"spec": {"securityContext": {"runAsNonRoot": True}}}
    if refused:
        with pytest.raises(ConfigError, match="image will run as root"):
            pod_env.identity(pod, {}, image_user)
    else:
        assert pod_env.identity(pod, {}, image_user).uid == image_user


def _waiting() -> Object:
    return {"state": {"waiting": {}}}


def _running(ready: bool = True, started: bool = True) -> Object:
    return {"state": {"running": {}}, "ready": ready, "started": started}


def _ended(code: int, ready: bool = False) -> Object:
    return {"state": {"terminated": {"exitCode": code}}, "ready": ready}


def _again(code: int) -> Object:
    return {"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": code}}}


INIT, SIDECAR = {"name": "i"}, {"name": "s", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("policy", "inits", "statuses", "stopped", "expected"),
    [
        ("Never", [], {"a": _waiting()}, False, "Pending"),
        ("Never", [], {"a": _running(ready=False)}, False, "Running"),
        ("Never", [], {"a": _running(), "b": _waiting()}, False, "Pending"),
        ("Never", [], {"a": _running(), "b": _ended(1)}, False, "Running"),
        ("Never", [], {"a": _ended(0), "b": _ended(0)}, False, "Succeeded"),
        ("Never", [], {"a": _ended(0), "b": _ended(1)}, False, "Failed"),
        ("OnFailure", [], {"a": _ended(0), "b": _ended(1)}, False, "Running"),
        ("OnFailure", [], {"a": _again(1)}, False, "Running"),
        ("Always", [], {"a": _ended(0)}, False, "Running"),
        ("Always", [], {"a": _ended(0)}, True, "Succeeded"),
        ("Always", [], {"a": _again(1)}, True, "Failed"),
        ("Never", [], {"a": _waiting()}, True, "Failed"),
        ("Never", [INIT], {"i": _running(), "a": _waiting()}, False, "Pending"),
        ("Never", [INIT], {"i": _ended(1), "a": _waiting()}, False, "Failed"),
        ("Always", [INIT], {"i": _again(1), "a": _waiting()}, False, "Pending"),
        ("Never", [INIT], {"i": _ended(0, ready=True), "a": _running()}, False, "Running"),
        ("Never", [SIDECAR], {"s": _running(started=False), "a": _waiting()}, False, "Pending"),
        ("Never", [SIDECAR], {"s": _running(), "a": _ended(0)}, False, "Running"),
        ("Never", [SIDECAR], {"s": _ended(143), "a": _ended(0)}, True, "Succeeded"),
    ],
)
def test_phase(
    policy: str, inits: list[Object], statuses: dict[str, Object], stopped: bool, expected: str
) -> None:
    """The phase follows from the containers by the kubelet's rules."""
    mains = [{"name": name} for name in statuses if name in "ab"]
    spec = {"restartPolicy": policy, "initContainers": inits, "containers": mains}
    assert pod_status.phase(spec, statuses, stopped) == expected


@pytest.mark.parametrize(
    ("statuses", "phase", "expected"),
    [
        (
            {"a": _waiting()},
            "Pending",
            {"Ready": ("False", "ContainersNotReady"), "Initialized": ("True", None)},
        ),
        ({"a": _running()}, "Running", {"Ready": ("True", None), "ContainersReady": ("True", None)}),
        ({"a": _running(ready=False)}, "Running", {"Ready": ("False", "ContainersNotReady")}),
        (
            {"a": _ended(0)},
            "Succeeded",
            {"Ready": ("False", "PodCompleted"), "Initialized": ("True", "PodCompleted")},
        ),
        (
            {"a": _ended(1)},
            "Failed",
            {"Ready": ("False", "PodFailed"), "PodReadyToStartContainers": ("False", None)},
        ),
    ],
)
def test_conditions(
    statuses: dict[str, Object], phase: str, expected: dict[str, tuple[str, str | None]]
) -> None:
    """Conditions and reasons are the kubelet's."""
    found = pod_status.conditions({"containers": [{"name": "a"}]}, statuses, phase, True, [])
    seen = {item["type"]: (item["status"], item.get("reason")) for item in found}
    assert {key: seen[key] for key in expected} == expected


def test_readiness_gates_hold_ready_back() -> None:
    """Ready waits for the conditions that gates name; ContainersReady does not."""
    spec = {"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g"}]}
    for others, ready in (([], "False"), ([{"type": "g", "status": "True"}], "True")):
        found = pod_status.conditions(spec, {"a": _running()}, "Running", True, others)
        seen = {item["type"]: item["status"] for item in found}
        assert (seen["Ready"], seen["ContainersReady"]) == (ready, "True")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b=c:NoSchedule", {"key": "a/b", "value": "c", "effect": "NoSchedule"}),
        ("k:NoExecute", {"key": "k", "effect": "NoExecute"}),
        ("k=v", None),
        ("k:Sometimes", None),
    ],
)
def test_taints(text: str, expected: Object | None) -> None:
    """kubectl's form, or an error that shows it."""
    if expected is None:
        with pytest.raises(ValueError, match="key=value:Effect"):
            kubelet_node.taint(text)
    else:
        assert kubelet_node.taint(text) == expected


def test_images_match_by_pattern() -> None:
    """The first pattern counts, what matches none cannot be pulled."""
    images = Images([Image("bed/*", user=7), Image("*", user=8)][:1])
    found = images.find("bed/worker:1")
    assert found is not None
    assert found.user == 7
    assert images.find("other") is None
    assert Image.from_json(Image("x", entrypoint=("a",)).to_json()) == Image("x", entrypoint=("a",))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), b"one\ntwo\nthree\n"),
        (LogOptions(tail_lines=2), b"two\nthree\n"),
        (LogOptions(tail_lines=0), b""),
        (LogOptions(tail_lines=9), b"one\ntwo\nthree\n"),
        (LogOptions(limit_bytes=5), b"one\nt"),
        (LogOptions(since=4e9), b""),
    ],
)
async def test_logs_are_cut_as_asked(tmp_path: Path, options: LogOptions, expected: bytes) -> None:
    """Options of the logs API."""
    log = ContainerLog(tmp_path / "0.log")
    for piece in (b"one\ntw", b"o\nthree\n"):
        log.write(piece)
    assert b"".join([piece async for piece in log.read(options)]) == expected


async def test_stamped_logs_have_the_time_of_each_line(tmp_path: Path) -> None:
    """One RFC 3339 time for each line, in order, however the output came in pieces."""
    log = ContainerLog(tmp_path / "0.log")
    for piece in (b"one\ntw", b"o\nth", b"ree"):
        log.write(piece)
    log.close()
    text = b"".join([piece async for piece in log.read(LogOptions(timestamps=True))]).decode()
    times, lines = zip(*(line.split(" ", 1) for line in text.splitlines()), strict=True)
    assert lines == ("one", "two", "three")
    assert sorted(times) == list(times)
    assert all(time.endswith("Z") and len(time) == 30 for time in times)


async def test_a_followed_log_ends_with_its_container(tmp_path: Path) -> None:
    """Followers get every byte, several of them too, and end when the log is closed."""
    log = ContainerLog(tmp_path / "0.log")

    async def follow() -> bytes:
        return b"".join([piece async for piece in log.read(LogOptions(follow=True))])

    followers = [asyncio.create_task(follow()) for _ in range(3)]
    for number in range(20):
        log.write(f"{number}\n".encode())
        await asyncio.sleep(0)
    log.close()
    expected = "".join(f"{number}\n" for number in range(20)).encode()
    assert await asyncio.gather(*followers) == [expected] * 3


def test_written_volumes_change_at_once(tmp_path: Path) -> None:
    """Files are links through `..data`, which is replaced; what is no longer there goes."""
    write_at_once(tmp_path, {"a": (b"1", 0o600), "sub/b": (b"2", 0o644)})
    before = (tmp_path / "..data").resolve()
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "sub/b").read_bytes()) == (b"1", b"2")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    write_at_once(tmp_path, {"a": (b"3", 0o600)})
    assert (tmp_path / "a").read_bytes() == b"3"
    assert sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert not before.exists()
