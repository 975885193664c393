"""What a job is doing now, from looks at its ledger."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from run_samples import STATUS

from resumable_operator.cli.display import Display
from resumable_operator.cli.lately import WINDOW_MS, Lately, Looks
from resumable_operator.cli.rundir import JobFile
from resumable_operator.cli.status import render
from resumable_operator.cli.status_model import build_view
from resumable_operator.model import JobSpec, LedgerStatus

SPEC = JobSpec.model_validate({"workers": {"replicas": 3}})
JOB = JobFile("local", "train", "u-1", 0.0, {})


def ledger(open_phase: str = "unaccounted", **phases: int) -> LedgerStatus:
    """Settled at the sum of its phases."""
    return LedgerStatus(settled_at=sum(phases.values()), open_phase=open_phase, phases=phases)


def test_what_grew_most_is_what_it_does() -> None:
    """While ranks report, the ledger's sums alone tell."""
    looks = Looks()
    assert looks.look(ledger(productive=1000)) == Lately()
    assert looks.look(ledger(productive=1400, checkpointing=100)).phase == "productive"
    assert looks.look(ledger(productive=1450, checkpointing=900)).phase == "checkpointing"


def test_while_nothing_is_told_it_does_what_it_did() -> None:
    """A look between two reports changes nothing."""
    looks = Looks()
    looks.look(ledger(productive=1000))
    looks.look(ledger(productive=2000))
    assert looks.look(ledger(productive=2000)).phase == "productive"


@pytest.mark.parametrize(
    "phase", ["queued", "starting", "recovering", "resizing", "suspended", "running_opaque"]
)
def test_without_reporting_ranks_the_open_phase_is_it(phase: str) -> None:
    """At once, also at the first look."""
    looks = Looks()
    assert looks.look(ledger(phase, productive=1000)).phase == phase
    assert looks.look(ledger("unaccounted", productive=1500)).phase == "productive"
    assert looks.look(ledger(phase, productive=1500)).phase == phase


def test_goodput_of_the_last_half_minute() -> None:
    """An hour of trouble before it does not weigh on it, and what was suspended is left out."""
    looks, recovering, productive = Looks(), 3_600_000, 0
    looks.look(ledger(recovering=recovering))
    for _ in range(60):
        productive += 900
        found = looks.look(ledger(recovering=recovering, productive=productive, data_stall=productive // 9))
    assert found.goodput == pytest.approx(0.9, abs=0.01)
    assert found.seconds == pytest.approx(WINDOW_MS / 1000, abs=1.0)
    assert found.words == "now productive, goodput 90 % of the last 30 s"
    asleep = ledger(recovering=recovering, productive=productive, data_stall=productive // 9, suspended=9_999)
    assert looks.look(asleep).goodput == pytest.approx(0.9, abs=0.02)


def test_too_little_time_tells_no_goodput() -> None:
    """A few hundred milliseconds would jump between 0 and 100 %."""
    looks = Looks()
    looks.look(ledger(productive=100))
    assert looks.look(ledger(productive=400)) == Lately("productive")


def test_a_ledger_that_has_not_begun_is_no_base() -> None:
    """Its moment is 1970: goodput since then would be 0 % of decades."""
    looks, begin = Looks(), 1_700_000_000_000
    assert looks.look(LedgerStatus()) == Lately()
    began = LedgerStatus(started_at=begin, settled_at=begin + 100, open_phase="starting")
    assert looks.look(began) == Lately("starting")
    later = {"settled_at": begin + 10_100, "open_phase": "unaccounted", "phases": {"productive": 5000}}
    assert looks.look(began.model_copy(update=later)) == Lately("productive", 0.5, 10.0)


def test_the_live_views_say_it() -> None:
    """The table of `rtj run`, the page of `rtj status --watch`, and the lines of a log."""
    later = STATUS.ledger.model_copy(
        update={
            "settled_at": STATUS.ledger.settled_at + 4000,
            "phases": {**STATUS.ledger.phases, "productive": 84_000},
        }
    )
    after = STATUS.model_copy(update={"ledger": later, "step": 210})
    words = "now productive, goodput 100 % of the last 4 s"
    for live in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=160, force_terminal=live, color_system=None)
        with Display(console, live=live) as display:
            display.update(STATUS, 1_700_000_100.0)
            display.update(after, 1_700_000_110.0)
        assert words in file.getvalue()
    looks, file = Looks(), io.StringIO()
    looks.look(STATUS.ledger)
    view = build_view(JOB, SPEC, after, None, 1_700_000_110.0)
    Console(file=file, width=120).print(render(view, looks.look(later)))
    assert words in file.getvalue()
