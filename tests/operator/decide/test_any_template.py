"""Whatever a pod template holds: the spec is refused with a field's name, or decisions can be made of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.observation import Problem
from resumable_operator.errors import SpecError
from resumable_operator.model import parse_spec

FULL: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "worker",
                "image": "x",
                "command": ["python", "t.py"],
                "args": ["a"],
                "workingDir": "/w",
                "env": [{"name": "A", "value": "b"}],
                "resources": {
                    "requests": {"cpu": "500m", "amd.com/gpu": 2},
                    "limits": {"nvidia.com/gpu": "1", "memory": "1Gi"},
                },
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "ports": [{"containerPort": 1}],
                "securityContext": {"capabilities": {"add": ["A"]}},
            },
            {"name": "side", "image": "y", "resources": {"limits": {"cpu": 1}}},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "k"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all that is in it, itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in inner for deeper in places(item, (*path, key)))]


PLACES = places(FULL)[1:]
SHORT = st.sampled_from(["", "x", "2", "²", "nvidia.com/gpu", "9" * 5000, "\0", "worker", "auto"])
PLAIN = (
    st.none() | st.booleans() | SHORT | st.sampled_from([0, -1, 2, 2.5, 10**9, 10**30]) | st.text(max_size=3)
)
JSON = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(SHORT | st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    template = copy.deepcopy(FULL)
    parent: Any = template
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return template


def passes(template: dict[str, Any], workers: dict[str, Any], problems: tuple[Problem, ...]) -> World | None:
    """Some passes of a job with the template; None: its spec is refused, with the field's name."""
    spec = {"workers": workers, "template": template}
    try:
        parse_spec(spec)
    except SpecError as error:
        refused = error.field
    else:
        refused = ""
    assert not refused or refused.startswith("spec.template")
    if refused:
        return None
    world = World(spec, capacity=1)
    world.problems = problems
    for _ in range(6):
        json.dumps(world.step().status.plain(), allow_nan=False)
        world.tick(0.2)
    return world


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), JSON, st.sampled_from([1, "auto"]))
def test_any_value_anywhere(path: tuple[Any, ...], value: Any, processes: int | str) -> None:
    """Each part replaced by anything that JSON can hold."""
    passes(with_value(path, value), {"replicas": 1, "processesPerWorker": processes}, ())


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {}},
        {"spec": None},
        {"spec": {"containers": []}},
        with_value(("spec", "containers", 0, "resources"), None),
        with_value(("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), "two"),
        with_value(("spec", "containers", 0, "image"), 7),
    ],
)
def test_what_the_cluster_finds_wrong_is_told(template: dict[str, Any]) -> None:
    """A job whose first pod the cluster refuses says so in its condition; no pod is made."""
    problem = Problem("spec.template", "TemplateInvalid", "limits must be an object")
    world = passes(template, {"replicas": 1, "processesPerWorker": "auto"}, (problem,))
    if world is None:
        return
    (valid,) = [item for item in world.job.status.conditions if item.type == "Valid"]
    assert (valid.status, valid.reason) == ("False", "TemplateInvalid")
    assert not world.agents
