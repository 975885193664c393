"""PURE: the whole report in one sentence, for somebody who reads no further."""

from __future__ import annotations

from collections.abc import Iterable

from resumable_operator.cli.html.palette import PHASES
from resumable_operator.cli.report import is_opaque
from resumable_operator.cli.report_model import PhaseShare, Report
from resumable_operator.cli.units import duration, percent
from resumable_operator.words import counted

WORTH_NAMING = 0.02  # of the age
_LOSSES = ("detecting", "recovering", "rework")
_NOT_LOST = ("productive", "suspended", "running_opaque")


def verdict(report: Report) -> str:
    """``93.1 % of 4 h 12 min made new steps. Most of the rest went to ...``"""
    numbers = report.goodput
    if numbers.age_seconds <= 0:
        return "The job has not begun."
    if is_opaque(numbers):
        return f"It ran for {duration(numbers.opaque_seconds)} without the library, so nobody knows how well."
    if numbers.goodput is None:
        return f"It was suspended all the {duration(numbers.age_seconds)} so far."
    counted_age = numbers.age_seconds - numbers.suspended_seconds
    share = percent(numbers.goodput)
    return f"{share} of {duration(counted_age)} made new steps{_rest(report)}."


def _rest(report: Report) -> str:
    parts = [part for part in (_interruptions(report), _largest(report.phases)) if part]
    return "; " + "; ".join(parts) if parts else ""


def _interruptions(report: Report) -> str:
    count = interruptions(report)
    if not count:
        return "nothing interrupted it"
    seconds = sum(item.seconds for item in report.phases if item.phase in _LOSSES)
    return f"{counted(count, 'interruption')} cost {duration(seconds)}"


def interruptions(report: Report) -> int:
    """Endings that nobody planned, those too that are no longer kept one by one."""
    shown = sum(not ending.planned for ending in report.endings)
    return shown + report.endings_not_shown


def _largest(phases: Iterable[PhaseShare]) -> str:
    """What took most of the rest, unless interruptions did: they are told already."""
    left = [item for item in phases if item.phase not in (*_NOT_LOST, *_LOSSES)]
    if not left or left[0].share < WORTH_NAMING:
        return ""
    return f"{PHASES[left[0].phase].label.lower()} took {percent(left[0].share)}"
