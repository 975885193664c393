"""The channel to a command in a pod: answers cut anywhere, ends that are told, rights that are missing."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from agent_process import wait_until
from aiohttp import WSMsgType, web
from aiohttp.hdrs import SEC_WEBSOCKET_PROTOCOL
from kubernetes.aio.client import Configuration

from resumable_operator.cli import cluster_exec
from resumable_operator.cli.cluster_exec import PROTOCOLS, STATUS, STDERR, STDOUT, ExecChannel
from resumable_operator.cluster.kube_api import KubeApi
from resumable_operator.errors import ClusterRefused, RetryableError

Raw = dict[str, Any]
Pod = Callable[[web.WebSocketResponse, Raw], Awaitable[None]]


@asynccontextmanager
async def api_server(
    pod: Pod | int, known: Sequence[str] = PROTOCOLS
) -> AsyncIterator[tuple[KubeApi, list[web.Request]]]:
    """Its pods answer each question by ``pod``; a number: it refuses with that status.

    Who offers none of the protocols that it knows is refused as the real one does it.
    """
    seen: list[web.Request] = []

    async def execute(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        if isinstance(pod, int):
            raise _refusal(pod)
        if not set(known) & {each.strip() for each in request.headers[SEC_WEBSOCKET_PROTOCOL].split(",")}:
            raise _refusal(403)
        socket = web.WebSocketResponse(protocols=known)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY and not socket.closed:
                await pod(socket, json.loads(message.data[1:]))
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/exec", execute)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    api = KubeApi(Configuration(host=f"http://{host}:{port}"))
    try:
        yield api, seen
    finally:
        await api.close()
        await runner.cleanup()


def _refusal(status: int) -> web.HTTPException:
    return {403: web.HTTPForbidden, 404: web.HTTPNotFound, 500: web.HTTPInternalServerError}[status]()


@contextmanager
def api_server_elsewhere(pod: Pod) -> Iterator[KubeApi]:
    """The same in a thread of its own: signals arrive in the one that the test has then."""
    loop, server = asyncio.new_event_loop(), api_server(pod)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        api, _ = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        try:
            yield api
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where whoever started the tests has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def channel(api: KubeApi) -> ExecChannel:
    return ExecChannel(api, "team", "p", "reader", ["rtj", "checkpoints serve"])


async def test_questions_and_answers() -> None:
    """An answer is put together from messages of any size; standard error is no part of it."""

    async def echo(socket: web.WebSocketResponse, question: Raw) -> None:
        data = bytes(range(256)) * question["times"]
        whole = json.dumps({"got": question["times"], "bytes": len(data)}).encode() + b"\n" + data
        await socket.send_bytes(bytes([STDERR]) + b"warning: slow\n")
        for start in range(0, len(whole), 999):
            await socket.send_bytes(bytes([STDOUT]) + whole[start : start + 999])

    def talk() -> None:
        with channel(api) as opened:
            for times in (0, 3, 100):
                told, data = opened.ask({"times": times})
                assert (told["got"], data) == (times, bytes(range(256)) * times)

    async with api_server(echo) as (api, seen):
        await asyncio.to_thread(talk)
    (request,) = seen
    assert request.query.getall("command") == ["rtj", "checkpoints serve"]
    assert [request.query[name] for name in ("container", "stdin", "stdout")] == ["reader", "true", "true"]


async def test_an_older_server_is_understood() -> None:
    """One of Kubernetes 1.29 knows the fourth version of the protocol and not the fifth."""
    chosen = []

    async def empty(socket: web.WebSocketResponse, question: Raw) -> None:
        chosen.append(socket.ws_protocol)
        await socket.send_bytes(bytes([STDOUT]) + b'{"bytes": 0}\n')

    def talk() -> None:
        with channel(api) as opened:
            assert opened.ask({}) == ({"bytes": 0}, b"")

    for known in (("v4.channel.k8s.io",), PROTOCOLS):
        async with api_server(empty, known) as (api, _):
            await asyncio.to_thread(talk)
    assert chosen == ["v4.channel.k8s.io", "v5.channel.k8s.io"]


async def test_the_end_of_the_command_is_told() -> None:
    """In its own last words, to whoever asks then and afterwards."""

    async def die(socket: web.WebSocketResponse, question: Raw) -> None:
        await socket.send_bytes(bytes([STDERR]) + b"Traceback\nError: claim c is gone\n")
        status = {"status": "Failure", "message": "command terminated with non-zero exit code: 2"}
        await socket.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
        await socket.close()

    def talk() -> None:
        with channel(api) as opened:
            for _ in range(2):
                with pytest.raises(RetryableError, match="connection to pod p has ended: claim c is gone"):
                    opened.ask({})

    async with api_server(die) as (api, _):
        await asyncio.to_thread(talk)


async def test_an_answer_that_is_none() -> None:
    """Something else speaks on that channel: nothing more is believed."""

    async def babble(socket: web.WebSocketResponse, question: Raw) -> None:
        await socket.send_bytes(bytes([STDOUT]) + b"hello\n")

    def talk() -> None:
        with channel(api) as opened, pytest.raises(RetryableError, match="not understood"):
            opened.ask({})

    async with api_server(babble) as (api, _):
        await asyncio.to_thread(talk)


def test_an_interrupt_leaves_the_next_question_its_own_answer(interruptible: None) -> None:
    """The rest of the answer that nobody waits for any more is no part of it."""
    waiting, interrupted = threading.get_ident(), threading.Event()

    async def in_two_parts(socket: web.WebSocketResponse, question: Raw) -> None:
        data = bytes(range(256)) * 2
        whole = json.dumps({**question, "bytes": len(data)}).encode() + b"\n" + data
        await socket.send_bytes(bytes([STDOUT]) + whole[:-256])
        if question["number"] == 1:
            signal.pthread_kill(waiting, signal.SIGINT)
            await asyncio.to_thread(interrupted.wait, 30)
        await socket.send_bytes(bytes([STDOUT]) + whole[-256:])

    with api_server_elsewhere(in_two_parts) as api, channel(api) as opened:
        with pytest.raises(KeyboardInterrupt):
            opened.ask({"number": 1})
        interrupted.set()
        assert opened.ask({"number": 2}) == ({"number": 2, "bytes": 512}, bytes(range(256)) * 2)


async def test_an_answer_that_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for that to another question: after a silence nothing is asked any more."""
    given_up = threading.Event()

    async def late(socket: web.WebSocketResponse, question: Raw) -> None:
        await asyncio.to_thread(given_up.wait, 30)
        await socket.send_bytes(bytes([STDOUT]) + b'{"number": 1, "bytes": 0}\n')
        await socket.send_bytes(bytes([STDERR]) + b"all is said\n")

    def talk() -> None:
        with channel(api) as opened:

            def refusal(number: int) -> str:
                with pytest.raises(RetryableError) as caught:
                    opened.ask({"number": number})
                return str(caught.value)

            with monkeypatch.context() as patch:
                patch.setattr(cluster_exec, "ANSWER_SECONDS", 0.01)
                assert "no answer for" in refusal(1)
            given_up.set()
            wait_until(lambda: "all is said" in refusal(2), "the end of the late answer")

    async with api_server(late) as (api, _):
        await asyncio.to_thread(talk)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (403, ClusterRefused, "a Role must grant create and get on pods/exec .* -n team"),
        (404, RetryableError, "pod p is gone"),
        (500, RetryableError, "create pods/exec p: HTTP 500"),
    ],
)
async def test_what_the_server_refuses(status: int, kind: type[Exception], words: str) -> None:
    """With the right that is missing."""

    def talk() -> None:
        with pytest.raises(kind, match=words), channel(api):
            raise AssertionError("it was opened")

    async with api_server(status) as (api, _):
        await asyncio.to_thread(talk)
