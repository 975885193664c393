"""The recovery benchmark's tables, aims and picture."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from recovery_cases import Outcome
from recovery_plot import draw
from recovery_table import Spread, aims, tables

STAGES = {"detect": 0.1, "reschedule": 0.5, "rendezvous": 0.1, "restore": 0.2, "warmup": 0.1}


def outcomes(*seconds: float | None, redone: int = 0, ledger: bool = False) -> list[Outcome]:
    booked = STAGES if ledger else None
    return [Outcome(value, value, redone, 0.3, ledger=booked) for value in seconds]


def test_distribution() -> None:
    """Quartiles lie between runs; one that never recovered is the slowest."""
    spread = Spread.of(outcomes(4.0, 1.0, 2.0, 3.0, None))
    assert (spread.runs, spread.never) == (5, 1)
    assert (spread.least, spread.p25, spread.median, spread.p75) == (1.0, 2.0, 3.0, 4.0)
    assert math.isinf(spread.most)


RESULTS = {
    2: {
        "rank": {
            "rtj run": outcomes(1.0, 1.2, redone=3, ledger=True),
            "torchrun": outcomes(5.0, 6.6, redone=3),
        },
        "rank-saved": {"rtj run": outcomes(1.2, 1.2)},
        "lost": {"rtj run": outcomes(2.5), "torchrun": outcomes(None)},
        "preempt": {"rtj run": outcomes(1.0, 1.0, 2.5)},
    }
}


def test_tables_show_all_that_was_measured() -> None:
    """Each contender has its row with its ratio to ours; what never came back is said."""
    text = "\n".join(tables(RESULTS))
    row = next(line for line in text.splitlines() if line.startswith("  torchrun"))
    assert row.split()[:-2] == ["torchrun", "2", "0", "5.00", "5.40", "5.80", "6.20", "6.60", "3"]
    assert row.split()[-1] == "5.27"
    assert "never" in text
    assert "rtj run, by the ledger: detect 0.10, reschedule 0.50" in text


@pytest.mark.parametrize(
    ("words", "met"),
    [
        ("a killed rank is back with a new step", True),
        ("the same without the step itself", True),
        ("a killed rank, 3 steps redone, 4 x faster than torchrun at 2 ranks", True),
        ("a killed rank, none redone, 4 x faster than torchrun", None),
        ("a worker gone for good, a new step at the smaller size", False),
        ("a worker gone for good, 20 x faster than torchrun", True),
        ("a worker replaced after 1 s", None),
        ("the slowest run", False),
        ("no step redone: notice", True),
        ("no step redone: a second worker", None),
        ("rtj run --memory-every 1: a killed rank, 3 steps after a checkpoint, a new step", None),
    ],
)
def test_aims(words: str, met: bool | None) -> None:
    """Each aim is met, not met, or not measured; never left out."""
    (aim,) = [aim for aim in aims(RESULTS) if aim.text.startswith(words)]
    assert aim.met is met


def test_a_ratio_tells_what_is_in_it() -> None:
    """The recovery alone, without the steps that both do; and steps that only one of them redid."""
    sides = {"rtj run": outcomes(2.0, redone=3), "torchrun": outcomes(4.5, redone=3)}
    others = {"rtj run": outcomes(1.0), "torchrun": outcomes(4.6, redone=5)}
    told = [str(aim) for aim in aims({4: {"rank": sides, "rank-saved": others}})]
    assert (
        "NOT MET      a killed rank, 3 steps redone, 4 x faster than torchrun at 4 ranks: "
        "2.2 x, without the steps 4.1 x"
    ) in told
    assert (
        "met          a killed rank, none redone, 4 x faster than torchrun at 4 ranks: "
        "4.6 x, without the steps 4.0 x (0 redone, there 5)"
    ) in told


def test_no_ratio_without_steps_where_they_take_another_time() -> None:
    """A lost worker's steps are done by fewer ranks: what one took before is not what is in the recovery."""
    ours, theirs = outcomes(2.0, redone=6), outcomes(49.0, redone=3)
    told = [str(aim) for aim in aims({4: {"lost": {"rtj run": ours, "torchrun": theirs}}})]
    assert (
        "met          a worker gone for good, 20 x faster than torchrun at 4 ranks: "
        "24.5 x (6 redone, there 3)"
    ) in told


def test_copies_in_memory_are_judged_by_name() -> None:
    """What an option reaches never stands for what ours reaches without it, nor the other way round."""
    sides = {
        "rtj run": outcomes(2.0, redone=3),
        "rtj run --memory-every 1": outcomes(1.0),
        "torchrun": outcomes(4.5, redone=3),
    }
    told = [str(aim) for aim in aims({2: {"rank": sides, "lost": sides}})]
    name = "rtj run --memory-every 1: "
    assert (
        f"met          {name}a killed rank, 3 steps after a checkpoint, 4 x faster than torchrun at 2 ranks: "
        "4.5 x, without the steps 4.7 x (0 redone, there 3)"
    ) in told
    assert (
        f"met          {name}a worker gone for good, a new step at the smaller size <= 2 s: median 1.00"
        in told
    )
    (own,) = [aim for aim in told if "a killed rank, 3 steps redone, 4 x faster than torchrun" in aim]
    assert own.startswith("NOT MET      a killed rank")


def test_picture_is_whole() -> None:
    """It is XML, with a dot for every run and the stages of ours."""
    root = ElementTree.fromstring(draw(RESULTS))
    dots = [one for one in root.iter() if one.tag.endswith("circle")]
    runs = sum(len(found) for sides in RESULTS[2].values() for found in sides.values())
    assert len(dots) == runs
    assert "reschedule" in "".join(root.itertext())
    assert draw({}) == ""
