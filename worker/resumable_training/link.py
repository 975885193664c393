"""The rank's end of the unix socket to its agent: reports out, drain requests and settings in."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from resumable_training.contract import CONTRACT_VERSION, rankwire
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.codec import ContractError, from_plain

_SEND_SECONDS = 2  # an agent that does not read is given up on; training goes on
_MAX_LINE = 1 << 20


class AgentLink:
    """Connected to the agent from construction to :meth:`close`; never raises after that.

    Handlers run on the link's own thread. Messages that this version does not know are ignored.

    Raises:
        OSError: the agent's socket can't be reached.
    """

    def __init__(
        self,
        path: str,
        rank: int,
        on_drain: Callable[[str], None],
        on_settings: Callable[[CheckpointConfig], None],
    ) -> None:
        self._on_drain = on_drain
        self._on_settings = on_settings
        self._lock = threading.Lock()
        self._broken = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        self.send(rankwire.HELLO, rank=rank, pid=os.getpid(), version=CONTRACT_VERSION)
        self._thread = threading.Thread(target=self._read, name="rt-agent-link", daemon=True)

    def listen(self) -> None:
        """Start to handle what the agent sends."""
        self._thread.start()

    def send(self, kind: str, **data: Any) -> None:
        """Report one message. A broken link drops it: the agent's end is the agent's to notice."""
        line = json.dumps({"kind": kind, **data}).encode() + b"\n"
        with self._lock:
            if self._broken:
                return
            try:
                self._socket.sendall(line)
            except OSError:
                self._broken = True  # part of a line may be out; nothing after it would be understood

    def close(self) -> None:
        """Disconnect; the thread ends."""
        with self._lock:
            self._broken = True
        with contextlib.suppress(OSError):  # the agent was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(5)
        self._socket.close()

    def _read(self) -> None:
        buffer = b""
        while len(buffer) < _MAX_LINE:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["kind"]
            if kind == rankwire.DRAIN:
                self._on_drain(str(message.get("reason", "")) or "drain request")
            elif kind == rankwire.SETTINGS:
                self._on_settings(from_plain(CheckpointConfig, message["checkpoint"]))
        except (ValueError, KeyError, TypeError, ContractError):
            self.send(rankwire.WARNING, message=f"not understood by the rank: {line[:200]!r}")
