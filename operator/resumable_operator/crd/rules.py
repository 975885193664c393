"""What the API server checks beyond types, in CEL: the twin of the validators in ``spec.py``.

Each message says what is wrong and what to do; the API server shows field and value before it. (It can't take
values into the message: a number made a string counts as unbounded in its estimate of what a rule costs.)
Rules see the object with defaults in place.
"""

from __future__ import annotations

from typing import Any

from resumable_operator.spec import LONGEST_NAME, MOST_RANKS, MOST_STEPS

Rule = dict[str, Any]


def _same(storage: str) -> str:
    new, old = f"self.checkpoint.{storage}", f"oldSelf.checkpoint.{storage}"
    return f"(has({new}) ? has({old}) && {new} == {old} : !has({old}))"


_NAME = {
    "rule": f"self.metadata.name.size() <= {LONGEST_NAME} && !self.metadata.name.contains('.')",
    "message": f"metadata.name must have at most {LONGEST_NAME} characters and no dots: the names of pods, "
    "hosts and labels are made from it",
}

_SPEC: list[Rule] = [
    {  # not on checkpoint itself: its default, which is to be refused here, must be valid for the definition
        "rule": "has(self.checkpoint.directory) "
        "|| has(self.checkpoint.persistentVolumeClaim) || has(self.checkpoint.s3)",
        "message": "give exactly one storage, persistentVolumeClaim: {claimName: ...} or s3: {bucket: ...}: "
        "without one every restart would begin from nothing",
        "fieldPath": ".checkpoint",
    },
    {
        "rule": "!has(self.checkpoint.persistentVolumeClaim) || !has(self.checkpoint.s3)",
        "message": "give exactly one storage: persistentVolumeClaim and s3 are given, leave out one",
        "fieldPath": ".checkpoint",
    },
    {
        "rule": f"self.suspend || oldSelf.suspend || ({_same('persistentVolumeClaim')} && {_same('s3')})",
        "message": "the storage changes only while the job is suspended: set spec.suspend to true first "
        "(or in the same change), and to false afterwards",
        "fieldPath": ".checkpoint",
    },
]

_ORDERED = "!has(self.min) || !has(self.max) || self.min <= self.max"
_WORKERS: list[Rule] = [
    {
        "rule": _ORDERED,
        "message": "min is above max: lower min or raise max",
        "fieldPath": ".min",
    },
    {
        "rule": f"!({_ORDERED}) || ((!has(self.min) || self.min <= self.replicas) "
        "&& (!has(self.max) || self.replicas <= self.max))",
        "message": "replicas must lie between min and max: change the one that is wrong",
        "fieldPath": ".replicas",
    },
    {
        "rule": "!has(self.multipleOf) || !has(self.sizes)",
        "message": "give multipleOf or sizes, not both",
        "fieldPath": ".sizes",
    },
    {
        "rule": "!has(self.multipleOf) || self.replicas % self.multipleOf == 0",
        "message": "replicas is not an allowed size: make it a multiple of multipleOf",
        "fieldPath": ".replicas",
    },
    {
        "rule": "!has(self.sizes) || self.replicas in self.sizes",
        "message": "replicas is not an allowed size: make it one of the sizes",
        "fieldPath": ".replicas",
    },
]

_PROCESSES: list[Rule] = [
    {
        "rule": f"type(self) == int ? self >= 1 && self <= {MOST_RANKS} : self == 'auto'",
        "message": f"processesPerWorker must be a number from 1 to {MOST_RANKS}, or auto",
    }
]

_COPIES: list[Rule] = [
    {
        "rule": f"type(self) == int ? self >= 1 && self <= {MOST_STEPS} : self == 'auto'",
        "message": "memoryEverySteps must be a number of steps from 1 on, or auto",
    }
]

_CHECKPOINT: list[Rule] = [
    {
        "rule": "!has(self.directory)",
        "message": "directory is for `rtj run` on one machine; on a cluster give persistentVolumeClaim or s3",
        "fieldPath": ".directory",
    },
]

_PATH: list[Rule] = [
    {
        "rule": "!('/' + self + '/').contains('/../')",
        "message": "path must not contain '..': name a directory inside the volume",
    }
]

_POD: list[Rule] = [
    {
        "rule": "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "message": "restartPolicy must be Never, or left out: the operator replaces workers itself",
        "fieldPath": ".restartPolicy",
    }
]

_IS_WORKER = "c.name == 'worker'"
_HAS_COMMAND = "has(c.command) && size(c.command) > 0"
_CONTAINERS: list[Rule] = [
    {
        "rule": f"self.exists(c, {_IS_WORKER}) ? self.exists(c, {_IS_WORKER} && {_HAS_COMMAND}) "
        f": self.size() == 0 || [self[0]].all(c, {_HAS_COMMAND})",
        "message": "the worker container (the one named worker, else the first) must set command: an image's "
        "own ENTRYPOINT is lost when the agent is put in front",
    }
]

RULES: dict[str, list[Rule]] = {
    "": [_NAME],
    "spec": _SPEC,
    "spec.workers": _WORKERS,
    "spec.workers.processesPerWorker": _PROCESSES,
    "spec.checkpoint": _CHECKPOINT,
    "spec.checkpoint.memoryEverySteps": _COPIES,
    "spec.checkpoint.persistentVolumeClaim.path": _PATH,
    "spec.checkpoint.s3.prefix": _PATH,
    "spec.template.spec": _POD,
    "spec.template.spec.containers": _CONTAINERS,
}
"""Rules by the path of the field that they are about; the empty path is the whole object."""
