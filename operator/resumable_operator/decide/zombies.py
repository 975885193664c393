"""Agents that still run an attempt which is over are told to stop."""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.requests import send_stop
from resumable_operator.decide.views import has_live_ranks, heard_state, is_member


def stop_zombies(draft: Draft) -> None:
    """Members of the living attempt get its assignment instead, which ends older ranks too."""
    for name in sorted(draft.observation.agents):
        state = heard_state(draft, name)
        if state is None or not has_live_ranks(state) or is_member(draft, name):
            continue
        if state.attempt <= draft.attempt.number - draft.alive:
            send_stop(draft, name, state.attempt, f"attempt {state.attempt} is over")
            draft.note(f"{name} still ran attempt {state.attempt}")
