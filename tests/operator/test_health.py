"""/healthz, /readyz and /metrics: what makes a process unhealthy, and that it says so over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from resumable_operator.errors import FatalError
from resumable_operator.health import Health, application, serving
from resumable_operator.passes import PassMeter


@dataclass
class FakeClock:
    time: float = 1000.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def health(clock: FakeClock) -> Health:
    return Health(clock, PassMeter(CollectorRegistry(), clock), relist_seconds=30.0)


def test_at_first(health: Health) -> None:
    """A fresh process is healthy, but not ready."""
    assert health.trouble() == ""
    assert "not listed yet" in health.waiting_for()


def test_after_the_first_list(health: Health) -> None:
    """With everything listed it is ready."""
    health.relisted()
    assert health.waiting_for() == ""


@pytest.mark.parametrize(("relist_seconds", "limit"), [(30.0, 300.0), (600.0, 3000.0)])
@pytest.mark.parametrize("ever", [True, False])
def test_no_list_for_long(clock: FakeClock, relist_seconds: float, limit: float, ever: bool) -> None:
    """Without a successful list for several times the interval it is restarted; from its start on, too."""
    health = Health(clock, PassMeter(CollectorRegistry(), clock), relist_seconds)
    if ever:
        health.relisted()
    clock.time += limit
    assert health.trouble() == ""
    clock.time += 1.0
    assert "last successful list" in health.trouble()
    health.relisted()
    assert health.trouble() == ""


def test_stuck_pass(health: Health, clock: FakeClock) -> None:
    """A pass that does not end is seen, with the name of its job, whatever others do."""
    with health.meter.running("ns/stuck"):
        clock.time += 299.0
        health.relisted()
        with health.meter.running("ns/other"):
            pass
        assert health.waiting_for() == ""
        clock.time += 2.0
        assert "ns/stuck has run for 301 s" in health.trouble()
        assert health.waiting_for() == health.trouble()
    assert health.trouble() == ""


@asynccontextmanager
async def served(health: Health) -> AsyncIterator[str]:
    async def page(accept: str) -> tuple[bytes, str]:
        return f"asked for {accept}".encode(), "text/plain; version=0.0.4; charset=utf-8"

    async with serving(application(health, page), "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"


async def get(url: str, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers["Content-Type"]


async def test_over_http(health: Health, clock: FakeClock) -> None:
    """The two verdicts are 200 or 503 with the reason in the text."""
    async with served(health) as url:
        assert (await get(f"{url}/healthz"))[:2] == (200, "ok\n")
        assert (await get(f"{url}/readyz"))[:2] == (503, f"{health.waiting_for()}\n")
        health.relisted()
        assert (await get(f"{url}/readyz"))[0] == 200
        clock.time += 1000.0
        assert (await get(f"{url}/healthz"))[:2] == (503, f"{health.trouble()}\n")


async def test_metrics_page(health: Health) -> None:
    """The page of metrics knows which format was asked for, and its content type is told exactly."""
    async with served(health) as url:
        answer = await get(f"{url}/metrics", Accept="application/openmetrics-text")
    assert answer == (
        200,
        "asked for application/openmetrics-text",
        "text/plain; version=0.0.4; charset=utf-8",
    )


async def test_port_is_taken(health: Health) -> None:
    """A port that another has is an error that names the option."""
    async with served(health) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(FatalError, match=rf"port {port} \(--port\)"):
            await serving(application(health, lambda _accept: NotImplemented), "127.0.0.1", port).__aenter__()
