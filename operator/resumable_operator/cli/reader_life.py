"""The life of a short pod that reads checkpoints: made, awaited, listened to, deleted whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

import click
from rich.console import Console
from rich.text import Text

from resumable_operator.cli.cluster_session import Session
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.progress import read_progress
from resumable_operator.cli.reader_pod import CONTAINER, Standing, hint, misnamed, standing
from resumable_operator.cluster.kube_api import EVENTS, PODS
from resumable_operator.cluster.kube_errors import Call, Raw
from resumable_operator.errors import ClusterRefused, ResumableError, RetryableError

POLL_SECONDS = 0.5
START_SECONDS = 300.0  # until it must have begun to read
EVENTS_AFTER_SECONDS = 5.0  # of waiting without a reason
SILENCE_SECONDS = 60.0  # of the API server, while the pod goes on
PROGRESS_SECONDS = 2.0  # between two looks at what it says
PASSING_SECONDS = 10.0  # between two lines of progress where they stay


@dataclass(frozen=True)
class Output:
    """What the reader printed, and its exit code."""

    text: str
    code: int


Show = Callable[[str], None]


class ReaderLife:
    """Of pods in the session's namespace.

    Args:
        seconds: each may take.
    """

    def __init__(self, session: Session, seconds: int) -> None:
        self._session = session
        self._seconds = seconds

    async def run(self, body: Raw, show: Show) -> Output:
        """What the pod has printed when it has ended; its progress is shown meanwhile."""
        name = body["metadata"]["name"]
        with _cancelled_by_sigterm():
            await self._create(body)
            try:
                show(f"waiting for pod {name}")
                code = await self._await(name, show, "ended")
                assert code is not None
                return Output(await self._log(name), code)
            finally:
                await self._delete(name)

    @contextmanager
    def running(self, body: Raw) -> Iterator[str]:
        """For the length of the block the pod runs; its name."""
        name = body["metadata"]["name"]
        with progress() as show:
            self._session.run(self._begin(body, show))
        try:
            yield name
        finally:
            self._session.run(self._delete(name))

    async def _begin(self, body: Raw, show: Show) -> None:
        name = body["metadata"]["name"]
        with _cancelled_by_sigterm():
            await self._create(body)
            try:
                show(f"waiting for pod {name}")
                code = await self._await(name, show, "running")
                if code is not None:
                    raise RetryableError(f"pod {name} ended at once: {await self._says(name)}")
            except BaseException:
                await self._delete(name)
                raise

    async def _create(self, body: Raw) -> None:
        """Where its creation was not answered it may be there, and is deleted."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            await self._session.api.create(PODS, body, namespace)
        except ClusterRefused:
            raise
        except BaseException:
            await self._delete(name)
            raise

    async def _delete(self, name: str) -> None:
        try:
            await self._session.api.delete(PODS, name, self._session.namespace)
        except ResumableError as error:
            click.echo(f"pod {name} could not be deleted: {error}", err=True)

    async def _await(self, name: str, show: Show, wanted: Literal["running", "ended"]) -> int | None:
        """Until it runs, or has ended: then its exit code.

        Raises:
            UsageProblem: it can't start for want of a Secret, a claim or an image that is named wrong.
            RetryableError: it could not start, or was ended by something else; says by what.
        """
        loop = asyncio.get_running_loop()
        begun = heard = loop.time()
        listened = float("-inf")
        while True:
            try:
                pod = await self._session.api.get(PODS, name, self._session.namespace)
            except RetryableError as error:
                if loop.time() - heard > SILENCE_SECONDS:
                    raise
                show(f"{error}; asking again")
                await asyncio.sleep(POLL_SECONDS)
                continue
            heard = loop.time()
            if pod is None:
                raise RetryableError(f"pod {name} was deleted by somebody else")
            now, waited = standing(pod), loop.time() - begun
            if now.kind == "ended":
                return now.code
            if now.kind in ("failed", "hopeless"):
                raise self._failure(name, now)
            if now.kind == "waiting":
                why = await self._why(name, now, waited)
                if waited > START_SECONDS:
                    text = f"pod {name} did not start within {START_SECONDS:.0f} s: {why}"
                    raise RetryableError(text + hint(why))
                show(f"waiting for pod {name}: {why}")
            elif wanted == "running":
                return None
            elif loop.time() - listened > PROGRESS_SECONDS:
                line = _worth_showing(await self._says(name))
                show(f"pod {name}: {line}" if line else f"pod {name} reads")
                listened = loop.time()
            await asyncio.sleep(POLL_SECONDS)

    def _failure(self, name: str, now: Standing) -> ResumableError:
        if now.kind == "hopeless":
            kind = UsageProblem if misnamed(now.text) else RetryableError
            return kind(f"pod {name} can't start: {now.text}{hint(now.text)}")
        if now.text == "DeadlineExceeded":
            return RetryableError(f"pod {name} was ended after {self._seconds} s; allow more by --time-limit")
        return RetryableError(
            f"pod {name} was ended while it read: {now.text or 'no reason is known'}{hint(now.text)}"
        )

    async def _why(self, name: str, now: Standing, waited: float) -> str:
        """Why it waits. Of a volume that can't be mounted only an event tells."""
        if waited < EVENTS_AFTER_SECONDS or now.text not in ("ContainerCreating", "Pending"):
            return now.text
        fields = f"involvedObject.name={name},type=Warning"
        with suppress(ClusterRefused):  # who may make pods need not see events
            events = (await self._session.api.list(EVENTS, self._session.namespace, fields=fields)).items
            if events:
                newest = max(events, key=lambda event: str(event["metadata"].get("creationTimestamp")))
                return f"{newest.get('reason')}: {newest.get('message')}"
        return now.text

    async def _says(self, name: str) -> str:
        """Its last line; empty: none yet, or it can't be read now."""
        try:
            return (await self._log(name, "&tailLines=1")).strip()
        except ResumableError:
            return ""

    async def _log(self, name: str, query: str = "") -> str:
        path = PODS.path(self._session.namespace, name, "log") + f"?container={CONTAINER}{query}"
        async with self._session.api.stream(Call("get", "pods/log", name), path) as body:
            return (await body.read()).decode(errors="replace")


def _worth_showing(line: str) -> str:
    """How far it is, or what it has trouble with."""
    return line if line.startswith("warning: ") else read_progress(line)


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """As by Ctrl-C: so that the pod is deleted."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress() -> Iterator[Show]:
    """Call what it gives with what is going on now: shown in place on a terminal, else a line per change."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    shown, at = "", 0.0
    with console.status("") if console.is_terminal else nullcontext() as status:

        def show(text: str) -> None:
            nonlocal shown, at
            if text == shown or (
                status is None and " of " in text and time.monotonic() - at < PASSING_SECONDS
            ):
                return
            if status is not None:
                status.update(Text(text))
            else:
                click.echo(text, err=True)
            shown, at = text, time.monotonic()

        yield show
