"""The end of an attempt: stop what still runs, wait for the witnesses, settle on exactly one cause."""

from __future__ import annotations

import itertools

from resumable_operator.decide import ledger
from resumable_operator.decide.avoid import note_ending
from resumable_operator.decide.backoff import delay_seconds
from resumable_operator.decide.budget import charge, exhausted
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.evidence import lost_members, notices
from resumable_operator.decide.failure import TOGETHER_SECONDS, Verdict, judge
from resumable_operator.decide.interruptions import append, suspended_seconds
from resumable_operator.decide.requests import send_stop
from resumable_operator.decide.stages import charge_time, note_begin
from resumable_operator.decide.success import excused, has_succeeded
from resumable_operator.decide.terminal import fail, succeed
from resumable_operator.decide.views import ended, heard_state
from resumable_operator.decide.why_lost import why_may_come
from resumable_operator.decide.workers import ENDINGS_THAT_STOP
from resumable_operator.model import Evidence, Interruption, MemberStatus
from resumable_operator.words import counted
from resumable_training.contract import events, exitcodes

LAST_REPORT_SECONDS = 5.0  # how long members may take to report the attempt's end
_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0


def begin_ending(draft: Draft) -> None:
    """Something ended the attempt: stop it everywhere. If unplanned, all unsettled time was detection."""
    _see_the_drain_behind(draft)
    note_begin(draft)
    draft.set_attempt(state="ending", ending_since=draft.now)
    draft.reserve()
    if draft.attempt.drain_cause is None and draft.status.ledger.attempt == draft.attempt.number:
        draft.set(ledger=ledger.declare_failure(draft.status.ledger, draft.now_ms))
    elif draft.attempt.drain_cause is None:  # it never reported: nothing had to be detected
        draft.set(ledger=ledger.enter(draft.status.ledger, ledger.RECOVERING, draft.now_ms))


def _see_the_drain_behind(draft: Draft) -> None:
    """An agent ended its ranks on a SIGTERM of its own, and others were only seen to lose their peer."""
    attempt = draft.attempt
    if attempt.drain_cause is not None or any(item.primary for item in attempt.evidence):
        return
    first = next(iter(notices(draft)), None)
    if first is not None and attempt.outcomes.get(first.worker) == events.DRAINED:
        draft.set_attempt(drain_cause=first.cause, drain_reason=first.reason)


def step(draft: Draft) -> None:
    """State ``ending``."""
    if has_succeeded(draft):
        succeed(draft)
        return
    if excused(draft):
        return  # the other ranks may finish
    attempt = draft.attempt
    since = attempt.ending_since if attempt.ending_since is not None else draft.now
    lost = lost_members(draft)
    hung = any(item.cause == "hang" for item in attempt.evidence)  # whom did the others wait for, and where?
    open_members = [
        member
        for member in attempt.members
        if member.worker not in attempt.outcomes and member.worker not in lost
    ]
    for member in open_members:
        if _may_run(draft, member.worker):
            send_stop(draft, member.worker, attempt.number, "the attempt has ended", with_stacks=hung)
    running = [member for member in open_members if _may_run(draft, member.worker)]
    waits = []
    if running:
        waits.append(since + LAST_REPORT_SECONDS)
        waits += _first_words(draft, running)
    if attempt.drain_cause is None and not any(item.primary for item in attempt.evidence):
        waits.append(since + TOGETHER_SECONDS)
    if attempt.storing and attempt.drain_cause in ENDINGS_THAT_STOP:
        waits.append(since + LAST_REPORT_SECONDS)  # who stopped the job is to know what was kept
    why_until = why_may_come(draft)
    if why_until is not None:
        waits.append(why_until)
    if all(draft.now >= until for until in waits):
        finalize(draft)
        return
    awaited = counted(len(running), "worker")
    draft.note(f"attempt {attempt.number} is ending; its end is not reported yet by {awaited}")
    draft.wake(min(until for until in waits if until > draft.now))


def _first_words(draft: Draft, members: list[MemberStatus]) -> list[float]:
    """Until when agents may say what an operator that has just started does not know yet."""
    agents = [draft.observation.agents.get(member.worker) for member in members]
    unheard = [agent for agent in agents if agent is not None and agent.last_heard is None]
    return [agent.known_since + TOGETHER_SECONDS for agent in unheard if agent.distrust is None]


def _may_run(draft: Draft, worker: str) -> bool:
    """Not known to have nothing of this attempt. One that isn't heard can't tell: it may."""
    exists = draft.observation.worker(worker)
    if exists is None or ended(exists):
        return False
    state = heard_state(draft, worker)
    if state is None:
        return True
    attempt = draft.attempt
    return state.attempt == attempt.number and state.state != "ended"


def finalize(draft: Draft) -> None:
    """The attempt has ended, with one cause: record it, charge it, make room for the next."""
    note_begin(draft)
    committed = _committed(draft)
    verdict = judge(draft.attempt, committed=committed, trained=_trained(draft))
    _settle(draft, verdict)
    _record(draft, verdict, committed)
    _replace_lost(draft)
    draft.set_attempt(state="ended", drain_deadline=None)
    draft.set(size=0)
    draft.reserve()
    _go_on_or_fail(draft, verdict)


def _trained(draft: Draft) -> bool:
    """All its members had started, or its ranks told of steps before they were known to have."""
    return draft.attempt.running_at is not None or draft.attempt.first_step_at is not None


def _committed(draft: Draft) -> bool:
    """Nothing was lost: all drained, or a checkpoint of the last step was committed since the drain began."""
    good = (events.SUCCEEDED, events.DRAINED)
    if all(draft.attempt.outcomes.get(member.worker) in good for member in draft.attempt.members):
        return True  # nothing new may have been left to commit
    made, since = draft.status.checkpoint, draft.attempt.draining_since
    if made is None or since is None or made.at < since:
        return False
    return made.step >= draft.status.step  # an older one may have landed since, and the last one failed


def _settle(draft: Draft, verdict: Verdict) -> None:
    """Time since the last report belongs to what comes next: ranks that ended as planned hid nothing."""
    phase = ledger.RESIZING if verdict.planned else ledger.RECOVERING
    settled = draft.status.ledger
    if draft.attempt.drain_cause is not None:
        blame = phase if verdict.evidence is None else ledger.DETECTING
        settled = ledger.settle(settled, blame, draft.now_ms)
    draft.set(ledger=ledger.enter(settled, phase, draft.now_ms))


def _record(draft: Draft, verdict: Verdict, committed: bool) -> None:
    attempt, witness = draft.attempt, verdict.evidence
    at = attempt.ending_since if attempt.ending_since is not None else draft.now
    last = (witness.last_progress if witness else None) or attempt.last_progress_at
    detected = max(0.0, at - last) if witness is not None and last is not None else 0.0
    ending = Interruption(
        attempt=attempt.number,
        cause=verdict.cause,
        planned=verdict.planned,
        worker=witness.worker if witness else "",
        rank=witness.rank if witness else None,
        code=witness.code if witness else None,
        message=verdict.message,
        tail=witness.tail if witness else (),
        at=at,
        detect_seconds=detected,
        restored=attempt.restored,
        committed=committed or not verdict.planned,
        suspended_before=suspended_seconds(draft),
        size_before=len(attempt.members),
    )
    charge_time(draft, verdict.cause, verdict.planned)
    append(draft, ending)
    spent = charge(
        draft.status.budgets, draft.spec.recovery.budgets, verdict.paying, verdict.cause, draft.now
    )
    draft.set(budgets=spent)
    text = f"attempt {attempt.number} ended: {verdict.cause}: {verdict.message}"
    if verdict.planned:
        draft.tell("Normal", "AttemptEnded", text)
    else:
        draft.tell("Warning", "Interrupted", text)
    draft.note(text)
    if witness is not None and not verdict.planned:
        note_ending(draft, witness)


def _replace_lost(draft: Draft) -> None:
    """A lost worker's name is never used again: it may live on where nobody can see it."""
    lost = lost_members(draft)
    incarnations = dict(draft.status.incarnations)
    for member in draft.attempt.members:
        if member.worker in lost:
            newest = incarnations.get(str(member.place), 0)
            incarnations[str(member.place)] = max(newest, member.incarnation + 1)
    draft.set(incarnations=incarnations)


def _go_on_or_fail(draft: Draft, verdict: Verdict) -> None:
    witness = verdict.evidence
    if witness is not None and witness.code == exitcodes.USER_ERROR:
        fail(draft, "user", "\n".join([verdict.message, *witness.tail]))
        return
    if verdict.cause == "deadline":
        fail(draft, "deadline", verdict.message)
        return
    spent = exhausted(
        draft.status.budgets, draft.spec.recovery.budgets, draft.status.interruptions, draft.now
    )
    if spent is not None and not verdict.planned:
        paying, message = spent
        fail(draft, "user" if paying == "user_error" else "budget", message)
        return
    _back_off(draft, verdict)


def _back_off(draft: Draft, verdict: Verdict) -> None:
    """An attempt that never did a step, for a reason that is nobody's (store away, port taken) or that costs
    nothing: the first time repeat at once, then ever more slowly. So, too, one whose store takes nothing
    more: its steps are lost each time. What is not slowed down has a budget."""
    if _is_storage(verdict.evidence) and draft.attempt.first_step_at is not None:
        _pause(draft, _unstored_in_a_row(draft) - 1)
        return
    free = verdict.paying is None and not verdict.planned
    if not (free or verdict.cause == "unknown") or draft.attempt.first_step_at is not None:
        return
    count = draft.status.backoff_count
    draft.set(backoff_count=count + 1)
    _pause(draft, count)


def _pause(draft: Draft, count: int) -> None:
    """Before the next try; ``count``: of tries that failed like this one before it."""
    if count > 0:
        uid = draft.observation.job.uid
        wait = delay_seconds(uid, count, _FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        draft.set(backoff_until=draft.now + wait)


def _is_storage(ending: Evidence | Interruption | None) -> bool:
    return ending is not None and ending.code == exitcodes.STORAGE


def _unstored_in_a_row(draft: Draft) -> int:
    """Endings up to the newest, which the store caused, and after which it took no checkpoint."""
    made = draft.status.checkpoint
    since = made.at if made is not None else float("-inf")
    newest_first = reversed(draft.status.interruptions)
    return sum(
        1 for _ in itertools.takewhile(lambda item: _is_storage(item) and item.at > since, newest_first)
    )
