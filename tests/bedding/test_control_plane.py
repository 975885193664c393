"""The control plane is a real one, comes and goes fast, and keeps its data while its API server is away."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bed import control_plane as planes
from bed.api import ApiError, path
from bed.control_plane import ControlPlane
from bed.processes import ComponentDied, wait_until

pytestmark = pytest.mark.cluster

CONFIG_MAPS = ("v1", "configmaps")
GONE_SECONDS = 20.0


def _alive(pid: int) -> bool:
    """False for a zombie: it has ended, whoever has yet to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _commands_with(text: str) -> list[str]:
    """Command lines of running processes that mention `text`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace").replace("\0", " "))
    return [command for command in found if text in command]


def test_stopping_leaves_no_process(tmp_path: Path) -> None:
    """All four run after the start, and none after the stop; stopping twice is no error."""
    plane = ControlPlane.start(tmp_path / "plane")
    pids = plane.pids
    try:
        assert sorted(pids) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        assert all(_alive(pid) for pid in pids.values())
    finally:
        plane.stop()
    plane.stop()
    assert not any(_alive(pid) for pid in pids.values())


def test_two_at_once_are_two(control_plane: ControlPlane, namespace: str, own_plane: ControlPlane) -> None:
    """A second control plane beside the first has other ports, other tokens and none of its objects."""
    assert own_plane.url != control_plane.url
    assert own_plane.api.find(path("v1", "namespaces", name=namespace)) is None
    with pytest.raises(ApiError) as caught:
        planes.Api(own_plane.url, control_plane.admin_token, own_plane.ca_file).list("/api/v1/nodes")
    assert caught.value.status == 401


def test_data_outlives_the_api_server(own_plane: ControlPlane) -> None:
    """Afterwards objects, tokens and port are as before; but a watch cannot go on from before."""
    url, name = own_plane.url, path(*CONFIG_MAPS, "default", "kept")
    where = path(*CONFIG_MAPS, "default")
    made = own_plane.api.create(where, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
    for change in range(3):
        own_plane.api.patch(name, {"data": {"change": str(change)}})
    account = own_plane.api_as("default", "default")

    own_plane.stop_apiserver()
    with pytest.raises(ApiError) as caught:
        own_plane.api.get(name)
    assert caught.value.reason == "Unreachable"
    own_plane.start_apiserver()

    assert own_plane.url == url
    assert own_plane.api.get(name)["data"] == {"a": "1", "change": "2"}
    assert '"v1.37' in account.text("/version")
    with pytest.raises(ApiError) as caught:
        list(own_plane.api.watch(where, seconds=5, resourceVersion=made["metadata"]["resourceVersion"]))
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


def test_controllers_come_back_with_the_api_server(own_plane: ControlPlane) -> None:
    """A controller manager or scheduler that ended meanwhile runs again, and does its work."""
    own_plane.stop_apiserver()
    for name in ("kube-controller-manager", "kube-scheduler"):
        os.kill(own_plane.pids[name], 9)
    wait_until(lambda: list(own_plane.pids) == ["etcd"], 5, "the two to end")
    own_plane.start_apiserver()

    assert len(own_plane.pids) == 4
    own_plane.api.create(path("v1", "namespaces"), {"metadata": {"name": "later"}})
    wanted = path("v1", "serviceaccounts", "later", "default")
    wait_until(lambda: own_plane.api.find(wanted) is not None, 30, "the default service account")


def test_collector_knows_defined_kinds(own_plane: ControlPlane) -> None:
    """A kind is served when define_kind returns, and foreground deletion takes its objects' dependents."""
    own_plane.define_kind(_toy_definition())
    toys = path("toys.example/v1", "toys", "default")
    toy = own_plane.api.create(
        toys, {"apiVersion": "toys.example/v1", "kind": "Toy", "metadata": {"name": "one"}}
    )
    owner = {"apiVersion": "toys.example/v1", "kind": "Toy", "name": "one", "uid": toy["metadata"]["uid"]}
    metadata = {"name": "part", "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
    own_plane.api.create(path(*CONFIG_MAPS, "default"), {"metadata": metadata})

    own_plane.api.delete(f"{toys}/one", propagationPolicy="Foreground")

    part = path(*CONFIG_MAPS, "default", "part")
    wait_until(lambda: own_plane.api.find(f"{toys}/one") is None, 20, "the owner to go")
    assert own_plane.api.find(part) is None


def _toy_definition() -> dict:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.toys.example"},
        "spec": {
            "group": "toys.example",
            "scope": "Namespaced",
            "names": {"plural": "toys", "kind": "Toy"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }


def test_killed_starter_leaves_nothing(tmp_path: Path) -> None:
    """When the process that started it is killed with SIGKILL, the whole control plane ends."""
    script = textwrap.dedent("""
        import json, pathlib, sys, time
        from bed.control_plane import ControlPlane
        plane = ControlPlane.start(pathlib.Path(sys.argv[1]))
        print(json.dumps(plane.pids), flush=True)
        sys.stdin.read()
    """)
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "plane")],
        env={**os.environ, "PYTHONPATH": str(Path(planes.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids = list(json.loads(starter.stdout.readline()).values())
        assert len(pids) == 4
    finally:
        starter.kill()
        starter.communicate()
    wait_until(lambda: not any(map(_alive, pids)), GONE_SECONDS, "the control plane to end")


def test_failed_start_says_why(tmp_path: Path) -> None:
    """A component that ends at start is named, with the end of its log, and nothing runs on."""
    directory = tmp_path / "plane"
    with pytest.raises(ComponentDied, match=r"kube-apiserver ended with 1.*\n.*no-such-flag"):
        ControlPlane.start(directory, apiserver_flags=["--no-such-flag"])
    assert not _commands_with(str(directory))


def test_full_directory_is_refused(tmp_path: Path) -> None:
    """Data of an earlier control plane is never taken for a new one's."""
    (tmp_path / "etcd").mkdir()
    with pytest.raises(ValueError, match="not empty"):
        ControlPlane.start(tmp_path)


def test_lost_race_for_a_port_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that another took between choice and start costs a second try, no failure."""
    free = planes._free_ports
    with planes.socket.create_server((planes.HOST, 0)) as taken:
        first = [planes.Ports(**{**vars(free()), "etcd": taken.getsockname()[1]})]
        monkeypatch.setattr(planes, "_free_ports", lambda: first.pop() if first else free())
        with ControlPlane.start(tmp_path / "plane") as plane:
            assert plane.api.list("/api/v1/namespaces")


def test_kubeconfig_works_with_kubectl(control_plane: ControlPlane, namespace: str) -> None:
    """kubectl is the built one, trusts the CA, and is the admin; its failures carry its own words."""
    control_plane.kubectl(
        "create",
        "-n",
        namespace,
        "-f",
        "-",
        input='{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}',
    )
    assert control_plane.kubectl("get", "secrets", "-n", namespace, "-o", "name").stdout == "secret/s\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        control_plane.kubectl("get", "secret", "none", "-n", namespace)
    assert 'secrets "none" not found' in caught.value.stderr
    assert control_plane.kubectl("get", "secret", "none", check=False).returncode == 1


def test_accounts_have_only_their_rights(control_plane: ControlPlane, namespace: str) -> None:
    """A service account's token is let in and refused by RBAC, until a role says otherwise."""
    account = control_plane.api_as("default", namespace)
    where = path(*CONFIG_MAPS, namespace)
    with pytest.raises(ApiError) as caught:
        account.list(where)
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    assert f"system:serviceaccount:{namespace}:default" in caught.value.message

    control_plane.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps", "-n", namespace)
    control_plane.kubectl(
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        f"--serviceaccount={namespace}:default",
        "-n",
        namespace,
    )
    wait_until(lambda: _may_list(account, where), 10, "the binding to take effect")
    kubeconfig = control_plane.kubeconfig_for("default", namespace)
    listed = control_plane.kubectl("--kubeconfig", str(kubeconfig), "get", "configmaps", "-o", "name").stdout
    assert listed == "configmap/kube-root-ca.crt\n"


def _may_list(account: planes.Api, where: str) -> bool:
    try:
        account.list(where)
    except ApiError:
        return False
    return True


def test_restricted_namespace_refuses_privilege(
    control_plane: ControlPlane, restricted_namespace: str
) -> None:
    """Pod security admission is on: a pod that says nothing about privileges is refused, with the reason."""
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    with pytest.raises(ApiError, match="violates PodSecurity") as caught:
        control_plane.api.create(path("v1", "pods", restricted_namespace), pod)
    assert caught.value.status == 403


def test_admission_guards_owners(control_plane: ControlPlane, namespace: str) -> None:
    """Who blocks an owner's deletion needs the right to update the owner's finalizers."""
    control_plane.kubectl(
        "create", "role", "maker", "--verb=create", "--resource=configmaps", "-n", namespace
    )
    control_plane.kubectl(
        "create",
        "rolebinding",
        "maker",
        "--role=maker",
        f"--serviceaccount={namespace}:default",
        "-n",
        namespace,
    )
    owner = control_plane.api.get(path(*CONFIG_MAPS, namespace, "kube-root-ca.crt"))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"], "uid": owner["uid"]}
    account = control_plane.api_as("default", namespace)
    where = path(*CONFIG_MAPS, namespace)
    wait_until(lambda: _may_create(account, where), 10, "the binding to take effect")

    with pytest.raises(ApiError, match="cannot set blockOwnerDeletion"):
        account.create(
            where, {"metadata": {"name": "b", "ownerReferences": [{**reference, "blockOwnerDeletion": True}]}}
        )
    account.create(where, {"metadata": {"name": "c", "ownerReferences": [reference]}})


def _may_create(account: planes.Api, where: str) -> bool:
    try:
        account.create(where, {"metadata": {"name": "probe"}}, dryRun="All")
    except ApiError:
        return False
    return True


def test_programs_know_their_version(control_plane: ControlPlane) -> None:
    """Server and client say the version that they are built from: charts and clients look at it."""
    told = json.loads(control_plane.kubectl("version", "-o", "json").stdout)
    assert [told[side]["gitVersion"][:6] for side in ("serverVersion", "clientVersion")] == ["v1.37."] * 2
    assert (told["serverVersion"]["major"], told["serverVersion"]["minor"]) == ("1", "37")
