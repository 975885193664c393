"""The recovery benchmark's results in numbers and words: distributions, stages, aims met or not (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recovery_cases import BY_NAME, LOST_STEPS, Outcome, Scenario
from stages import STAGES

from resumable_training.contract.metrics import RECOVERY_STAGES

HEADS = ("runs", "never", "min", "p25", "median", "p75", "max", "redone")
Results = Mapping[int, Mapping[str, Mapping[str, Sequence[Outcome]]]]  # by ranks, scenario, contender
OURS, COLD, SPARE = "rtj run", "rtj run --no-preload", "rtj run --spares 1"
COPIES = "rtj run --memory-every 1"
RATIO_KILLED, RATIO_LOST = 4.0, 20.0
KILLED_SECONDS, WITHOUT_STEP_SECONDS, LOST_SECONDS, REPLACED_SECONDS, SPREAD = 1.3, 1.0, 2.0, 3.0, 2.0


@dataclass(frozen=True)
class Spread:
    """A distribution in seconds. A run that never recovered counts as the longest: ``inf``."""

    runs: int
    never: int
    least: float
    p25: float
    median: float
    p75: float
    most: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Spread:
        """Quartiles are interpolated between neighbours, as numpy's default."""
        values = sorted(math.inf if one.seconds is None else one.seconds for one in outcomes)
        quarters = [_quantile(values, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        return cls(len(values), sum(math.isinf(value) for value in values), *quarters)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (high - low) * (place - math.floor(place))


def tables(results: Results) -> list[str]:
    """One table for each scenario and number of ranks."""
    lines: list[str] = []
    for ranks, scenarios in results.items():
        for name, sides in scenarios.items():
            head = f"  {'':<22}" + row((*HEADS, "step", "x ours"))
            lines += ["", f"{BY_NAME[name].title}; {ranks} ranks", head, *_rows(sides)]
            lines += _stage_lines(sides)
    return lines


def row(cells: Sequence[str]) -> str:
    """One below the other."""
    return "".join(f"{cell:>8}" for cell in cells)


def cells(outcomes: Sequence[Outcome]) -> list[str]:
    """Those under ``HEADS``."""
    spread = Spread.of(outcomes)
    times = (spread.least, spread.p25, spread.median, spread.p75, spread.most)
    redone = statistics.median(one.redone for one in outcomes)
    return [str(spread.runs), str(spread.never), *map(seconds, times), f"{redone:g}"]


def _rows(sides: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    ours = Spread.of(sides[OURS]).median if sides.get(OURS) else None
    for name, outcomes in sides.items():
        if not outcomes:
            continue
        median = Spread.of(outcomes).median
        step = statistics.median(one.step_seconds for one in outcomes)
        ratio = f"{median / ours:.2f}" if ours and not math.isinf(median) else "-"
        yield f"  {name:<22}" + row([*cells(outcomes), seconds(step), ratio])


def _stage_lines(sides: Mapping[str, Sequence[Outcome]]) -> Iterable[str]:
    """Medians by stage: the ledger's, as in metrics and reports, and the finer ones of the history."""
    for name, outcomes in sides.items():
        booked = [one.ledger for one in outcomes if one.ledger]
        if booked:
            yield f"  {name}, by the ledger: {_medians(booked, RECOVERY_STAGES)}"
        if split := by_history(outcomes):
            yield f"  {name}, by the history: {split}"


def by_history(outcomes: Sequence[Outcome]) -> str:
    """Medians by stage, of those that tell them."""
    split = [one.split for one in outcomes if one.split]
    return _medians(split, STAGES) if split else ""


def _medians(found: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {statistics.median(one[name] for one in found):.2f}" for name in names)


def seconds(value: float) -> str:
    """Two digits behind the point, one from 10 s on."""
    if math.isinf(value):
        return "never"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# ---- aims ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """``met`` None: not measured this time."""

    text: str
    found: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return f"{verdict:<13}{self.text}" + (f": {self.found}" if self.found else "")


def aims(results: Results) -> list[Aim]:
    """What was set out to be reached, and whether it was; ours as it is, then with copies in memory."""
    return [*_own_aims(results), *_aims_of_copies(results)]


def _own_aims(results: Results) -> list[Aim]:
    return [
        at_most("a killed rank is back with a new step, at 2 ranks", results, "rank-saved", KILLED_SECONDS),
        _without_step(results),
        *_ratios(f"a killed rank, {LOST_STEPS} steps redone", results, "rank", RATIO_KILLED),
        *_ratios("a killed rank, none redone", results, "rank-saved", RATIO_KILLED),
        *_stall(results),
        at_most("a worker gone for good, a new step at the smaller size", results, "lost", LOST_SECONDS),
        *_ratios("a worker gone for good", results, "lost", RATIO_LOST),
        at_most("a worker replaced after 1 s, full size", results, "replaced", REPLACED_SECONDS),
        at_most("the same by a spare", results, "replaced", REPLACED_SECONDS, SPARE),
        _tight(results),
        *(nothing_redone(results, BY_NAME[name]) for name in ("preempt", "grow")),
    ]


def _aims_of_copies(results: Results) -> list[Aim]:
    """The same, where copies in memory could change it; each names the option, which is off by default."""
    killed = f"{COPIES}: a killed rank, {LOST_STEPS} steps after a checkpoint"
    lost, replaced = f"{COPIES}: a worker gone for good", f"{COPIES}: a worker replaced after 1 s, full size"
    return [
        at_most(f"{killed}, a new step at 2 ranks", results, "rank", KILLED_SECONDS, COPIES),
        *_ratios(killed, results, "rank", RATIO_KILLED, COPIES),
        at_most(f"{lost}, a new step at the smaller size", results, "lost", LOST_SECONDS, COPIES),
        at_most(replaced, results, "replaced", REPLACED_SECONDS, COPIES),
    ]


def _ours(results: Results, scenario: str, ranks: int = 2, side: str = OURS) -> Sequence[Outcome]:
    return results.get(ranks, {}).get(scenario, {}).get(side, ())


def at_most(what: str, results: Results, scenario: str, limit: float, side: str = OURS) -> Aim:
    """Of the median at two ranks."""
    text, outcomes = f"{what} <= {limit:g} s", _ours(results, scenario, side=side)
    if not outcomes:
        return Aim(text, "", None)
    median = Spread.of(outcomes).median
    return Aim(text, f"median {seconds(median)}", median <= limit)


def _bare_seconds(one: Outcome) -> float:
    """Without the steps in it, redone ones and the new one, which are the training's own business.

    They take as long as before the strike only where as many ranks do them.
    """
    return math.inf if one.seconds is None else one.seconds - one.step_seconds * (1 + one.redone)


def _without_step(results: Results) -> Aim:
    text = f"the same without the step itself <= {WITHOUT_STEP_SECONDS:g} s"
    bare = [_bare_seconds(one) for one in _ours(results, "rank-saved")]
    if not bare:
        return Aim(text, "", None)
    median = statistics.median(bare)
    return Aim(text, f"median {seconds(median)}", median <= WITHOUT_STEP_SECONDS)


def _ratios(what: str, results: Results, scenario: str, least: float, side: str = OURS) -> Iterable[Aim]:
    """Of one of ours against each restarting peer, at each number of ranks that was measured.

    Steps are in it, on both sides; what the ratio is without them is told beside it, unless the size changes:
    then a step took another time when it was measured, before the strike. So is how many were redone where
    that is not the same.
    """
    measured = False
    for ranks, scenarios in results.items():
        sides = scenarios.get(scenario, {})
        ours = sides.get(side, ())
        peers = [name for name in sides if sides[name] and not name.startswith((OURS, "torchft"))]
        for name in peers if any(one.seconds is not None for one in ours) else ():
            measured = True
            ratio = Spread.of(sides[name]).median / Spread.of(ours).median
            text = f"{what}, {least:g} x faster than {name} at {ranks} ranks"
            told = _told_ratio(ratio, ours, sides[name], with_bare=not BY_NAME[scenario].resizes)
            yield Aim(text, told, ratio >= least)
    if not measured:
        yield Aim(f"{what}, {least:g} x faster than torchrun", "", None)


def _told_ratio(ratio: float, ours: Sequence[Outcome], theirs: Sequence[Outcome], with_bare: bool) -> str:
    bare, redone = (
        [statistics.median(of(one) for one in side) for side in (ours, theirs)]
        for of in (_bare_seconds, lambda one: one.redone)
    )
    told = f"{ratio:.1f} x" + (f", without the steps {bare[1] / bare[0]:.1f} x" if with_bare else "")
    return told if redone[0] == redone[1] else f"{told} ({redone[0]:g} redone, there {redone[1]:g})"


def _stall(results: Results) -> Iterable[Aim]:
    """torchft's survivors never stop for long: that is the bar."""
    sides = results.get(2, {}).get("rank", {})
    for name in (name for name in sides if name.startswith("torchft") and "stall" in name):
        ours = _ours(results, "rank-saved")
        if not ours or not sides[name]:
            continue
        mine, theirs = Spread.of(ours).median, Spread.of(sides[name]).median
        found = f"{seconds(mine)} against {seconds(theirs)}"
        yield Aim(f"a killed rank, not slower than {name}", found, mine <= theirs)


def _tight(results: Results) -> Aim:
    """Over all scenarios and sizes."""
    worst, where = 0.0, ""
    for ranks, scenarios in results.items():
        for name, sides in scenarios.items():
            spread = Spread.of(sides[OURS]) if sides.get(OURS) else None
            if spread is not None and spread.runs > 1 and spread.most / spread.median > worst:
                worst, where = spread.most / spread.median, f"{name}, {ranks} ranks"
    text = f"the slowest run <= {SPREAD:g} x the median, in every scenario"
    return Aim(text, f"worst {worst:.2f} x ({where})", worst <= SPREAD) if where else Aim(text, "", None)


def nothing_redone(results: Results, scenario: Scenario, side: str = OURS) -> Aim:
    """At any number of ranks; and all recovered."""
    text = f"no step redone: {scenario.title.removesuffix(' (pause)')}"
    found = [one for ranks in results for one in _ours(results, scenario.name, ranks, side)]
    if not found:
        return Aim(text, "", None)
    redone = sum(one.redone for one in found)
    never = sum(one.seconds is None for one in found)
    told = f"{redone} steps in {len(found)} runs" + (f", {never} never recovered" if never else "")
    return Aim(text, told, redone == 0 and never == 0)
