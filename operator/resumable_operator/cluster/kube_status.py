"""Stand-in of the status codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resumable_operator.model import JobStatus


def from_stored(plain: Mapping[str, Any]) -> JobStatus:
    return JobStatus.model_validate(plain)


def to_stored(status: JobStatus) -> dict[str, Any]:
    return status.plain()
