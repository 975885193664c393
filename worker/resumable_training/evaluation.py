"""Declared evaluation: its own phase, random numbers left as they were, and places where a drain can stop.

A drain that stops in the middle of an evaluation commits the state after the last step, as it was when the
evaluation began; the evaluation itself is lost, and ``run.evaluation_cut`` says so after the resume.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from resumable_training import rng
from resumable_training.errors import PeerLost, UserError
from resumable_training.loop import stop_drained
from resumable_training.session import Session

_WAIT_SECONDS = 0.05


class Evaluation:
    """Context manager, and iterable over ``batches`` with a poll before each. See ``Run.evaluating``."""

    def __init__(self, session: Session, batches: Iterable[Any] | None, main_only: bool) -> None:
        self._session = session
        self._batches = batches
        self._main_only = main_only
        self._before = ""
        self._key = ""  # that tells the other ranks, with main_only

    def __bool__(self) -> bool:
        """Whether this rank evaluates."""
        return self._session.main or not self._main_only

    def __enter__(self) -> Evaluation:
        session = self._session
        if session.current is not None:
            if not session.current.applied:
                session.warn(
                    "run.evaluating() in a step whose optimizer has not stepped: call it later, or a drain"
                    " in the evaluation commits the step without its update"
                )
            session.current.complete()
        if session.evaluation_depth == 0:
            self._before = session.clock.phase
            session.evaluation_rng = rng.capture()
            session.clock.enter("evaluating")
            session.watcher.evaluating()
        session.evaluation_depth += 1
        if self._main_only:
            session.main_evaluations += 1
            self._key = f"evaluated/{session.main_evaluations}"
        poll(session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        if self._main_only and not session.drained:
            if session.main:
                self._release()  # also after an error, which the script may catch
            elif kind in (None, GeneratorExit):  # the latter: the script left its loop by break
                self._wait_for_main()
        session.evaluation_depth -= 1
        if session.evaluation_depth == 0:
            if session.evaluation_rng is not None and not session.drained:
                rng.restore(session.evaluation_rng)
            session.evaluation_rng = None
            session.watcher.evaluating()
            if not session.drained:
                session.clock.enter(self._before)

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None:
            raise UserError("run.evaluating() has nothing to iterate: pass the loader to it")
        with self:
            if self:
                for batch in self._batches:
                    poll(self._session)
                    yield batch

    def _release(self) -> None:
        try:
            self._session.group.store.set(self._key, "1")
        except RuntimeError as error:  # in torchrun's agent
            raise PeerLost(f"the store went away while rank 0 evaluated: {error}") from error

    def _wait_for_main(self) -> None:
        """Ranks without a part in it wait until rank 0 is through, and can stop while they wait."""
        session = self._session
        store = session.group.store
        try:
            pause = threading.Event()
            while not store.check([self._key]):
                if session.agreement.stops_before(session.next_boundary):
                    stop_drained(session)
                session.clock.beat()
                pause.wait(_WAIT_SECONDS)
        except RuntimeError as error:
            raise PeerLost(f"rank 0's store went away while it evaluated: {error}") from error


def poll(session: Session) -> None:
    """A place where a drain may stop: only where the state is that after a whole step.

    Raises:
        SystemExit: the agreed stop is here.
        UserError: called in the middle of a step.
    """
    if session.current is not None:
        raise UserError(
            "run.poll() is for evaluations and between loops: a step can't be stopped in its middle"
        )
    session.polls += 1
    if not session.agreement.start((session.step, session.polls), session.clock.beat):
        stop_drained(session)
    if session.saver is not None:
        session.saver.poll()
