"""Training that survives killed workers: ``import resumable_training as rt``.

Importing this loads no torch; the names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resumable_training.errors import DataChanged, NonFiniteLoss, PeerLost, ResumableError, UserError
    from resumable_training.loop import Step
    from resumable_training.run import Run, start

__all__ = [
    "DataChanged",
    "NonFiniteLoss",
    "PeerLost",
    "ResumableError",
    "Run",
    "Step",
    "UserError",
    "start",
]

_HOME = {"Run": "run", "start": "run", "Step": "loop"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
