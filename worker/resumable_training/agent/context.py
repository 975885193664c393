"""What an attempt shares with its agent: the seams behind which processes, output and events are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Protocol

from resumable_training.agent.keeper import Keeper
from resumable_training.agent.output import OutputPump
from resumable_training.agent.ranks import RankStarter
from resumable_training.agent.trackers import Trackers
from resumable_training.contract.assignment import AgentSpec

REAP_SECONDS = 5.0  # a rank that SIGKILL has not ended by then makes its worker unfit


class Guard(Protocol):
    """Told which sessions live, so that it can end them if the agent is killed."""

    def add(self, session: int) -> None: ...

    def remove(self, session: int) -> None: ...

    def keep(self) -> List[int]:
        """Pids that are children of the agent and no leftovers."""
        ...


@dataclass(frozen=True)
class Context:
    """What an attempt shares with the agent. ``emit(kind, attempt, data)`` appends to the event log."""

    spec: AgentSpec
    starter: RankStarter
    pump: OutputPump
    guard: Guard
    emit: Callable[[str, int, Any], None]
    socket_directory: Path
    keeper: Keeper
    trackers: Trackers
    reap_seconds: float = REAP_SECONDS
