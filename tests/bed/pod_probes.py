"""Probes and lifecycle hooks of containers: httpGet, tcpSocket, exec (and sleep, for hooks)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

Object = dict[str, Any]
Exec = Callable[[list[str], float], Awaitable[tuple[int, str]]]  # (command, seconds) -> exit code, output

_unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as the kubelet does
_unverified.check_hostname = False
_unverified.verify_mode = ssl.CERT_NONE


@dataclass(frozen=True)
class Target:
    """What is probed: a container at `address`, with its named ports, and a way to run a command in it."""

    address: str
    ports: dict[str, int]
    execute: Exec


async def check(action: Object, target: Target, seconds: float) -> str | None:
    """Carry out one probe or hook; None when it succeeded, else what the kubelet would say."""
    try:
        async with asyncio.timeout(seconds):
            if "httpGet" in action:
                return await _http(action["httpGet"], target)
            if "tcpSocket" in action:
                return await _tcp(action["tcpSocket"], target)
            if "exec" in action:
                code, output = await target.execute(action["exec"]["command"], seconds)
                return None if code == 0 else f"command exited with {code}: {output.strip()}"
            if "sleep" in action:
                await asyncio.sleep(action["sleep"]["seconds"])
                return None
    except TimeoutError:
        return f"timed out after {seconds:g} s"
    except (OSError, aiohttp.ClientError) as error:
        return str(error) or type(error).__name__
    return f"unsupported by this kubelet: {', '.join(action)}"


async def watch(
    probe: Object, target: Target, on_result: Callable[[bool, str], None], start_now: bool
) -> None:
    """Probe for ever; `on_result(good, message)` when a threshold is reached, and again at each later result.

    `start_now` leaves out the initial delay (it has passed while the start-up probe ran).
    """
    period = probe.get("periodSeconds") or 10
    await asyncio.sleep(0 if start_now else probe.get("initialDelaySeconds") or 0)
    good = bad = 0
    while True:
        message = await check(probe, target, probe.get("timeoutSeconds") or 1)
        good, bad = (good + 1, 0) if message is None else (0, bad + 1)
        if good >= (probe.get("successThreshold") or 1):
            on_result(True, "")
        elif bad >= (probe.get("failureThreshold") or 3):
            on_result(False, message or "")
        await asyncio.sleep(period)


async def _http(action: Object, target: Target) -> str | None:
    scheme = (action.get("scheme") or "HTTP").lower()
    host = action.get("host") or target.address
    url = f"{scheme}://{host}:{_port(action['port'], target)}/{(action.get('path') or '/').lstrip('/')}"
    headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or []}
    async with (
        aiohttp.ClientSession(headers={"User-Agent": "kube-probe/1.37", **headers}) as session,
        session.get(url, ssl=_unverified, allow_redirects=False) as answer,
    ):
        if 200 <= answer.status < 400:
            return None
        return f"HTTP probe failed with statuscode: {answer.status}"


async def _tcp(action: Object, target: Target) -> str | None:
    host = action.get("host") or target.address
    _, writer = await asyncio.open_connection(host, _port(action["port"], target))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


def _port(port: int | str, target: Target) -> int:
    if isinstance(port, int):
        return port
    if port not in target.ports:
        raise OSError(f"no port of the container is named {port}")
    return target.ports[port]
