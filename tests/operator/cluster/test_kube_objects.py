"""Jobs and nodes as the API server shows them."""

from __future__ import annotations

from typing import Any

import pytest
from kube_samples import CREATED_SECONDS, at, job, node, taint

from resumable_operator.cluster.kube_objects import NOTICE_SECONDS, job_of, node_of, seconds, version_of
from resumable_operator.decide.observation import Node
from resumable_operator.errors import SpecError
from resumable_operator.model import JobStatus, parse_spec
from resumable_operator.stored import to_stored

SEEN = CREATED_SECONDS + 500


def test_job() -> None:
    """Spec, status and what writes need are read."""
    status = JobStatus(step=7, cursors={"boot": 3}, started_at=CREATED_SECONDS)
    found = job_of(job(status=to_stored(status), meta_generation=4, meta_deletionTimestamp=at(3)))
    assert (found.key, found.uid, found.generation, found.resource_version) == (
        "team/train",
        "uid-train",
        4,
        "10",
    )
    assert found.status == status
    assert found.spec.workers.replicas == 2
    assert found.deleting


def test_spec_is_taken_over() -> None:
    """A spec that was read before is not read again."""
    spec = parse_spec(job()["spec"])
    assert job_of(job(), spec).spec is spec


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workers": {"replicas": 0}}, "spec.workers.replicas"),
        ({"nonsense": 1}, "spec.nonsense"),
        ({"status": {"step": "many"}}, "status"),
        ({"status": {"conditions": [{"type": 3}]}}, "status"),
    ],
)
def test_unreadable_job(change: dict[str, Any], field: str) -> None:
    """The field that can't be read is named; an unreadable status is never taken for an empty one."""
    with pytest.raises(SpecError) as error:
        job_of(job(**change))
    assert error.value.field.startswith(field)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T20:00:00Z", CREATED_SECONDS),
        ("2026-11-29T20:00:00.250000Z", CREATED_SECONDS + 0.25),
        ("2026-11-29T21:00:00+01:00", CREATED_SECONDS),
        ("yesterday", None),
        (None, None),
        (7, None),
    ],
)
def test_seconds(text: object, expected: float | None) -> None:
    """Times in all forms that the API writes."""
    assert seconds(text) == expected


def test_version() -> None:
    """Versions are compared as numbers; what has none is the oldest."""
    assert version_of(node(version=9)) < version_of(node(version=10))
    assert version_of({}) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Node("node-1")),
        ({"ready": "False"}, Node("node-1", ready=False, unready_since=CREATED_SECONDS)),
        ({"ready": "Unknown"}, Node("node-1", ready=False, unready_since=CREATED_SECONDS)),
        ({"taints": [taint("node.kubernetes.io/unreachable", "NoExecute")]}, Node("node-1")),
        ({"taints": [taint("node.kubernetes.io/not-ready")]}, Node("node-1")),
        ({"taints": [taint("node.cloudprovider.kubernetes.io/shutdown")]}, Node("node-1", ready=False)),
        ({"cordoned": True}, Node("node-1", cordoned=True)),
        ({"taints": [taint("node.kubernetes.io/out-of-service")]}, Node("node-1", out_of_service=True)),
        ({"taints": [taint("nvidia.com/gpu", value="true")]}, Node("node-1")),
    ],
)
def test_node(change: dict[str, Any], expected: Node) -> None:
    """Readiness, cordon and out-of-service."""
    assert node_of(node(**change), SEEN) == expected


def test_node_without_conditions() -> None:
    """A node that never said that it is ready is not."""
    assert not node_of({"metadata": {"name": "n"}}, SEEN).ready


@pytest.mark.parametrize("key", sorted(NOTICE_SECONDS))
def test_notices(key: str) -> None:
    """Every notice gives a deadline, counted from when it was seen first where it has no time of its own."""
    assert node_of(node(taints=[taint(key)]), SEEN).notice_deadline == SEEN + NOTICE_SECONDS[key]


@pytest.mark.parametrize(
    ("change", "deadline"),
    [
        (
            {"taints": [taint("aws-node-termination-handler/spot-itn", "NoExecute", timeAdded=at(30))]},
            CREATED_SECONDS + 150,
        ),
        (
            {"taints": [taint("ToBeDeletedByClusterAutoscaler", value=str(int(CREATED_SECONDS)))]},
            CREATED_SECONDS + 600,
        ),
        (  # the soonest counts
            {
                "taints": [
                    taint("karpenter.sh/disrupted"),
                    taint("cloud.google.com/impending-node-termination"),
                ]
            },
            SEEN + 25,
        ),
        ({"taints": [taint("karpenter.sh/disrupted", "PreferNoSchedule")]}, None),
        ({"taints": [taint("DeletionCandidateOfClusterAutoscaler")]}, None),
        ({"meta": {"deletionTimestamp": at(10)}}, CREATED_SECONDS + 130),
    ],
)
def test_deadline(change: dict[str, Any], deadline: float | None) -> None:
    """When the node will be gone."""
    assert node_of(node(**change), SEEN).notice_deadline == deadline
