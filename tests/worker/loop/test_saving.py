"""When saves begin and when they count, with an engine that stores in the background."""

import contextlib
import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from resumable_training import saving
from resumable_training.checkpoint.errors import NotPlain, StorageUnavailable
from resumable_training.checkpoint.reports import Reached, SaveReport
from resumable_training.contract import env, exitcodes, rankwire
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.saving import Saver


class Engine:
    """Lands a save when the test says so; counts what was asked of it."""

    def __init__(self) -> None:
        self.config = CheckpointConfig()
        self.begun: list[int] = []
        self.flight: SaveReport | None = None
        self.last: SaveReport | None = None
        self.outcome: dict[str, Any] = {"ok": True, "bytes": 10, "durable_ms": 70}
        self.planned_anew: list[int] = []
        self.copied: list[int] = []
        self.copy_seconds: float | None = 0.0
        self.told_durable: list[float | None] = []
        self.can_copy = True
        self.dropped = 0
        self.polls = 0

    def copy(self, state: Any, reached: Reached, *, durable_seconds: float | None) -> bool:
        self.told_durable.append(durable_seconds)
        assert self.free_to_copy
        if not self.can_copy:
            return False
        self.copied.append(reached.step)
        return True

    @property
    def free_to_copy(self) -> bool:
        return self.flight is None

    def drop_held(self) -> None:
        self.dropped += 1

    def hand_over(self, seconds: float) -> None:
        pass

    @property
    def busy(self) -> bool:
        return self.flight is not None

    def save(self, state: Any, reached: Reached, *, anew: bool, **_: Any) -> SaveReport:
        assert self.flight is None
        step = reached.step
        self.begun.append(step)
        if anew:
            self.planned_anew.append(step)
            self.outcome = {"ok": True}
        self.flight = SaveReport(f"step-{step}", step, reached.samples, blocking_ms=3, durable=False)
        return self.flight

    def land(self) -> None:
        assert self.flight is not None
        self.last, self.flight = replace(self.flight, durable=True, **self.outcome), None

    def poll(self) -> SaveReport | None:
        self.polls += 1
        return self.last if self.flight is None else None

    def wait(self) -> SaveReport | None:
        if self.flight is not None:
            self.land()
        return self.last


class Session(SimpleNamespace):
    """As much of a session as saving needs. Steps take 10 s, so that it is spoken of saves after each."""

    def __init__(self, **config: Any) -> None:
        progress = SimpleNamespace(step_seconds=10.0)
        clock = SimpleNamespace(phase="productive", progress=progress, enter=lambda phase: None)
        super().__init__(
            clock=clock,
            group=SimpleNamespace(private=None),
            settings=CheckpointConfig(**config),
            tracked=SimpleNamespace(optimizers={}, stateful={}),
            launch=SimpleNamespace(rank=1, high_water_samples=0),
            main=False,  # keeps no history
            recorder=None,
            step=0,
            samples=0,
            steps_here=0,
            seed=None,
            datasets={},
            extras={},
            evaluation_depth=0,
            evaluation_rng=b"rng",
        )
        self.events: list[tuple[str, int]] = []

    def report(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data["step"]))

    def step_once(self, saver: Saver) -> None:
        self.step += 1
        self.steps_here += 1
        self.samples += 8
        saver.after_step()
        saver.before_step()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def started(engine: Engine, **config: Any) -> tuple[Saver, Session]:
    session = Session(**config)
    saver = Saver(session, engine, object())  # type: ignore[arg-type]
    saver.start_clock()
    saver.before_step()
    return saver, session


def test_writers_wait_for_steps_that_are_done_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll starts them: after the first new step, or after seconds, or a save that was due."""
    saver, session = started(engine, every_steps=5)
    session.launch.high_water_samples = 3 * 8
    polls = []
    for _ in range(4):
        session.step_once(saver)
        polls.append(engine.polls)
    assert polls == [0, 0, 0, 1]
    session.launch.high_water_samples = 99 * 8
    session.step_once(saver)  # begins a save
    session.step_once(saver)
    assert (engine.begun, engine.polls) == ([5], 2)
    engine.land()
    monkeypatch.setattr(saving, "_CATCH_UP_SECONDS", 0.0)
    session.step_once(saver)
    assert engine.polls == 3


def test_a_save_counts_when_it_is_durable(engine: Engine) -> None:
    """Told once, at the first boundary after it has landed; not when it begins."""
    saver, session = started(engine, every_steps=2)
    for _ in range(3):
        session.step_once(saver)
    assert (engine.begun, session.events, saver.last_step) == ([2], [], None)
    engine.land()
    session.step_once(saver)
    assert session.events == [(rankwire.CHECKPOINT, 2)]
    assert saver.last_step == 2
    assert engine.begun == [2, 4]


def test_a_save_that_is_due_meanwhile_is_remembered_and_not_piled_up(engine: Engine) -> None:
    """However many are due: one, at the first boundary after the flight has landed, with the newest state."""
    saver, session = started(engine, every_steps=2)
    for _ in range(7):
        session.step_once(saver)
    assert engine.begun == [2]
    engine.land()
    session.step_once(saver)
    assert engine.begun == [2, 8]
    engine.land()
    session.step_once(saver)
    assert engine.begun == [2, 8]
    session.step_once(saver)
    assert engine.begun == [2, 8, 10]


def test_a_save_that_fails_is_told_and_training_goes_on(engine: Engine) -> None:
    """It does not count, and the next one begins as planned."""
    saver, session = started(engine, every_steps=1)
    engine.outcome = {"ok": False, "message": "full"}
    session.step_once(saver)
    engine.land()
    session.step_once(saver)
    assert session.events == [(rankwire.CHECKPOINT_FAILED, 1)]
    assert saver.last_step is None
    assert engine.begun == [1, 2]


def test_the_last_save_waits_for_the_one_in_flight(engine: Engine) -> None:
    """Of another step: both are durable. Of the same step: it is not saved twice."""
    saver, session = started(engine, every_steps=2)
    for _ in range(3):
        session.step_once(saver)
    saver.commit()
    assert session.events == [(rankwire.CHECKPOINT, 2), (rankwire.CHECKPOINT, 3)]
    session.step_once(saver)
    saver.commit()
    saver.commit()
    assert engine.begun == [2, 3, 4]
    assert saver.last_step == 4


def test_the_last_save_must_succeed(engine: Engine) -> None:
    """Nothing comes after it, so that the exit code has to tell."""
    saver, session = started(engine, every_steps=5)
    session.step_once(saver)
    engine.outcome = {"ok": False, "message": "full"}
    with pytest.raises(StorageUnavailable, match="of step 1, failed: full"):
        saver.commit()


def test_copies_are_made_between_saves_and_count_for_nothing(engine: Engine) -> None:
    """None where a save is due or in flight; no event, no cost of a save, no step that is durable."""
    saver, session = started(engine, every_steps=4, memory_every_steps=1)
    for _ in range(6):
        session.step_once(saver)
    assert (engine.begun, engine.copied) == ([4], [1, 2, 3])
    assert session.events == []
    engine.land()
    for _ in range(3):
        session.step_once(saver)
    assert (engine.begun, engine.copied) == ([4, 8], [1, 2, 3, 7])
    assert session.events == [(rankwire.CHECKPOINT, 4)]
    assert saver.last_step == 4
    assert engine.told_durable == [None, None, None, 0.07]
    assert saver._measured().blocking_seconds == 0.003


def test_nothing_is_collected_for_a_copy_that_would_be_left_out(engine: Engine) -> None:
    """Positions and generators are asked where a save begins or a copy is made, not while one is stored."""
    saver, session = started(engine, every_steps=3, memory_every_steps=1)
    asked: list[int] = []
    session.datasets["data"] = SimpleNamespace(
        position=0, fingerprint=dict, rank_state=lambda: asked.append(session.step)
    )
    for _ in range(5):
        session.step_once(saver)
    assert asked == [1, 2, 3]
    engine.land()
    for _ in range(2):
        session.step_once(saver)
    assert asked == [1, 2, 3, 6]
    assert (engine.begun, engine.copied) == ([3, 6], [1, 2])


def test_where_nothing_can_be_held_it_is_said_once(engine: Engine) -> None:
    """And nothing is collected, planned or waited for."""
    saver, session = started(engine, every_steps=100, memory_every_steps=1)
    warned: list[str] = []
    session.main, session.warn, engine.can_copy = True, warned.append, False
    for _ in range(5):
        session.step_once(saver)
    assert (engine.copied, engine.told_durable) == ([], [])
    (text,) = warned
    assert "no copies are held in memory between saves" in text


def test_no_copy_is_made_of_what_was_changed_between_loops(engine: Engine) -> None:
    """One that was due after the last step of a loop is left out when the next one begins."""
    saver, session = started(engine, every_steps=100, memory_every_steps=1)
    session.step_once(saver)
    session.step = 2
    saver.after_step()
    saver.start_clock()
    saver.before_step()
    assert engine.copied == [1]
    session.step_once(saver)
    assert engine.copied == [1, 3]


def test_copies_come_at_multiples_of_their_steps(engine: Engine) -> None:
    """Counted over all attempts; the settings may change while training goes on."""
    saver, session = started(engine, every_steps=100, memory_every_steps=3)
    session.step = 4
    for _ in range(6):
        session.step_once(saver)
    assert engine.copied == [6, 9]
    session.settings = CheckpointConfig(every_steps=100)
    for _ in range(5):
        session.step_once(saver)
    assert engine.copied == [6, 9]


def test_copies_are_made_as_often_as_they_cost_little(engine: Engine) -> None:
    """By the slowest of what the loop and a GPU measured, from the third one on; a step takes 10 s here."""
    saver, session = started(engine, every_steps=1, memory_every_steps=None, memory_auto=True)
    session.step_once(saver)
    assert saver._copy_every == 0
    engine.land()
    session.settings = CheckpointConfig(every_steps=100, memory_auto=True)
    session.step_once(saver)
    engine.land()
    engine.copy_seconds = 0.45
    for _ in range(14):
        session.step_once(saver)
    assert engine.copied == [3, 4, 5, 6, 10, 15]  # spoken of after step 7


def test_a_copy_that_was_not_seen_whole_was_not_measured(engine: Engine) -> None:
    """GPUs are at it: what the loop stood still for was the asking only."""
    saver, session = started(engine, every_steps=100, memory_every_steps=1)
    engine.copy_seconds = None
    for _ in range(3):
        session.step_once(saver)
    assert saver._measured().copy_seconds is None
    engine.copy_seconds = 0.45
    session.step_once(saver)
    assert saver._measured().copy_seconds == 0.45


def test_extras_that_no_save_could_take_are_refused_before_the_first_step(engine: Engine) -> None:
    """By their key, as run.track refuses what it is given. Plain equals of other classes are no such."""
    saver, session = started(engine, every_steps=100)
    session.main = True
    session.extras.update(best=np.float32(0.5), seen={1, 2}, shape=(3, 4))
    saver.start_clock()
    saver.before_step()
    session.extras["history"] = [{"at": object()}]
    saver.start_clock()
    with pytest.raises(NotPlain, match=r"run\.extras\.history\[0\]\.at is a builtins\.object; only plain"):
        saver.before_step()


UNLIKE = {"ok": False, "message": "rank 1 holds others", "unlike": True}


def test_the_save_after_one_that_found_ranks_unlike_is_planned_anew(engine: Engine) -> None:
    """And not those after it."""
    saver, session = started(engine, every_steps=1)
    engine.outcome = UNLIKE
    for _ in range(4):
        session.step_once(saver)
        engine.land()
    assert session.events == [
        (rankwire.CHECKPOINT_FAILED, 1),
        (rankwire.CHECKPOINT, 2),
        (rankwire.CHECKPOINT, 3),
    ]
    assert (engine.begun, engine.planned_anew) == ([1, 2, 3, 4], [2])


@pytest.mark.parametrize("in_flight", [False, True])
def test_the_last_save_is_planned_anew_within_itself(engine: Engine, in_flight: bool) -> None:
    """Nothing comes after it: also where the one before it has shown that it must be."""
    saver, session = started(engine, every_steps=2 if in_flight else 9)
    engine.outcome = UNLIKE
    for _ in range(3):
        session.step_once(saver)
    saver.commit()
    assert saver.last_step == 3
    assert engine.planned_anew == [3]
    assert engine.begun == ([2, 3] if in_flight else [3, 3])


@pytest.fixture
def stays_unlike(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """However often it is planned anew."""
    monkeypatch.setattr(engine, "land", lambda land=engine.land: (engine.outcome.update(UNLIKE), land()))
    return engine


def test_ranks_that_stay_unlike_are_not_saved_at_each_step(stays_unlike: Engine) -> None:
    """Once more soon, then when saves are due: planned anew each time, as they may fit together then."""
    saver, session = started(stays_unlike, every_steps=5)
    for _ in range(16):
        session.step_once(saver)
        if stays_unlike.busy:
            stays_unlike.land()
    first, soon, *due = stays_unlike.begun
    assert (first, due) == (5, [10, 15])
    assert first < soon < 10
    assert stays_unlike.planned_anew == [soon, 10, 15]


def test_ranks_that_stay_unlike_fail_the_last_save(stays_unlike: Engine) -> None:
    """Planned anew once; then the exit code has to tell."""
    engine = stays_unlike
    saver, session = started(engine, every_steps=9)
    session.step_once(saver)
    with pytest.raises(StorageUnavailable, match="of step 1, failed: rank 1 holds others"):
        saver.commit()
    assert engine.begun == [1, 1]


@pytest.mark.parametrize("keeper", [True, False])
def test_a_copy_counts_after_crashes_only(
    engine: Engine, keeper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after a loss that is no number, nor where the script has left its loop."""
    monkeypatch.setenv(env.KEEPER, "somewhere")
    if not keeper:
        monkeypatch.delenv(env.KEEPER)
    monkeypatch.setattr(engine, "land", lambda seconds: None)
    saver, _ = started(engine, every_steps=100)
    for code, dropped in ((1, 0), (exitcodes.PEER_LOST, 0), (exitcodes.NUMERIC, 1), (exitcodes.STORAGE, 1)):
        saver.fail(code)
        assert engine.dropped == dropped
    saver.leave()
    assert engine.dropped == 2


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "broken pipe"])
def test_an_error_that_nobody_reads_of_loses_no_save(
    engine: Engine, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank waits for what is in flight also where it can't say so."""
    monkeypatch.delenv(env.KEEPER, raising=False)
    saver, session = started(engine, every_steps=1)
    session.step_once(saver)
    monkeypatch.setattr(engine, "land", lambda seconds, land=engine.land: land())
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as stderr:
        if closed:
            stderr.close()
        monkeypatch.setattr(sys, "stderr", stderr)
        saver.fail(1)
    assert engine.last is not None
    assert engine.last.step == 1
