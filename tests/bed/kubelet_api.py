"""An asyncio client of the API server for the kubelets.

Requests, and mirrors of collections kept by list and watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

Object = dict[str, Any]

REQUEST_SECONDS = 30.0
WATCH_SECONDS = 240
RETRY_SECONDS = 0.2
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"


class ApiRefused(Exception):
    """The server's answer is an error: `status` is the HTTP status, `reason` the machine's word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class ApiUnreachable(Exception):
    """No answer; or one that says to come back later (429, 5xx)."""


class KubeletApi:
    """One identity at one API server, until `close`."""

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        self.url = url
        context = ssl.create_default_context(cafile=str(ca_file))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=48),
            headers={"Authorization": f"Bearer {token}", "Accept": JSON},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, path: str, **params: str) -> Object:
        """GET."""
        return await self._request("GET", path, params=params)

    async def create(self, path: str, body: Object) -> Object:
        """POST."""
        return await self._request("POST", path, body)

    async def patch(self, path: str, body: Object) -> Object:
        """Strategic merge PATCH."""
        return await self._request("PATCH", path, body, STRATEGIC)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE with DeleteOptions."""
        return await self._request("DELETE", path, body or {})

    async def watch(
        self, path: str, resource_version: str, params: Mapping[str, str]
    ) -> AsyncIterator[Object]:
        """Watch events until the server ends the stream; ApiRefused for an ERROR event (410 Gone)."""
        query = {
            **params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=WATCH_SECONDS + 60)
        with _mapped():
            async with self._session.get(self.url + path, params=query, timeout=timeout) as answer:
                if answer.status >= 400:
                    raise _refusal(answer.status, await answer.text())
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise _refusal(event["object"].get("code", 500), json.dumps(event["object"]))
                        yield event

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        with _mapped():
            async with self._session.request(
                method,
                self.url + path,
                data=data,
                params=params,
                timeout=timeout,
                headers={"Content-Type": content_type},
            ) as answer:
                text = await answer.text()
        if answer.status == 429 or answer.status >= 500:
            raise ApiUnreachable(f"{method} {path}: {answer.status} {text[:200]}")
        if answer.status >= 400:
            raise _refusal(answer.status, text)
        result: Object = json.loads(text)
        return result


class Mirror:
    """The objects of one collection by uid, kept up to date; `on_event(type, object)` for each change.

    What vanished while no watch was open is reported as DELETED after the next list.
    """

    def __init__(
        self,
        api: KubeletApi,
        path: str,
        params: Mapping[str, str],
        on_event: Callable[[str, Object], None],
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.synced = asyncio.Event()
        self._api = api
        self._path = path
        self._params = params
        self._on_event = on_event

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            with contextlib.suppress(ApiRefused, ApiUnreachable):
                await self._watch(await self._list())
            await asyncio.sleep(RETRY_SECONDS)

    async def _list(self) -> str:
        answer = await self._api.get(self._path, **self._params)
        found = {item["metadata"]["uid"]: item for item in answer["items"]}
        for uid in self.objects.keys() - found.keys():
            self._tell("DELETED", self.objects[uid])
        for item in found.values():
            self._tell("MODIFIED", item)
        self.synced.set()
        version: str = answer["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> None:
        """Watch, and watch on from the last event, until the server refuses that."""
        while True:
            async for event in self._api.watch(self._path, version, self._params):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._tell(event["type"], event["object"])

    def _tell(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            self.objects.pop(item["metadata"]["uid"], None)
        else:
            self.objects[item["metadata"]["uid"]] = item
        self._on_event(kind, item)


class _mapped(contextlib.AbstractContextManager[None]):
    """Failures of the connection as ApiUnreachable."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.ClientError | TimeoutError | ConnectionError):
            raise ApiUnreachable(str(error) or type(error).__name__) from error


def _refusal(status: int, text: str) -> ApiRefused:
    try:
        answer = json.loads(text)
    except ValueError:
        return ApiRefused(status, "", text.strip())
    return ApiRefused(status, answer.get("reason", ""), answer.get("message", ""))
