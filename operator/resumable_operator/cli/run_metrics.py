"""``rtj run --metrics-port``: one page with the metrics of the job and of its training.

The job's come from the same collector as the operator's; those of the training are what the agent of rank 0
shows, so that one target has everything. Text format only: two pages of it, one after the other, are one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.decide.observation import Job

AGENT_SECONDS = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serving_metrics(
    port: int | None, job: Callable[[], Job | None], now: Callable[[], float]
) -> AsyncIterator[None]:
    """Serve ``/metrics`` on all of the machine's addresses until the block ends; None: serve nothing.

    Args:
        job: as it is stored.

    Raises:
        UsageProblem: the port can't be had, or what makes the page is not installed.
    """
    if port is None:
        yield
        return
    try:
        from resumable_operator import metrics
    except ImportError as error:
        raise UsageProblem(
            f"--metrics-port needs {error.name}: pip install 'resumable-training[operator]'"
        ) from error
    registry = metrics.own_registry()

    async def page(_request: web.Request) -> web.Response:
        stored = job()
        body, _ = metrics.render(registry, [stored] if stored else [], now(), "text/plain")
        body += await _of_rank_0(stored) if stored else b""
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, None, port).start()
        except OSError as error:
            raise UsageProblem(f"--metrics-port {port}: {error.strerror or error}") from error
        yield
    finally:
        await runner.cleanup()


async def _of_rank_0(job: Job) -> bytes:
    """What its agent shows; nothing while there is none, or it does not answer."""
    members = job.status.attempt.members
    if not members:
        return b""
    url = f"http://{members[0].address}:{members[0].agent_port}/metrics"
    timeout = aiohttp.ClientTimeout(total=AGENT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return await answer.read() if answer.status == 200 else b""
    except (aiohttp.ClientError, TimeoutError):
        return b""
