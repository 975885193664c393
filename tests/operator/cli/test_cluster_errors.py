"""What the API server's errors tell somebody at the command line."""

from __future__ import annotations

import pytest

from resumable_operator.cli.cluster_errors import explained, no_such_job
from resumable_operator.cli.exitcodes import UsageProblem, for_error
from resumable_operator.cluster.kube_errors import Call, NotFound, error_of
from resumable_operator.errors import ClusterRefused, ResumableError, RetryableError, UserError

WHERE = "the API server https://api.example:6443"


def refused(resource: str, verb: str, group: str, place: str) -> ResumableError:
    """As the API server words it."""
    text = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" in API group "{group}"'
    return error_of(Call(verb, resource), 403, {"message": text + place})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            refused("resumabletrainingjobs", "get", "resumable.dev", ' in the namespace "team"'),
            "ann may not get resumabletrainingjobs.resumable.dev in namespace team; a Role must grant get"
            " on resumabletrainingjobs"
            " (see: kubectl auth can-i get resumabletrainingjobs.resumable.dev -n team)",
        ),
        (
            refused("pods/log", "get", "", ' in the namespace "team"'),
            "ann may not get pods/log in namespace team; a Role must grant get on pods/log (see: kubectl auth"
            " can-i get pods --subresource=log -n team)",
        ),
        (
            refused("resumabletrainingjobs", "list", "resumable.dev", " at the cluster scope"),
            "ann may not list resumabletrainingjobs.resumable.dev in all namespaces; a Role must grant list"
            " on resumabletrainingjobs (see: kubectl auth can-i list resumabletrainingjobs.resumable.dev -A)",
        ),
    ],
)
def test_a_missing_right_is_named_with_a_way_to_see_it(error: ResumableError, message: str) -> None:
    """Who may not do what, where; nothing about the operator's own installation."""
    told = explained(error, WHERE)
    assert str(told) == message
    assert for_error(told) == 6


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (NotFound("list resumabletrainingjobs: 404"), "is not installed there", 6),
        (RetryableError("get x: Unauthorized (HTTP 401)"), f"{WHERE} does not accept these credentials", 6),
        (RetryableError("get x: no answer: refused"), f"{WHERE} can't be reached: get x: no answer", 6),
        (RetryableError("get x: etcd is slow (HTTP 500)"), "etcd is slow", 6),
        (ClusterRefused("QuotaExceeded", "exceeded quota: q"), "exceeded quota: q", 6),
        (UserError("no credentials for a cluster"), "no credentials for a cluster", 2),
        (UsageProblem("no such job"), "no such job", 2),
    ],
)
def test_each_error_has_a_hint_and_an_exit_code(error: ResumableError, words: str, code: int) -> None:
    """A wrong command line is told apart from trouble of the cluster; none blames the job."""
    told = explained(error, WHERE)
    assert words in str(told)
    assert for_error(told) == code


@pytest.mark.parametrize(
    ("here", "elsewhere", "message"),
    [
        ([], [], "namespace team has no job gpt, nor any other"),
        (["gpt2", "bert"], [], "namespace team has no job gpt; did you mean gpt2?"),
        (["bert"], ["b", "a"], "namespace team has no job gpt; there is one in namespace a and one in b"),
        (["bert"], [], "namespace team has no job gpt; it has bert"),
        (["u", "v", "w", "x", "y"], [], "namespace team has no job gpt; it has u, v, w and 2 more"),
    ],
)
def test_a_job_that_is_not_there(here: list[str], elsewhere: list[str], message: str) -> None:
    """What was probably meant, else what there is."""
    assert str(no_such_job("gpt", "team", here, elsewhere)) == message
