"""One commit of everything: when it is due, what goes in, what comes back."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from resumable_training import rng, schedule, tracking
from resumable_training.checkpoint.errors import NotPlain, StorageUnavailable
from resumable_training.checkpoint.reports import Reached
from resumable_training.checkpoint.values import to_text
from resumable_training.contract import env, exitcodes, rankwire
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.data.position import Data, check_fingerprint
from resumable_training.recorder import Recorder
from resumable_training.session import Session

if TYPE_CHECKING:
    from resumable_training.checkpoint.reports import RestoreReport, SaveReport

LEAVE_SECONDS = 30.0  # for a save in flight, when the script ends after leaving its loop early
_HAND_OVER_SECONDS = 1.0  # for GPUs to finish a copy, when a rank fails
_CATCH_UP_SECONDS = 5.0  # of doing lost steps again, after which writers start all the same
_RNG = "rng"
_DATA = "data/"


class Engine(Protocol):
    """What is needed of ``resumable_training.checkpoint.CheckpointEngine``, which says what is collective."""

    config: CheckpointConfig  # replaced when settings change

    def preflight(self, state: Any = None, /) -> None: ...

    def restore(self, state: Any, /) -> RestoreReport | None: ...

    def save(
        self,
        state: Any,
        reached: Reached,
        /,
        *,
        history: tuple[str, ...],
        anew: bool,
    ) -> SaveReport: ...

    def copy(self, state: Any, reached: Reached, /, *, durable_seconds: float | None) -> bool: ...

    @property
    def free_to_copy(self) -> bool: ...

    @property
    def can_copy(self) -> bool: ...

    def drop_held(self) -> None: ...

    @property
    def copy_seconds(self) -> float | None: ...

    @property
    def busy(self) -> bool: ...

    def poll(self) -> SaveReport | None: ...

    def wait(self) -> SaveReport | None: ...

    def land(self, seconds: float) -> None: ...

    def hand_over(self, seconds: float) -> None: ...

    def close(self) -> SaveReport | None: ...


class Saver:
    """Saves and restores one rank's part. ``state`` is the engine's ``TrainingState``.

    What saves, copies, commits or restores is collective: every rank calls it at the same step. Rank 0's
    settings count, as they are when it announces the next save.
    """

    def __init__(self, session: Session, engine: Engine, state: Any) -> None:
        self._session = session
        self._engine = engine
        self._state = state
        self._measured_blocking: float | None = None
        self._measured_durable: float | None = None
        self._measured_copy: float | None = None
        self._copies = 0
        self._can_copy = True  # as far as this rank knows
        self._all_can_copy = True  # as far as ranks have told each other; the same on all
        self._copy_every = 0  # steps; 0: no copies in memory. The same on all ranks
        self._copy_is_due = False  # of the step just done; the same on all ranks
        self._saved_at = time.monotonic()
        self._next = schedule.Announcement(schedule.NEVER, schedule.NEVER)
        self._loop_begins = False
        self._intervals = schedule.IntervalLog()
        self._settings, self._settings_at = session.settings, time.monotonic()
        self._wanted = False  # a save was due while the one before was still in flight
        self._told: SaveReport | None = None  # the last one that was recorded
        self._anew = False  # it has shown that ranks hold other tensors than was planned for
        self._was_anew = False  # the last save that began was planned anew
        self.last_step: int | None = None  # that is durable
        self.restored_world_size = 0
        self.restored: dict[str, Any] = {}
        self.restored_per_rank: dict[str, bytes] = {}
        session.recorder = Recorder(session) if session.main else None

    # -- when ------------------------------------------------------------------------------------------

    @property
    def meets(self) -> bool:
        """Whether ranks speak about saves after the step just done; the same on all."""
        return self._session.step >= self._next.meet_at

    def after_step(self) -> None:
        """Save, if it is due after the step just done, and tell of a save that has landed.

        Where ``meets``, it is when the step's end has been started, which all ranks then start.
        """
        if not self._is_catching_up():
            self.poll()
        step = self._session.step
        saves = self.meets and self._meet()
        self._copy_is_due = bool(self._copy_every) and step % self._copy_every == 0 and not saves
        if saves:
            self._begin()

    def before_step(self) -> None:
        """Copy, if that is due after the step before, and all ranks may. In a loop's first one, agree on
        when to save, and refuse ``run.extras`` that no save could take.

        It is when the next step has been started: what one rank has started all start, so that all come to
        where they meet, also with a drain or an evaluation of one of them on its way.

        Raises:
            NotPlain: the extras of rank 0, whose are saved; on all ranks, in the words of rank 0.
        """
        if self._loop_begins:
            self._loop_begins = False
            self._announce(go=False, refusal=self._refusal() if self._session.main else "")
        due, self._copy_is_due = self._copy_is_due, False
        if due and self._all_can_copy and self._all_may_copy():
            self._copy()

    def _is_catching_up(self) -> bool:
        """Lost steps are done again, which all wait for: a writer, which the first poll starts, can wait.

        For seconds only: what is lost may be hours.
        """
        session = self._session
        redoes = session.samples <= session.launch.high_water_samples
        idle = not self._engine.busy and not self._copy_every  # a poll settles copies
        return redoes and idle and time.monotonic() - self._saved_at < _CATCH_UP_SECONDS

    def poll(self) -> None:
        """Tell of a save that has landed meanwhile. Not a collective; never waits.

        Raises:
            Superseded: a newer attempt owns the store.
        """
        report = self._engine.poll()
        if report is not None:
            self._record(report)

    def start_clock(self) -> None:
        """The loop begins: measure time to the next save from here."""
        self._saved_at = time.monotonic()
        self._copy_is_due = False  # of an earlier loop: what is tracked may have changed since
        self._loop_begins = True  # spoken of when its first step is started: ranks may still be elsewhere

    def _meet(self) -> bool:
        """Whether to save now; rank 0 decides. One that can't be taken up yet is remembered, not piled up."""
        due = self._wanted or self._worth_another or self._session.step >= self._next.save_at
        self._wanted = due and self._engine.busy
        if self._wanted and self._session.main:
            self._session.warn(
                "a checkpoint is due while the one before is still being stored: it comes when that is done"
            )
        go = self._announce(go=due and not self._wanted)
        self._wanted = self._wanted and not go
        return go

    @property
    def _worth_another(self) -> bool:
        """Whether a save that is planned anew may do at once what the last one could not.

        If that one was planned anew already, the next waits for its time: else each boundary had a save that
        fails. It is planned anew, too, in case that ranks fit together by then.
        """
        return self._anew and not self._was_anew

    def _refusal(self) -> str:
        """Why ``run.extras`` can't be saved as they are, or "". Saves see what comes later."""
        try:
            to_text(self._session.extras, where="run.extras")
        except NotPlain as error:
            return str(error)
        return ""

    def _announce(self, *, go: bool, refusal: str = "") -> bool:
        """Agree on what rank 0 says: whether to save now, and what comes next; or that nothing can be saved.

        Raises:
            NotPlain: on all ranks, where rank 0 has a ``refusal``.
        """
        session = self._session
        if go:
            self._saved_at = time.monotonic()
        mine = schedule.announce(session.settings, self._measured(), session.step, session.steps_here)
        every = schedule.copy_every(session.settings, self._measured())
        news = self._intervals.news(session.settings, self._measured())
        if news is not None:
            session.say(news)
        if self._wanted:
            mine = schedule.postponed(self._measured(), session.step)
        group, why = session.group.private, refusal.encode(errors="backslashreplace")
        if group is not None:
            words = [mine.save_at, mine.meet_at, int(go), int(self._anew), every, len(why)]
            numbers = torch.tensor(words, dtype=torch.int64, device="cpu")
            dist.broadcast(numbers, src=0, group=group)
            mine, go = schedule.Announcement(int(numbers[0]), int(numbers[1])), bool(numbers[2])
            self._anew, every = bool(numbers[3]), int(numbers[4])
            why = _told(why, int(numbers[5]), group)
        if why:
            raise NotPlain(why.decode())
        self._next, self._copy_every = mine, every
        return go

    def _measured(self) -> schedule.Measured:
        if self._settings is not self._session.settings:  # replaced by the link's thread
            self._settings, self._settings_at = self._session.settings, time.monotonic()
        return schedule.Measured(
            step_seconds=self._session.clock.progress.step_seconds,
            since_save_seconds=time.monotonic() - self._saved_at,
            blocking_seconds=self._measured_blocking,
            durable_seconds=self._measured_durable,
            settings_seconds=time.monotonic() - self._settings_at,
            copy_seconds=self._measured_copy,
            on_gpus=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        )

    # -- what ------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Have the state after step ``session.step`` durable, unless it is already. Nothing comes after it.

        Raises:
            StorageUnavailable: the save failed.
            CheckpointError: as the engine says.
        """
        session = self._session
        before = session.clock.phase
        session.clock.enter("checkpointing")
        self._await()
        if self.last_step != session.step:
            tried = [self._save_now()]
            if self._worth_another:  # which the loop would have at its next boundary
                tried.append(self._save_now())
            if not tried[-1].ok:
                why = "; planned anew: ".join(report.message for report in tried)
                raise StorageUnavailable(f"the last checkpoint, of step {session.step}, failed: {why}")
            self._saved_at = time.monotonic()
            self._announce(go=False)
        session.clock.enter(before)

    def _save_now(self) -> SaveReport:
        self._begin()
        report = self._await()
        assert report is not None, "one has begun"
        return report

    def _begin(self) -> None:
        """Take the state as it is now; a synchronous engine has it durable, too."""
        session = self._session
        before = session.clock.phase
        session.clock.enter("checkpointing")
        self._engine.config = session.settings
        report = self._engine.save(
            self._state,
            self._reached(),
            history=session.recorder.lines() if session.recorder else (),
            anew=self._anew,
        )
        self._was_anew, self._anew = self._anew, False
        if report.durable:
            self._record(report)
        session.clock.enter(before)

    def _all_may_copy(self) -> bool:
        """Whether all ranks are here, and free to copy: one that has a save in flight has all leave it out.

        They meet before anyone copies over what it holds. If a rank died after the step's last collective,
        this raises as the next step's would, and all still hold the step before.
        """
        can = self._can_copy and self._engine.can_copy
        words = torch.tensor([int(self._engine.free_to_copy), int(can)], device="cpu")
        group = self._session.group.private
        if group is not None:
            dist.all_reduce(words, op=dist.ReduceOp.MIN, group=group)
        free, self._all_can_copy = bool(words[0]), bool(words[1])
        if self._can_copy and not self._all_can_copy and self._session.main:  # the engine has not said so
            self._session.warn(
                "no copies are held in memory between saves: not every rank has an agent that would keep them"
            )
        return free and self._all_can_copy

    def _copy(self) -> None:
        """Have the state as it is now held in memory: no checkpoint, unless this attempt ends with it."""
        session = self._session
        before, started = session.clock.phase, time.monotonic()
        session.clock.enter("checkpointing")
        durable = self._measured_durable
        done = self._engine.copy(self._state, self._reached(), durable_seconds=durable)
        session.clock.enter(before)
        self._can_copy = done or self._engine.can_copy
        self._copies += done
        whole = self._engine.copy_seconds  # of the newest one that is; GPUs may still be at this one
        if done and self._copies > 2 and whole is not None:  # the first two plan, and take memory
            seconds = max(time.monotonic() - started, whole)
            self._measured_copy = schedule.mean_cost(self._measured_copy, seconds)

    def _await(self) -> SaveReport | None:
        """Until nothing is in flight; what rank 0 knows of the last save."""
        report = self._engine.wait()
        if report is not None:
            self._record(report)
            self._anew = report.unlike
        return report

    def _record(self, report: SaveReport) -> None:
        """Tell of a save that has ended, once."""
        if report != self._told:
            self._anew = report.unlike
            self._tell(report)

    def _tell(self, report: SaveReport) -> None:
        session = self._session
        self._told = report
        if report.ok:
            self.last_step = report.step
            self._measured_blocking = schedule.mean_cost(self._measured_blocking, report.blocking_ms / 1000)
            self._measured_durable = schedule.mean_cost(self._measured_durable, report.durable_ms / 1000)
            event = self._checkpoint_event(report)
            session.report(rankwire.CHECKPOINT, **event)
            self._note(report, event["interval_seconds"])
            return
        if self.last_step == report.step:
            self.last_step = None  # this rank's writer heard otherwise; rank 0's word counts
        session.report(rankwire.CHECKPOINT_FAILED, step=report.step, message=report.message)
        self._note(report, None)

    def _note(self, report: SaveReport, interval_seconds: float | None) -> None:
        if self._session.recorder is not None:
            self._session.recorder.saved(report, interval_seconds)

    def _checkpoint_event(self, report: SaveReport) -> dict[str, Any]:
        interval = schedule.wanted(self._session.settings, self._measured())
        return {
            "step": report.step,
            "samples": report.samples,
            "checkpoint": report.name,
            "bytes": report.bytes,
            "blocking_ms": report.blocking_ms,
            "durable_ms": report.durable_ms,
            "interval_seconds": interval.seconds,
            "interval_steps": interval.steps,
            "interval_bound": interval.bound,
        }

    def _reached(self) -> Reached:
        session = self._session
        return Reached(session.step, session.samples, self._shared(), self._per_rank())

    def _shared(self) -> dict[str, Any]:
        session = self._session
        assert session.tracked is not None
        return {
            "step": session.step,
            "samples": session.samples,
            "seed": session.seed,
            "data": {name: data.position for name, data in session.datasets.items()},
            "fingerprint": {name: data.fingerprint() for name, data in session.datasets.items()},
            "extras": session.extras,
            "learning_rates": {
                "rates": tracking.learning_rates(session.tracked),
                "disagreeing": tracking.disagreeing_schedulers(session.tracked),
            },
            "evaluation_cut": session.evaluation_depth > 0,
            "save_cost": {"blocking": self._measured_blocking, "durable": self._measured_durable},
        }

    def _per_rank(self) -> dict[str, bytes]:
        session = self._session
        values = {_RNG: session.evaluation_rng or rng.capture()}
        for name, data in session.datasets.items():
            state = data.rank_state()
            if state is not None:
                values[_DATA + name] = state
        return values

    # -- back ------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Load the resume point into everything that is tracked, and set the position.

        Raises:
            CheckpointError: as the engine says.
            DataChanged: the data is not what the checkpoint was trained on.
        """
        session = self._session
        self._engine.preflight(self._state)
        report = self._engine.restore(self._state)
        if session.recorder is not None:
            session.recorder.restored(report)
        if report is None:
            session.report(rankwire.RESTORED, step=0, samples=0, checkpoint="", seconds=0.0)
            session.say("no checkpoint yet: starting at step 0")
            return
        session.step, session.samples = report.step, report.samples
        self.last_step = report.step
        self.restored, self.restored_per_rank = dict(report.shared), dict(report.per_rank or {})
        self.restored_world_size = report.saved_world_size
        session.clock.at(report.step, report.samples)
        session.extras.clear()
        session.extras.update(self.restored.get("extras", {}))
        self._measured_blocking, self._measured_durable = self._known_cost()
        session.evaluation_cut = bool(self.restored.get("evaluation_cut"))
        if session.seed is None:
            session.seed = self.restored.get("seed")
        for data in session.datasets.values():
            self.restore_data(data)
        self._check_learning_rates()
        self._restore_rng(self.restored_per_rank.get(_RNG))
        if report.landed is not None:
            blocking_ms = round((self._measured_blocking or 0.0) * 1000)  # nobody knows what this one cost
            landed = replace(report.landed, blocking_ms=blocking_ms)
            session.report(rankwire.CHECKPOINT, **self._checkpoint_event(landed))
            session.say(f"checkpoint {landed.name}, in flight when the attempt before ended, has landed")
        session.report(rankwire.RESTORED, **_restored_event(report))
        session.say(_restored_line(report))

    def _known_cost(self) -> tuple[float | None, float | None]:
        """Seconds that a save costs, so that the interval goes on from there.

        A checkpoint brings along what those before it cost; of the very first one only the operator knows.
        """
        cost = self.restored.get("save_cost") or {}
        told = self._session.settings
        if cost.get("blocking") is None and told.blocking_ms is not None and told.durable_ms is not None:
            return told.blocking_ms / 1000, told.durable_ms / 1000
        return cost.get("blocking"), cost.get("durable")

    def restore_data(self, data: Data) -> None:
        """Put ``data`` at its saved position.

        Raises:
            DataChanged: its fingerprint is another.
        """
        if self.last_step is None:
            return
        position: int | None = self.restored.get("data", {}).get(data.name)
        if position is None:
            data.position = self._session.samples
            self._session.warn(
                f"the checkpoint knows nothing of the data {data.name!r}: it starts at sample {data.position}"
            )
            return
        check_fingerprint(data, self.restored["fingerprint"][data.name])
        data.position = position
        data.load_rank_state(self.restored_per_rank.get(_DATA + data.name), self.restored_world_size)

    def _check_learning_rates(self) -> None:
        assert self._session.tracked is not None
        saved = self.restored.get("learning_rates")
        if saved is not None:
            tracking.check_learning_rates(self._session.tracked, saved)

    def _restore_rng(self, state: bytes | None) -> None:
        """A rank without a saved state is seeded by the rule of :mod:`resumable_training.rng`."""
        session = self._session
        if state is not None:
            rng.restore(state)
        else:
            rng.seed_rank(session.seed or 0, session.launch.rank, session.step)

    def close(self) -> None:
        """Wait for what is still being written."""
        self._engine.close()

    def leave(self) -> None:
        """As ``close``, after a loop that was left early: other ranks may not be here.

        Such an end is no crash, and what is saved is what the script wanted saved.
        """
        self._engine.drop_held()
        self._engine.land(LEAVE_SECONDS)

    def fail(self, code: int) -> None:
        """This rank is about to end with an error: what it has copied is not to be lost with it.

        Under an agent its writer stores on, and nobody may wait; elsewhere the writer ends with this process.
        There a lost peer's writer is gone, too, or the peer has waited itself.
        After a loss that is no number copies made since may hold what led to it: only saves count.
        """
        if code == exitcodes.NUMERIC:
            self._engine.drop_held()
        if env.KEEPER in os.environ:
            self._engine.hand_over(_HAND_OVER_SECONDS)
            return
        if code == exitcodes.PEER_LOST:
            return
        if self._engine.busy:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it: no reason to lose the save
                print(
                    f"resumable_training: rank {self._session.launch.rank} ends when the checkpoint in flight"
                    f" is stored, in {LEAVE_SECONDS:.0f} s at the latest (Ctrl-C: at once)",
                    file=sys.stderr,
                    flush=True,
                )
        self._engine.land(LEAVE_SECONDS)


def _told(text: bytes, length: int, group: dist.ProcessGroup) -> bytes:
    """Rank 0's ``text``, on all ranks, which know its ``length`` already; where it is 0 nothing is sent."""
    if not length:
        return b""
    place = torch.frombuffer(bytearray(text.ljust(length)), dtype=torch.uint8)
    dist.broadcast(place, src=0, group=group)
    return place.numpy().tobytes()


def _restored_event(report: RestoreReport) -> dict[str, Any]:
    return {
        "step": report.step,
        "samples": report.samples,
        "checkpoint": report.checkpoint,
        "record": report.record,
        "seconds": report.seconds,
        "fallback": [asdict(passed) for passed in report.fallback],
        "memory_bytes": report.memory_bytes,
        "storage_bytes": report.storage_bytes,
        "deliberate": report.deliberate,
    }


def _restored_line(report: RestoreReport) -> str:
    passed = "".join(f"; passed over {item.checkpoint}: {item.why}" for item in report.fallback)
    where = ""
    if report.memory_bytes:
        parts = f"{report.memory_bytes / 1e6:.1f} MB", f"{report.storage_bytes / 1e6:.1f} MB"
        where = f" ({parts[0]} of it from this job's memory, {parts[1]} from storage)"
    return f"restored step {report.step} from {report.checkpoint} in {report.seconds:.2f} s{where}{passed}"
