"""Checkpoints that are complete and verified, or do not exist.

Importing this package loads no torch; the names below do when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resumable_training.checkpoint.engine import CheckpointEngine
    from resumable_training.checkpoint.reports import Reached, RestoreReport, SaveReport
    from resumable_training.checkpoint.state import TrainingState

__all__ = ["CheckpointEngine", "Reached", "RestoreReport", "SaveReport", "TrainingState"]

_HOMES = {
    "CheckpointEngine": "engine",
    "Reached": "reports",
    "RestoreReport": "reports",
    "SaveReport": "reports",
    "TrainingState": "state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
