"""Where a job's time goes: exclusive phases whose milliseconds always sum to the job's settled age.

Pure. All times are integer milliseconds on the operator's clock. Time is credited when the event that
explains it arrives; until then it is *unsettled*. No argument, however late, repeated or out of order, makes
a phase shrink or the clock run backwards.

How an attempt uses it: a control phase (``starting``, ``recovering``, ``resizing``) is open while workers
come up. The first ``fold_progress`` of the attempt opens ``unaccounted``, where unexplained time goes while
ranks report. A control phase entered after that closes the attempt, and later reports of it are ignored: so
enter one at the end of an attempt, not while its ranks still report.

GPU time is integrated beside: what is credited to a phase is credited once for each GPU that is held.
"""

from __future__ import annotations

from resumable_operator.model import LedgerStatus
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.metrics import LEDGER_PHASES
from resumable_training.contract.progress import PHASES

QUEUED = "queued"
SUSPENDED = "suspended"
STARTING = "starting"
RECOVERING = "recovering"
RESIZING = "resizing"
DETECTING = "detecting"
RENDEZVOUS = "rendezvous"
RESTORING = "restoring"
WARMUP = "warmup"
PRODUCTIVE = "productive"
CHECKPOINTING = "checkpointing"
RUNNING_OPAQUE = "running_opaque"
UNACCOUNTED = "unaccounted"

_SETUP_IS_PART_OF = (STARTING, RECOVERING, RESIZING)
_REPORTING = (UNACCOUNTED, RUNNING_OPAQUE)  # open while an attempt's ranks may still explain time
CLOCKS_DIFFER_MS = 500  # by less the clocks of agents and of operators may be mapped wrongly
_EARLIEST_FIRST = ("setup", RENDEZVOUS, RESTORING, WARMUP)  # each once in a rank's life, in this order


def milliseconds(seconds: float) -> int:
    """Seconds to the ledger's unit."""
    return round(seconds * 1000)


def open_ledger(at: int) -> LedgerStatus:
    """The ledger of a job that begins at ``at``; it is ``queued``."""
    return LedgerStatus(started_at=at, settled_at=at, open_phase=QUEUED)


def settle(ledger: LedgerStatus, phase: str, at: int) -> LedgerStatus:
    """Credit everything unsettled up to ``at`` to ``phase``, whatever phase is open."""
    return _credit(ledger, {phase: max(0, at - ledger.settled_at)})


def enter(ledger: LedgerStatus, phase: str, at: int) -> LedgerStatus:
    """Settle up to ``at`` into the open phase, then open ``phase``.

    Entering ``unaccounted`` when it is open changes nothing: that time still waits for a report.
    """
    if phase not in LEDGER_PHASES:
        raise ValueError(f"unknown ledger phase {phase!r}")
    if phase == ledger.open_phase == UNACCOUNTED:
        return ledger
    control = phase if phase in _SETUP_IS_PART_OF else ledger.control_phase
    settled = settle(ledger, ledger.open_phase, at)
    return settled.model_copy(update={"open_phase": phase, "control_phase": control})


def hold(ledger: LedgerStatus, gpus: int, at: int) -> LedgerStatus:
    """From ``at`` on that many GPUs are held. While ranks report that can't change, so nothing does."""
    if gpus == ledger.gpus or ledger.open_phase in _REPORTING:
        return ledger
    return settle(ledger, ledger.open_phase, at).model_copy(update={"gpus": gpus})


def declare_failure(ledger: LedgerStatus, at: int) -> LedgerStatus:
    """An attempt has failed: all that no report explained was spent on finding out. Opens ``recovering``."""
    return enter(settle(ledger, DETECTING, at), RECOVERING, at)


def fold_progress(ledger: LedgerStatus, report: ProgressReport, attempt: int, at: int) -> LedgerStatus:
    """Credit what rank 0 did since the last fold to the time between then and ``at``.

    Args:
        report: rank 0's totals; with ``uses_library`` False its time since the rank's start is
            ``running_opaque``, unless ranks of this job have reported phases before: then it has only not
            connected yet.
        attempt: the attempt it belongs to. Reports of an older one, or of one that is over, change nothing.
        at: the report's ``settled_ms`` on the operator's clock.
    """
    if _is_over(ledger, attempt) or (not report.uses_library and _ever_spoke(ledger)):
        return ledger
    if attempt > ledger.attempt:
        ledger = ledger.model_copy(update={"attempt": attempt, "folded": {}, "folded_rework_steps": 0})
    if not report.uses_library:
        ran = max(0, report.settled_ms - report.started_ms)
        return enter(enter(ledger, RUNNING_OPAQUE, at - ran), RUNNING_OPAQUE, at)
    totals = _known(report.phase_ms)
    fresh = _fresh(ledger.folded, totals)
    interval = max(0, at - ledger.settled_at)
    interval -= _between_clocks(ledger, report, interval - sum(fresh.values()))
    credits = _named(_fit(fresh, interval), ledger.control_phase)
    credits[ledger.open_phase] = credits.get(ledger.open_phase, 0) + interval - sum(credits.values())
    return _remember(_credit(ledger, credits), totals, report.rework_steps)


def commit(ledger: LedgerStatus) -> LedgerStatus:
    """A checkpoint holds all that was done so far."""
    return ledger.model_copy(update={"committed_productive": ledger.phases.get(PRODUCTIVE, 0)})


def give_up(ledger: LedgerStatus) -> LedgerStatus:
    """The job died for good: what no checkpoint holds will never be done again, so it produced nothing.

    Phases stay as they are (a counter can't go back); ``goodput`` takes ``lost`` off.
    """
    productive = ledger.phases.get(PRODUCTIVE, 0)
    return ledger.model_copy(update={"lost": max(0, productive - ledger.committed_productive)})


def go_on(ledger: LedgerStatus) -> LedgerStatus:
    """A job that had died is started again: its lost steps will be done again, as rework."""
    return ledger.model_copy(update={"lost": 0})


def unsettled_ms(ledger: LedgerStatus, now: int) -> int:
    """Age that nothing has explained yet."""
    return max(0, now - ledger.settled_at)


def before_first_step_ms(ledger: LedgerStatus, attempt: int) -> int:
    """Rank 0's own time until its first step in that attempt, as far as it has been folded."""
    if ledger.attempt != attempt:
        return 0
    return sum(ledger.folded.get(phase, 0) for phase in _EARLIEST_FIRST)


def age_ms(ledger: LedgerStatus, now: int) -> int:
    """The job's age on the ledger's own clock."""
    return ledger.settled_at - ledger.started_at + unsettled_ms(ledger, now)


def phases_at(ledger: LedgerStatus, now: int) -> dict[str, int]:
    """Every phase's milliseconds, with what is unsettled shown in the open phase; sums to the age."""
    totals = {phase: ledger.phases.get(phase, 0) for phase in LEDGER_PHASES}
    totals[ledger.open_phase] = totals.get(ledger.open_phase, 0) + unsettled_ms(ledger, now)
    return totals


def _between_clocks(ledger: LedgerStatus, report: ProgressReport, gap: int) -> int:
    """How much of a gap after the last report of the same rank is no time of its own.

    On its clock totals that are whole leave none. Each operator maps that clock to its own anew, by as much
    too late as the first news took. That stays unsettled: a better mapping takes it back, or the attempt's
    end explains it.
    """
    goes_on = bool(ledger.folded) and ledger.open_phase == UNACCOUNTED
    whole = sum(report.phase_ms.values()) >= report.settled_ms - report.started_ms
    return gap if goes_on and whole and 0 < gap <= CLOCKS_DIFFER_MS else 0


def _is_over(ledger: LedgerStatus, attempt: int) -> bool:
    if attempt == ledger.attempt:
        return ledger.open_phase not in _REPORTING
    return attempt < ledger.attempt


def _ever_spoke(ledger: LedgerStatus) -> bool:
    return any(ledger.phases.get(phase) for phase in _EARLIEST_FIRST)


def _credit(ledger: LedgerStatus, credits: dict[str, int]) -> LedgerStatus:
    phases, gpu_phases = dict(ledger.phases), dict(ledger.gpu_phases)
    for phase, amount in credits.items():
        if amount:
            phases[phase] = phases.get(phase, 0) + amount
        if amount and ledger.gpus and phase != SUSPENDED:  # a suspended job holds nothing
            gpu_phases[phase] = gpu_phases.get(phase, 0) + amount * ledger.gpus
    return ledger.model_copy(
        update={
            "phases": phases,
            "gpu_phases": gpu_phases,
            "settled_at": ledger.settled_at + sum(credits.values()),
        }
    )


def _known(totals: dict[str, int]) -> dict[str, int]:
    """With the phases that nobody knows in one: status is not to grow by what an agent makes up."""
    known = {phase: total for phase, total in totals.items() if phase in PHASES}
    others = sum(totals.values()) - sum(known.values())
    return {**known, UNACCOUNTED: others} if others else known


def _fresh(folded: dict[str, int], totals: dict[str, int]) -> dict[str, int]:
    """What the totals hold beyond those already folded; an old report holds nothing new."""
    return {
        phase: total - folded.get(phase, 0) for phase, total in totals.items() if total > folded.get(phase, 0)
    }


def _fit(fresh: dict[str, int], interval: int) -> dict[str, int]:
    """Make ``fresh`` no longer than ``interval``.

    What is too much lies before the interval, in time that is settled already: a rank's first phases give
    way first. Any rest comes from clocks that disagree and shrinks all others in proportion.
    """
    excess = sum(fresh.values()) - interval
    if excess <= 0:
        return fresh
    fitted = dict(fresh)
    for phase in _EARLIEST_FIRST:
        cut = min(excess, fitted.get(phase, 0))
        if cut:
            fitted[phase] -= cut
            excess -= cut
    return _scale(fitted, interval) if excess else fitted


def _scale(amounts: dict[str, int], total: int) -> dict[str, int]:
    """Shrink in proportion to exactly ``total``; the milliseconds lost by rounding go to the largest."""
    whole = sum(amounts.values())
    scaled = {name: amount * total // whole for name, amount in amounts.items()}
    largest = max(amounts, key=lambda name: (amounts[name], name))
    scaled[largest] += total - sum(scaled.values())
    return scaled


def _named(amounts: dict[str, int], control_phase: str) -> dict[str, int]:
    """From a rank's phases to the ledger's."""
    named: dict[str, int] = {}
    for phase, amount in amounts.items():
        name = {"setup": control_phase, "closing": CHECKPOINTING}.get(phase, phase)
        name = name if name in LEDGER_PHASES else UNACCOUNTED
        named[name] = named.get(name, 0) + amount
    return named


def _remember(ledger: LedgerStatus, totals: dict[str, int], rework_steps: int) -> LedgerStatus:
    """Note what is folded now, so that the same report again adds nothing."""
    folded = dict(ledger.folded)
    for phase, total in totals.items():
        folded[phase] = max(total, folded.get(phase, 0))
    new_steps = max(0, rework_steps - ledger.folded_rework_steps)
    return ledger.model_copy(
        update={
            "folded": folded,
            "open_phase": UNACCOUNTED,
            "rework_steps": ledger.rework_steps + new_steps,
            "folded_rework_steps": ledger.folded_rework_steps + new_steps,
        }
    )
