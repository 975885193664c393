"""State ``forming``: the attempt is reserved; push it to its members.

To all at once when rank 0's agent holds a master port ready and nothing has to be looked for first; else to
that agent, and with its answer to the others.
"""

from __future__ import annotations

from resumable_operator.decide.actions import SendAssignment
from resumable_operator.decide.assign import assignment
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.ending import begin_ending
from resumable_operator.decide.fold import witnessed
from resumable_operator.decide.interruptions import recovered
from resumable_operator.decide.planned import unavoidable_change
from resumable_operator.decide.views import assigned_members, has_assignment, known_state, rank_zero
from resumable_operator.model import Evidence
from resumable_training.contract import env

LONGEST_FORMING_SECONDS = (
    60.0  # agents answer in milliseconds; one that must first reap old ranks, in seconds
)


def step(draft: Draft) -> None:
    attempt = draft.attempt
    change = unavoidable_change(draft)
    if change is not None and not attempt.evidence:
        draft.set_attempt(drain_cause=change.cause, drain_reason=change.reason, asked=True)
    _give_up_on_mute_members(draft)
    if draft.attempt.evidence or change is not None:
        begin_ending(draft)
        return
    port = _master_port(draft)
    first_is_needed = not port or _awaits_offer(draft)
    missing = [
        member.worker
        for member in attempt.members
        if not has_assignment(draft, known_state(draft, member.worker))
    ]
    if not missing:
        _all_running(draft)
        return
    first = rank_zero(draft).worker
    for worker in missing:
        if worker == first or not first_is_needed:
            offer = _offer(draft, worker == first)
            members = assigned_members(draft)
            part = assignment(draft.observation.job, draft.status, members, worker, port, offer)
            draft.act(SendAssignment(part))
    draft.note(
        f"attempt {attempt.number}: {len(missing)} of {len(attempt.members)} workers have no assignment yet"
    )
    draft.wake(min(_mute_at(draft, worker) for worker in missing))


def _master_port(draft: Draft) -> int:
    """The port that rank 0's agent held ready, or chose; 0 until it says. Kept in status for the members that
    come later."""
    state = known_state(draft, rank_zero(draft).worker)
    if state is not None and has_assignment(draft, state) and state.master_port:
        if state.master_port != draft.attempt.master_port:
            draft.set_attempt(master_port=state.master_port)
        return state.master_port
    return draft.attempt.master_port


def _awaits_offer(draft: Draft) -> bool:
    """Rank 0's agent has yet to look for what ranks without the library are offered."""
    root = draft.status.store
    may_find = draft.status.uses_library is not True and bool(root) and "://" not in root
    return may_find and not has_assignment(draft, known_state(draft, rank_zero(draft).worker))


def _offer(draft: Draft, is_first: bool) -> dict[str, str]:
    """What ranks of a script without the library are offered to resume from: one directory for all of them.

    Rank 0's agent looks for it and tells it with its port. One that uses the library needs no such search.
    """
    if draft.status.uses_library is True:
        return {env.RESUME_FROM: ""}
    if is_first:
        return {}
    state = known_state(draft, rank_zero(draft).worker)
    return {env.RESUME_FROM: state.resume_from if state is not None else ""}


def _mute_at(draft: Draft, worker: str) -> float:
    """When a member that still lacks its assignment is given up: a while after it was asked to take it. An
    operator that was away or too busy has not asked, and its own delay proves nothing."""
    attempt, agent = draft.attempt, draft.observation.agents.get(worker)
    if agent is None:
        asked_since = max(attempt.reserved_at, attempt.silent_since.get(worker, attempt.reserved_at))
    elif agent.asked_attempt == attempt.number:
        asked_since = max(agent.asked_since, agent.known_since)
    else:
        asked_since = draft.now
    return asked_since + LONGEST_FORMING_SECONDS


def _give_up_on_mute_members(draft: Draft) -> None:
    for member in draft.attempt.members:
        has_it = has_assignment(draft, known_state(draft, member.worker))
        if not has_it and draft.now >= _mute_at(draft, member.worker):
            message = f"{member.worker} did not take its assignment for {LONGEST_FORMING_SECONDS:g} s"
            witnessed(draft, Evidence(at=draft.now, cause="node_lost", worker=member.worker, message=message))


def _all_running(draft: Draft) -> None:
    draft.set_attempt(state="running", running_at=draft.now)
    draft.set(start_failures=0, create_after=None)
    draft.reserve()
    if draft.status.uses_library is False:
        recovered(draft, draft.now)  # a script that reports no steps is back when it runs
