"""What ranks do in the tests of restores from memory beside this file; run by ``rank_programs.run_ranks``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rank_programs import begin, full_values, make_engine, make_state, save, train

from resumable_training.checkpoint import arena
from resumable_training.checkpoint.cargo import file_name
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.memory import Memory
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.contract import env

FILE_OF_RANK_0 = file_name(0)


def live_here(rank: int, world_size: int, keeper: str, number: int) -> None:
    """What an agent tells its ranks."""
    os.environ |= {env.KEEPER: keeper, env.ATTEMPT: str(number)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}


def arena_of(engine: Any) -> int:
    return os.fstat(engine._saver._snapshot.arena.descriptor).st_ino


def saving_run(
    rank: int, world_size: int, group: Any, root: str, keeper: str, number: int, kind: str, steps: int
) -> Any:
    """Go on from what there is, and save; the values, and which memory they were copied into."""
    live_here(rank, world_size, keeper, number)
    state = make_state(kind, 1, world_size)
    engine = make_engine(root, rank, world_size, group, attempt=number)
    report = engine.restore(state)
    train(state, steps)
    assert save(engine, state, (report.step if report else 0) + steps, rank).ok
    found = arena_of(engine)
    engine.close()
    return full_values(state), found


def loading_run(
    rank: int, world_size: int, group: Any, root: str, keeper: str, number: int, kind: str, blind: str
) -> Any:
    """``blind``: part of the names of files that storage does not give out."""

    def unreadable(self: LocalStore, name: str, *_: Any) -> Any:
        raise StorageUnavailable(f"{name}: it hangs")

    live_here(rank, world_size, keeper, number)
    engine = make_engine(root, rank, world_size, group, attempt=number)
    for method in ("read", "read_into"):
        _blind(method, blind, unreadable)
    state = make_state(kind, 2, world_size)
    try:
        report = engine.restore(state)
    except StorageUnavailable as error:
        return str(error)
    assert report is not None
    engine.close()
    return full_values(state), report.step, report.memory_bytes, report.storage_bytes


def _blind(method: str, part: str, otherwise: Any) -> None:
    real = getattr(LocalStore, method)

    def look(self: LocalStore, name: str, *arguments: Any) -> Any:
        return (otherwise if part and part in name else real)(self, name, *arguments)

    setattr(LocalStore, method, look)


def doubting_run(rank: int, world_size: int, group: Any, root: str, keeper: str, number: int) -> Any:
    """One rank finds nothing right where it lies, so that its share is copied to be handed on."""
    if rank == 1:
        Memory.is_right = lambda self, place: False  # type: ignore[method-assign]
    return loading_run(rank, world_size, group, root, keeper, number, "ddp", ".distcp")


def broken_run(rank: int, world_size: int, group: Any, root: str, keeper: str, number: int) -> Any:
    """The memory is used for something else while it is read, once."""
    broken = iter([True])
    Memory.broken = lambda self: FILE_OF_RANK_0 if next(broken, False) else ""  # type: ignore[method-assign]
    return loading_run(rank, world_size, group, root, keeper, number, "ddp", "")


def short_run(rank: int, world_size: int, group: Any, root: str, keeper: str, number: int) -> Any:
    """Restore where memory is short, then save again: the values, where they came from, and what was said."""
    live_here(rank, world_size, keeper, number)
    arena.free_bytes = lambda: 100 << 20  # for two ranks' pieces in flight it would take 128 MiB
    said: list[str] = []
    engine = make_engine(root, rank, world_size, group, attempt=number, warn=said.append)
    state = make_state("ddp", 2, world_size)
    report = engine.restore(state)
    assert report is not None
    restored = full_values(state)
    held = RankLink(rank).find(report.checkpoint)
    train(state, 1)
    assert save(engine, state, report.step + 1, rank).ok
    engine.close()
    return restored, report.memory_bytes, report.storage_bytes, len(held), said


def fallen_back_run(rank: int, world_size: int, group: Any, root: str, keeper: str, number: int) -> Any:
    """Saves become synchronous when an arena was taken over: arenas before and after, held by the agent."""
    live_here(rank, world_size, keeper, number)
    if rank == 0:
        Snapshot._lay_out = _no_room  # type: ignore[method-assign]
    engine = make_engine(root, rank, world_size, group, attempt=number)
    state = make_state("ddp", 2, world_size)
    report = engine.restore(state)
    assert report is not None
    taken = len(_arenas())
    assert begin(engine, state, report.step + 1, rank).durable
    held = len(RankLink(rank).find(report.checkpoint))
    engine.close()
    return taken, len(_arenas()), held


def _no_room(*_: Any) -> None:
    raise arena.NoArena("too little memory")


def _arenas() -> list[str]:
    found = [path for path in Path("/proc/self/fd").iterdir() if path.exists() or path.is_symlink()]
    return [path.name for path in found if "resumable-checkpoint" in os.readlink(path)]
