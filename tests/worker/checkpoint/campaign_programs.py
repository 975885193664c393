"""Attempts that die at a moment of ``resumable_training.checkpoint.moments``, for test_campaign.py.

An attempt is what it is in a real job: ranks with their writers, each rank and its writer in a process group
of their own, which stands for a machine. When a rank has been killed, the others are ended too, as an agent
does it.
"""

from __future__ import annotations

import asyncio
import multiprocessing.connection
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rank_programs
import torch.distributed as dist
from rank_programs import begin, full_values, make_engine, make_state, train

from resumable_training.agent import landing
from resumable_training.agent.keeper import Keeper
from resumable_training.checkpoint import CheckpointEngine
from resumable_training.checkpoint.moments import NOTE, WHO, WISH
from resumable_training.contract import env

HOME = "CAMPAIGN_HOME"  # in the environment of every process of a test: the directory of its store
SAVES = 3  # of an attempt; what comes before the last one is there for retention to delete
KEEP_LAST = 2


@dataclass(frozen=True)
class Death:
    """What dies and when. ``rank``: whose process, or whose writer, must have come to the moment."""

    moment: str
    rank: int = 0
    whole_machine: bool = True  # False: the process alone
    asynchronous: bool = True
    world_size: int = 1
    rank_alone: bool = False  # what dies is the rank whose writer comes to the moment, and not the writer

    def __str__(self) -> str:
        who = "rank" if self.rank_alone else "machine" if self.whole_machine else "process"
        how = "" if self.asynchronous else "-synchronous"
        return f"{self.moment}-{who}-{self.rank}of{self.world_size}{how}"


@dataclass
class Told:
    """What one rank of an attempt that lived has seen."""

    step: int  # restored
    restored: dict[str, Any]  # values
    values: dict[str, Any]  # at the end
    saved: dict[int, bool] = field(default_factory=dict)  # by step: whether the report was good
    steps: int = 0
    origins: tuple[int, int] = (0, 0)  # bytes restored from memory and from storage, by all ranks


def run_attempt(world_size: int, program: Callable[..., Any], directory: Path, *arguments: Any) -> list[Any]:
    """As ``run_ranks``; empty when a rank was killed."""
    context = rank_programs._CONTEXT
    results: Any = context.Queue()
    meeting = str(directory / f"meeting-{os.urandom(4).hex()}")
    processes = [
        context.Process(
            target=rank_programs._rank, args=(rank, world_size, meeting, program, arguments, results)
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        return _results(results, processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(results: Any, processes: list[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + rank_programs.SECONDS
    while len(found) < len(processes):
        assert time.monotonic() < deadline, f"ranks hang: {[process.exitcode for process in processes]}"
        if any(process.exitcode == -9 for process in processes):
            return []
        sentinels = [process.sentinel for process in processes if process.is_alive()]
        multiprocessing.connection.wait([*sentinels, results._reader], timeout=1.0)
        try:
            rank, kind, value = results.get_nowait()
        except queue.Empty:
            continue
        if kind == "error":  # of a peer that was killed, perhaps: its end is seen a moment later
            _await_a_kill(processes, value)
            return []
        found[rank] = value
    return [rank_programs.pickle.loads(found[rank]) for rank in range(len(processes))]


def _await_a_kill(processes: list[Any], error: str) -> None:
    deadline = time.monotonic() + 5.0
    while not any(process.exitcode == -9 for process in processes):
        assert time.monotonic() < deadline, error
        time.sleep(0.01)


def life(
    rank: int,
    world_size: int,
    group: Any,
    root: str,
    note: str,
    attempt: int,
    death: Death | None,
    keeper: str | None,
) -> Told:
    """Restore, and ``SAVES`` times a step and a save. It dies in the last save, or when it restores."""
    os.setpgid(0, 0)
    os.environ[HOME], os.environ["RANK"] = root, str(rank)
    if keeper is not None:
        os.environ |= {env.KEEPER: keeper, env.ATTEMPT: str(attempt)}
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
    if death is not None:
        os.environ[WISH] = f"{death.moment}@{death.rank}"
        os.environ[NOTE] = note
        os.environ[WHO] = "rank" if death.rank_alone else "group" if death.whole_machine else "process"
    state = make_state("ddp" if world_size > 1 else "plain", attempt, world_size)
    host = None if death is not None and not death.asynchronous else "127.0.0.1"
    engine = make_engine(root, rank, world_size, group, attempt=attempt, host=host, keep_last=KEEP_LAST)
    report = engine.restore(state)
    step = report.step if report else 0
    told = Told(step, full_values(state) if report else {}, {})  # it steps an optimizer that has no state yet
    told.origins = (report.memory_bytes, report.storage_bytes) if report else (0, 0)
    for number in range(1, SAVES + 1):
        train(state, 1)
        if number == SAVES:
            _arm(rank, world_size, note)
        begin(engine, state, step + number, rank)
        _settle(engine, told, step + number)
    engine.close()
    told.values, told.steps = full_values(state), step + SAVES
    return told


def _arm(rank: int, world_size: int, note: str) -> None:
    """From here on the wish counts: until now a note said that it had been granted."""
    if rank == 0:
        Path(note).unlink(missing_ok=True)
    if world_size > 1:
        dist.barrier()


def _settle(engine: CheckpointEngine, told: Told, step: int) -> None:
    """Until the save is durable and retention is done."""
    report = engine.wait()
    assert report is not None
    told.saved[step] = report.ok
    deadline = time.monotonic() + rank_programs.SECONDS
    while engine.busy:
        assert time.monotonic() < deadline
        engine.poll()
        time.sleep(0.002)


class Home:
    """An agent's keeper, as far as it goes without its agent: on a thread of this process."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.path = str(path)
        self._loop = asyncio.new_event_loop()
        self._keeper = Keeper(self.path, lambda session: None, self.said.append)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def begin(self, attempt: int, world_size: int) -> None:
        """Its ranks are all in the session of the process that they are forked from."""
        leaders = dict.fromkeys(range(world_size), _session_of_ranks())
        self._call(lambda: self._keeper.begin(attempt, lambda: leaders))

    def end(self, attempt: int) -> None:
        self._call(lambda: self._keeper.end(attempt, {_session_of_ranks()}))

    def close(self) -> None:
        self._call(self._keeper.close)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(rank_programs.SECONDS)


def _session_of_ranks() -> int:
    return os.getsid(0)


@contextmanager
def a_home(monkeypatch: Any) -> Iterator[Home]:
    """What is in flight when an attempt ends may take its time, though its few steps are worth nothing."""
    monkeypatch.setattr(landing, "FREE_SECONDS", rank_programs.SECONDS)
    monkeypatch.setattr(landing, "IDLE_SECONDS", rank_programs.SECONDS)  # on a busy machine
    with tempfile.TemporaryDirectory(prefix="rtj-", dir="/tmp") as directory:  # a short path
        home = Home(Path(directory, "keeper"))
        try:
            yield home
        finally:
            home.close()
