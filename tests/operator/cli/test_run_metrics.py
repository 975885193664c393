"""The page of ``rtj run --metrics-port``: what the operator would show of the job, then rank 0's agent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from resumable_operator.cli import run_metrics
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


ODD_REQUESTS = {
    "only its head": (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
    "a format of its own": (b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: \xff;q=nan,*\r\n\r\n", b"200"),
    "what may be asked": (b"OPTIONS /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
    "a write": (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nxxx", b"405"),
    "a place that is none": (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, b"400"),
    "a header without end": (b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 200_000 + b"\r\n\r\n", b"400"),
    "an address without end": (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    "nothing at all": (b"", b""),
}


@pytest.mark.parametrize(("request_", "code"), ODD_REQUESTS.values(), ids=ODD_REQUESTS)
async def test_odd_requests_harm_nobody(request_: bytes, code: bytes) -> None:
    """They get their answer, or none, and the next one its page."""
    port, stored = free_port(), job(free_port())
    async with serving_metrics(port, lambda: stored, lambda: 5.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        if code:
            line = await asyncio.wait_for(reader.readline(), 10)
            assert line.split()[1] == code
        writer.close()
        assert "resumable_running" in await page(port)


async def test_who_reads_slowly_or_hangs_up_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither other scrapers nor the end of the run; and an agent that hangs costs its own lines alone."""
    monkeypatch.setattr(run_metrics, "AGENT_SECONDS", 0.2)
    port, asked = free_port(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    hung = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(0), "127.0.0.1", 0)
    stored: list[Job | None] = [job(hung.sockets[0].getsockname()[1])]
    open_ones = []
    async with hung, asyncio.timeout(20), serving_metrics(port, lambda: stored[0], lambda: 5.0):
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(asked * 100)
            open_ones.append((reader, writer))
        for _, writer in open_ones[:25]:
            writer.transport.abort()
        both = await asyncio.gather(page(port), page(port))
        assert all("resumable_running" in text for text in both)
        stored[0] = None  # the job ends, and is gone, while it is asked for
        assert "resumable_running{" not in await page(port)
    for _, writer in open_ones:
        writer.close()
