"""Every fault of ``rtj fault`` at every moment of a real training; run by ``make soak SEED=n``.

The seed gives the order of the cases, and within a case what is free: which rank waits at the moment, which
one is broken, DDP or FSDP2, whether a machine comes back. The same seed gives the same cases.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import moments
import pytest
from local_run import RTJ
from moments import DRAIN, KILL, WAIT, Wish
from training_run import TrainingRun, assert_close, assert_same, causes

from resumable_operator.cluster.local_faults import (
    ADD_WORKER,
    CUT_NETWORK,
    FAULTS,
    HANG,
    KILL_RANK,
    KILL_WORKER,
    PREEMPT,
)
from resumable_operator.model import JobStatus

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SEED = os.environ.get("RESUMABLE_SOAK_SEED", "0")
STEPS = 60
TWICE = "twice-in-a-row"  # between steps, and again while that is being recovered from
EVERYWHERE = "all-at-once"  # all ranks or workers, between steps
PACE = ("--step-seconds", "0.03", "--evaluate-every", "15")
LAST_TO_GROW = Wish(moments.STEP, 2, 0, DRAIN, nth=40)
CAUSE = {
    KILL_RANK: "crash",
    KILL_WORKER: "node_lost",
    PREEMPT: "preempted",
    HANG: "hang",
    ADD_WORKER: "scale",
}


def cases() -> list[tuple[str, str]]:
    found = list(itertools.product(FAULTS, (*moments.ALL, TWICE, EVERYWHERE)))
    random.Random(SEED).shuffle(found)
    return found


@dataclass
class Turn:
    """Break ``ranks`` when one of them is at the wished moment."""

    wish: Wish
    fault: str
    ranks: tuple[int, ...]


class Case:
    """What is done to one run; ``draw`` decides what is free."""

    def __init__(self, fault: str, moment: str, draw: random.Random) -> None:
        self.fault, self.moment, self.draw = fault, moment, draw
        self.wrap = draw.choice(["ddp", "fsdp"])
        self.scarce = moment in (TWICE, EVERYWHERE)  # the machines that go are needed again
        self.workers = "1:3" if fault == ADD_WORKER else "1:2"
        self.turns = [*self._losses(), *self._breaks()]

    def wishes(self) -> list[Wish]:
        """Of the turns, and the kill that makes an attempt restore something; a run that is to grow does not
        end before the newcomer has imported torch."""
        first = [LAST_TO_GROW] if self.fault == ADD_WORKER else self._first_kill()
        return [*first, *(turn.wish for turn in self.turns)]

    def _first_kill(self) -> list[Wish]:
        return [Wish(moments.STEP, 1, 1, KILL, nth=13)] if self.moment in moments.AFTER_A_RESTART else []

    def _losses(self) -> list[Turn]:
        """Room for a worker that comes: one or two are lost first."""
        if self.fault != ADD_WORKER:
            return []
        lost = (1, 2) if self.scarce else (2,)
        return [Turn(Wish(moments.STEP, 1, 0, WAIT, nth=13), KILL_WORKER, lost)]

    def _breaks(self) -> Iterator[Turn]:
        attempt = 2 if self.fault == ADD_WORKER or self._first_kill() else 1
        ranks = 1 if self.fault == ADD_WORKER and self.scarce else 2
        if self.scarce:
            broken = range(2) if self.moment == EVERYWHERE else [self.draw.randrange(ranks)]
            yield self._turn(Wish(moments.STEP, attempt, 0, WAIT, nth=13), broken)
            if self.moment == TWICE:
                yield self._turn(Wish(moments.RESTORE, attempt + 1, 0, WAIT), [0])
            return
        waits = 0 if self.moment in moments.OF_RANK_0 else self.draw.randrange(ranks)
        nth = 1 if self.moment in (*moments.AFTER_A_RESTART, moments.RENDEZVOUS, moments.FIRST_STEP) else 2
        yield self._turn(Wish(self.moment, attempt, waits, WAIT, nth), [self.draw.randrange(ranks)])

    def _turn(self, wish: Wish, ranks: Any) -> Turn:
        return Turn(wish, self.fault, tuple(ranks))

    def arguments(self, training: TrainingRun, turn: Turn, rank: int) -> list[str]:
        """The command line of ``rtj fault`` that breaks ``rank``."""
        if turn.fault == ADD_WORKER:
            return [ADD_WORKER]
        if turn.fault in (KILL_RANK, HANG):
            return [turn.fault, "--rank", str(rank)]
        target = [turn.fault, "--worker", training.worker_of(rank)]
        back = self.fault != ADD_WORKER and (self.scarce or self.draw.random() < 0.5)
        if turn.fault == KILL_WORKER:
            return [*target, *(["--back-after", "0.5"] if back else [])]
        if turn.fault == PREEMPT:
            return [*target, "--grace", "15", *(["--back-after", "0.1"] if back else [])]
        scope = self.draw.choice(["all", "operator"])
        return [*target, "--seconds", str(self.draw.choice([1, 6])), "--scope", scope]

    def check(self, status: JobStatus) -> None:
        """Causes are those of what was done, and of nothing else."""
        found = [ending.cause for ending in status.interruptions]
        allowed = {"crash"} if self._first_kill() else set()
        if self.fault == CUT_NETWORK:
            assert set(found) <= allowed | {"node_lost"}
            return
        if self.fault == ADD_WORKER:
            allowed.add("node_lost")
        assert CAUSE[self.fault] in found
        assert set(causes(status)) <= allowed | {CAUSE[self.fault]}
        if self.fault == PREEMPT:
            lost = [ending.rework_steps for ending in status.interruptions if ending.cause == "preempted"]
            assert sum(lost) == 0


def inject(training: TrainingRun, case: Case, turn: Turn) -> None:
    """All at the same time; where one's end ends the others, one is enough."""
    commands = [case.arguments(training, turn, rank) for rank in turn.ranks]
    started = [
        subprocess.Popen(
            [*RTJ, "fault", str(training.directory), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    said = [process.communicate(timeout=training.patience_seconds)[0] for process in started]
    assert any(process.returncode == 0 for process in started), (commands, said)


def reached(training: TrainingRun, wish: Wish) -> bool:
    """Wait for the moment; False when the run ended without it."""
    assert training.process is not None
    note, process = wish.note(training.moments), training.process
    training.wait(lambda: note.exists() or process.poll() is not None, f"{wish}")
    return note.exists()


@pytest.mark.parametrize(("fault", "moment"), cases())
def test_fault_at_moment(
    training: TrainingRun, undisturbed: Callable[..., dict[str, Any]], fault: str, moment: str
) -> None:
    """The job finishes with exact samples, whole checkpoints and the weights of an undisturbed run."""
    case = Case(fault, moment, random.Random(f"{SEED} {fault} {moment}"))
    tiny = ("--wrap", case.wrap, *PACE)
    training.wish(*case.wishes())
    training.start_tiny("--workers", case.workers, "--grow-cooldown", "0", steps=STEPS, tiny=tiny)
    for turn in case.turns:
        if not reached(training, turn.wish):
            assert fault == CUT_NETWORK  # may end nothing, so that there is no second attempt
            break
        inject(training, case, turn)
        training.let_go(turn.wish)
    status = training.finish()
    case.check(status)
    training.check(STEPS)
    assert_close(training.result(), undisturbed(1, "--wrap", case.wrap, steps=STEPS))
    sizes = {ending.size_before for ending in status.interruptions} | {training.result()["world_size"]}
    if sizes == {2}:
        assert_same(training.result(), undisturbed(2, "--wrap", case.wrap, steps=STEPS))
