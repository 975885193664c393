"""What a writer takes for a copy that is held: a whole letter, and the arena as it was with it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_job import Job, make_state, save
from holding_programs import kill_writer
from hypothesis import given
from hypothesis import strategies as st
from test_async import eventually

from resumable_training.checkpoint import Reached, arena, async_save
from resumable_training.checkpoint.arena import Arena
from resumable_training.checkpoint.engine import _lost_lines
from resumable_training.checkpoint.holding import Letter, held
from resumable_training.checkpoint.keeper import Flight
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.contract import env


class Copy:
    """A rank's arena and its letter."""

    def __init__(self) -> None:
        self.arena, self.letter = Arena(4096), Letter()

    def hold(self, **message: Any) -> None:
        self.arena.break_seal()
        self.letter.write({**message, "seal": self.arena.seal()})

    def found(self) -> Any:
        message = held(self.letter.descriptor, self.arena.descriptor, self.arena.bytes)
        return message and message["step"]


@pytest.fixture
def copy() -> Iterator[Copy]:
    copy = Copy()
    yield copy
    copy.letter.close()
    copy.arena.free()


def test_the_newest_copy_is_held(copy: Copy) -> None:
    """Nothing before the first one; a letter that is shorter than the one before leaves nothing of it."""
    assert copy.found() is None
    copy.hold(step=1, text="long" * 1000)
    assert copy.found() == 1
    copy.hold(step=2)
    assert copy.found() == 2


def test_what_is_copied_over_is_not_held(copy: Copy) -> None:
    """From the first byte of the next copy on, and when that is whole: it was for a save."""
    copy.hold(step=1)
    copy.arena.break_seal()
    assert copy.found() is None
    copy.arena.seal()
    assert copy.found() is None
    copy.hold(step=2)
    copy.letter.clear()
    assert copy.found() is None
    copy.hold(step=2)
    os.ftruncate(copy.arena.descriptor, 0)  # given back, for a larger one
    assert copy.found() is None


@given(st.data())
def test_a_torn_letter_holds_nothing(data: st.DataObject) -> None:
    """Its rank died in the middle of it, wherever that was."""
    copy = Copy()
    try:
        copy.hold(step=1, text="some text")
        first = os.pread(copy.letter.descriptor, 1 << 16, 0)
        copy.hold(step=2, text="a text that is longer", more=[1, 2])
        whole = os.pread(copy.letter.descriptor, 1 << 16, 0)
        cut = data.draw(st.integers(0, len(whole) - 1))
        os.ftruncate(copy.letter.descriptor, 0)
        os.pwrite(copy.letter.descriptor, first, 0)
        os.pwrite(copy.letter.descriptor, whole[:cut], 0)
        assert copy.found() is None
    finally:
        copy.letter.close()
        copy.arena.free()


@pytest.mark.parametrize("behind", [0, 1, 2, 5])
def test_a_copy_becomes_whole_before_the_next_one(
    behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps GPUs are behind the loop: it is held before the next takes its place."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    looks: list[int] = []  # at the newest copy, whether it is whole

    def copied(_: Snapshot) -> bool:
        looks.append(1)
        return len(looks) > 2 * behind  # a step looks when it begins, and when it wants to copy

    written: list[int] = []
    monkeypatch.setattr(Letter, "write", lambda _, message: written.append(message["manifest"]["step"]))
    monkeypatch.setattr(Snapshot, "copied", copied)
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    made: list[int] = []

    def step(number: int) -> bool:
        engine.poll()
        if engine.copy(state, Reached(number, number * 8)):
            made.append(number)
            looks.clear()
        return bool(made)

    eventually(lambda: step(1))
    for number in range(2, 20):
        step(number)
    assert len(made) >= 3
    assert written[: len(made) - 1] == made[:-1]
    engine.close()


def test_a_writer_that_deletes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a new plan, which may be long, when it listens again; until then nothing is held."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())

    def copy(state: Any, step: int) -> bool:
        return engine.copy(state, Reached(step, step * 8))

    eventually(lambda: copy(state, 1))
    assert copy(state, 1)  # into the other arena, of which the writer hears as of a plan
    saver: Any = engine._saver
    sent: list[bool] = []
    send_plan = saver._send_plan
    monkeypatch.setattr(saver, "_send_plan", lambda: sent.append(saver._busy) or send_plan())
    saver._busy = True  # at retention
    assert engine.free_to_copy
    assert copy(state, 2)
    state.modules["model"].register_buffer("more", torch.zeros(3))
    assert not copy(state, 3)
    assert not copy(state, 4)
    saver._busy = False
    assert copy(state, 5)
    assert sent == [False]
    save(engine, 6, state)
    assert not engine.free_to_copy
    assert engine.close().ok  # type: ignore[union-attr]


def test_a_writer_that_died_since_ranks_met_costs_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others make that copy: without it this rank would be one behind, which they could not know.

    Its next writer finds it; until that stands by ranks leave copies out.
    """
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    eventually(lambda: engine.copy(state, Reached(1, 8)))
    for step in (2, 3, 4):
        eventually(lambda: engine.free_to_copy)  # ranks meet
        kill_writer(engine)
        assert engine.copy(state, Reached(step, 8 * step))
        assert not engine.free_to_copy
        assert not engine.copy(state, Reached(step, 8 * step))
    eventually(lambda: engine.free_to_copy)
    with monkeypatch.context() as patch:
        patch.setattr(async_save, "WriterProcess", none_left)  # of which the next save tells, not a copy
        kill_writer(engine)
        assert engine.copy(state, Reached(5, 40))
        assert not engine.free_to_copy
        assert not engine.copy(state, Reached(6, 48))
    engine.close()


def none_left(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(("free", "why"), [(0, "saves are not asynchronous"), (None, "no agent would")])
def test_no_copies_where_nobody_would_store_them(
    free: int | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an agent, or where saves stop training: it is said, and saves go on as ever."""
    monkeypatch.delenv(env.KEEPER, raising=False)
    monkeypatch.setattr(arena, "free_bytes", lambda: free)
    job = Job(tmp_path / "store", host="127.0.0.1")
    engine, state = job.engine(1), make_state(1.0)
    engine.restore(make_state())
    assert not engine.copy(state, Reached(1, 8))
    assert f"no copies are held in memory between saves: {why}" in job.warnings[-1]
    assert engine.copy_seconds is None
    assert not engine.can_copy
    save(engine, 2, state)
    assert engine.close().step == 2  # type: ignore[union-attr]
    assert job.resume_points == ["step-00000002.1"]


def test_what_ranks_lost_together_is_said_once() -> None:
    """Also where they held different steps, of which each writer tells something else."""

    def lost(step: int, why: str) -> Flight:
        return Flight(f"step-{step}.1", step, False, why, 0, 0.0, 0.0)

    assert _lost_lines([]) == []
    (same,) = _lost_lines([lost(8, "its writer was lost")] * 2)
    assert same.startswith("checkpoint step-8.1, in flight")
    assert same.endswith(": its writer was lost")
    (different,) = _lost_lines([lost(9, "rank 0 went away"), lost(8, "rank 1 had copied a later step")])
    assert different.startswith("checkpoint step-8.1 and step-9.1, in flight")
    assert different.endswith(": ranks held different steps")


def test_without_a_second_arena_copies_and_saves_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left for one: the first is copied into again, and nobody's script hears of it."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    eventually(lambda: engine.copy(state, Reached(1, 8)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none_left)
        assert all(engine.copy(state, Reached(step, 8 * step)) for step in range(2, 6))
        save(engine, 6, state)
    assert engine.close().ok  # type: ignore[union-attr]


def test_a_job_without_copies_has_one_arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many saves; with copies there are two, however many of those."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    saver: Any = engine._saver
    for step in range(1, 4):
        save(engine, step, state)
        assert engine.wait().ok  # type: ignore[union-attr]
    assert len(saver._snapshot.arenas) == 1
    eventually(lambda: engine.copy(state, Reached(4, 32)))
    before = len(os.listdir("/proc/self/fd"))
    for step in range(5, 30):
        engine.copy(state, Reached(step, 8 * step))
        if step % 7 == 0:
            save(engine, step, state)
            assert engine.wait().ok  # type: ignore[union-attr]
    assert len(saver._snapshot.arenas) == 2
    assert len(os.listdir("/proc/self/fd")) == before
    engine.close()


def test_copies_end_where_saves_become_synchronous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After copies were held: ranks that ask whether all may copy hear no, and train on."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    eventually(lambda: engine.copy(state, Reached(1, 8)))
    assert engine.free_to_copy
    saver: Any = engine._saver
    saver._fall_back("the state changed to what can't be planned")
    assert not engine.free_to_copy
    assert not engine.can_copy
    assert not engine.copy(state, Reached(2, 16))
    assert save(engine, 3, state).ok


@pytest.mark.parametrize("copies", [2, 1])
def test_a_save_that_failed_leaves_the_copy_before_it_until_the_next_is_whole(
    copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was copied over the newer of the two, or beside the only one; the next goes there as well."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    engine, state = Job(tmp_path / "store", host="127.0.0.1").engine(1), make_state(1.0)
    engine.restore(make_state())
    eventually(lambda: engine.copy(state, Reached(1, 8)))
    assert all(engine.copy(state, Reached(step, 8 * step)) for step in range(2, copies + 1))
    (tmp_path / "store" / "step-00000003.1").write_bytes(b"in the way")
    save(engine, 3, state)
    saved = engine.wait()
    assert saved is not None
    assert not saved.ok
    eventually(lambda: engine.free_to_copy)
    assert found(engine) == [1]
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "copied", lambda _: False)  # GPUs are at it
        assert engine.copy(state, Reached(4, 32))
        assert found(engine) == [1]
    eventually(lambda: engine.free_to_copy)
    assert found(engine) == [1, 4]
    engine.close()


def found(engine: Any) -> list[int]:
    """Steps of the copies that a writer would find."""
    saver = engine._saver
    pairs = zip(saver._copies._letters, saver._snapshot.arenas.items(), strict=False)
    looked = [held(letter.descriptor, one.descriptor, one.bytes) for letter, (_, one) in pairs]
    return sorted(message["manifest"]["step"] for message in looked if message is not None)
