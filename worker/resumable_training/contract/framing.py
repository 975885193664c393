"""Messages between processes that save: a length, then one JSON object.

Over unix sockets, where descriptors travel too: between a rank and its writer, and from both to the agent
(``keeping``). And over TCP between the writers of an attempt.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence

_LENGTH = struct.Struct(">I")
_MOST_DESCRIPTORS = 4
_READ_BYTES = 1 << 18

Message = Dict[str, Any]


def send(to: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """All of it; blocks while the other end reads something else.

    Raises:
        OSError: the other end is gone, and has not got all of it.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    frame = memoryview(_LENGTH.pack(len(data)) + data)
    sent = socket.send_fds(to, [frame], list(descriptors)) if descriptors else to.send(frame)
    if sent < len(frame):  # to send nothing fails, too, where the other end has taken all and is gone since
        to.sendall(frame[sent:])


class Inbox:
    """The reading end of a socket.

    Whatever comes there, who reads it gets JSON objects, or a ValueError and nothing more.
    """

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()
        self.descriptors: List[int] = []  # that have come with messages, oldest first
        self.closed = False  # the other end is gone

    @property
    def pending(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._buffer)

    def receive(self) -> Optional[Message]:
        """Wait for one message; None: the other end is gone."""
        while True:
            message = self._take()
            if message is not None or self.closed:
                return message
            self.read()

    def waiting(self) -> List[Message]:
        """What is there already; the socket does not block."""
        self.read()
        found = []
        while (message := self._take()) is not None:
            found.append(message)
        return found

    def read(self) -> None:
        """Read once. A socket that does not block and has nothing leaves everything as it was."""
        try:
            if self._source.family == socket.AF_UNIX:
                data, descriptors, _, _ = socket.recv_fds(self._source, _READ_BYTES, _MOST_DESCRIPTORS)
                self.descriptors += descriptors
            else:
                data = self._source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._buffer += data
        self.closed = not data

    def _take(self) -> Optional[Message]:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = _parse(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return message


def _parse(data: bytearray) -> Message:
    try:
        plain = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested so deeply that nobody meant it") from error
    if not isinstance(plain, dict):
        raise ValueError("no object")
    return plain
