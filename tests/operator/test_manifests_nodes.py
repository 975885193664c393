"""A worker's pod run by a kubelet: the agent gets there, finds what it was promised, and obeys its key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from worker_pods import SETTINGS, job_of, pod_of

from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from resumable_operator.agent_client import AgentClient, Endpoint, new_session
from resumable_operator.errors import AgentNotBelieved
from resumable_operator.manifests import key_secret
from resumable_training.contract.assignment import (
    REQUEST_SHUTDOWN,
    Assignment,
    CheckpointConfig,
    Member,
    Request,
)

RUN_SECONDS = 60.0
KEY = bytes(range(32))
TELL = """
import json, os, sys
told = {name: os.environ.get(name) for name in ("GREETING", "MASTER_ADDR")}
told["argument"] = sys.argv[1]
told["uid"], told["gid"] = os.getuid(), os.getgid()
told["agent"] = os.getppid()
places = ("/opt/resumable", "/run/resumable", "/dev/shm", "/checkpoints")
told["writable"] = [place for place in places if os.access(place, os.W_OK)]
told["shm"] = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
told["token"] = os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")
told["key"] = oct(os.stat("/etc/resumable/key").st_mode & 0o777)
os.makedirs("/checkpoints/a", exist_ok=True)
print(json.dumps(told))
"""


@pytest.fixture
def claim(control_plane: ControlPlane, restricted_namespace: str) -> str:
    """A volume that all workers share."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "bed",
    }
    claims = path("v1", "persistentvolumeclaims", restricted_namespace)
    control_plane.api.create(claims, {"metadata": {"name": "data"}, "spec": spec})
    return "data"


async def test_a_worker_under_a_kubelet(
    control_plane: ControlPlane, nodes: Nodes, restricted_namespace: str, claim: str
) -> None:
    """In a restricted namespace: init container, address, arguments, key, volumes, user, logs, exit code."""
    job = job_of(
        worker={
            "image": "resumable-training/worker:1",
            "command": ["python3", "-c", TELL],
            "args": ["$(GREETING) world"],
            "env": [{"name": "GREETING", "value": "hello"}],
            "resources": {"limits": {"memory": "512Mi", "cpu": "1"}},
        },
        checkpoint={"persistentVolumeClaim": {"claimName": claim, "path": "a"}},
    )
    job = replace(job, namespace=restricted_namespace)
    settings = replace(SETTINGS, agent_image="resumable-training/operator:1")
    api, pods = control_plane.api, path("v1", "pods", restricted_namespace)
    secret, made = key_secret(job, "0123456789abcdef", KEY), pod_of(job, settings)
    for owned in (secret, made):
        del owned["metadata"]["ownerReferences"]  # of no job that exists here
    api.create(path("v1", "secrets", restricted_namespace), secret)
    api.create(pods, made)
    name = f"{pods}/train-1-1"
    wait_until(lambda: ready(api.get(name)), RUN_SECONDS, "the pod is ready")
    address = api.get(name)["status"]["podIP"]

    member = Member("train-1-1", 1, 1, address, 8470, 0, 1)
    wanted = Assignment(
        job.key, job.uid, 1, "d", member.worker, (member,), address, 0,
        checkpoint=CheckpointConfig(directory="/checkpoints/a"),
    )  # fmt: skip
    async with new_session() as session:
        stranger = AgentClient(session, Endpoint(member.worker, address, 8470, bytes(32)))
        with pytest.raises(AgentNotBelieved):
            await stranger.assign(wanted)
        client = AgentClient(session, Endpoint(member.worker, address, 8470, KEY))
        assert (await client.assign(wanted)).master_port > 0
        wait_until(lambda: "attempt 1 rank 0" in api.text(f"{name}/log"), RUN_SECONDS, "the rank's output")
        line = next(line for line in api.text(f"{name}/log").splitlines() if "[attempt 1 rank 0] {" in line)
        assert (await client.request(Request(REQUEST_SHUTDOWN))).attempt == 1
    told = json.loads(line.partition("] ")[2])
    assert told["argument"] == "hello world"
    assert told["GREETING"] == "hello"
    assert told["MASTER_ADDR"] == address
    assert (told["uid"], told["gid"]) == (1000, 1000)
    assert told["agent"] == 1, "the agent is the container's first process"
    assert told["writable"] == ["/run/resumable", "/dev/shm", "/checkpoints"]
    assert told["shm"] == 256 * 1024**2
    assert not told["token"]
    assert told["key"] == "0o440"
    wait_until(lambda: api.get(name)["status"]["phase"] == "Succeeded", RUN_SECONDS, "the pod has ended")
    (status,) = api.get(name)["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 0


def ready(pod: dict[str, object]) -> bool:
    conditions = pod["status"].get("conditions") or []  # type: ignore[attr-defined]
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
