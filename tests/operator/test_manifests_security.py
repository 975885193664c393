"""Security contexts: restricted by default, and the template's word is final."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from worker_pods import SETTINGS, by_name, job_of, pod_of, worker_of

POD_DEFAULT = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_DEFAULT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in POD_DEFAULT.items() if name not in names}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, POD_DEFAULT),
        ({}, POD_DEFAULT),
        ({"runAsUser": 5000}, {**without("runAsGroup"), "runAsUser": 5000}),
        ({"runAsUser": 0}, {**without("runAsGroup", "runAsNonRoot"), "runAsUser": 0}),
        ({"runAsUser": None}, without("runAsUser", "runAsGroup")),
        ({"runAsNonRoot": False}, {**POD_DEFAULT, "runAsNonRoot": False}),
        ({"fsGroup": 7}, {**without("fsGroupChangePolicy"), "fsGroup": 7}),
        ({"fsGroup": None}, without("fsGroup", "fsGroupChangePolicy")),
        ({"fsGroupChangePolicy": "Always"}, {**POD_DEFAULT, "fsGroupChangePolicy": "Always"}),
        (
            {"seccompProfile": {"type": "Unconfined"}},
            {**POD_DEFAULT, "seccompProfile": {"type": "Unconfined"}},
        ),
        ({"supplementalGroups": [4]}, {**POD_DEFAULT, "supplementalGroups": [4]}),
    ],
)
def test_pod_context(own: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Each setting of the template wins, null leaves it open, all others are restricted."""
    assert pod_of(job_of({"securityContext": own}))["spec"]["securityContext"] == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, CONTAINER_DEFAULT),
        ({"allowPrivilegeEscalation": True}, {**CONTAINER_DEFAULT, "allowPrivilegeEscalation": True}),
        (
            {"capabilities": {"add": ["IPC_LOCK"]}},
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
        ),
        ({"capabilities": {"drop": []}}, {"allowPrivilegeEscalation": False, "capabilities": {"drop": []}}),
        (
            {"capabilities": {"add": ["CAP_SYS_ADMIN"]}},
            {"capabilities": {"drop": ["ALL"], "add": ["CAP_SYS_ADMIN"]}},
        ),
        ({"privileged": True}, {"privileged": True}),
        ({"runAsUser": 0}, {**CONTAINER_DEFAULT, "runAsUser": 0, "runAsNonRoot": False}),
        ({"readOnlyRootFilesystem": True}, {**CONTAINER_DEFAULT, "readOnlyRootFilesystem": True}),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_container_context(kind: str, own: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """So does each setting of a container, and nothing is added that the API server refuses beside it."""
    worker = {"name": "worker", "image": "i", "command": ["c"]}
    other = {"name": "other", "image": "i", **({"securityContext": own} if own is not None else {})}
    template = {"containers": [worker], "initContainers": []}
    template[kind] = [*template[kind], other]
    made = pod_of(job_of(template))["spec"][kind]
    assert by_name(made)["other"]["securityContext"] == expected


def test_the_workers_container_too() -> None:
    """The container of the ranks is no exception."""
    assert worker_of(pod_of(job_of()))["securityContext"] == CONTAINER_DEFAULT


def test_the_agents_init_container_is_restricted_whatever_the_pod_is() -> None:
    """A pod that runs as root does not make the container that copies the agent run as root."""
    made = pod_of(job_of({"securityContext": {"runAsUser": 0, "seccompProfile": None}}))
    assert made["spec"]["initContainers"][0]["securityContext"] == {
        **CONTAINER_DEFAULT,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_a_template_that_leaves_the_user_open() -> None:
    """Then the container that copies the agent names none either."""
    made = pod_of(job_of({"securityContext": {"runAsUser": None}}))["spec"]
    assert "runAsUser" not in made["initContainers"][0]["securityContext"]


def test_a_cluster_that_chooses_users() -> None:
    """With no user set for the installation, no user and no group is named; the key stays readable."""
    made = pod_of(job_of(), replace(SETTINGS, run_as_user=None))["spec"]
    assert made["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert "runAsUser" not in made["initContainers"][0]["securityContext"]
    assert by_name(made["volumes"])["resumable-key"]["secret"]["defaultMode"] == 0o444
