"""Status as the API server keeps it: readable, and always small. Pure.

Names are camelCase and times RFC 3339, as everywhere in Kubernetes. What has its default is left out, but for
what people look for: each field costs the API server time at every write (it is read, validated and compared
one by one), and most fields of most jobs say nothing. The whole is to stay far below what etcd takes (1.5
MiB), for it is written again and again and kept in every watcher's memory. So above ``PACK_ABOVE`` bytes the
operator's book-keeping goes, compressed, into the one field ``packed``; what people read stays where it is.
All forms are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from resumable_operator.model import (
    STORED,
    Evidence,
    JobStatus,
)
from resumable_operator.packing import packed, unpacked

PACK_ABOVE = 24 * 1024  # bytes of JSON
MOST_BYTES = 60 * 1024  # of JSON; above it old details are given up
LONGEST_TEXT = 2048  # characters; above what any field of the spec that is kept here can hold

_LARGEST = 2**63 - 1

_BOOK_KEEPING = (  # by path in the stored form
    ("attempt", "members"),
    ("attempt", "outcomes"),
    ("attempt", "silentSince"),
    ("attempt", "doomed"),
    ("attempt", "evidence"),
    ("budgets", "userError"),
    ("budgets", "infrastructure"),
    ("budgets", "preemption"),
    ("incarnations",),
    ("cursors",),
    ("distrusted",),
    ("nodeTroubles",),
    ("avoided",),
    ("forced",),
    ("interruptions",),
)
_NESTED = {path[0] for path in _BOOK_KEEPING if len(path) > 1}
_SHOWN = ("phase", "size", "step", "samples", "replicas")  # also when they are 0


def to_stored(status: JobStatus) -> dict[str, Any]:
    """The value of ``status`` in the API server. It must *replace* what is there: a merge would keep what is
    left out here.

    When even the packed form is too large the oldest details go first: outputs of past failures, then of this
    one, then the older half of the endings. What is given up comes back as nothing, and storing that again
    gives the same.
    """
    for shorter in (_everything, _newest_tail, _no_tails, _fewer_endings):
        stored = _stored(shorter(status))
        if _bytes(stored) <= MOST_BYTES:
            break
    return stored


def from_stored(stored: Mapping[str, Any] | None) -> JobStatus:
    """Status from the API server's value; fields that are not known are left out. None: no status yet.

    Raises:
        ValueError: it is no status; the text names the field. It must not be taken for an empty one: attempts
            and incarnations would be numbered anew.
    """
    plain = dict(stored or {})
    text = plain.pop("packed", None)
    if text is not None:
        plain = _merged(plain, _hidden(text))
    try:
        return JobStatus.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(["status", *map(str, problem["loc"])])
        raise ValueError(f"{where}: {problem['msg'].removeprefix('Value error, ')}") from error


def _stored(status: JobStatus) -> dict[str, Any]:
    full = _dumped(status, STORED)
    if _bytes(full) <= PACK_ABOVE:
        return full
    plain = _dumped(status)  # bare numbers: shorter
    hidden: dict[str, Any] = {}
    for path in _BOOK_KEEPING:
        _move(full, plain, hidden, path)
    return {**full, "packed": packed(hidden)}


def _dumped(status: JobStatus, context: Any = None) -> dict[str, Any]:
    """By name as in YAML, and without what says nothing."""
    shown = {name: getattr(status, name) for name in _SHOWN}
    conditions = [item.model_dump(mode="json", by_alias=True, context=context) for item in status.conditions]
    told = status.model_dump(mode="json", by_alias=True, exclude_defaults=True, context=context)
    if conditions:
        told["conditions"] = conditions  # in the form that all of Kubernetes has
    if "attempt" in told:
        told["attempt"]["state"] = status.attempt.state
    cleaned: dict[str, Any] = _clean({**shown, **told})
    return cleaned


def _move(full: dict[str, Any], plain: dict[str, Any], hidden: dict[str, Any], path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        if name not in full:
            return
        full, plain, hidden = full[name], plain[name], hidden.setdefault(name, {})
    if full.pop(path[-1], None) is not None:
        hidden[path[-1]] = plain[path[-1]]


def _merged(plain: dict[str, Any], hidden: dict[str, Any]) -> dict[str, Any]:
    merged = dict(plain)
    for name, value in hidden.items():
        below = merged.get(name)
        if name in _NESTED and isinstance(below, Mapping) and isinstance(value, dict):
            merged[name] = {**below, **value}
        else:
            merged[name] = value
    return merged


def _hidden(text: Any) -> dict[str, Any]:
    try:
        hidden = unpacked(text) if isinstance(text, str) else None
        if not isinstance(hidden, dict):
            raise ValueError("it holds no mapping")
    except ValueError as error:
        raise ValueError(
            f"status.packed can't be read: {error}. It is the operator's own; without it (remove it to go "
            "on) the job knows neither its members nor its budgets any more"
        ) from error
    return hidden


def _clean(value: Any) -> Any:
    """Bounded Unicode, and numbers that the API server has: no agent's word may spoil the status."""
    if isinstance(value, dict):
        return {_text(key): _clean(item) for key, item in value.items() if not _is_odd(item)}
    if isinstance(value, list):
        return [_clean(item) for item in value if not _is_odd(item)]
    if type(value) is int:
        return min(max(value, -_LARGEST), _LARGEST)
    return _text(value) if isinstance(value, str) else value


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _text(value: str) -> str:
    return value[:LONGEST_TEXT].encode("utf-8", "replace").decode()


def _bytes(value: Any) -> int:
    return len(orjson.dumps(value))


# ---- what is given up -----------------------------------------------------------------------------------


def _everything(status: JobStatus) -> JobStatus:
    return status


def _newest_tail(status: JobStatus) -> JobStatus:
    """Output is kept for the newest ending nobody planned, and for the witnesses of this one."""
    bare = tuple(ending.model_copy(update={"tail": ()}) for ending in status.interruptions)
    return status.model_copy(update={"interruptions": bare})


def _no_tails(status: JobStatus) -> JobStatus:
    """Output is kept for the newest ending, and for the first witness of this one."""
    evidence = _first_tail_only(status.attempt.evidence)
    attempt = status.attempt.model_copy(update={"evidence": evidence})
    return _newest_tail(status).model_copy(update={"attempt": attempt})


def _first_tail_only(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    return (*evidence[:1], *(item.model_copy(update={"tail": ()}) for item in evidence[1:]))


def _fewer_endings(status: JobStatus) -> JobStatus:
    """The newest endings, with short messages and without output but for the end of the newest."""
    kept = tuple(
        ending.model_copy(update={"message": ending.message[:200], "tail": ()})
        for ending in status.interruptions[-10:]
    )
    last = status.last_interruption
    if last is not None:
        last = last.model_copy(update={"tail": last.tail[-5:]})
    evidence = tuple(item.model_copy(update={"tail": ()}) for item in status.attempt.evidence)
    return status.model_copy(
        update={
            "interruptions": kept,
            "last_interruption": last,
            "attempt": status.attempt.model_copy(update={"evidence": evidence}),
        }
    )
