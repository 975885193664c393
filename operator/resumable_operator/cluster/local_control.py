"""The control socket of a local cluster: one JSON line in, one JSON line out. ``rtj fault`` is its client.

The socket lies in a fresh directory with a short path that only the owner may enter (a unix socket's path may
have at most 108 bytes, a run directory any length); ``cluster.json`` says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from resumable_operator.cluster.local_files import (
    RunFiles,
    directory_id,
    is_live,
    left_behind,
    read_hint,
    write_json,
)
from resumable_operator.cluster.local_processes import machine_boot_id
from resumable_operator.errors import ResumableError, UserError

PREFIX = "rtj-"
LINE_BYTES = 65536
SOCKET_DIRECTORY_BYTES = 80
CALL_SECONDS = 30.0

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlServer:
    """Answers lines with ``answer`` while it is open. Use as ``async with``."""

    def __init__(self, files: RunFiles, capacity: int, answer: Answer) -> None:
        self._files = files
        self._capacity = capacity
        self._answer = answer
        self._directory: Path | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ControlServer:
        self._remove_earlier()
        self._directory = _short_directory()
        path = self._directory / "control"
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LINE_BYTES)
        path.chmod(0o600)
        plain = {
            "control": str(path),
            "pid": os.getpid(),
            "machine_boot_id": machine_boot_id(),
            "directory": directory_id(self._files.root),
            "capacity": self._capacity,
        }
        write_json(self._files.cluster, plain)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._files.cluster.unlink(missing_ok=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _remove_earlier(self) -> None:
        """A killed run leaves its socket's directory behind."""
        directory = Path(str(left_behind(self._files).get("control", "/"))).parent
        if directory.name.startswith(PREFIX):
            shutil.rmtree(directory, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                line = await reader.readline()
            reply = await self._reply(line)
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (OSError, TimeoutError):
            return  # the caller went away
        finally:
            writer.close()

    async def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            plain = json.loads(line)
        except ValueError as error:
            return {"ok": False, "message": f"not JSON: {error}"}
        return (
            await self._answer(plain)
            if isinstance(plain, dict)
            else {"ok": False, "message": "not an object"}
        )


def _short_directory() -> Path:
    path = tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(path)) > SOCKET_DIRECTORY_BYTES:
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    return Path(path)


def call(files: RunFiles, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the ``rtj run`` that owns the directory, and wait for its answer.

    Raises:
        UserError: none runs there, or it refused.
    """
    plain = read_hint(files.cluster)
    if not is_live(files) or "control" not in plain:
        raise UserError(f"{files.root} is not running: start it with `rtj run --dir {files.root} ...` first")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CALL_SECONDS)
            connection.connect(plain["control"])
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError) as error:
        raise ResumableError(f"the rtj run of {files.root} did not answer: {error}") from error
    if not reply.get("ok"):
        raise UserError(str(reply.get("message")))
    return reply
