"""``rtj run --metrics-port``: one page with the metrics of the job and of its training.

The job's come from the same collector as the operator's; those of the training are what the agent of rank 0
shows, so that one target has everything. Text format only: two pages of it, one after the other, are one.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.decide.observation import Job

AGENT_SECONDS = 1.0
PAGES = ("/metrics", "/healthz", "/readyz")  # which "/" names
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serving_metrics(
    port: int | None, job: Callable[[], Job | None], now: Callable[[], float]
) -> AsyncIterator[None]:
    """Serve the pages on all of the machine's addresses until the block ends; None: serve nothing.

    Args:
        job: as it is stored.

    Raises:
        UsageProblem: the port can't be had, or what makes the page is not installed.
    """
    if port is None:
        yield
        return
    check_metrics()
    from resumable_operator import metrics

    registry, jobs_page = metrics.own_registry(), metrics.jobs_page()

    async def page(_request: web.Request) -> web.Response:
        stored = job()
        body, _ = jobs_page.render(registry, [stored] if stored else [], now(), "text/plain")
        body += await _of_rank_0(stored) if stored else b""
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # whoever answers is well

    async def readyz(_request: web.Request) -> web.Response:
        ready = job() is not None
        return web.Response(
            text="ok\n" if ready else "the job is not stored yet\n", status=200 if ready else 503
        )

    async def pages(_request: web.Request) -> web.Response:
        return web.Response(text="\n".join([*PAGES, ""]))

    app = web.Application()
    app.add_routes([web.get(path, show) for path, show in zip(PAGES, (page, healthz, readyz), strict=True)])
    app.add_routes([web.get("/", pages)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, None, port).start()
        except OSError as error:
            raise _taken(port, error) from error
        yield
    finally:
        await runner.cleanup()


async def can_serve(port: int) -> None:
    """That ``serving_metrics`` will find what it needs; to ask before anything is made.

    Raises:
        UsageProblem: as it would.
    """
    check_metrics()
    try:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, None, port)
    except OSError as error:
        raise _taken(port, error) from error
    server.close()
    await server.wait_closed()


def check_metrics() -> None:
    """What makes the page is installed.

    Raises:
        UsageProblem: it is not; says how to get it.
    """
    try:
        importlib.import_module("resumable_operator.metrics")
    except ImportError as error:
        raise UsageProblem(
            f"--metrics-port needs {error.name}: pip install 'resumable-training[operator]'"
        ) from error


def _taken(port: int, error: OSError) -> UsageProblem:
    return UsageProblem(f"--metrics-port {port}: {error.strerror or error}")


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
