"""Attempts that end with copies in memory; run by ``campaign_programs.run_attempt``."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from async_programs import writer_of
from campaign_programs import HOME
from memory_programs import live_here
from rank_programs import begin, full_values, make_engine, make_state, reached, train

from resumable_training.checkpoint import CheckpointEngine, TrainingState, arena, snapshot
from resumable_training.checkpoint.async_save import AsynchronousSaver
from resumable_training.checkpoint.moments import NOTE, WISH
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import checkpoint_name
from resumable_training.saving import Saver

COPIES = 3  # of an attempt, one after each step that follows its save
RANK, WRITER = "rank", "writer"
AT_A_MOMENT = ("copy next", "save next", "save anew")


@dataclass(frozen=True)
class Death:
    """How an attempt ends: rank ``victim`` dies, when the others have copied the last step; then they do.

    ``copies``: ranks that make the last copy; None: all. ``moment``: at which the victim dies, or its writer
    after it. ``kills``: who is killed where no moment does it; nobody: it ends well. ``then``: what is done
    after the last copy: "copy" or "save" one step more, "copy next", "save next" or "save anew", at which a
    moment counts, "drop", by the victim, of what it holds, or "block" the place where the copy would be
    stored.
    ``lands``: whether the last copy is to become a checkpoint; ``before``: or the one before it. ``saves``:
    whether it began with a save.
    ``late``: ranks whose GPUs are still at the last copy but one when the last is due, which they leave out.
    ``caught_up``: when ranks die that copy is whole.
    """

    name: str
    lands: bool
    victim: int = 1
    copies: tuple[int, ...] | None = None
    moment: str = ""
    kills: tuple[str, ...] = (RANK,)
    then: str = ""
    saves: bool = True
    late: tuple[int, ...] = ()
    caught_up: bool = True
    before: bool = False
    writer_first: bool = False  # the victim's dies when ranks have met for the last copy, and is replaced

    def __str__(self) -> str:
        return self.name

    @property
    def steps(self) -> int:
        """By how much it brings the job forward."""
        if self.then == "save":
            return COPIES + 2
        if self.before or (self.late and self.lands):
            return COPIES
        return COPIES + 1 if self.lands else int(self.saves)


@dataclass(frozen=True)
class Found:
    """What a rank of the next attempt has restored."""

    step: int
    values: dict[str, Any]
    memory_bytes: int = 0
    storage_bytes: int = 0


class Life:
    """One rank of one attempt."""

    def __init__(self, rank: int, world_size: int, group: Any, root: str, attempt: int, death: Death) -> None:
        self.rank, self.world_size, self.root, self.attempt = rank, world_size, root, attempt
        self.death, self.note = death, Path(f"{root}-died-{attempt}")
        os.environ |= {HOME: root, "RANK": str(rank)}
        os.environ |= {WISH: f"{death.moment}@{death.victim}", NOTE: str(self.note)}
        self.note.touch()  # while it is there no moment counts
        self.together()
        self.state = make_state("ddp" if world_size > 1 else "plain", attempt, world_size)
        self.engine = make_engine(root, rank, world_size, group, attempt=attempt)
        self.step = 0

    def restore(self) -> Found:
        report = self.engine.restore(self.state)
        if report is None:
            return Found(0, {})
        self.step = report.step
        values = full_values(self.state)
        return Found(report.step, values, report.memory_bytes, report.storage_bytes)

    def train(self) -> None:
        train(self.state, 1)
        self.step += 1

    def copy(self) -> bool:
        return copy(self.engine, self.state, self.step, self.rank)

    def save(self) -> None:
        """While it is in flight nothing is copied."""
        begin(self.engine, self.state, self.step, self.rank)
        assert not self.copy()
        report = self.engine.wait()
        assert report is not None
        assert report.ok, report.message

    @property
    def is_late(self) -> bool:
        return self.rank in self.death.late

    def fall_behind(self) -> None:
        """What is copied from now on is not whole: as with GPUs, whose copies are in their streams."""
        if self.is_late:
            self.copied, Snapshot.copied = Snapshot.copied, lambda _: False  # type: ignore[method-assign]

    def catch_up(self) -> None:
        if self.is_late and self.death.caught_up:
            Snapshot.copied = self.copied  # type: ignore[method-assign]
            self.engine.poll()  # as when the next step begins

    def together(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def end(self) -> None:
        """The last copy, and the death."""
        death = self.death
        copies = death.copies is None or self.rank in death.copies
        if death.writer_first and self.rank == death.victim:
            kill_writer(self.engine)
        if self.rank != death.victim and copies:
            assert self.copy() != self.is_late
            self.catch_up()
        self.together()
        if self.rank == death.victim:
            if death.then not in AT_A_MOMENT:
                self.note.unlink()
            if copies:
                assert self.copy() != self.is_late
                self.catch_up()
            if WRITER in death.kills:
                kill_writer(self.engine)
        self.more()
        self.together()
        if self.rank == death.victim and RANK in death.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        self.together()

    def await_writer(self) -> None:
        while not self.engine.free_to_copy:
            time.sleep(0.002)

    def more(self) -> None:
        then = self.death.then
        if then == "copy":  # again
            self.await_writer()
            assert self.copy()
        elif then == "copy next":
            self.await_writer()
            self.train()
            self.note.unlink(missing_ok=True)
            self.copy()
        elif then == "save":
            self.train()
            self.save()
        elif then in ("save next", "save anew"):
            self.train()
            self.note.unlink(missing_ok=True)
            begin(self.engine, self.state, self.step, self.rank, anew=then == "save anew")
        elif then == "drop" and self.rank == self.death.victim:
            self.engine.drop_held()
        elif then == "block":
            Path(self.root, checkpoint_name(self.step, self.attempt)).mkdir(exist_ok=True)


def kill_writer(engine: CheckpointEngine) -> None:
    os.kill(writer_of(engine), signal.SIGKILL)
    os.waitid(os.P_PID, writer_of(engine), os.WEXITED | os.WNOWAIT)


def life(
    rank: int, world_size: int, group: Any, root: str, keeper: str, attempt: int, death: Death | None
) -> Found:
    """Restore; and with a death: save one step, copy the next ones, and die."""
    live_here(rank, world_size, keeper, attempt)
    one = Life(rank, world_size, group, root, attempt, death or Death("none", lands=False))
    found = one.restore()
    if death is not None:
        one.train()
        if death.saves:
            one.save()
        for left in reversed(range(COPIES - 1)):
            one.train()
            if left == 0:
                one.fall_behind()
            while not one.copy():  # until the writer stands by
                time.sleep(0.002)
        one.train()
        one.end()
    one.engine.close()
    return found


def copy(engine: CheckpointEngine, state: TrainingState, step: int, rank: int) -> bool:
    return engine.copy(state, reached(step, rank))


class Loop:
    """What of a loop is needed to have its copies made: after each step, as the library makes them."""

    def __init__(self, one: Life, group: Any) -> None:
        self.life = one
        self.session = SimpleNamespace(
            clock=SimpleNamespace(
                phase="productive", progress=SimpleNamespace(step_seconds=1.0), enter=lambda phase: None
            ),
            group=SimpleNamespace(private=group),
            settings=CheckpointConfig(every_steps=100_000, memory_every_steps=1),
            tracked=SimpleNamespace(optimizers={}, stateful={}),
            launch=SimpleNamespace(high_water_samples=0),
            main=False,  # keeps no history
            recorder=None,
            step=one.step,
            steps_here=1,
            samples=0,
            seed=None,
            datasets={},
            extras={},
            evaluation_depth=0,
            evaluation_rng=b"rng",
        )
        self.saver = Saver(self.session, one.engine, one.state)  # type: ignore[arg-type]
        self.saver.start_clock()
        self.saver.before_step()

    def after_step(self) -> int:
        """How many copies there are now; the same on all ranks."""
        self.session.step = self.life.step
        self.saver.after_step()
        self.saver.before_step()
        counts: list[Any] = [None] * self.life.world_size
        dist.all_gather_object(counts, self.saver._copies)
        return int(min(counts))


def late_death(
    rank: int, world_size: int, group: Any, root: str, keeper: str, attempt: int, victim: int, copied: str
) -> None:
    """Save, copy until all do, and one rank is killed when the collectives of a step are over; the others go
    on to where they would copy that step. Into ``copied`` goes the last step that all have copied."""
    live_here(rank, world_size, keeper, attempt)
    one = Life(rank, world_size, group, root, attempt, Death("late", lands=True, victim=victim))
    one.restore()
    one.train()
    one.save()
    loop = Loop(one, group)
    one.train()
    while (copies := loop.after_step()) == 0:  # until all writers stand by
        time.sleep(0.002)
        one.train()
    held = one.step
    free = AsynchronousSaver.free_to_copy
    if rank == victim:
        AsynchronousSaver.free_to_copy = False  # type: ignore[assignment]
    one.train()
    assert loop.after_step() == copies
    AsynchronousSaver.free_to_copy = free  # type: ignore[method-assign]
    Path(copied).write_text(str(held), encoding="utf-8")
    one.train()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    loop.after_step()


def count_arenas(
    rank: int, world_size: int, group: Any, root: str, keeper: str, attempt: int, arenas: float
) -> int:
    """Copy, one rank after the other, where two ranks have room for so many arenas; how many there are."""
    live_here(rank, world_size, keeper, attempt)
    taken, made = Path(f"{root}-taken"), []
    find, make = arena.free_bytes, arena.Arena.__init__

    def free() -> int:
        return int(arena.SPARE_BYTES + (arenas - taken.stat().st_size) * made[0]) if made else find() or 0

    def note(self: arena.Arena, size: int, descriptor: int | None = None) -> None:
        make(self, size, descriptor)
        made.append(size)
        with taken.open("ab") as stream:
            stream.write(b"x")

    taken.touch()
    arena.free_bytes = snapshot.free_bytes = free
    arena.Arena.__init__ = note  # type: ignore[method-assign]
    one = Life(rank, world_size, group, root, attempt, Death("", lands=False, kills=()))
    one.restore()
    one.train()
    one.save()
    for turn in range(world_size):
        while turn == rank and not one.copy():
            time.sleep(0.002)
        one.together()
    found = len(one.engine._saver._snapshot.arenas)  # type: ignore[attr-defined]
    one.engine.close()
    return found
