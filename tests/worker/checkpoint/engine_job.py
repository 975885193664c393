"""A job of one rank over a store of its own, for tests of the engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resumable_training.checkpoint import CheckpointEngine, Reached, SaveReport, TrainingState
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_store
from resumable_training.contract.assignment import CheckpointConfig


@dataclass
class Job:
    """A job of one rank with its own store; each ``attempt`` is a new process's engine and model."""

    root: Path | str  # or an URL
    job: str = "local/job"
    uid: str = "uid"
    warnings: list[str] = field(default_factory=list)
    host: str | None = None  # an address: saves are asynchronous

    def engine(self, attempt: int, **config: Any) -> CheckpointEngine:
        engine = CheckpointEngine(
            CheckpointConfig(directory=str(self.root), **config),
            self.job,
            self.uid,
            attempt,
            None,
            0,
            1,
            self.warnings.append,
            retry_seconds=(0.01, 0.01),
            host=self.host,
        )
        engine.preflight()
        return engine

    @property
    def store(self) -> Store:
        if isinstance(self.root, str):
            return open_store(self.root)
        return LocalStore(self.root, visibility_seconds=0.0)

    @property
    def resume_points(self) -> list[str]:
        return survey(self.store).resume_points


def make_state(value: float = 0.0) -> TrainingState:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})


def weight(state: TrainingState) -> float:
    return float(state.modules["model"].weight.detach()[0, 0])  # type: ignore[operator]


def save(engine: CheckpointEngine, step: int, state: TrainingState | None = None) -> SaveReport:
    """Save a state whose weights tell the step."""
    state = state or make_state(step)
    return engine.save(state, Reached(step, step * 8, {"step": step}))


def start(job: Job, attempt: int, *steps: int, **config: Any) -> CheckpointEngine:
    """An attempt that restores what there is and saves at these steps."""
    engine = job.engine(attempt, **config)
    engine.restore(make_state())
    for step in steps:
        assert save(engine, step).ok
    return engine


def flip(path: Path, position: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
