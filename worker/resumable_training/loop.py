"""The step loop: boundaries, micro-batches with their weights, accounting, saves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from resumable_training.contract import exitcodes
from resumable_training.data.position import Data
from resumable_training.data.split import Piece, StepPlan
from resumable_training.errors import NonFiniteLoss, UserError
from resumable_training.health.exits import end_by
from resumable_training.phases import StepKind, rework_share
from resumable_training.process_group import meet_at_end
from resumable_training.session import Session

_MEET_SECONDS = 600.0  # for slower ranks to get through the last save
_EXIT_SECONDS = 15.0  # a drained script's own clean-up may take so long


class Step:
    """One optimizer step. Iterate it for this rank's micro-batches and call :meth:`backward` for each."""

    def __init__(
        self, session: Session, data: Data | None, plan: StepPlan | None, batches: Iterator[Any], strict: bool
    ) -> None:
        self.number = session.step + 1
        self.values: dict[str, Any] = {}
        self._session = session
        self._data = data
        self._plan = plan
        self._batches = batches
        self._strict = strict
        self._piece: Piece | None = None
        self._consumed = 0
        self.exhausted = plan is None  # its micro-batches came to their end: the last one's backward was done
        self._weighted = False
        self._done = False
        self._optimizer_steps = session.optimizer_steps

    @property
    def first_sample(self) -> int:
        """Position of the global batch's first sample in the stream."""
        return self._plan.start if self._plan is not None else self.number - 1

    @property
    def samples(self) -> int:
        """Samples in the global batch, over all ranks."""
        return self._plan.size if self._plan is not None else 1

    @property
    def advance(self) -> int:
        """By how much the job's count of samples grows: with what ``drop_last`` leaves out before them."""
        if self._plan is None or self._data is None:
            return 1
        return self._plan.stop - self._data.position

    @property
    def micro_batches(self) -> int:
        """How many micro-batches this step has, the same on all ranks."""
        return len(self._plan.pieces) if self._plan is not None else 0

    @property
    def whole(self) -> bool:
        """Whether all micro-batches have been taken."""
        return self._consumed == self.micro_batches

    @property
    def applied(self) -> bool:
        """Whether a tracked optimizer has stepped since the step began; without one, nobody can tell."""
        session = self._session
        unknown = session.tracked is None or not session.tracked.optimizers
        return unknown or session.optimizer_steps > self._optimizer_steps

    def __iter__(self) -> Iterator[Any]:
        """This rank's micro-batches."""
        if self._plan is None:
            raise UserError("this step has no micro-batches: run.steps was called without data")
        if self._consumed:
            raise UserError("a step's micro-batches can be iterated only once")
        clock, sync = self._session.clock, self._session.sync
        last = len(self._plan.pieces)
        for number, piece in enumerate(self._plan.pieces, 1):
            clock.begin_data_wait()
            batch = next(self._batches)
            clock.end_data_wait()
            if sync is not None:
                sync.set(number == last)
            self._piece = piece
            self._consumed = number
            yield batch
        self.exhausted = True

    @property
    def weight(self) -> float:
        """Factor for the *mean* loss of the current micro-batch, before its backward.

        ``real / global samples * ranks``: DDP and FSDP2 average gradients over the ranks, so the result is
        the gradient of the mean over the whole global batch. 0 for padding.
        """
        return self._factor("mean")

    def _factor(self, reduction: str) -> float:
        if self._plan is None:
            return 1.0
        if self._piece is None or self._data is None:
            raise UserError("a step's weight is known inside `for batch in step` only")
        self._weighted = True
        ranks = self._data.place.world_size
        if reduction == "mean":
            return self._piece.real * ranks / self._plan.size
        if reduction == "sum":
            return ranks / self._plan.size if self._piece.real else 0.0
        raise UserError(f"reduction must be 'mean' or 'sum', not {reduction!r}")

    def backward(self, loss: torch.Tensor, reduction: str = "mean") -> None:
        """Backward of the current micro-batch's loss, weighted by its share of the global batch.

        Args:
            loss: a scalar; the mean over the micro-batch's samples, or their sum.
            reduction: which of the two ``loss`` is. The gradient is that of the mean in both cases.

        Raises:
            NonFiniteLoss: it is NaN or infinite, and ``stop_on_nonfinite`` is set.
        """
        if self._strict and not bool(torch.isfinite(loss)):
            raise NonFiniteLoss(f"the loss of step {self.number} is {float(loss.detach())}")
        factor = self._factor(reduction)
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]

    def log(self, **values: Any) -> None:
        """Note values of this step; ``loss`` is shown by ``rtj status``.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite, and ``stop_on_nonfinite`` is set.
        """
        self.values.update(values)
        loss = values.get("loss")
        if self._strict and loss is not None and not math.isfinite(_number(loss)):
            raise NonFiniteLoss(f"the loss of step {self.number} is {_number(loss)}")

    def complete(self) -> None:
        """The optimizer has stepped: count the step. Doing it again changes nothing.

        Raises:
            UserError: not all micro-batches were taken, so ranks would differ from here on.
        """
        if self._done:
            return
        if not self.whole:
            raise UserError(
                f"step {self.number} took {self._consumed} of its {self.micro_batches} micro-batches: "
                "every rank must iterate all of `for batch in step`, before run.evaluating() too"
            )
        self._done = True
        session, plan = self._session, self._plan
        session.step = self.number
        session.steps_here += 1
        session.polls = 0
        session.current = None
        session.samples += self.advance
        if session.samples <= session.launch.high_water_samples:
            session.rework_steps += 1
        if plan is not None and self._data is not None:
            self._data.position = plan.stop
            if session.trace is not None:
                session.trace.step(self.number, plan, self._data)
            self._check_weighted(plan)
        session.clock.end_step(session.step, session.samples, session.rework_steps, self._shown_loss())
        if session.recorder is not None:
            session.recorder.after_step(self.values)

    def _check_weighted(self, plan: StepPlan) -> None:
        if not self._weighted and (len(plan.pieces) > 1 or plan.size % self._place_size()):
            self._session.warn(
                "the micro-batches' losses are not weighted: call step.backward(loss), or multiply the mean "
                "loss by step.weight, or the gradient is not that of the global batch"
            )

    def _place_size(self) -> int:
        return self._data.place.world_size if self._data is not None else 1

    def _shown_loss(self) -> float | None:
        """The loss as a number; one on a GPU is fetched about once a second, since that waits for it."""
        loss = self.values.get("loss")
        if loss is None:
            return None
        progress = self._session.clock.progress
        if isinstance(loss, torch.Tensor) and loss.device.type != "cpu":
            every = max(1, round(1.0 / progress.step_seconds)) if progress.step_seconds > 0 else 1
            if self.number % every:
                return progress.loss
        return _number(loss)


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)


def run_steps(session: Session, data: Data | None, until: int | None, strict: bool) -> Iterator[Step]:
    """The generator behind ``run.steps``."""
    if session.finished and session.drained:
        raise UserError("the run is over")
    if session.looping:
        raise UserError("run.steps is being iterated already: its loops follow one another, none in another")
    session.finished, session.looping = False, True
    session.clock.in_loop(True)
    try:
        yield from _steps(session, data, until, strict)
    finally:
        session.looping = False


def _steps(session: Session, data: Data | None, until: int | None, strict: bool) -> Iterator[Step]:
    plans = data.plans() if data is not None else None
    batches = data.micro_batches() if data is not None else iter(())
    if session.saver is not None:
        session.saver.start_clock()
    while until is None or session.step < until:
        plan = next(plans, None) if plans is not None else None
        if plans is not None and plan is None:
            break
        if not session.agreement.start((session.step + 1, 0), session.clock.beat):
            stop_drained(session)
        if session.saver is not None:
            session.saver.before_step()
        step = Step(session, data, plan, batches, strict)
        session.current = step
        session.clock.begin_step(_kind(session, step))
        try:
            yield step
        except GeneratorExit:
            _left_early(session, step)
            raise
        step.complete()
        if session.saver is not None:
            if session.saver.meets and not session.start_end():
                stop_drained(session)
            session.saver.after_step()
    _finish(session)


def _kind(session: Session, step: Step) -> StepKind:
    start = session.samples
    share = rework_share(start, start + step.advance, session.launch.high_water_samples)
    return StepKind(session.steps_here == 0, share)


def _left_early(session: Session, step: Step) -> None:
    """``break``, or an error, which looks the same from here. No commit: other ranks may not be here.

    The step counts if its micro-batches came to an end and the optimizer has stepped. An error in the last
    one, as when a peer dies in its backward, or before the optimizer, leaves a step that was never applied:
    what is saved afterwards must not claim samples that never reached the weights.
    """
    if step.exhausted and step.applied:
        step.complete()
    session.current = None
    session.clock.enter("closing")


def _finish(session: Session) -> None:
    if session.saver is not None:
        session.saver.commit()
    session.clock.in_loop(False)
    session.clock.enter("closing")
    _meet(session)
    session.finished, session.ended_at = True, session.step


def _meet(session: Session) -> None:
    launch = session.launch
    session.meetings += 1
    name = f"end/{session.meetings}/{session.step}"  # a name of its own each time, or nobody would wait
    meet_at_end(session.group.store, launch.rank, launch.world_size, name, _MEET_SECONDS)


def stop_drained(session: Session) -> None:
    """Commit what is new and end with the code that says "drained"; all ranks are at the same state.

    Where a loop ended at that state everything is committed, all have met, and others may be at their exit,
    where they meet nobody.

    Raises:
        SystemExit: always, so that the script's own clean-up runs.
        StorageUnavailable: the commit failed.
    """
    if session.recorder is not None:
        session.recorder.stopped(session.agreement.reason)
    has_ended = session.ended_at == session.step
    if session.saver is not None:
        if session.steps_here and not has_ended:
            session.saver.commit()
    elif session.steps_here:
        session.warn("stopped on request, but without a checkpoint directory nothing is kept")
    session.clock.in_loop(False)
    session.clock.enter("closing")
    if not has_ended:
        _meet(session)
    session.finished = session.drained = True
    session.say(f"stopped after step {session.step} ({session.agreement.reason})")
    end_by(_EXIT_SECONDS, exitcodes.DRAINED)
    raise SystemExit(exitcodes.DRAINED)
