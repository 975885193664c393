"""A node's connection to the API server, which a test may cut.

Every request waits for it, however long that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bed.kubelet_api import ApiRefused, ApiUnreachable, KubeletApi, Object

RETRY_SECONDS = 0.3


class Line:
    """Requests that are repeated until the server answers. ApiRefused when the answer is no."""

    def __init__(self, api: KubeletApi) -> None:
        self._api = api
        self._connected = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether the node can reach the API server and is reached by it."""
        return self._connected.is_set()

    def cut(self) -> None:
        """Nothing goes through any more. A request under way may still arrive."""
        self._connected.clear()

    def mend(self) -> None:
        """As if nothing had been."""
        self._connected.set()

    async def get(self, path: str) -> Object:
        """GET."""
        return await self._insist(lambda: self._api.get(path))

    async def find(self, path: str) -> Object | None:
        """GET; None when there is none."""
        try:
            return await self.get(path)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Object) -> Object:
        """POST. A repeated one may be refused because the first had arrived (AlreadyExists)."""
        return await self._insist(lambda: self._api.create(path, body))

    async def patch(self, path: str, body: Object) -> Object:
        """Strategic merge PATCH."""
        return await self._insist(lambda: self._api.patch(path, body))

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE with DeleteOptions."""
        return await self._insist(lambda: self._api.delete(path, body))

    async def _insist(self, request: Callable[[], Awaitable[Object]]) -> Object:
        while True:
            await self._connected.wait()
            try:
                return await request()
            except ApiUnreachable:
                await asyncio.sleep(RETRY_SECONDS)
