"""Telling on the job itself that it can't be read. Pure. Works on the raw status: the rest of it stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resumable_operator.errors import SpecError
from resumable_operator.times import rfc3339

CONDITION = "Valid"
REASON = "SpecUnreadable"


def with_invalid(raw: Mapping[str, Any], error: SpecError, now: float) -> dict[str, Any] | None:
    """The status with condition ``Valid`` False for this spec; None when it says so already.

    Args:
        raw: metadata, spec and status as stored.
        now: seconds.
    """
    status = dict(raw.get("status") or {})
    generation = int(raw["metadata"].get("generation") or 0)
    conditions = [item for item in status.get("conditions") or [] if isinstance(item, dict)]
    before = next((item for item in conditions if item.get("type") == CONDITION), {})
    told = {
        "type": CONDITION,
        "status": "False",
        "reason": REASON,
        "message": str(error),
        "observedGeneration": generation,
    }
    if all(before.get(name) == value for name, value in told.items()):
        return None
    since = before.get("lastTransitionTime") if before.get("status") == "False" else None
    entry = {**told, "lastTransitionTime": since or rfc3339(float(int(now)))}
    others = [item for item in conditions if item.get("type") != CONDITION]
    return {**status, "conditions": [*others, entry]}
