"""What a save costs, as the interval `auto` knows it when an attempt begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.saving import Saver
from resumable_training.schedule import Measured, wanted

TOLD = CheckpointConfig(blocking_ms=20, durable_ms=3000, mtbf_seconds=3600.0)


@pytest.mark.parametrize(
    ("restored", "settings", "known"),
    [
        ({"save_cost": {"blocking": 0.5, "durable": 7.0}}, TOLD, (0.5, 7.0)),  # means over several saves
        ({"save_cost": {"blocking": None, "durable": None}}, TOLD, (0.02, 3.0)),  # the very first save
        ({}, TOLD, (0.02, 3.0)),
        ({}, CheckpointConfig(), (None, None)),
        ({}, CheckpointConfig(blocking_ms=20), (None, None)),  # an operator that does not know it all
    ],
)
def test_what_the_checkpoint_brings_else_what_the_operator_was_told(
    restored: dict[str, Any], settings: CheckpointConfig, known: tuple[float | None, float | None]
) -> None:
    """After one save and an interruption the interval need not begin at its first length again."""
    saver = Saver.__new__(Saver)
    saver._session = SimpleNamespace(settings=settings)  # type: ignore[assignment]
    saver.restored = restored
    assert saver._known_cost() == known
    blocking, durable = known
    interval = wanted(settings, Measured(1.0, 0.0, blocking, durable))
    assert (interval.seconds == 10.0) == (blocking is None)
