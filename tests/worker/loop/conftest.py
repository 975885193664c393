"""Ranks of small trainings for the tests of the loop."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_ranks import Nursery, Ranks, free_port


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """One process with torch imported, for the whole session."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def start_ranks(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts one attempt after the other, each with its own number, over one checkpoint directory.

    ``scenario``: a function of ``loop_scenarios``, or "module:function".
    """
    attempts = itertools.count(1)
    started: list[Ranks] = []
    with tempfile.TemporaryDirectory(prefix="rt-") as sockets:

        def start(
            scenario: str,
            world_size: int,
            *,
            supervised: bool = True,
            checkpoints: str | None = "checkpoints",
            config: str | None = None,
            environment: dict[str, str] | None = None,
            port: int | None = None,
            absent: tuple[int, ...] = (),
            attempt: int | None = None,
            **options: Any,
        ) -> Ranks:
            variables = dict(environment or {})
            if checkpoints is not None:
                variables["RESUMABLE_CHECKPOINT_DIR"] = str(tmp_path / checkpoints)
            if config is not None:
                variables["RESUMABLE_CHECKPOINT_CONFIG"] = config
            ranks = Ranks(
                nursery,
                tmp_path,
                world_size,
                attempt or next(attempts),
                scenario,
                options,
                variables,
                Path(sockets) if supervised else None,
                port or free_port(),
                absent,
            )
            started.append(ranks)
            return ranks

        yield start
        for ranks in started:
            for agent in ranks.agents:
                agent.close()
