"""Requests to agents, in one place: each is about one attempt and harmless when repeated."""

from __future__ import annotations

from resumable_operator.decide.actions import SendRequest
from resumable_operator.decide.assign import checkpoint_config, limits
from resumable_operator.decide.draft import Draft
from resumable_training.contract.assignment import (
    ASKED_BY_OPERATOR,
    ASKED_BY_RANKS,
    REQUEST_DRAIN,
    REQUEST_SETTINGS,
    REQUEST_SHUTDOWN,
    REQUEST_STOP,
    Request,
)


def send_stop(draft: Draft, worker: str, attempt: int, reason: str, with_stacks: bool = False) -> None:
    draft.act(SendRequest(worker, Request(REQUEST_STOP, attempt, reason, with_stacks=with_stacks)))


def send_drain(draft: Draft, worker: str, seconds: float) -> None:
    attempt = draft.attempt
    asked_by = ASKED_BY_OPERATOR if attempt.asked else ASKED_BY_RANKS
    request = Request(REQUEST_DRAIN, attempt.number, attempt.drain_reason, seconds=seconds, asked_by=asked_by)
    draft.act(SendRequest(worker, request))


def send_settings(draft: Draft, worker: str) -> None:
    request = Request(
        REQUEST_SETTINGS,
        draft.attempt.number,
        "the spec changed",
        limits=limits(draft.spec),
        checkpoint=checkpoint_config(draft.spec, draft.status),
    )
    draft.act(SendRequest(worker, request))


def send_shutdown(draft: Draft, worker: str, reason: str) -> None:
    draft.act(SendRequest(worker, Request(REQUEST_SHUTDOWN, reason=reason)))
