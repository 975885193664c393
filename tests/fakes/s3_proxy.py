"""Stands between an S3 client and a real server, and makes trouble on request.

The requests stay as the client signed them (host and headers too), so the server still checks them. The proxy
serves from a thread of its own; tests say which requests meet which trouble, and see which requests came.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Self

import aiohttp
from aiohttp import web
from yarl import URL

HOST = "127.0.0.1"
PATIENCE_SECONDS = 30.0

SLOW_DOWN = "503"  # please reduce your request rate
ERROR = "500"
DENIED = "403"
EXPIRED = "expired"  # as AWS says it: 400 ExpiredToken
RESET = "reset"  # the connection breaks before the server hears of it
LOST = "lost"  # the server does it, and the answer never comes
TRUNCATED = "truncated"  # half of the answer's body, then the connection breaks
SHORT = "short"  # half of the answer's body, said to be all of it
STALLED = "stalled"  # nothing happens any more
CARELESS = "careless"  # a refused condition is answered as if it had been kept
GONE = "gone"  # 404 of a gateway, not of S3

_CODES = {
    SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    ERROR: (500, "InternalError", "We encountered an internal error. Please try again."),
    DENIED: (403, "AccessDenied", "Access Denied."),
    EXPIRED: (400, "ExpiredToken", "The provided token has expired."),
}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}


@dataclass
class Fault:
    """Trouble for the next `times` requests of that method whose path and query hold all of `parts`."""

    kind: str
    method: str
    parts: tuple[str, ...] = ()
    times: int = 1_000_000

    def meets(self, request: web.Request) -> bool:
        fits = request.method == self.method and all(part in request.raw_path for part in self.parts)
        if fits and self.times > 0:
            self.times -= 1
            return True
        return False


@dataclass
class S3Proxy:
    """Use as a context; `endpoint` is for the client."""

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)  # method, path with query
    endpoint: str = ""

    def trouble(self, kind: str, method: str, *parts: str, times: int = 1_000_000) -> Fault:
        """From now on; see Fault."""
        self.faults.append(Fault(kind, method, parts, times))
        return self.faults[-1]

    def calm(self) -> None:
        """No trouble any more; what stalls goes on stalling."""
        self.faults.clear()

    def count(self, method: str, *parts: str) -> int:
        """Requests that came so far."""
        return sum(m == method and all(part in path for part in parts) for m, path in self.seen)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        self._loop.close()

    def _run(self, started: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        self.endpoint = f"http://{HOST}:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            started.set()
            await self._ended.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.raw_path))
        body = await request.read()
        fault = next((one for one in list(self.faults) if one.meets(request)), None)
        if fault is None:
            status, headers, answer = await self._forward(request, body)
            return _whole(request, status, headers, answer)
        if fault.kind in _CODES:
            return _error(*_CODES[fault.kind])
        return await self._special[fault.kind](self, request, body)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url = URL(self.upstream + request.raw_path, encoded=True)
        headers = [
            (name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP
        ]
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=body,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            return answer.status, kept, await answer.read()

    async def _reset(self, request: web.Request, body: bytes) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _lost(self, request: web.Request, body: bytes) -> web.StreamResponse:
        await self._forward(request, body)
        return await self._reset(request, body)

    async def _stalled(self, request: web.Request, body: bytes) -> web.StreamResponse:
        await self._ended.wait()
        return await self._reset(request, body)

    async def _truncated(self, request: web.Request, body: bytes) -> web.StreamResponse:
        status, headers, answer = await self._forward(request, body)
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        await response.write(answer[: len(answer) // 2])
        return await self._reset(request, body)

    async def _short(self, request: web.Request, body: bytes) -> web.StreamResponse:
        status, headers, answer = await self._forward(request, body)
        half = answer[: len(answer) // 2]
        return _whole(request, status, {**headers, "Content-Length": str(len(half))}, half)

    async def _careless(self, request: web.Request, body: bytes) -> web.StreamResponse:
        status, headers, answer = await self._forward(request, body)
        if status == 412:
            return web.Response(status=200, headers={"ETag": '"0"'})
        return _whole(request, status, headers, answer)

    async def _gone(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=404, text="no route")

    _special: ClassVar[dict[str, Callable[[S3Proxy, web.Request, bytes], Awaitable[web.StreamResponse]]]] = {
        RESET: _reset,
        LOST: _lost,
        STALLED: _stalled,
        TRUNCATED: _truncated,
        SHORT: _short,
        CARELESS: _careless,
        GONE: _gone,
    }


def _whole(request: web.Request, status: int, headers: dict[str, str], answer: bytes) -> web.Response:
    if request.method == "HEAD":  # its Content-Length is that of the body that does not come
        return web.Response(status=status, headers=headers)
    headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
    return web.Response(status=status, headers=headers, body=answer)


def _error(status: int, code: str, message: str) -> web.Response:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")
