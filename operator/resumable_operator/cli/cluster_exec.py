"""A command in a pod of a cluster, spoken with over its standard input and output, as by ``kubectl exec``.

The caller waits in its own thread; the connection has another, with an event loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp

from resumable_operator.cluster.kube_api import PODS, KubeApi
from resumable_operator.cluster.kube_errors import Call, NotFound
from resumable_operator.errors import ClusterRefused, RetryableError

T = TypeVar("T")
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")  # 1.29 knows no v5; what is used here is in both
STDIN, STDOUT, STDERR, STATUS = range(4)
STDERR_KEPT = 4000
ANSWER_SECONDS = 330.0  # a store may be silent for five minutes
NO_RIGHT = (
    "you may not run a command in a pod of namespace {0}; a Role must grant create and get on pods/exec"
    " (see: kubectl auth can-i create pods --subresource=exec -n {0})"
)


class ExecChannel:
    """Use as a ``with`` block. One question at a time, from any thread.

    Who is interrupted while it waits may ask again: an answer that nobody waits for is read to its end first.

    Args:
        api: whose address and credentials are used.

    Raises:
        ClusterRefused: who asks may not do that.
        RetryableError: the connection could not be made.
    """

    def __init__(
        self, api: KubeApi, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> None:
        self._pod = pod
        self._namespace = namespace
        self._api = KubeApi(api.configuration)
        query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        self._path = PODS.path(namespace, pod, "exec") + "?" + urlencode(query)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="exec", daemon=True)
        self._turn = asyncio.Lock()  # of a question, until its answer has come
        self._stack = AsyncExitStack()
        self._news = asyncio.Event()
        self._received = bytearray()
        self._errors = b""
        self._ended = ""  # why nothing more comes

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A JSON object, and the bytes that it announces as ``bytes``.

        Raises:
            RetryableError: no answer came, and none will to any other question; says why.
        """
        return self._run(self._ask(question))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        call = Call("create", "pods/exec", self._pod)
        try:
            self._socket = await self._stack.enter_async_context(
                self._api.websocket(call, self._path, PROTOCOLS)
            )
        except ClusterRefused as error:
            raise ClusterRefused(error.reason, NO_RIGHT.format(self._namespace)) from error
        except NotFound as error:
            raise RetryableError(f"pod {self._pod} is gone") from error
        self._listening = asyncio.create_task(self._listen())

    async def _close(self) -> None:
        listening = getattr(self, "_listening", None)
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        with suppress(aiohttp.ClientError, OSError):
            await self._stack.aclose()
        await self._api.close()

    async def _listen(self) -> None:
        """Until the connection ends. At most one answer is on its way, so what has come stays small."""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data:
                    self._take(message.data[0], message.data[1:])
            self._ended = self._ended or "it was closed"
        except (aiohttp.ClientError, OSError) as error:
            self._ended = str(error) or type(error).__name__
        finally:
            self._ended = self._ended or "it was closed"
            self._news.set()

    def _take(self, channel: int, data: bytes) -> None:
        if channel == STDOUT:
            self._received += data
        elif channel == STDERR:
            self._errors = (self._errors + data)[-STDERR_KEPT:]
        elif channel == STATUS:
            self._ended = _status_text(data)
        self._news.set()

    async def _ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        async with self._turn:
            if self._ended:  # what may still come is no answer to this one
                raise self._over()
            return await self._answer(question)

    async def _answer(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = json.dumps(question).encode() + b"\n"
                await self._socket.send_bytes(bytes([STDIN]) + line)
                while (end := self._received.find(b"\n")) < 0:
                    await self._more()
                answer = json.loads(self._taken(end + 1))
                size = int(answer["bytes"])
                while len(self._received) < size:
                    await self._more()
                return answer, self._taken(size)
        except TimeoutError as error:
            self._ended = f"no answer for {ANSWER_SECONDS:.0f} s"
            raise self._over() from error
        except (aiohttp.ClientError, OSError) as error:
            self._ended = self._ended or str(error) or type(error).__name__
            raise self._over() from error
        except (ValueError, KeyError, TypeError) as error:
            self._ended = "the answer is not understood; its image may be of another version"
            raise self._over() from error

    async def _more(self) -> None:
        if self._ended:
            raise self._over()
        self._news.clear()
        await self._news.wait()

    def _taken(self, count: int) -> bytes:
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def _over(self) -> RetryableError:
        said = self._errors.decode(errors="replace").strip().splitlines()
        why = said[-1].removeprefix("Error: ") if said else self._ended
        return RetryableError(f"the connection to pod {self._pod} has ended: {why}")


def _status_text(data: bytes) -> str:
    """Of the ``Status`` with which a command's end is told."""
    try:
        return str(json.loads(data).get("message") or "the command has ended")
    except (ValueError, AttributeError):
        return data[:STDERR_KEPT].decode(errors="replace")
