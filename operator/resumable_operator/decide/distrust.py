"""Agents that answer but can't be believed: they know none of our keys, or do not sign what they say.

Their ranks may be in perfect health, so nothing is ended at once. After a bounded time the worker is replaced
on purpose, because an operator that can't hear it can't help it either.
"""

from __future__ import annotations

from resumable_operator.decide.conditions import set_if_known
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Distrust
from resumable_operator.decide.views import is_member

PATIENCE_SECONDS = {"key": 600.0, "words": 60.0}


def note_distrust(draft: Draft) -> None:
    """Since when which agents are not believed; told once for each.

    A member is remembered until it has ended: whoever could not ask it to drain had to delete it.
    """
    running = _running(draft)
    stays = {worker.name for worker in draft.observation.workers if not worker.deleting} & running
    current = _not_believed(draft)
    before = draft.status.distrusted
    going = {name: at for name, at in before.items() if name not in stays and is_member(draft, name)}
    since = {**going, **{name: before.get(name, draft.now) for name in sorted(current)}}
    if since != before:
        draft.set(distrusted=since)
        draft.reserve()
    for name, distrust in sorted(current.items()):
        draft.wake(since[name] + PATIENCE_SECONDS[distrust.kind])
    _tell(draft, {name: distrust for name, distrust in current.items() if name not in before})
    _show(draft, sorted(name for name, distrust in current.items() if distrust.kind == "key"))


def forget_former_members(draft: Draft) -> None:
    """The attempt whose members they were may have ended since ``note_distrust``."""
    current, known = _not_believed(draft), draft.status.distrusted
    kept = {name: at for name, at in known.items() if name in current or is_member(draft, name)}
    if kept != known:
        draft.set(distrusted=kept)


def _running(draft: Draft) -> set[str]:
    return {worker.name for worker in draft.observation.workers if worker.phase == "running"}


def _not_believed(draft: Draft) -> dict[str, Distrust]:
    running = _running(draft)
    return {
        name: agent.distrust
        for name, agent in draft.observation.agents.items()
        if agent.distrust is not None and name in running
    }


def ended_instead(draft: Draft, name: str) -> bool:
    """It was ended by the operator, because it took no request to drain: its agent drains then by itself."""
    worker = draft.observation.worker(name)
    over = worker is None or (worker.deleting and worker.phase in ("succeeded", "failed"))
    return over and _had_to_be_ended(draft, name)


def goes_instead(draft: Draft, name: str) -> bool:
    """It is being ended so: that its agent falls silent on the way is no loss."""
    worker = draft.observation.worker(name)
    going = worker is not None and worker.deleting and worker.phase == "running"
    return going and _had_to_be_ended(draft, name)


def _had_to_be_ended(draft: Draft, name: str) -> bool:
    return draft.attempt.drain_cause is not None and name in draft.status.distrusted


def distrust_of(draft: Draft, worker: str) -> Distrust | None:
    agent = draft.observation.agents.get(worker)
    return agent.distrust if agent else None


def knows_no_key(draft: Draft, worker: str) -> bool:
    distrust = distrust_of(draft, worker)
    return distrust is not None and distrust.kind == "key"


def given_up(draft: Draft, worker: str) -> bool:
    """It was not believed for so long that it is to be replaced."""
    distrust, since = distrust_of(draft, worker), draft.status.distrusted.get(worker)
    return distrust is not None and since is not None and draft.now >= since + PATIENCE_SECONDS[distrust.kind]


def _tell(draft: Draft, new: dict[str, Distrust]) -> None:
    liars = sorted(name for name, distrust in new.items() if distrust.kind == "words")
    if liars:
        more = f" (and {len(liars) - 1} more)" if len(liars) > 1 else ""
        wait = PATIENCE_SECONDS["words"]
        text = f"{liars[0]}{more} is not believed and replaced in {wait:g} s: {new[liars[0]].message}"
        draft.tell("Warning", "AgentNotBelieved", text)


def _show(draft: Draft, names: list[str]) -> None:
    wait = PATIENCE_SECONDS["key"]
    text = (
        f"{len(names)} agents know none of the operator's keys, e.g. {names[0]}: they train on unheard, and "
        f"are replaced at a checkpoint after {wait / 60:.0f} min"
        if names
        else ""
    )
    set_if_known(draft, "AgentKeyMismatch", bool(names), "UnknownKey", text)
