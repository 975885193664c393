"""An agent's HTTP API under a test's control: real sockets and signatures, scripted answers. No processes."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from aiohttp import web

from resumable_training.contract import events, signing
from resumable_training.contract.codec import to_json, to_plain
from resumable_training.contract.events import AgentState, Event

KEY = b"k" * 32


class FakeAgent:
    """Serves on a free port of 127.0.0.1. Use as ``async with``; ``tell`` appends to the event log."""

    def __init__(self, worker: str = "w-0-1", boot_id: str = "boot-1") -> None:
        self.worker = worker
        self.boot_id = boot_id
        self.counter = 0
        self.log: list[Event] = []
        self.state = AgentState(boot_id=boot_id, worker=worker)
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.answer: tuple[int, dict[str, Any]] | None = None  # instead of the state
        self.deaf = False  # calls are cut off; its streams stay
        self.forge = ""  # "reply" or "line": sign those with another key
        self.asked_after: list[int] = []
        self.asked_heartbeats: list[str] = []
        self.asked_health = 0
        self.port = 0
        self.heartbeat = asyncio.Event()
        self._more: list[asyncio.Event] = []
        self._streams: set[web.StreamResponse] = set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/v1/events", self._events)
        app.router.add_route("*", "/v1/{call}", self._call)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.break_streams()
        await self._runner.cleanup()

    def tell(self, kind: str, attempt: int = 1, **data: Any) -> Event:
        """Append an event and send it to all streams."""
        event = Event(len(self.log) + 1, 1000 + len(self.log), kind, attempt, self.boot_id, data)
        self.log.append(event)
        self._wake()
        return event

    def beat(self) -> None:
        """Send a snapshot now."""
        self.heartbeat.set()
        self._wake()

    def restart(self, boot_id: str) -> None:
        """As if the agent had been started anew: another boot, no events, all streams broken."""
        self.boot_id, self.counter, self.log = boot_id, 0, []
        self.state = AgentState(boot_id=boot_id, worker=self.worker)
        self.break_streams()

    def break_streams(self) -> None:
        for stream in self._streams:
            task = getattr(stream, "_task_of_test", None)
            if task is not None:
                task.cancel()

    def _wake(self) -> None:
        for more in self._more:
            more.set()

    async def _health(self, _request: web.Request) -> web.Response:
        self.asked_health += 1
        return web.json_response({"boot_id": self.boot_id, "worker": self.worker, "counter": self.counter})

    def _admit(self, request: web.Request, body: bytes) -> str | None:
        """The reason to deny the request, if any."""
        headers, counter = request.headers, int(request.headers[signing.HEADER_COUNTER])
        if headers[signing.HEADER_BOOT_ID] != self.boot_id:
            return "wrong_boot"
        wanted = signing.sign_request(KEY, request.method, request.path_qs, body, self.boot_id, counter)
        if headers[signing.HEADER_SIGNATURE] != wanted:
            return "bad_signature"
        if counter <= self.counter:
            return "stale_counter"
        self.counter = counter
        return None

    def _denied(self, code: str) -> web.Response:
        plain = {"code": code, "message": code, "counter": self.counter, "boot_id": self.boot_id}
        return web.json_response(plain, status=401)

    async def _call(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.deaf and request.transport is not None:
            request.transport.close()
        denied = self._admit(request, body)
        if denied:
            return self._denied(denied)
        self.calls.append((request.method, request.path, json.loads(body or b"{}")))
        status, plain = self.answer or (200, to_plain(self.state))
        data = to_json(plain)
        key = b"x" * 32 if self.forge == "reply" else KEY
        signature = signing.sign_reply(key, self.boot_id, self.counter, status, data)
        headers = {signing.HEADER_SIGNATURE: signature}
        return web.Response(status=status, body=data, headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        denied = self._admit(request, b"")
        if denied:
            return self._denied(denied)
        counter, after = self.counter, int(request.query["after"])
        self.asked_after.append(after)
        self.asked_heartbeats.append(request.query.get("heartbeat_ms", ""))
        response = web.StreamResponse()
        await response.prepare(request)
        response._task_of_test = asyncio.current_task()  # type: ignore[attr-defined]
        self._streams.add(response)
        more = asyncio.Event()
        self._more.append(more)
        index = 0
        waiting = [self._snapshot(), *self.log[after:]]
        sent = len(self.log)
        try:
            while True:
                for event in waiting:
                    await response.write(self._line(event, counter, index))
                    index += 1
                await more.wait()
                more.clear()
                waiting, sent = list(self.log[sent:]), len(self.log)
                if self.heartbeat.is_set():
                    self.heartbeat.clear()
                    waiting.append(self._snapshot())
        finally:
            self._streams.discard(response)
            self._more.remove(more)

    def _snapshot(self) -> Event:
        return Event(0, 0, events.SNAPSHOT, self.state.attempt, self.boot_id, to_plain(self.state))

    def _line(self, event: Event, counter: int, index: int) -> bytes:
        text = to_json(event)
        key = b"x" * 32 if self.forge == "line" else KEY
        signature = signing.sign_line(key, self.boot_id, counter, index, text)
        return json.dumps({"i": index, "l": text.decode(), "s": signature}).encode() + b"\n"
