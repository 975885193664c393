"""Checkpoints of a job in a cluster, copied and exported: to a bucket, to another claim, to this machine.

The job is suspended and was trained elsewhere, so that each test needs only the pods of `rtj` itself. Its
namespace lets in nothing but pods of the restricted security standard.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from torch import nn

from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from bed.s3 import S3Server
from resumable_operator.cli.main import cli
from resumable_training.checkpoint import CheckpointEngine, Reached, TrainingState
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.pins import read_pin_files
from resumable_training.checkpoint.stores import open_store
from resumable_training.checkpoint.verify import OK, verify_checkpoint
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.labels import GROUP, KIND, PLURAL, VERSION
from resumable_training.contract.manifest import checkpoint_name

pytestmark = pytest.mark.timeout(400)
Raw = dict[str, Any]
NEWEST = checkpoint_name(20, 1)
OPERATOR = ("--image", "resumable-training/operator:0.1.0")
PATIENCE_SECONDS = 120.0


class Trained:
    """A suspended job whose store, on claim `data`, has checkpoints of steps 10 and 20."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace
        self.model = nn.Linear(30, 20)
        self.store = self.claim("data") / "store"
        self._train()
        container = {"name": "worker", "image": "resumable-training/worker:0.1.0", "command": ["true"]}
        spec = {
            "workers": {"replicas": 1},
            "suspend": True,
            "checkpoint": {"persistentVolumeClaim": {"claimName": "data", "path": "store"}},
            "template": {"spec": {"containers": [container]}},
        }
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": "gpt"}, "spec": spec}
        self.api.create(path(f"{GROUP}/{VERSION}", PLURAL, namespace), body)

    def claim(self, name: str) -> Path:
        """A new claim; its directory on this machine."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        where = path("v1", "persistentvolumeclaims", self.namespace)
        self.api.create(where, {"metadata": {"name": name}, "spec": spec})
        found: list[str] = []

        def bound() -> bool:
            found[:] = [self.api.get(f"{where}/{name}")["spec"].get("volumeName") or ""]
            return bool(found[0])

        wait_until(bound, PATIENCE_SECONDS, f"the volume of claim {name}", interval=0.1)
        volume = self.api.get(path("v1", "persistentvolumes", name=found[0]))
        return Path(volume["spec"]["hostPath"]["path"])

    def _train(self) -> None:
        owner = f"{self.namespace}/gpt"
        config = CheckpointConfig(directory=str(self.store))
        engine = CheckpointEngine(config, owner, "u", 1, None, 0, 1, lambda text: None)
        state = TrainingState({"model": self.model}, {})
        engine.preflight()
        engine.restore(state)
        for step in (10, 20):
            assert engine.save(state, Reached(step, step)).ok
        for each in (self.store, *self.store.rglob("*")):  # its pods are not root
            each.chmod(0o777 if each.is_dir() else 0o666)

    def rtj(self, verb: str, target: object, *options: str) -> Result:
        env = {"KUBECONFIG": str(self.plane.kubeconfig), "COLUMNS": "200"}
        words = ["checkpoints", verb, "gpt", str(target), "-n", self.namespace, *options]
        return CliRunner().invoke(cli, words, env=env)

    def done(self, verb: str, target: object, *options: str) -> Raw:
        """What it says as JSON; nothing of it is left in the cluster or in the store."""
        result = self.rtj(verb, target, "--json", *options)
        assert result.exit_code == 0, result.output
        assert read_pin_files(LocalStore(self.store)) == []
        self.await_no_pods()
        told: Raw = json.loads(result.stdout)
        return told

    def pods(self) -> list[Raw]:
        return self.api.list(path("v1", "pods", self.namespace))

    def await_no_pods(self) -> None:
        wait_until(lambda: not self.pods(), PATIENCE_SECONDS, "the pods to go", interval=0.1)

    def holds_the_model(self, directory: Path) -> None:
        """It has safetensors with the model's own names and values."""
        exported, expected = load_file(directory / "model.safetensors"), self.model.state_dict()
        assert exported.keys() == expected.keys()
        assert all(torch.equal(exported[key], expected[key]) for key in expected)


@pytest.fixture
def trained(
    control_plane: ControlPlane, nodes: Nodes, job_kind: str, restricted_namespace: str
) -> Iterator[Trained]:
    """Such a job, in a namespace for restricted pods."""
    made = Trained(control_plane, restricted_namespace)
    yield made
    made.await_no_pods()


def test_to_a_bucket(trained: Trained, s3: S3Server, s3_url: str) -> None:
    """With keys in a Secret, which this machine never sees; without one it says what must be in it."""
    keys = ("--target-secret", "bucket-keys")
    refused = trained.rtj("copy", s3_url, *OPERATOR)
    assert (refused.exit_code, "give --target-secret NAME" in refused.output) == (2, True)
    refused = trained.rtj("copy", s3_url, *OPERATOR, *keys)
    assert (refused.exit_code, 'secret "bucket-keys" not found; the Secret must' in refused.output) == (
        2,
        True,
    )
    secret = {"metadata": {"name": "bucket-keys"}, "stringData": s3.environment()}
    trained.api.create(path("v1", "secrets", trained.namespace), secret)
    told = trained.done("copy", s3_url, *OPERATOR, *keys)
    assert (told["checkpoint"], told["there"]) == (NEWEST, 0)
    assert verify_checkpoint(open_store(s3_url), NEWEST).outcome == OK
    again = trained.done("copy", s3_url, *OPERATOR, *keys)
    assert (again["bytes"], again["there"]) == (0, told["bytes"])


def test_to_another_claim(trained: Trained) -> None:
    """The whole store, and weights for other programs by the image that trains."""
    kept = trained.claim("kept")
    refused = trained.rtj("copy", "claim://missing/gpt", *OPERATOR)
    assert (refused.exit_code, "has no claim missing" in refused.output) == (2, True)
    moved = trained.done("copy", "claim://kept/gpt", "--all", *OPERATOR)
    assert [one["checkpoint"] for one in moved["checkpoints"]] == [NEWEST, checkpoint_name(10, 1)]
    assert verify_checkpoint(LocalStore(kept / "gpt"), NEWEST).outcome == OK
    told = trained.done("export", "claim://kept/hf/gpt", "--step", "10")
    assert told["checkpoint"] == f"claim://data/store/{checkpoint_name(10, 1)}"
    trained.holds_the_model(kept / "hf" / "gpt")


def test_to_this_machine(trained: Trained, tmp_path: Path) -> None:
    """The bytes come through the API server, compared with the manifest on the way; so do weights."""
    told = trained.done("copy", tmp_path / "kept", *OPERATOR)
    assert (told["checkpoint"], told["there"]) == (NEWEST, 0)
    assert verify_checkpoint(LocalStore(tmp_path / "kept"), NEWEST).outcome == OK
    told = trained.done("export", tmp_path / "hf", *OPERATOR)
    assert told["checkpoint"] == f"claim://data/store/{NEWEST}"
    trained.holds_the_model(tmp_path / "hf")


def test_ctrl_c_takes_the_pod_along(trained: Trained) -> None:
    """While it waits for a machine that is large enough; it said that it does."""
    trained.claim("kept")
    words = ["checkpoints", "copy", "gpt", "claim://kept", "-n", trained.namespace, "--memory", "900Ti"]
    program = [sys.executable, "-m", "resumable_operator.cli.main", *words, *OPERATOR]
    env = {**os.environ, "KUBECONFIG": str(trained.plane.kubeconfig)}
    with subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = iter(process.stderr.readline, "")
        try:
            assert any("Insufficient memory" in line for line in told)
            assert trained.pods()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130
        finally:
            process.kill()
    trained.await_no_pods()
