"""Specs that must be taken and specs that must be refused, for all who judge them: the models and the CRD."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

_LEFT_OUT = object()
MINIMAL: Spec = {
    "workers": {"replicas": 4},
    "checkpoint": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
    "template": {
        "spec": {"containers": [{"name": "worker", "image": "x", "command": ["python", "train.py"]}]}
    },
}


def changed(changes: dict[str, Any], base: Spec = MINIMAL) -> Spec:
    """``base`` with other values at dotted paths; a number in a path is a place in a list."""
    spec = copy.deepcopy(base)
    for path, value in changes.items():
        *above, last = (int(name) if name.isdigit() else name for name in path.split("."))
        node: Any = spec
        for name in above:
            node = node[name] if isinstance(node, list) else node.setdefault(name, {})
        if value is _LEFT_OUT:
            del node[last]
        else:
            node[last] = value
    return spec


def _container(**fields: Any) -> dict[str, Any]:
    return {"template.spec.containers.0": {"name": "worker", "image": "x", "command": ["a"], **fields}}


GOOD: dict[str, Spec] = {
    name: changed(changes)
    for name, changes in {
        "minimal": {},
        "elastic": {"workers": {"replicas": 4, "min": 1, "max": 8, "spares": 2}},
        "only min": {"workers.min": 2},
        "only max": {"workers.max": 9},
        "multiples": {"workers": {"replicas": 4, "min": 2, "max": 7, "multipleOf": 2}},
        "sizes": {"workers": {"replicas": 4, "min": 1, "sizes": [1, 2, 4]}},
        "very many workers": {"workers": {"replicas": 10000, "min": 1}},
        "ranks by number": {"workers.processesPerWorker": 1024},
        "ranks by GPUs": {"workers.processesPerWorker": "auto"},
        "copies by number": {"checkpoint.memoryEverySteps": 1},
        "copies by cost": {"checkpoint.memoryEverySteps": "auto"},
        "no preloading": {"workers.preload": {"enabled": False}},
        "modules to preload": {"workers.preload": {"modules": ["a", "_b.c1.D"]}},
        "s3": {"checkpoint": {"s3": {"bucket": "abc"}}},
        "s3 in full": {
            "checkpoint": {
                "s3": {"bucket": "b.c-d", "prefix": "a/b", "endpoint": "http://x:1", "secretName": "s"}
            }
        },
        "a path with dots": {"checkpoint.persistentVolumeClaim.path": "a..b/..c/d.."},
        "interval auto": {"checkpoint.interval": "auto"},
        "interval by steps": {"checkpoint.interval": {"steps": 1}},
        "interval by seconds": {"checkpoint.interval": {"seconds": 0.5}},
        "interval by both": {"checkpoint.interval": {"steps": 500, "seconds": 600}},
        "a longest interval": {"checkpoint.maxIntervalSeconds": 900.5},
        "no seconds": {"recovery": {"drainSeconds": 0, "shrinkAfterSeconds": 0.0}},
        "own budgets": {"recovery.budgets": {"userError": {"limit": 0}, "withoutProgress": 1}},
        "suspended": {"suspend": True},
        "ends by itself": {"ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 0.5},
        "nulls": {
            "workers.min": None,
            "workers.spares": None,
            "checkpoint.s3": None,
            "checkpoint.interval": None,
            "recovery": None,
            "suspend": None,
            "ttlSecondsAfterFinished": None,
        },
        "nulls deep down": {"checkpoint.interval": {"steps": 5, "seconds": None}, "recovery.budgets": None},
        "a resume point": {"checkpoint": {"s3": {"bucket": "abc"}, "resumeFrom": "step-00000100.1"}},
        "a sidecar first": {
            "template.spec.containers": [
                {"name": "proxy", "image": "y"},
                {"name": "worker", "image": "x", "command": ["a"]},
            ]
        },
        "another name, then a sidecar": {
            "template.spec.containers": [
                {"name": "train", "image": "x", "command": ["a"], "args": ["--lr", "0.1"]},
                {"name": "proxy", "image": "y"},
            ]
        },
        "a whole container": _container(
            workingDir="/w",
            env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
            resources={"limits": {"nvidia.com/gpu": 8}},
        ),
        "never restarted": {"template.spec.restartPolicy": "Never"},
        "fields of pods": {
            "template.metadata": {"labels": {"a": "b"}},
            "template.spec.schedulingGates": [{"name": "g"}],
        },
    }.items()
}


@dataclass(frozen=True)
class Bad:
    """``server``: part of what the API server says. ``models``: part of what ``parse_spec`` says.

    ``models`` None: fit for ``rtj run``, so that only the CRD refuses it.
    """

    changes: dict[str, Any]
    server: str
    models: str | None

    @property
    def spec(self) -> Spec:
        return changed(self.changes)


_NUMBER = "spec.workers.replicas: Input should be a valid integer"
_INTERVAL = "spec.checkpoint.interval"
_NO_COMMAND = "the worker container (the one named worker, else the first) must set command"
_TWO_STORAGES = "give exactly one storage: persistentVolumeClaim and s3 are given, leave out one"
_NO_STORAGE = "give exactly one storage, persistentVolumeClaim: {claimName: ...} or s3: {bucket: ...}"

BAD: dict[str, Bad] = {
    "no workers": Bad({"workers": _LEFT_OUT}, "spec.workers: Required value", "spec.workers: Field required"),
    "no replicas": Bad({"workers": {}}, "replicas: Required value", "replicas: Field required"),
    "zero replicas": Bad({"workers.replicas": 0}, "greater than or equal to 1", "greater than or equal to 1"),
    "too many": Bad(
        {"workers.replicas": 10001}, "less than or equal to 10000", "less than or equal to 10000"
    ),
    "a text for a number": Bad({"workers.replicas": "4"}, "must be of type integer", _NUMBER),
    "true for a number": Bad({"workers.replicas": True}, "must be of type int64", _NUMBER),
    "half a worker": Bad({"workers.replicas": 1.5}, "must be of type integer", _NUMBER),
    "min above max": Bad(
        {"workers": {"replicas": 4, "min": 5, "max": 3}},
        "spec.workers.min: Invalid value: min is above max: lower min or raise max",
        "min (5) is above max (3): lower min or raise max",
    ),
    "replicas below min": Bad(
        {"workers.min": 5},
        "spec.workers.replicas: Invalid value: replicas must lie between min and max",
        "replicas (4) must lie between min (5) and max (4)",
    ),
    "replicas above max": Bad(
        {"workers.max": 3}, "replicas must lie between min and max", "replicas (4) must lie between"
    ),
    "multiples and sizes": Bad(
        {"workers": {"replicas": 4, "multipleOf": 2, "sizes": [4]}},
        "spec.workers.sizes: Invalid value: give multipleOf or sizes, not both",
        "give multipleOf or sizes, not both",
    ),
    "not a multiple": Bad(
        {"workers.multipleOf": 3},
        "replicas is not an allowed size: make it a multiple of multipleOf",
        "no allowed size lies between min 4 and max 4",
    ),
    "not one of the sizes": Bad(
        {"workers": {"replicas": 4, "min": 1, "sizes": [1, 2]}},
        "replicas is not an allowed size: make it one of the sizes",
        "replicas (4) is not an allowed size",
    ),
    "a path to preload": Bad(
        {"workers.preload": {"modules": ["a", "my/model.py"]}},
        "spec.workers.preload.modules[1]",
        "spec.workers.preload.modules.1",
    ),
    "preload for a word": Bad({"workers.preload": "auto"}, "spec.workers.preload", "spec.workers.preload"),
    "no sizes": Bad({"workers.sizes": []}, "at least 1 items", "at least 1 item"),
    "a size of zero": Bad({"workers.sizes": [0, 4]}, "spec.workers.sizes[0]", "spec.workers.sizes.0"),
    "too many ranks": Bad(
        {"workers.processesPerWorker": 1025},
        "processesPerWorker must be a number from 1 to 1024, or auto",
        "spec.workers.processesPerWorker: must be a number from 1 to 1024, or auto",
    ),
    "copies at every no step": Bad(
        {"checkpoint.memoryEverySteps": 0},
        "memoryEverySteps must be a number of steps from 1 on, or auto",
        "spec.checkpoint.memoryEverySteps: must be a number of steps from 1 on, or auto",
    ),
    "ranks by a word": Bad({"workers.processesPerWorker": "all"}, "from 1 to 1024", "from 1 to 1024"),
    "ranks by a half": Bad({"workers.processesPerWorker": 1.5}, "processesPerWorker", "from 1 to 1024"),
    "negative spares": Bad({"workers.spares": -1}, "spec.workers.spares", "spec.workers.spares"),
    "no template": Bad({"template": _LEFT_OUT}, "spec.template: Required value", None),
    "an empty template": Bad({"template": {}}, "spec.template.spec: Required value", None),
    "no containers": Bad({"template.spec.containers": []}, "at least 1 items", None),
    "a container without a name": Bad(
        {"template.spec.containers": [{"image": "x", "command": ["a"]}]}, "name: Required value", None
    ),
    "two containers of one name": Bad(
        {"template.spec.containers": [{"name": "a", "command": ["a"]}, {"name": "a"}]}, "Duplicate", None
    ),
    "no command": Bad({"template.spec.containers.0.command": _LEFT_OUT}, _NO_COMMAND, None),
    "an empty command": Bad(_container(command=[]), _NO_COMMAND, None),
    "a command in the sidecar only": Bad(
        {"template.spec.containers": [{"name": "a", "command": ["a"]}, {"name": "worker"}]}, _NO_COMMAND, None
    ),
    "a number in args": Bad(
        _container(args=[0.1]), "args[0]", "args[0] must be a string: put 0.1 into quotes"
    ),
    "a number in env": Bad(
        _container(env=[{"name": "A", "value": 1}]), "env[0].value", "must be a string: put 1 into quotes"
    ),
    "no name in env": Bad(_container(env=[{"value": "1"}]), "env[0].name", "env[0].name must be a string"),
    "an odd name in env": Bad(_container(env=[{"name": "a=b"}]), "env[0].name", "is no name of a variable"),
    "a list for a template": Bad({"template": []}, "spec.template", "spec.template"),
    "restarted by the kubelet": Bad(
        {"template.spec.restartPolicy": "OnFailure"}, "restartPolicy must be Never, or left out", None
    ),
    "no storage": Bad({"checkpoint": _LEFT_OUT}, _NO_STORAGE, None),
    "null for storage": Bad({"checkpoint.persistentVolumeClaim": None}, _NO_STORAGE, None),
    "two storages": Bad({"checkpoint.s3": {"bucket": "abc"}}, _TWO_STORAGES, _TWO_STORAGES),
    "a directory": Bad(
        {"checkpoint": {"directory": {"path": "/x"}}},
        "spec.checkpoint.directory: Invalid value: directory is for `rtj run` on one machine",
        None,
    ),
    "no claim": Bad(
        {"checkpoint.persistentVolumeClaim": {}}, "claimName: Required", "claimName: Field required"
    ),
    "a claim that can't be": Bad(
        {"checkpoint.persistentVolumeClaim.claimName": "Data_1"}, "should match", "should match pattern"
    ),
    "out of the volume": Bad(
        {"checkpoint.persistentVolumeClaim.path": "a/../../b"},
        "path must not contain '..'",
        "path must not contain '..'",
    ),
    "out of the prefix": Bad(
        {"checkpoint": {"s3": {"bucket": "abc", "prefix": ".."}}},
        "path must not contain '..'",
        "path must not contain '..'",
    ),
    "a short bucket": Bad(
        {"checkpoint": {"s3": {"bucket": "ab"}}}, "at least 3 chars", "at least 3 characters"
    ),
    "an endpoint without a scheme": Bad(
        {"checkpoint": {"s3": {"bucket": "abc", "endpoint": "minio:9000"}}}, "endpoint", "endpoint"
    ),
    "one checkpoint kept": Bad(
        {"checkpoint.keep": 1}, "greater than or equal to 2", "greater than or equal to 2"
    ),
    "interval by a word": Bad(
        {"checkpoint.interval": "often"}, "should match '^(auto)$'", "must be the word auto"
    ),
    "interval by a number": Bad(
        {"checkpoint.interval": 100}, _INTERVAL, "must be the word auto, or an object"
    ),
    "interval by zero": Bad({"checkpoint.interval": 0}, _INTERVAL, "must be the word auto"),
    "interval by truth": Bad({"checkpoint.interval": True}, _INTERVAL, "must be the word auto"),
    "interval by an empty list": Bad({"checkpoint.interval": []}, _INTERVAL, "must be the word auto"),
    "interval by a list": Bad({"checkpoint.interval": ["auto"]}, _INTERVAL, "must be the word auto"),
    "interval of nothing": Bad(
        {"checkpoint.interval": {}}, "steps: Required", "give steps, seconds, or both"
    ),
    "interval with a typo": Bad({"checkpoint.interval": {"step": 5}}, _INTERVAL, "did you mean steps?"),
    "interval with more": Bad(
        {"checkpoint.interval": {"steps": 5, "hours": 1}}, _INTERVAL, "hours: unknown field"
    ),
    "interval of no steps": Bad(
        {"checkpoint.interval": {"steps": 0}}, "greater than or equal to 1", "interval.steps"
    ),
    "interval of no time": Bad({"checkpoint.interval": {"seconds": 0}}, "greater than 0", "interval.seconds"),
    "a longest interval of no time": Bad(
        {"checkpoint.maxIntervalSeconds": 0}, "greater than 0", "maxIntervalSeconds"
    ),
    "negative seconds": Bad({"recovery.drainSeconds": -1}, "greater than or equal to 0", "drainSeconds"),
    "seconds in a text": Bad({"recovery.drainSeconds": "60"}, "must be of type number", "drainSeconds"),
    "seconds without end": Bad({"recovery.hangSeconds": 1e300}, "less than or equal to", "hangSeconds"),
    "a budget without limit": Bad(
        {"recovery.budgets": {"preemption": {"windowSeconds": 5}}},
        "limit: Required value",
        "limit: Field required",
    ),
    "a negative budget": Bad({"recovery.budgets": {"userError": {"limit": -1}}}, "userError.limit", "limit"),
    "no deadline": Bad({"activeDeadlineSeconds": 0}, "greater than 0", "activeDeadlineSeconds"),
    "yes for true": Bad({"suspend": "yes"}, "must be of type boolean", "spec.suspend"),
    "a typo": Bad({"workers.replica": 3}, 'unknown field "spec.workers.replica"', "did you mean replicas?"),
    "a number for an object": Bad({"recovery": 5}, "spec.recovery", "spec.recovery: must be a mapping"),
}
