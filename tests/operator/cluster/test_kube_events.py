"""Events for people: any text can be told, and nobody can make the operator tell without end."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kube_samples import job

from resumable_operator.cluster.kube_api import KubeApi
from resumable_operator.cluster.kube_events import BURST, REFILL_SECONDS, Events, event_of

JOB = job()["metadata"]


class Api:
    """Takes every event."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def create(self, _resource: object, body: dict[str, Any], _namespace: str) -> dict[str, Any]:
        self.told.append(body["message"])
        return body


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    "message", ["half a pair \ud800", "\udfff", "", " ", "\x00", "a" * 1023 + "\U0001f600" * 9]
)
def test_any_text_becomes_an_event(message: str) -> None:
    """Also text that is no Unicode, as a training script may have printed it."""
    event = event_of(JOB, "Warning", "WorkerWarning", message, 0.0)
    assert 0 < len(event["message"]) <= 1024
    event["message"].encode()


async def test_a_flood_is_cut_off() -> None:
    """What one job's agents report becomes so many events, then a few a minute; other jobs do not notice."""
    api, clock = Api(), Clock()
    events = Events(cast(KubeApi, api), clock)
    for number in range(10 * BURST):
        await events.tell(JOB, "Warning", "WorkerWarning", f"nonsense {number}")
    assert len(api.told) == BURST
    await events.tell(job(name="other")["metadata"], "Normal", "Succeeded", "done")
    assert api.told[-1] == "done"
    clock.seconds += 3 * REFILL_SECONDS
    for number in range(10):
        await events.tell(JOB, "Warning", "WorkerWarning", f"later {number}")
    assert api.told[-3:] == ["later 0", "later 1", "later 2"]
    assert len(api.told) == BURST + 4
