"""A real browser for tests of pages: Debian's chromium without a window, led by its own debugging protocol.

It is taken from PATH, else installed by apt, which needs root: unlike the bed's other programs it depends on
dozens of libraries, so it can't be unpacked into a cache. Used through the fixture `browser`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bed.processes import Component, wait_until
from bed.progress import Progress
from bed.toolchain import BuildFailed

NAMES = ("chromium", "chromium-browser", "google-chrome")
APT_SECONDS = 600
START_SECONDS = 60.0
ANSWER_SECONDS = 30.0
SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # tests run as root, also in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def chromium() -> Path:
    """The browser's program, installed first if it must be; BuildFailed with the fix."""
    found = _on_path()
    if found is None:
        _install()
        found = _on_path()
    if found is None:
        raise BuildFailed("chromium was installed, but is not on PATH")
    return found


def _on_path() -> Path | None:
    return next((Path(path) for name in NAMES if (path := shutil.which(name))), None)


def _install() -> None:
    fix = "Install the package chromium (apt-get install chromium), or put it on PATH."
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BuildFailed(f"no chromium, and only root can install it here. {fix}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with Progress("installing chromium (Debian's package), about a minute") as progress:
        for words in (
            ["update"],
            ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
        ):
            progress.say(f"apt-get {words[0]}")
            try:
                subprocess.run(
                    ["apt-get", *words],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=APT_SECONDS,
                )
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or ""
                raise BuildFailed(f"no chromium: {error}\n{said}\n{fix}") from error


@dataclass
class Page:
    """One tab. `complaints`: of the console and of scripts; `requests`: all addresses that it asked for."""

    _call: Callable[..., Any]
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)

    async def look(self, width: int, height: int = 900, *, dark: bool = False, phone: bool = False) -> None:
        """As on a screen of that size, in pixels, by somebody who likes it light or dark."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        await self._call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, file: Path) -> None:
        """Load a file and wait until it is all there."""
        self.loaded.clear()
        await self._call("Page.navigate", url=file.absolute().as_uri())
        await asyncio.wait_for(self.loaded.wait(), ANSWER_SECONDS)

    async def evaluate(self, script: str) -> Any:
        """The value of an expression, as JSON has it; RuntimeError with what it threw."""
        answer = await self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def key(self, key: str) -> None:
        """Press and release one key, where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        await self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def mouse(self, kind: str, x: float, y: float) -> None:
        """`mouseMoved`, `mousePressed` or `mouseReleased` at a place of the window."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    async def screenshot(self, file: Path) -> None:
        """A PNG of the whole page, not only of what fits into the window."""
        answer = await self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Page]:
    """A browser with one empty page; it and its profile below `directory` live as long as the block."""
    profile = directory / "profile"
    profile.mkdir(parents=True)
    argv: Sequence[str | Path] = [chromium(), *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
    program = Component.start(list(argv), directory / "chromium.log")
    try:
        port_file = profile / "DevToolsActivePort"
        wait_until(
            lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2,
            START_SECONDS,
            f"chromium; see {program.log}",
            interval=0.05,
        )
        port = int(port_file.read_text().splitlines()[0])
        async with aiohttp.ClientSession() as session, _connected(session, port) as page:
            yield page
    finally:
        program.kill()


@asynccontextmanager
async def _connected(session: aiohttp.ClientSession, port: int) -> AsyncIterator[Page]:
    async with session.get(f"http://127.0.0.1:{port}/json") as answer:
        targets = await answer.json()
    url = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
    async with session.ws_connect(url, max_msg_size=0) as socket:
        waiting: dict[int, asyncio.Future[Any]] = {}
        numbers = itertools.count(1)

        async def call(method: str, **parameters: Any) -> Any:
            number = next(numbers)
            waiting[number] = asyncio.get_running_loop().create_future()
            await socket.send_json({"id": number, "method": method, "params": parameters})
            return await asyncio.wait_for(waiting[number], ANSWER_SECONDS)

        page = Page(call)
        reader = asyncio.create_task(_read(socket, waiting, page))
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await call(f"{domain}.enable")
            yield page
        finally:
            reader.cancel()


async def _read(
    socket: aiohttp.ClientWebSocketResponse, waiting: dict[int, asyncio.Future[Any]], page: Page
) -> None:
    async for message in socket:
        told = message.json()
        if "id" in told:
            future = waiting.pop(told["id"])
            if "error" in told:
                future.set_exception(RuntimeError(str(told["error"])))
            else:
                future.set_result(told["result"])
            continue
        _note(page, told["method"], told["params"])


def _note(page: Page, method: str, told: dict[str, Any]) -> None:
    if method == "Page.loadEventFired":
        page.loaded.set()
    elif method == "Network.requestWillBeSent":
        page.requests.append(told["request"]["url"])
    elif method == "Runtime.consoleAPICalled":
        page.complaints.append(f"console.{told['type']}: {told['args']}")
    elif method == "Runtime.exceptionThrown":
        page.complaints.append(str(told["exceptionDetails"]))
    elif method == "Log.entryAdded":
        page.complaints.append(f"{told['entry']['level']}: {told['entry']['text']}")
