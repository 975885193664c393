"""What the API server asks of a kubelet over HTTPS: logs of containers, and commands to run in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import time
from datetime import datetime

from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler, Middleware

from bed import containers
from bed.containers_log import LogOptions
from bed.kubelet import Kubelet
from bed.kubelet_node import PORT
from bed.pod import Pod
from bed.pod_container import PodContainer
from bed.pod_env import ConfigError

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
CHUNK = 1 << 15


class KubeletServer:
    """One HTTPS endpoint for each node, at its own address."""

    def __init__(self, cert: str, key: str) -> None:
        self._ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ssl.load_cert_chain(cert, key)
        self._runners: dict[str, web.AppRunner] = {}

    async def serve(self, kubelet: Kubelet) -> None:
        """Listen at the node's address."""
        app = web.Application(middlewares=[_silent_when_cut(kubelet)])
        app["kubelet"] = kubelet
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", _logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", _exec)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, kubelet.address, PORT, ssl_context=self._ssl).start()
        self._runners[kubelet.name] = runner

    async def close(self, kubelet: Kubelet) -> None:
        """Stop listening for one node."""
        await self._runners.pop(kubelet.name).cleanup()

    async def stop(self) -> None:
        """Stop listening for all."""
        await asyncio.gather(*(runner.cleanup() for runner in self._runners.values()))


def _silent_when_cut(kubelet: Kubelet) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not kubelet.line.connected and request.transport is not None:
            request.transport.abort()
            raise web.HTTPServiceUnavailable
        return await handler(request)

    return middleware


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _logs(request: web.Request) -> web.StreamResponse:
    container = _container(request)
    previous = request.query.get("previous") == "true"
    if len(container.logs) < (2 if previous else 1):
        what = "previous terminated container" if previous else "container"
        raise web.HTTPBadRequest(
            text=f'{what} "{container.name}" in pod "{request.match_info["pod"]}" not found'
        )
    log = container.logs[-2 if previous else -1]
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # the reader has left
        async for piece in log.read(_options(request)):
            await response.write(piece)
        await response.write_eof()
    return response


def _options(request: web.Request) -> LogOptions:
    query = request.query
    since = None
    if "sinceSeconds" in query:
        since = time.time() - int(query["sinceSeconds"])
    elif "sinceTime" in query:
        since = datetime.fromisoformat(query["sinceTime"]).timestamp()
    return LogOptions(
        follow=query.get("follow") == "true",
        tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
        since=since,
        limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
        timestamps=query.get("timestamps") == "true",
    )


async def _exec(request: web.Request) -> web.StreamResponse:
    """`kubectl exec` without a terminal: streams as channels of a web socket, the exit code as a Status."""
    container = _container(request)
    flags = {key: request.query.get(key) in ("true", "1") for key in ("input", "stdin", "tty")}
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    await socket.prepare(request)
    if flags["tty"]:
        await _finish(socket, _failure("terminals are not supported by this kubelet"))
        return socket
    try:
        program = container.program_for(request.query.getall("command"))
    except ConfigError as error:
        await _finish(socket, _failure(str(error)))
        return socket
    assert container.process is not None
    ours, theirs = _pipes()
    process = containers.join(container.process.pid, program, theirs)
    for descriptor in theirs:
        os.close(descriptor)
    reader = asyncio.create_task(_feed(socket, ours[0], process))
    outputs = [_pump(socket, ours[channel], channel) for channel in (STDOUT, STDERR)]
    try:
        await asyncio.gather(*outputs)
        code = await process.wait()
        await _finish(socket, _failure(process.failure) if process.failure else _exit(code))
    finally:
        process.signal(signal.SIGKILL)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return socket


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Our ends and the process's ends of stdin, stdout and stderr."""
    stdin, stdout, stderr = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
    return (stdin[1], stdout[0], stderr[0]), (stdin[0], stdout[1], stderr[1])


async def _pump(socket: web.WebSocketResponse, descriptor: int, channel: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        while data := await reader.read(CHUNK):
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(bytes([channel]) + data)
        transport.close()


async def _feed(socket: web.WebSocketResponse, descriptor: int, process: containers.Process) -> None:
    """What the client types; when the client goes away the process is killed."""
    loop = asyncio.get_running_loop()
    with os.fdopen(descriptor, "wb", buffering=0) as pipe:
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            if message.data[0] == STDIN:
                transport.write(message.data[1:])
            elif message.data[0] == CLOSE and message.data[1] == STDIN:
                transport.close()
        transport.close()
    process.signal(signal.SIGKILL)


async def _finish(socket: web.WebSocketResponse, status: dict[str, object]) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
    await socket.close()


def _exit(code: int) -> dict[str, object]:
    if code == 0:
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {
        **_failure(f"command terminated with non-zero exit code: {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _failure(message: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": message,
        "code": 500,
    }


def _container(request: web.Request) -> PodContainer:
    wanted = request.match_info
    kubelet: Kubelet = request.app["kubelet"]
    pod = _pod(kubelet, (wanted["namespace"], wanted["pod"]))
    if pod is None or wanted["container"] not in pod.containers:
        raise web.HTTPNotFound(
            text=f"no container {wanted['container']} of pod {wanted['pod']} on {kubelet.name}"
        )
    return pod.containers[wanted["container"]]


def _pod(kubelet: Kubelet, key: tuple[str, str]) -> Pod | None:
    return next((pod for pod in kubelet.pods.values() if pod.key == key), None)
