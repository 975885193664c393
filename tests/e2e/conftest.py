"""Fixtures of the end-to-end tests with real training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from training_run import TrainingRun

Undisturbed = Callable[..., dict[str, Any]]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingRun]:
    """A run directory of its own; at the end nothing of it may still run."""
    with TrainingRun(tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """``undisturbed(workers, *options)``: result of that training when nothing happens to it; made once."""

    @cache
    def train(workers: int, *tiny: str, steps: int = 40) -> dict[str, Any]:
        with TrainingRun(tmp_path_factory.mktemp("undisturbed")) as run:
            run.start_tiny("--workers", str(workers), steps=steps, tiny=tiny)
            assert run.finish().attempt.number == 1
            run.check(steps)
            return run.result()

    return train
