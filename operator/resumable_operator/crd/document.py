"""The whole CustomResourceDefinition, and its text as it is committed."""

from __future__ import annotations

from typing import Any

import yaml

from resumable_operator.crd.rules import RULES
from resumable_operator.crd.schema import Schema, of_spec, of_status
from resumable_operator.crd.template import TEMPLATE
from resumable_operator.model import JobSpec, JobStatus
from resumable_training.contract.labels import GROUP, KIND, PLURAL, SHORT_NAME, VERSION

_HEADER = "# Made by `python -m resumable_operator.crd` from the models; change those, not this file.\n"
_KIND = (
    "A PyTorch training job that goes on while machines die under it: workers are replaced, the world "
    "shrinks and grows, and each attempt resumes from the newest verified checkpoint."
)
_PACKED = (
    "Book-keeping of large jobs (members, cursors, past interruptions): base64 of zlib of JSON, to keep the "
    "object small. Read and written by the operator only."
)
_COLUMNS = (  # name, type, path, priority (above 0: with -o wide), description
    ("Phase", "string", ".status.phase", 0, "Where the job stands."),
    ("Workers", "string", ".status.workers", 0, "Workers that train, of those wanted."),
    ("Step", "integer", ".status.step", 0, "Steps done."),
    ("Ckpt", "integer", ".status.checkpoint.step", 0, "Step of the newest complete checkpoint."),
    ("Attempt", "integer", ".status.attempt.number", 0, "Number of the attempt; each restart is one."),
    ("Goodput", "string", ".status.goodput", 0, "Share of the time that made new steps."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since the job was created."),
    ("Last", "string", ".status.lastInterruption.cause", 1, "Cause of the newest interruption."),
    ("Reason", "string", ".status.reason", 1, "Where the job stands, in words."),
)


def crd() -> dict[str, Any]:
    """The object for ``kubectl apply``."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            # Without its definition all jobs of a cluster are deleted: that is nothing for `helm uninstall`.
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "resumable-training"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def as_yaml() -> str:
    """The text of the committed files."""
    return _HEADER + yaml.dump(crd(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Says everything where it belongs, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.workers.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "selectableFields": [{"jsonPath": ".status.phase"}],
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **_unless_0(priority), "description": text}
            for name, kind, path, priority, text in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": schema()},
    }


def _unless_0(priority: int) -> dict[str, int]:
    """The server leaves a 0 out; with it Helm and kubectl would disagree about the whole version."""
    return {"priority": priority} if priority else {}


def schema() -> Schema:
    """The structural schema of the whole object, rules included."""
    spec = of_spec(JobSpec)
    spec["description"] = "What is wanted."
    template = spec["properties"]["template"]
    template.update({**TEMPLATE, "description": template["description"]})
    spec["properties"]["template"] = template
    spec["required"] = [*spec["required"], "template"]
    root: Schema = {
        "description": _KIND,
        "type": "object",
        "properties": {"spec": spec, "status": _status()},
        "required": ["spec"],
    }
    for path, rules in RULES.items():
        _at(root, path)["x-kubernetes-validations"] = rules
    return root


def _status() -> Schema:
    status = of_status(JobStatus)
    status["description"] = "Where the job stands; written by the operator."
    conditions = status["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    conditions["items"]["required"] = ["type"]
    for part in status["properties"].values():
        if part["type"] == "object":  # one writer: who owns which field in it need not be kept at each write
            part["x-kubernetes-map-type"] = "atomic"
    status["properties"]["packed"] = {"description": _PACKED, "type": "string"}
    return status


def _at(root: Schema, path: str) -> Schema:
    node = root
    for name in path.split(".") if path else ():
        node = node["properties"][name]
    return node
