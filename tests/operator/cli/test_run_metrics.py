"""The page of ``rtj run --metrics-port``: what the operator would show of the job, then rank 0's agent."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.run_metrics import serving_metrics
from resumable_operator.decide.observation import Job
from resumable_operator.model import AttemptStatus, JobSpec, JobStatus, MemberStatus, Workers


def job(agent_port: int) -> Job:
    """Rank 0's agent is on this port."""
    member = MemberStatus(
        worker="w", place=0, incarnation=1, address="127.0.0.1", agent_port=agent_port, first_rank=0, ranks=1
    )
    attempt = AttemptStatus(number=1, state="running", members=(member,))
    spec = JobSpec(workers=Workers(replicas=1))
    return Job("local", "train", "uid", 1, spec, JobStatus(phase="Running", attempt=attempt))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def page(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain")
        return await answer.text()


@asynccontextmanager
async def agent(text: str, status: int = 200) -> AsyncIterator[int]:
    """Something that answers like an agent; its port."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def test_both_on_one_page() -> None:
    """The job as it is stored, and what rank 0's agent shows."""
    port = free_port()
    async with (
        agent("resumable_agent_step 7\n") as agent_port,
        serving_metrics(port, lambda: job(agent_port), lambda: 5.0),
    ):
        text = await page(port)
    assert 'resumable_job_phase{namespace="local",phase="Running",training_job="train"} 1.0' in text
    assert text.endswith("resumable_agent_step 7\n")


async def test_without_an_answer_of_the_agent() -> None:
    """An agent that is gone, or refuses, takes nothing from the job's own; without a job there is none."""
    port, nobody = free_port(), free_port()
    async with serving_metrics(port, lambda: job(nobody), lambda: 5.0):
        assert 'resumable_running{namespace="local",training_job="train"} 1.0' in await page(port)
    async with (
        agent("not for you", status=403) as agent_port,
        serving_metrics(port, lambda: job(agent_port), lambda: 5.0),
    ):
        assert "not for you" not in await page(port)
    async with serving_metrics(port, lambda: None, lambda: 5.0):
        assert "training_job=" not in await page(port)


async def test_taken_port_is_a_mistake_of_the_user() -> None:
    """It says which option; and without the option nothing is served."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(UsageProblem, match=f"--metrics-port {port}: .*in use"):
            async with serving_metrics(port, lambda: None, lambda: 5.0):
                raise AssertionError("it serves")
        async with serving_metrics(None, lambda: None, lambda: 5.0):
            pass


async def test_the_other_pages() -> None:
    """Probes as the operator's: ready once the job is stored; the root names what there is."""
    port, stored = free_port(), [None, job(free_port())]
    async with (
        serving_metrics(port, lambda: stored[0], lambda: 5.0),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (503, "the job is not stored yet\n")
        stored.pop(0)
        assert await get("/readyz") == (200, "ok\n")
        assert await get("/") == (200, "/metrics\n/healthz\n/readyz\n")


def test_a_taken_port_leaves_no_run_directory(tmp_path: Path, rtj) -> None:
    """It is asked for before anything is made."""
    (tmp_path / "train.py").write_text("")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        result = rtj("run", "--metrics-port", port, "--dir", tmp_path / "new", tmp_path / "train.py")
    assert result.exit_code == 2
    assert f"--metrics-port {port}: " in result.output
    assert not (tmp_path / "new").exists()
