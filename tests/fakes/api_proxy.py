"""An API server that misbehaves: a proxy before the real one which breaks what a test says.

It speaks plain HTTP on a port of 127.0.0.1, keeps the caller's token, and streams watches through as they
come. It runs in a thread of its own; faults may be set and taken back at any time from the test's.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

from bed.control_plane import ControlPlane

Raw = dict[str, Any]

START_SECONDS = 30.0
CHUNK = 1 << 16
_NOT_FORWARDED = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}
_WORDS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}


@dataclass
class Fault:
    """What happens to requests of that method (regular expression) and path (searched; with its query).

    Attributes:
        status: answer this, instead of asking the real server; 0: none is given.
        headers: of that answer.
        seconds: wait so long first.
        lose: "request": the connection breaks before the server hears it; "answer": after it was done.
        change: applied to the JSON of the real answer.
        times: then it is over; None: never.
        hits: requests that met it.
    """

    method: str = ".*"
    path: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    lose: str = ""
    change: Callable[[Raw], Raw] | None = None
    times: int | None = None
    hits: int = 0

    def meets(self, method: str, path: str) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        return bool(re.fullmatch(self.method, method) and re.search(self.path, path))


class ApiProxy:
    """Use as a context manager. ``faults`` are looked through in order; the first that fits happens."""

    def __init__(self, plane: ControlPlane) -> None:
        self.faults: list[Fault] = []
        self.requests: Counter[str] = Counter()  # by method and path without query
        self.watches = 0  # that were opened
        self.stalled: set[asyncio.Queue[Raw | None]] = set()  # watches that say nothing
        self._plane = plane
        self._streams: set[asyncio.Queue[Raw | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api proxy", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, of: Path) -> Path:
        """A copy of a kubeconfig that leads here."""
        plain = yaml.safe_load(of.read_text())
        for item in plain["clusters"]:
            item["cluster"] = {"server": self.url}
        copy = of.with_name(f"{of.name}-by-{self.port}")
        copy.touch(mode=0o600)
        copy.write_text(yaml.safe_dump(plain))
        return copy

    def inject(self, **fault: Any) -> Fault:
        """Break something from now on."""
        new = Fault(**fault)
        self.faults.append(new)
        return new

    def mend(self) -> None:
        """All faults are over; stalled watches end."""
        self.faults.clear()
        stalled = tuple(self.stalled)

        async def end() -> None:
            for stream in stalled:
                stream.put_nowait(None)

        self._call(end())

    def end_watches(self, event: Raw | None = None) -> None:
        """All watches that are open end now, as a slow one's does; with ``event`` as their last word."""

        async def end() -> None:
            for stream in self._streams:
                stream.put_nowait(event)

        self._call(end())

    def stall_watches(self) -> None:
        """Those that are open now stay open, and nothing comes through any more."""
        self.stalled |= self._streams

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    # ---- in the thread -------------------------------------------------------------------------------

    async def _start(self) -> None:
        trust = ssl.create_default_context(cafile=str(self._plane.ca_file))
        connector = aiohttp.TCPConnector(limit=0, ssl=trust)
        self._session = aiohttp.ClientSession(connector=connector)
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        where = request.path_qs
        self.requests[f"{request.method} {request.path}"] += 1
        fault = next((item for item in self.faults if item.meets(request.method, where)), Fault())
        fault.hits += 1
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.lose == "request":
            return _broken(request)
        if fault.status:
            return _refusal(fault)
        try:
            return await self._forward(request, fault)
        except aiohttp.ClientError:
            return _broken(request)

    async def _forward(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _NOT_FORWARDED}
        call = self._session.request(
            request.method,
            f"{self._plane.url}{request.path_qs}",
            data=await request.read() or None,
            headers=headers,
            skip_auto_headers=("Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with call as answer:
            if request.query.get("watch") == "true" and answer.status == 200:
                return await self._watch(request, answer)
            body = await answer.read()
            if fault.lose == "answer":
                return _broken(request)
            if fault.change is not None:
                body = json.dumps(fault.change(json.loads(body))).encode()
            return web.Response(status=answer.status, body=body, content_type=answer.content_type)

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        self.watches += 1
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        ending: asyncio.Queue[Raw | None] = asyncio.Queue()
        self._streams.add(ending)
        last = asyncio.ensure_future(ending.get())
        try:
            while True:
                more = asyncio.ensure_future(answer.content.read(CHUNK))
                await asyncio.wait({more, last}, return_when=asyncio.FIRST_COMPLETED)
                if last.done():
                    more.cancel()
                    await _say(response, last.result())
                    return response
                if not (data := more.result()):
                    return response
                if ending not in self.stalled:
                    await response.write(data)
        finally:
            self._streams.discard(ending)
            self.stalled.discard(ending)
            last.cancel()


async def _say(response: web.StreamResponse, event: Raw | None) -> None:
    if event is not None:
        await response.write(json.dumps(event).encode() + b"\n")


def _broken(request: web.Request) -> web.Response:
    """No answer comes: the connection is gone."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _refusal(fault: Fault) -> web.Response:
    """As the API server words it."""
    reason = _WORDS.get(fault.status, "ServiceUnavailable")
    plain = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": fault.status,
        "reason": reason,
        "message": f"a test says {fault.status}",
    }
    return web.json_response(plain, status=fault.status, headers=fault.headers)
