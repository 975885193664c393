"""Answers of the API server become errors by what the caller should do."""

from __future__ import annotations

from typing import Any

import pytest

from resumable_operator.cluster.kube_errors import (
    AlreadyExists,
    Call,
    Expired,
    FieldProblem,
    Invalid,
    NotFound,
    error_of,
    retry_after_seconds,
    status_of,
)
from resumable_operator.errors import ClusterRefused, ConflictError, ResumableError, RetryableError

CALL = Call("create", "pods", "train-0-1")
RIGHTS = (
    'pods is forbidden: User "system:serviceaccount:ops:operator" cannot create resource "pods" '
    'in API group "" in the namespace "team"'
)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (404, {"reason": "NotFound"}, NotFound),
        (409, {"reason": "AlreadyExists"}, AlreadyExists),
        (409, {"reason": "Conflict"}, ConflictError),
        (410, {"reason": "Expired"}, Expired),
        (401, {}, RetryableError),
        (408, {}, RetryableError),
        (429, {}, RetryableError),
        (500, {}, RetryableError),
        (503, {}, RetryableError),
        (504, {}, RetryableError),
        (400, {}, Invalid),
        (413, {}, Invalid),
        (422, {}, Invalid),
    ],
)
def test_by_code(code: int, status: dict[str, Any], kind: type[ResumableError]) -> None:
    """The code and the reason decide."""
    assert type(error_of(CALL, code, {"message": "no", **status})) is kind


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, RIGHTS, "Forbidden"),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', "QuotaExceeded"),
        (403, 'pods "x" is forbidden: failed quota: q: must specify limits.cpu', "AdmissionDenied"),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"', "AdmissionDenied"),
        (
            403,
            "unable to create new content in namespace t because it is being terminated",
            "NamespaceTerminating",
        ),
        (400, 'admission webhook "w.example" denied the request: no', "AdmissionDenied"),
        (422, "is invalid", "Invalid"),
    ],
)
def test_refusals(code: int, message: str, reason: str) -> None:
    """What the cluster will go on refusing says why; the server's text and the call are kept."""
    error = error_of(CALL, code, {"message": message})
    assert isinstance(error, ClusterRefused)
    assert error.reason == reason
    assert message in str(error)
    assert "create pods train-0-1" in str(error)


def test_missing_rights_name_the_fix() -> None:
    """A missing right names verb, resource and to whom it must be given."""
    assert "Grant create on pods to system:serviceaccount:ops:operator" in str(
        error_of(CALL, 403, {"message": RIGHTS})
    )


def test_fields_of_causes() -> None:
    """The fields that are wrong are kept, as the server names them."""
    causes = [{"reason": "FieldValueInvalid", "message": "too small", "field": "spec.containers[0].image"}]
    error = error_of(CALL, 422, {"message": "invalid", "details": {"causes": causes}})
    assert isinstance(error, Invalid)
    assert error.fields == (FieldProblem("spec.containers[0].image", "too small"),)


def test_fields_of_strict_decoding() -> None:
    """Unknown fields are told in text alone; they are found there."""
    message = 'strict decoding error: unknown field "spec.contaners", duplicate field "spec.hostname"'
    error = error_of(CALL, 400, {"message": message})
    assert isinstance(error, Invalid)
    assert [problem.field for problem in error.fields] == ["spec.contaners", "spec.hostname"]


def test_answers_that_are_no_status() -> None:
    """A proxy's page is an error with its text."""
    assert status_of(b"<html>bad gateway") == {"message": "<html>bad gateway"}
    assert status_of(b"[]")["message"] == "[]"
    assert "bad gateway" in str(error_of(CALL, 502, status_of(b"bad gateway")))


@pytest.mark.parametrize(
    ("headers", "status", "expected"),
    [
        ({"Retry-After": "3"}, {}, 3.0),
        ({}, {"details": {"retryAfterSeconds": 2}}, 2.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({}, {}, None),
    ],
)
def test_retry_after(headers: dict[str, str], status: dict[str, Any], expected: float | None) -> None:
    """How long the server asks to wait is taken from the header or the body."""
    assert retry_after_seconds(headers, status) == expected
