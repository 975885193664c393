"""Everything one rank knows in one attempt: the state that the loop, evaluation and saving share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from resumable_training.contract import rankwire
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.drain import END, Agreement, Boundary, Watcher
from resumable_training.launch import Launch
from resumable_training.link import AgentLink
from resumable_training.phases import PhaseClock
from resumable_training.process_group import Group
from resumable_training.trace import Trace

if TYPE_CHECKING:
    from resumable_training.data.position import Data
    from resumable_training.loop import Step
    from resumable_training.recorder import Recorder
    from resumable_training.saving import Saver
    from resumable_training.tracking import GradientSync, Tracked


@dataclass
class Session:
    """``step`` and ``samples`` are done and applied; ``polls`` counts the polls since step ``step`` began."""

    launch: Launch
    device: torch.device
    group: Group
    clock: PhaseClock
    agreement: Agreement
    watcher: Watcher
    link: AgentLink | None
    trace: Trace | None
    seed: int | None
    settings: CheckpointConfig  # may be replaced at any time, by the link's thread
    step: int = 0
    samples: int = 0
    steps_here: int = 0
    optimizer_steps: int = 0
    rework_steps: int = 0
    polls: int = 0
    extras: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Data] = field(default_factory=dict)
    tracked: Tracked | None = None
    sync: GradientSync | None = None
    saver: Saver | None = None
    recorder: Recorder | None = None  # on rank 0, where checkpoints go somewhere
    current: Step | None = None
    evaluation_depth: int = 0
    main_evaluations: int = 0
    evaluation_rng: bytes | None = None
    evaluation_cut: bool = False
    looping: bool = False
    meetings: int = 0
    ended_at: int | None = None  # the step after which the newest loop came to its end, on all ranks
    finished: bool = False
    drained: bool = False
    warned: set[str] = field(default_factory=set)

    @property
    def main(self) -> bool:
        return self.launch.rank == 0

    @property
    def epoch(self) -> int:
        """Of the next sample; 0 without data."""
        return max((data.epoch for data in self.datasets.values()), default=0)

    @property
    def next_boundary(self) -> Boundary:
        """The first one that is no poll; ranks may meet there."""
        return (self.step, END) if self.polls < END else (self.step + 1, 0)

    def start_end(self) -> bool:
        """Start the step's end, where ranks meet; False: a drain has them stop before it."""
        self.polls = END
        return self.agreement.start((self.step, END), self.clock.beat)

    def count_optimizer_step(self, *_: Any) -> None:
        """Hook of every tracked optimizer."""
        self.optimizer_steps += 1

    def warn(self, message: str) -> None:
        """Tell the user once: on standard error and, by way of the agent, in the job's events."""
        if message in self.warned:
            return
        self.warned.add(message)
        print(f"resumable_training: {message}", file=sys.stderr, flush=True)
        if self.link is not None:
            self.link.send(rankwire.WARNING, message=message)

    def tell_of_early_end(self) -> None:
        """In this rank's log: its peers will only see that it went away, if they do not end there too."""
        saved = self.saver.last_step if self.saver is not None else None
        print(
            f"resumable_training: rank {self.launch.rank} ends after step {self.step}, its loop unfinished;"
            f" last checkpoint: {'none' if saved is None else f'step {saved}'}",
            file=sys.stderr,
            flush=True,
        )

    def say(self, message: str) -> None:
        """One line for people, by rank 0."""
        if self.main:
            print(f"resumable_training: {message}", file=sys.stderr, flush=True)

    def report(self, kind: str, **data: Any) -> None:
        """Send an event by rank 0."""
        if self.main and self.link is not None:
            self.link.send(kind, **data)
