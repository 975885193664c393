"""One multipart upload, as a stream that DCP writes forward into. No torch."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import S3Store as Client

MEBIBYTE = 1024 * 1024
LEAST_PART = 8 * MEBIBYTE
MOST_PARTS = 9_000  # S3 allows 10,000; an object may get a little longer than expected
PARTS_AT_ONCE = 4  # so many parts are in memory, and one that is being filled


def part_bytes(expected_bytes: int) -> int:
    """Size of the parts of an object of about that size, in whole mebibytes."""
    needed = -(-expected_bytes // MOST_PARTS)
    return max(LEAST_PART, -(-needed // MEBIBYTE) * MEBIBYTE)


class Upload(io.RawIOBase):
    """Nothing is seen under the name before ``finish``; closed without it, the parts are given up."""

    def __init__(
        self, client: Client, name: str, each: int, wrapped: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """``wrapped``: turns the client's errors into ours."""
        import obstore

        self._each = each
        self._wrapped = wrapped
        self._at = 0
        self._part = bytearray()
        self._writer: WritableFile | None = obstore.open_writer(
            client, name, buffer_size=each, max_concurrency=PARTS_AT_ONCE
        )

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        """Gathered into parts of our own: the client keeps what it is given and does not copy it."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._each):
            self._part += view[start : start + self._each]
            if len(self._part) >= self._each:
                self._hand_on()
        self._at += len(view)
        return len(view)

    def _hand_on(self) -> None:
        assert self._writer is not None, "finished"
        part, self._part = self._part, bytearray()
        with self._wrapped():
            self._writer.write(part)

    def finish(self) -> None:
        """Durable when it returns."""
        if self._part:
            self._hand_on()
        writer, self._writer = self._writer, None
        assert writer is not None, "finished"
        with self._wrapped():
            writer.close()

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with suppress(Exception):  # the reason why it is given up is on its way already
                writer.__exit__(OSError, OSError("given up"), None)
        super().close()
