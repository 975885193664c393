"""PURE: what the API server's errors mean to somebody at the command line, and what to do about them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cluster.kube_errors import NotFound
from resumable_operator.errors import ClusterRefused, FatalError, ResumableError, RetryableError, UserError

NEAR_SHOWN = 3
NO_KIND = "the cluster knows no ResumableTrainingJobs: the operator, with its CRD, is not installed there"
_RIGHTS = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


class NoSuchJob(UsageProblem):
    """The namespace has no job of that name."""


def explained(error: ResumableError, where: str) -> ResumableError:
    """The error with a hint where there is one.

    Args:
        where: the API server, as people know it.
    """
    text = str(error)
    if isinstance(error, NotFound):
        return FatalError(NO_KIND)
    if isinstance(error, ClusterRefused) and (match := _RIGHTS.search(text)):
        return ClusterRefused(error.reason, _no_right(match))
    if isinstance(error, RetryableError) and "(HTTP 401)" in text:
        return RetryableError(f"{where} does not accept these credentials (HTTP 401): log in again")
    if isinstance(error, RetryableError) and "no answer" in text:
        return RetryableError(f"{where} can't be reached: {text}")
    if isinstance(error, UserError) and not isinstance(error, UsageProblem):
        return UsageProblem(text)  # its trouble is the command's, not the job's
    return error


def _no_right(match: re.Match[str]) -> str:
    verb, resource = match["verb"], match["resource"]
    kind = f"{resource}.{match['group']}" if match["group"] else resource
    main, _, sub = resource.partition("/")
    named = f"{main}.{match['group']}" if match["group"] else main
    flags = (f" --subresource={sub}" if sub else "") + (
        f" -n {match['namespace']}" if match["namespace"] else " -A"
    )
    place = f"namespace {match['namespace']}" if match["namespace"] else "all namespaces"
    return (
        f"{match['user']} may not {verb} {kind} in {place}; a Role must grant {verb} on {resource}"
        f" (see: kubectl auth can-i {verb} {named}{flags})"
    )


def no_such_job(name: str, namespace: str, here: Iterable[str], elsewhere: Iterable[str]) -> NoSuchJob:
    """There is no such job.

    Args:
        here: names of the namespace's jobs.
        elsewhere: other namespaces with a job of that name.
    """
    others, names = sorted(elsewhere), sorted(here)
    text = f"namespace {namespace} has no job {name}"
    if others:
        return NoSuchJob(f"{text}; there is one in namespace " + " and one in ".join(others[:NEAR_SHOWN]))
    near = difflib.get_close_matches(name, names, n=NEAR_SHOWN, cutoff=0.5)
    if near:
        return NoSuchJob(f"{text}; did you mean {' or '.join(near)}?")
    if not names:
        return NoSuchJob(f"{text}, nor any other")
    more = f" and {len(names) - NEAR_SHOWN} more" if len(names) > NEAR_SHOWN else ""
    return NoSuchJob(f"{text}; it has {', '.join(names[:NEAR_SHOWN])}{more}")
