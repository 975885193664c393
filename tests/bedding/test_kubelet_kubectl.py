"""The bed's nodes through the real kubectl and the real controllers: logs, exec, delete, Deployments."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.pod_testing import IMAGE, PodWatch, phase, pod, restarts, shell

Object = dict[str, Any]

DEPLOYMENT: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "command": ["bash", "-c", "echo $VERSION; trap 'exit 0' TERM; sleep 1000 & wait"],
                        "env": [{"name": "VERSION", "value": "one"}],
                    }
                ],
            },
        },
    },
}


@pytest.fixture
def pods(control_plane: ControlPlane, nodes: Nodes, namespace: str) -> Iterator[PodWatch]:
    """A watch on the pods of a fresh namespace."""
    with PodWatch(control_plane.api, namespace) as watch:
        yield watch


def test_logs(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """kubectl logs: both streams in order, tail, time stamps, by container, following to the end."""
    script = "echo out; echo err >&2; echo last; sleep 1; echo after"
    pods.create(pod("talks", shell(script), shell("echo other", name="side")))
    pods.until("talks", phase("Running"))

    def logs(*options: str) -> str:
        return control_plane.kubectl("logs", "-n", pods.namespace, "talks", *options).stdout

    assert logs("-f", "-c", "main") == "out\nerr\nlast\nafter\n"
    assert logs("-c", "main", "--tail=2") == "last\nafter\n"
    assert logs("-c", "side") == "other\n"
    stamped = logs("-c", "main", "--timestamps", "--tail=1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z after\n", stamped)
    assert logs("-c", "main", "--since=1h", "--limit-bytes=5") == "out\ne"


def test_logs_of_the_run_before(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """kubectl logs --previous shows the run that ended."""
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    script = "echo x >> /d/runs; wc -l < /d/runs; [ $(wc -l < /d/runs) = 2 ] && sleep 1000; exit 1"
    volumes = [{"name": "d", "emptyDir": {}}]
    pods.create(pod("again", shell(script, **mount), restartPolicy="OnFailure", volumes=volumes))
    second = pods.until("again", lambda item: restarts(item) == 1)
    assert phase("Running")(second)
    for options, output in (([], "2\n"), (["--previous"], "1\n")):
        assert control_plane.kubectl("logs", "-n", pods.namespace, "again", *options).stdout == output


def test_exec(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """kubectl exec: streams, input, exit code, inside the container's namespaces."""
    pods.create(pod("box", shell("echo inside > /tmp/file; exec sleep 1000")))
    pods.until("box", phase("Running"))

    def execute(*command: str, text: str | None = None) -> tuple[int, str, str]:
        options = ["-i"] if text is not None else []
        result = control_plane.kubectl(
            "exec", "-n", pods.namespace, *options, "box", "--", *command, input=text, check=False
        )
        return result.returncode, result.stdout, result.stderr

    assert execute("cat", "/tmp/file") == (0, "inside\n", "")
    code, out, err = execute("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (code, out, err.splitlines()[0]) == (3, "out\n", "err")
    assert execute("cat", text="typed\n") == (0, "typed\n", "")
    assert execute("hostname")[1] == "box\n"
    assert execute("cat", "/proc/1/comm")[1] == "sleep\n"
    assert "executable file not found" in execute("no-such-command")[2]


def test_delete_with_grace(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """kubectl delete returns when the pod is gone: after its end, or after the grace."""
    pods.create(
        pod("quick", shell("trap 'exit 0' TERM; sleep 1000 & wait")),
        pod("stubborn", shell("trap '' TERM; while true; do sleep 0.1; done")),
    )
    for name in ("quick", "stubborn"):
        pods.until(name, phase("Running"))
    began = time.monotonic()
    control_plane.kubectl("delete", "pod", "-n", pods.namespace, "quick")
    quick = time.monotonic() - began
    control_plane.kubectl("delete", "pod", "-n", pods.namespace, "stubborn", "--grace-period=3")
    assert quick < 3 < time.monotonic() - began - quick
    assert not control_plane.api.list(f"/api/v1/namespaces/{pods.namespace}/pods")


def test_a_deployment_rolls_out(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """The real controllers make its pods, replace them by a changed template, and take them away."""

    def kubectl(*arguments: str, text: str | None = None) -> str:
        return control_plane.kubectl("-n", pods.namespace, *arguments, input=text).stdout

    kubectl("apply", "-f", "-", text=json.dumps(DEPLOYMENT))
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert kubectl("logs", "-l", "app=web").split() == ["one", "one"]
    kubectl("set", "env", "deployment/web", "VERSION=two")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    kubectl("wait", "pods", "-l", "app=web", "--for=condition=Ready", "--timeout=60s")
    assert "two" in kubectl("logs", "deployment/web")
    kubectl("delete", "deployment", "web", "--cascade=foreground")
    for name in {item["metadata"]["name"] for _, item in pods.events}:
        pods.gone(name)
