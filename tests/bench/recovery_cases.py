"""What the recovery benchmark does to a training, and what is taken down of it (pure; tests beside it).

A *leg* is one training from start to end. Its scenarios strike it one after another, so that a training is
started once for several of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

SAVE_EVERY = 5
LOST_STEPS = 3
SETTLE_STEPS = 3  # new ones after a recovery, before the next strike
NOTICE_SECONDS = 30.0
REPLACED_AFTER_SECONDS = 1.0

Leg = Literal["one", "fixed", "elastic", "spared"]
LEGS: dict[Leg, str] = {
    "one": "one worker with all ranks",
    "fixed": "two workers, both needed",
    "elastic": "two workers, one is enough",
}


@dataclass(frozen=True)
class Scenario:
    """One way to strike.

    ``moment``: when; ``lost`` with three steps done since the newest checkpoint, ``saved`` right after one.
    ``smaller``: it goes on with half of the ranks. ``planned``: ranks can be stopped at a step, so that what
    counts is the pause of training, from the last new step before to the first after; otherwise the time
    from the strike.
    """

    name: str
    title: str
    leg: Leg
    moment: Literal["lost", "saved"] = "lost"
    smaller: bool = False
    planned: bool = False

    def world(self, ranks: int) -> int:
        """Ranks that train afterwards."""
        return ranks // 2 if self.smaller else ranks

    @property
    def resizes(self) -> bool:
        """Other ranks train afterwards than before, so that a step takes another time: all that an elastic
        job is struck by."""
        return self.leg == "elastic"


SCENARIOS = (
    Scenario("rank", f"one rank killed, {LOST_STEPS} steps after a checkpoint", "one"),
    Scenario("rank-saved", "one rank killed, right after a checkpoint", "one", "saved"),
    Scenario("hang", "one rank stopped (SIGSTOP)", "one"),
    Scenario("replaced", f"one of two workers killed, another {REPLACED_AFTER_SECONDS:g} s later", "fixed"),
    Scenario("lost", "one of two workers killed for good", "elastic", smaller=True),
    Scenario("grow", "a second worker arrives (pause)", "elastic", planned=True),
    Scenario("preempt", f"notice of {NOTICE_SECONDS:g} s to one of two workers (pause)", "elastic",
             smaller=True, planned=True),
)  # fmt: skip
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True)
class Outcome:
    """One strike. Times in seconds; ``seconds`` None: no new step within the limit.

    ``after_strike``: from strike, notice or arrival to the first new step at the wanted size. ``redone``:
    steps done once more. ``ledger``: our own accounting of the recovery by stage, as in metrics and reports;
    ``split``: a finer one, from our history, which adds up to ``after_strike``.
    """

    seconds: float | None
    after_strike: float | None = None
    redone: int = 0
    step_seconds: float = 0.0
    ledger: dict[str, float] | None = None
    split: dict[str, float] | None = None


def is_time(scenario: Scenario, step: int, saved: int, since: int) -> bool:
    """Whether to strike now: step ``step`` has just been done and the newest checkpoint is of ``saved``.

    ``since``: the step at which the last recovery was over; 0 at the start. Asked over and over, so that
    right after a checkpoint is as soon as there is a new one.
    """
    if scenario.moment == "saved":
        return saved >= since + SETTLE_STEPS and saved % SAVE_EVERY == 0 and 0 <= step - saved <= 1
    return step >= since + SETTLE_STEPS and saved >= SAVE_EVERY and step - saved == LOST_STEPS


def first_new(
    steps: Sequence[Mapping[str, Any]], struck_at: float, world: int, survives: bool = False
) -> int | None:
    """Index of the first step after the strike that was never done before, by that many ranks.

    They must be new ones, or rank 0 may only have finished the step that it was in; unless it ``survives``.
    """
    before = [line for line in steps if line["time"] <= struck_at]
    old = before[-1]["pid"] if before and not survives else None
    high_water = 0
    for index, line in enumerate(steps):
        is_new = line["step"] > high_water
        high_water = max(high_water, line["step"])
        if is_new and line["time"] > struck_at and line["pid"] != old and line["world"] == world:
            return index
    return None


def judge(steps: Sequence[Mapping[str, Any]], struck_at: float, index: int, planned: bool) -> Outcome:
    """What the strike cost; ``index`` as of ``first_new``."""
    high_water, last_new, redone = 0, 0.0, 0
    times: list[float] = []
    for line in steps[:index]:
        if line["step"] > high_water:
            high_water, last_new = line["step"], line["time"]
        elif line["time"] > struck_at:
            redone += 1
        if line["time"] <= struck_at:
            times.append(line["time"])
    recovered_at = steps[index]["time"]
    began = last_new if planned else struck_at
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times[-12:]))
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    return Outcome(recovered_at - began, recovered_at - struck_at, redone, usual)
