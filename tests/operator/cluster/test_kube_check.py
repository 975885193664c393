"""What the cluster says about a spec becomes problems with a field and a fix."""

from __future__ import annotations

from typing import Any

import pytest
from kube_samples import job as raw_job

from resumable_operator.cluster.kube_check import (
    CLAIM,
    claim_problems,
    is_on_one_node,
    name_problems,
    shared_store_problems,
    template_problems,
)
from resumable_operator.cluster.kube_entries import JobEntry, store_of
from resumable_operator.cluster.kube_errors import FieldProblem, Invalid
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused


def job(**change: Any) -> Job:
    return job_of(raw_job(**change))


def on_claim(**change: Any) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": "ckpt", **change}}


def test_long_name() -> None:
    """A name that pods' names can't be made from is refused, with the longest that can."""
    assert name_problems(job(name="a" * 50)) == []
    [problem] = name_problems(job(name="a" * 51))
    assert (problem.field, problem.reason, problem.fatal) == ("metadata.name", "NameTooLong", True)
    assert "50" in problem.message


# ---- template ----------------------------------------------------------------------------------------

POD = {
    "spec": {
        "initContainers": [{"name": "resumable-agent"}, {"name": "fetch"}],
        "containers": [{"name": "side"}, {"name": "worker"}],
        "volumes": [{"name": "resumable-agent"}, {"name": "data"}],
    }
}
TEMPLATE = {
    "spec": {
        "initContainers": [{"name": "fetch", "image": "x"}],
        "containers": [{"name": "worker", "image": "x", "command": ["a"]}, {"name": "side", "image": "x"}],
        "volumes": [{"name": "data"}],
    }
}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("spec.containers[1].image", "spec.template.spec.containers[0].image"),
        ("spec.containers[0].ports[2].name", "spec.template.spec.containers[1].ports[2].name"),
        ("spec.initContainers[1].image", "spec.template.spec.initContainers[0].image"),
        ("spec.volumes[1].hostPath", "spec.template.spec.volumes[0].hostPath"),
        ("spec.priority", "spec.template.spec.priority"),
        ("metadata.labels", "spec.template.metadata.labels"),
        ("", "spec.template"),
    ],
)
def test_fields_in_the_template(field: str, expected: str) -> None:
    """The field is named as in the job, although the pod holds more than its template."""
    error = Invalid("no", (FieldProblem(field, "is wrong"),))
    [problem] = template_problems(job(template=TEMPLATE), POD, error)
    assert (problem.field, problem.reason, problem.fatal) == (expected, "TemplateInvalid", True)
    assert problem.message == "is wrong"


def test_field_of_what_was_added() -> None:
    """What was added to the template is named as what it is."""
    error = Invalid("no", (FieldProblem("spec.initContainers[0].image", "is wrong"),))
    [problem] = template_problems(job(template=TEMPLATE), POD, error)
    assert problem.field == "spec.template (initContainers[resumable-agent].image of the pod made from it)"


@pytest.mark.parametrize(
    ("reason", "message", "field", "expected"),
    [
        (
            "AdmissionDenied",
            'error looking up service account t/robot: serviceaccount "robot" not found',
            "spec.template.spec.serviceAccountName",
            "ServiceAccountNotFound",
        ),
        (
            "AdmissionDenied",
            "no PriorityClass with name high was found",
            "spec.template.spec.priorityClassName",
            "PriorityClassNotFound",
        ),
        (
            "AdmissionDenied",
            'violates PodSecurity "restricted:latest": runAsNonRoot != true',
            "spec.template.spec",
            "PodSecurity",
        ),
        ("AdmissionDenied", "maximum cpu usage per Container is 2", "spec.template", "TemplateDenied"),
        ("Forbidden", "cannot create", "spec.template", "Forbidden"),
        ("NamespaceTerminating", "being terminated", "metadata.namespace", "NamespaceTerminating"),
    ],
)
def test_denied_templates(reason: str, message: str, field: str, expected: str) -> None:
    """What admission objects to is told with the field and the server's words."""
    [problem] = template_problems(job(), POD, ClusterRefused(reason, message))
    assert (problem.field, problem.reason, problem.fatal) == (field, expected, True)


@pytest.mark.parametrize(
    "error",
    [
        ClusterRefused("QuotaExceeded", "exceeded quota"),
        Invalid('admission webhook "w" does not support dry run', ()),
    ],
)
def test_no_problem_of_the_template(error: ClusterRefused) -> None:
    """A full quota passes by; a webhook that can't tell does not block."""
    assert template_problems(job(), POD, error) == []


# ---- claim -------------------------------------------------------------------------------------------


def claim(*modes: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "ckpt"}, "spec": {"accessModes": list(modes)}, **more}


@pytest.mark.parametrize(
    ("found", "replicas", "one_node", "reason"),
    [
        (None, 1, False, "ClaimNotFound"),
        (claim("ReadWriteMany"), 2, False, None),
        (claim("ReadWriteOnce", "ReadWriteMany"), 2, False, None),
        (claim("ReadWriteOnce"), 1, False, None),
        (claim("ReadWriteOnce"), 2, False, "ClaimNotShared"),
        (claim("ReadWriteOnce"), 2, True, None),
        (claim("ReadWriteOncePod"), 1, False, None),
        (claim("ReadWriteOncePod"), 2, True, "ClaimNotShared"),
        (claim("ReadOnlyMany"), 1, False, "ClaimReadOnly"),
        (claim("ReadWriteMany", status={"phase": "Lost"}), 1, False, "ClaimLost"),
        (claim("ReadWriteMany", status={"phase": "Pending"}), 2, False, None),
        (
            claim("ReadWriteMany", metadata={"name": "ckpt", "deletionTimestamp": "x"}),
            1,
            False,
            "ClaimTerminating",
        ),
    ],
)
def test_claim(found: Any, replicas: int, one_node: bool, reason: str | None) -> None:
    """A claim that is not there, or that not all workers could write to, is told beforehand."""
    checked = job(workers={"replicas": replicas}, checkpoint=on_claim())
    problems = claim_problems(checked, found, one_node=one_node)
    assert [problem.reason for problem in problems] == ([reason] if reason else [])
    assert all(problem.field == CLAIM and problem.fatal for problem in problems)


def test_spares_and_growth_count() -> None:
    """One worker with a spare, or with room to grow, are several."""
    once = claim("ReadWriteOnce")
    for workers in ({"replicas": 1, "spares": 1}, {"replicas": 1, "max": 2}):
        assert claim_problems(job(workers=workers, checkpoint=on_claim()), once, one_node=False)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"nodeName": "n"}, True),
        ({"nodeSelector": {"kubernetes.io/hostname": "n"}}, True),
        ({"nodeSelector": {"gpu": "a"}}, False),
    ],
)
def test_on_one_node(spec: dict[str, Any], expected: bool) -> None:
    """A template can put all its pods on one node."""
    assert is_on_one_node({"spec": spec}) is expected


# ---- shared stores -----------------------------------------------------------------------------------


def entry(name: str, created: str = "2026-11-29T20:00:00Z", **change: Any) -> JobEntry:
    raw = raw_job(name=name, meta_creationTimestamp=created, **change)
    return JobEntry(f"team/{name}", f"uid-{name}", 1, raw)


LATER = "2026-11-29T20:00:01Z"


def told(own: JobEntry, *others: JobEntry) -> list[tuple[str, bool]]:
    return [(x.reason, x.fatal) for x in shared_store_problems(own.read(), own, [own, *others])]


def test_the_younger_job_is_told() -> None:
    """Of two jobs with one store the younger is refused; the one that was there first goes on."""
    old, young = entry("b", checkpoint=on_claim()), entry("a", LATER, checkpoint=on_claim())
    assert told(young, old) == [("StoreShared", True)]
    assert told(old, young) == []


def test_taking_over() -> None:
    """With ``adopt`` it may run, but is warned while the other still may write."""
    adopting = {**on_claim(), "adopt": True}
    young = entry("b", LATER, checkpoint=adopting)
    assert told(young, entry("a", checkpoint=on_claim())) == [("StoreShared", False)]
    done = entry("a", checkpoint=on_claim(), status={"phase": "Succeeded"})
    assert told(young, done) == []


def test_alone() -> None:
    """A job shares nothing with itself."""
    own = entry("a", checkpoint=on_claim())
    assert told(own) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (on_claim(), on_claim(path="/"), True),
        (on_claim(path="runs/a"), on_claim(path="/runs/a/"), True),
        (on_claim(path="runs/a"), on_claim(path="runs//./a"), True),
        (on_claim(path="a"), on_claim(path="b"), False),
        (on_claim(), {"persistentVolumeClaim": {"claimName": "other"}}, False),
        ({"s3": {"bucket": "abc", "prefix": "p"}}, {"s3": {"bucket": "abc", "prefix": "p/"}}, True),
        ({"s3": {"bucket": "abc"}}, {"s3": {"bucket": "abc", "endpoint": "http://x"}}, False),
    ],
)
def test_same_store(one: Any, other: Any, same: bool) -> None:
    """Stores are compared by where they are, however that is written."""
    assert (store_of(raw_job(checkpoint=one)) == store_of(raw_job(checkpoint=other))) is same


def test_claims_are_of_a_namespace_and_buckets_are_not() -> None:
    """A claim of the same name elsewhere is another one; a bucket is the same everywhere."""
    assert store_of(raw_job(checkpoint=on_claim())) != store_of(raw_job(namespace="x", checkpoint=on_claim()))
    bucket = {"s3": {"bucket": "abc"}}
    assert store_of(raw_job(checkpoint=bucket)) == store_of(raw_job(namespace="x", checkpoint=bucket))


@pytest.mark.parametrize("checkpoint", [None, {}, "x", {"persistentVolumeClaim": 3}, {"s3": {}}])
def test_no_store(checkpoint: Any) -> None:
    """Nonsense is no store."""
    assert store_of(raw_job(checkpoint=checkpoint)) == ()


def test_a_job_of_another_namespace_blocks_nobody() -> None:
    """It is a warning that does not tell whose job it is; the store itself knows its owner."""
    s3 = {"s3": {"bucket": "shared-bucket", "prefix": "runs/a"}}
    raw = raw_job(name="secret-plan", namespace="mallory", checkpoint=s3)
    foreign = JobEntry("mallory/secret-plan", "uid-m", 1, raw)
    own = entry("a", LATER, checkpoint=s3)
    [problem] = shared_store_problems(own.read(), own, [own, foreign])
    assert (problem.reason, problem.fatal) == ("StoreShared", False)
    assert "mallory" not in problem.message
    assert "secret-plan" not in problem.message
    assert told(own, foreign, entry("b", checkpoint=s3)) == [("StoreShared", True)]
