"""Pod templates: what is read of them is looked at, all else passes."""

from __future__ import annotations

from typing import Any

import pytest

from resumable_operator.errors import SpecError
from resumable_operator.model import MOST_RANKS, MOST_WORKERS, JobSpec, parse_spec
from resumable_operator.template import gpu_count

LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP


def pod(**container: Any) -> dict[str, Any]:
    """A template whose one container has these fields."""
    return {"spec": {"containers": [{"command": ["python"], **container}]}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": [1]}, "spec must be a mapping"),
        ({"spec": {"containers": "worker"}}, "spec.containers must be a list"),
        ({"spec": {"containers": {"name": "worker"}}}, "spec.containers must be a list"),
        ({"spec": {"containers": [None]}}, r"spec.containers\[0\] must be a mapping"),
        (pod(command="python train.py"), r"containers\[0\].command must be a list"),
        (pod(command=5), r"containers\[0\].command must be a list"),
        (pod(command=[["python"]]), r"command\[0\] must be a string"),
        (pod(args="--lr"), r"containers\[0\].args must be a list"),
        (pod(args=["--lr", 0.1]), r"args\[1\] must be a string: put 0.1 into quotes"),
        (pod(args=[True]), r"args\[0\] must be a string: put true into quotes"),
        (pod(args=["a\0b"]), "zero byte"),
        (pod(env={"A": "b"}), r"containers\[0\].env must be a list"),
        (pod(env=["A=b"]), r"env\[0\] must be a mapping"),
        (pod(env=[{"value": "b"}]), r"env\[0\].name must be a string"),
        (pod(env=[{"name": "A=B", "value": "b"}]), "no name of a variable"),
        (pod(env=[{"name": "", "value": "b"}]), "no name of a variable"),
        (pod(env=[{"name": "A", "value": 5}]), r"env\[0\].value must be a string: put 5 into quotes"),
        (pod(env=[{"name": "A", "value": "x\0y"}]), "zero byte"),
        (pod(workingDir=["a"]), "workingDir must be a string"),
        (pod(resources=True), r"containers\[0\].resources must be a mapping"),
        (pod(resources=""), r"containers\[0\].resources must be a mapping"),
        (pod(resources={"limits": "x"}), r"resources.limits must be a mapping"),
        (pod(resources={"requests": ["a"]}), r"resources.requests must be a mapping"),
        (pod(resources={"limits": {"cpu": True}}), r"limits\[cpu\] must be a quantity, not True"),
        (pod(resources={"limits": {"cpu": None}}), r"limits\[cpu\] must be a quantity"),
        (pod(resources={"limits": {"memory": "1 GiB"}}), r"limits\[memory\] must be a quantity"),
        (pod(resources={"limits": {"nvidia.com/gpu": "²"}}), r"limits\[nvidia.com/gpu\] must be a quantity"),
        (pod(resources={"limits": {"nvidia.com/gpu": 10**9}}), r"nvidia.com/gpu\] must be at most"),
        (pod(name=7), "name must be a string"),
        (LOOP, "JSON"),
        ({"x": float("inf")}, "JSON"),
        ({"x": b"bytes"}, "JSON"),
    ],
)
def test_refused(template: dict[str, Any], message: str) -> None:
    """What would fail or be guessed at when ranks start is an error of the spec that names the place."""
    with pytest.raises(SpecError, match=message):
        parse_spec({"workers": {"replicas": 1}, "template": template})


@pytest.mark.parametrize("spec", [None, {}, {"containers": None}, {"containers": []}])
def test_nothing_to_run(spec: dict[str, Any] | None) -> None:
    """A template without containers is refused when its command is asked for."""
    parsed = parse_spec({"workers": {"replicas": 1}, "template": {"spec": spec}})
    with pytest.raises(SpecError, match="at least one container"):
        parsed.command()


def test_null_is_nothing() -> None:
    """As in Kubernetes, a null list is an empty one."""
    template = pod(args=None, env=None, workingDir=None, image="x", resources={"limits": {"cpu": 1}})
    assert JobSpec.model_validate({"workers": {"replicas": 1}, "template": template}).command() == ("python",)


@pytest.mark.parametrize(
    "spec",
    [
        {"workers": {"replicas": MOST_WORKERS + 1}},
        {"workers": {"replicas": 1, "max": 10**14}},
        {"workers": {"replicas": 1, "spares": 10**9}},
        {"workers": {"replicas": 1, "processesPerWorker": MOST_RANKS + 1}},
        {"workers": {"replicas": 1}, "recovery": {"drainSeconds": float("inf")}},
        {"workers": {"replicas": 1}, "recovery": {"hangSeconds": float("nan")}},
        {"workers": {"replicas": 1}, "checkpoint": {"interval": {"seconds": float("inf")}}},
        {"workers": {"replicas": 1}, "activeDeadlineSeconds": float("inf")},
        {"workers": {"replicas": 1}, "ttlSecondsAfterFinished": float("nan")},
    ],
)
def test_numbers_without_sense(spec: dict[str, Any]) -> None:
    """Neither a size that would fill the memory nor a time that JSON can't carry is taken."""
    with pytest.raises(SpecError):
        parse_spec(spec)


@pytest.mark.parametrize(
    "quantity",
    ["8", "0.5", "500m", "1Gi", "1e3", "1E-3", "+2", "-1", ".5", "2.", 8, 0.5, "128974848", "129M"],
)
def test_quantities_are_kubernetes_own(quantity: Any) -> None:
    """All that it takes passes as it is; what is too little or too much is its to judge."""
    resources = {"requests": {"cpu": quantity}, "limits": None}
    parsed = parse_spec({"workers": {"replicas": 1}, "template": pod(resources=resources)})
    assert parsed.worker_container()["resources"] == resources


@pytest.mark.parametrize(
    ("name", "quantity", "count"),
    [
        ("nvidia.com/gpu", "2", 2),
        ("amd.com/gpu", 4, 4),
        ("a/gpu", "2.5", 0),
        ("cpu", "8", 0),
        ("a/gpu", 0, 0),
    ],
)
def test_whole_gpus_are_counted(name: str, quantity: Any, count: int) -> None:
    """By the resource's name; half a one is none that a rank could have."""
    assert gpu_count(name, quantity) == count
