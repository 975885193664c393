"""As much HTTP/1.1 as the agent's API needs: requests with a length, replies, chunked streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Dict, Mapping, Optional

BODY_LIMIT = 8 * 1024 * 1024
HEADER_LIMIT = 32 * 1024


class BadRequest(Exception):
    """The peer does not speak our HTTP; answered with ``status``, then the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class HttpRequest:
    """``target`` is the path with its query, as it is signed. Names of headers are lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader) -> Optional[HttpRequest]:
    """The next request of a connection; None when the peer closed it.

    Raises:
        BadRequest: malformed, too large, or without a length.
        OSError: the connection broke.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest(431, "headers are too large") from error
    method, target, headers = _parse_head(head)
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send a content-length")
    length = headers.get("content-length", "0")
    if not is_number(length):
        raise BadRequest(400, "content-length is not a number")
    if len(length) > 18 or int(length) > BODY_LIMIT:
        raise BadRequest(413, "the body is larger than %d bytes" % BODY_LIMIT)
    try:
        body = await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        return None
    return HttpRequest(method, target, headers, body)


def is_number(text: str) -> bool:
    """``isdigit`` alone is true of more than ``int`` takes."""
    return text.isascii() and text.isdigit()


def _parse_head(head: bytes) -> "tuple[str, str, Dict[str, str]]":
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "not an HTTP/1.1 request")
    headers: Dict[str, str] = {}
    for line in lines[1:]:
        if line:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequest(400, "malformed header")
            headers[name.strip().lower()] = value.strip()
    return words[0], words[1], headers


def reply(status: int, body: bytes, headers: Mapping[str, str], keep_alive: bool) -> bytes:
    """A whole reply."""
    fields = dict(headers)
    fields["Content-Length"] = str(len(body))
    fields["Connection"] = "keep-alive" if keep_alive else "close"
    return _head(status, fields) + body


def stream_head(headers: Mapping[str, str]) -> bytes:
    """Begin of a chunked reply that never ends by itself."""
    return _head(200, dict(headers, **{"Transfer-Encoding": "chunked", "Connection": "close"}))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = ["HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase)]
    lines += ["%s: %s" % item for item in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
