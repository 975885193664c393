"""The part of a pod template that the API server checks at apply.

Not the whole PodTemplateSpec: its schema is ten times the rest of this CRD, would have to be copied anew for
each Kubernetes release, and a field that is younger than the copy would be dropped in silence. So everything
is kept as it is, only what the operator itself reads has types, and the API server judges the finished pod
before the first attempt (a dry run, told in condition ``Valid``). ``resumable_operator.template`` asks for
the same.
"""

from __future__ import annotations

from typing import Any

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _words(description: str, **limits: int) -> dict[str, Any]:
    return {"description": description, "type": "array", **limits, "items": {"type": "string"}}


_VARIABLE = {
    **_OPEN,
    "properties": {
        "name": {"description": "Its name.", "type": "string", "minLength": 1, "pattern": "^[^=]+$"},
        "value": {
            "description": "A string: put numbers and true into quotes. Other sources as in any pod.",
            "type": "string",
        },
    },
    "required": ["name"],
}
_CONTAINER = {
    **_OPEN,
    "properties": {
        "name": {
            "description": "The worker container is the one named worker, else the first.",
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
        },
        "command": _words(
            "What starts the training script in each rank, such as [python, train.py]. Required in the "
            "worker container: the agent is put in front, and an image's own ENTRYPOINT is lost.",
            maxItems=1024,
        ),
        "args": _words("More words of the command."),
        "workingDir": {"description": "Directory in which ranks start.", "type": "string"},
        "env": {
            "description": "Environment of the container, and of the ranks in it.",
            "type": "array",
            "items": _VARIABLE,
        },
    },
    "required": ["name"],
}
_POD = {
    **_OPEN,
    "description": "Pod spec. Fields that are not listed here are those of any pod.",
    "properties": {
        "containers": {
            "description": "The worker container and its sidecars. Other fields are those of any container.",
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": _CONTAINER,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "restartPolicy": {
            "description": "Never, which is also what it is without it: the operator replaces workers.",
            "type": "string",
        },
    },
    "required": ["containers"],
}
TEMPLATE = {**_OPEN, "properties": {"spec": _POD}, "required": ["spec"]}
