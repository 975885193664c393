"""``/healthz``, ``/readyz`` and ``/metrics`` of the operator's process.

Healthy means that work gets done: the cache was compared with the API server not long ago and no pass is
stuck. An event loop that stands still answers nothing at all, which a probe takes for the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from resumable_operator.clock import Clock
from resumable_operator.errors import FatalError
from resumable_operator.passes import PassMeter

logger = logging.getLogger(__name__)

RELIST_AGE_SECONDS = 300.0  # a restart does not bring an API server back: leave it time
RELISTS = 5
PASS_SECONDS = 300.0  # the longest pass waits for the time-outs of many agents, some after others

Page = Callable[[str], Awaitable[tuple[bytes, str]]]  # Accept header -> body, content type


@dataclass
class Health:
    """Facts about the process; times on ``clock``."""

    clock: Clock
    meter: PassMeter
    relist_seconds: float
    started_at: float = field(init=False)
    relisted_at: float | None = None  # end of the last successful comparison

    def __post_init__(self) -> None:
        self.started_at = self.clock.now()

    def relisted(self) -> None:
        """The cache equals the API server's state."""
        self.relisted_at = self.clock.now()

    def trouble(self) -> str:
        """Why the process should be restarted; empty: it should not."""
        age = self.clock.now() - (self.started_at if self.relisted_at is None else self.relisted_at)
        if age > max(RELIST_AGE_SECONDS, RELISTS * self.relist_seconds):
            return f"the last successful list of all objects is {age:.0f} s ago"
        longest = self.meter.longest_running()
        if longest is not None and longest[1] > PASS_SECONDS:
            return f"the pass over {longest[0]} has run for {longest[1]:.0f} s"
        return ""

    def waiting_for(self) -> str:
        """Why the process is not ready; empty: it is."""
        if self.relisted_at is None:
            return "jobs, pods and nodes were not listed yet"
        return self.trouble()


def application(health: Health, metrics: Page) -> web.Application:
    """The three pages."""

    async def healthz(_request: web.Request) -> web.Response:
        return _verdict(health.trouble())

    async def readyz(_request: web.Request) -> web.Response:
        return _verdict(health.waiting_for())

    async def show_metrics(request: web.Request) -> web.Response:
        body, content_type = await metrics(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)]
    )
    return app


def _verdict(trouble: str) -> web.Response:
    return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)


@asynccontextmanager
async def serving(app: web.Application, address: str, port: int) -> AsyncIterator[int]:
    """Serve until the block ends; gives the port (another one if 0 was asked for).

    Args:
        address: empty: all of the machine's.

    Raises:
        FatalError: the port can't be had.
    """
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address or None, port)
        try:
            await site.start()
        except OSError as error:
            raise FatalError(f"cannot serve on port {port} (--port): {error.strerror or error}") from error
        taken = int(runner.addresses[0][1])
        logger.info("serving /healthz, /readyz and /metrics on port %d", taken)
        yield taken
    finally:
        await asyncio.shield(runner.cleanup())
