"""What an answer of the API server that is no success means to the caller. Pure.

::

    404                      NotFound (reads and deletes answer None instead)
    409 AlreadyExists        AlreadyExists
    409 else                 ConflictError
    410                      Expired: the list or watch must begin anew
    403 rights               ClusterRefused Forbidden, with the verb, the resource and the fix
    403 quota                ClusterRefused QuotaExceeded
    403 else, webhooks       ClusterRefused AdmissionDenied
    403 namespace ending     ClusterRefused NamespaceTerminating
    400, 405, 413, 415, 422  ClusterRefused Invalid, with the fields
    401, 408, 429, 5xx       RetryableError
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from resumable_operator.errors import ClusterRefused, ConflictError, ResumableError, RetryableError

Raw = dict[str, Any]

_RIGHTS = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"')
_WEBHOOK = re.compile(r'admission webhook "[^"]*" denied the request')
_STRICT = re.compile(r'(?:unknown|duplicate) field "(?P<field>[^"]+)"')


class NotFound(ResumableError):
    """There is no such object, or no such resource in the API."""


class AlreadyExists(ResumableError):
    """An object of that name is there."""


class Expired(RetryableError):
    """The version to go on from is too old; begin anew."""


@dataclass(frozen=True)
class FieldProblem:
    """One field that the API server did not like. ``field`` may be empty."""

    field: str
    message: str


class Invalid(ClusterRefused):
    """The object itself is wrong. ``fields`` as the API server names them."""

    def __init__(self, message: str, fields: tuple[FieldProblem, ...]) -> None:
        super().__init__("Invalid", message)
        self.fields = fields


@dataclass(frozen=True)
class Call:
    """One request, for messages and counters."""

    verb: str  # get, list, create, update, patch, delete
    resource: str  # plural, with subresource: pods, nodes, resumabletrainingjobs/status
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


def status_of(body: bytes) -> Raw:
    """The ``Status`` object in an answer; a made-up one when it is none (a proxy's page, say)."""
    try:
        plain = json.loads(body)
    except ValueError:
        plain = None
    if isinstance(plain, dict):
        return plain
    return {"message": body[:300].decode(errors="replace").strip()}


def error_of(call: Call, code: int, status: Raw) -> ResumableError:
    """The error for an HTTP ``code`` of 400 and above."""
    message = str(status.get("message") or f"HTTP {code}")
    text = f"{call}: {message}"
    if code == 404:
        return NotFound(text)
    if code == 409:
        return AlreadyExists(text) if status.get("reason") == "AlreadyExists" else ConflictError(text)
    if code == 410:
        return Expired(text)
    if code in (401, 408, 429) or code >= 500:
        return RetryableError(f"{text} (HTTP {code})")
    if code == 403 or _WEBHOOK.search(message):
        return _denied(call, message, text)
    return Invalid(text, field_problems(status))


def _denied(call: Call, message: str, text: str) -> ClusterRefused:
    rights = _RIGHTS.search(message)
    if rights:
        return ClusterRefused(
            "Forbidden",
            f"{text}. Grant {rights['verb']} on {rights['resource']} to {rights['user']}: "
            "its Role or ClusterRole comes with the installation",
        )
    if "exceeded quota" in message:
        return ClusterRefused("QuotaExceeded", text)
    if "is being terminated" in message:
        return ClusterRefused("NamespaceTerminating", text)
    return ClusterRefused("AdmissionDenied", text)


def field_problems(status: Raw) -> tuple[FieldProblem, ...]:
    """Fields of a refused object: the ``causes``, or what strict decoding names in its text."""
    causes = (status.get("details") or {}).get("causes") or []
    found = [FieldProblem(str(x.get("field") or ""), str(x.get("message") or "")) for x in causes]
    if found:
        return tuple(found)
    message = str(status.get("message") or "")
    return tuple(FieldProblem(match["field"], match[0]) for match in _STRICT.finditer(message))


def retry_after_seconds(headers: Any, status: Raw) -> float | None:
    """How long the server asks to wait; None: it does not say."""
    values = (headers.get("Retry-After"), (status.get("details") or {}).get("retryAfterSeconds"))
    texts = [str(value) for value in values if value is not None]
    return next((float(text) for text in texts if text.isdecimal()), None)
