"""A checkpoint store that another process has at hand, read through a line of questions and answers.

``rtj`` asks a pod of the cluster that has the job's claim or bucket (``cluster_exec``); ``answer`` is the
pod's side. A question is a JSON line; an answer is another, followed by as many bytes as it says. Nothing can
be written but pins.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, BinaryIO, cast

from resumable_operator.cli.store_source import Opened
from resumable_operator.errors import ResumableError
from resumable_training.checkpoint.blocks import BlockStream
from resumable_training.checkpoint.errors import BY_NAME, CheckpointError, StorageUnavailable, StoreNotFound
from resumable_training.checkpoint.store import Advice, Entry
from resumable_training.contract.manifest import PINS_DIRECTORY

READ_BYTES = 8 << 20  # in one answer
Raw = dict[str, Any]
Ask = Callable[[Raw], tuple[Raw, bytes]]
READ_ONLY = "a store that is read through a pod is not written, but for pins"


class RemoteStore:
    """Store (see ``store.Store``) behind ``ask``, which raises ResumableError when it gets no answer.

    Args:
        location: what people know it by.
    """

    def __init__(self, ask: Ask, location: str) -> None:
        self._ask = ask
        self._location = location
        hello, _ = self._asked("hello")
        self.only: str | None = hello["only"]
        self._visibility_seconds = float(hello["visibility_seconds"])

    @property
    def location(self) -> str:
        return self._location

    @property
    def visibility_seconds(self) -> float:
        return self._visibility_seconds

    @property
    def advice(self) -> Advice:
        return Advice(READ_ONLY, READ_ONLY, READ_ONLY)

    def prepare_root(self) -> None:
        raise StorageUnavailable(READ_ONLY)

    def foreign(self) -> list[str]:
        """Names of other programs' checkpoints in it, newest first."""
        return [str(name) for name in self._asked("foreign")[0]["names"]]

    def entries(self, directory: str = "") -> list[Entry]:
        return [Entry(*each) for each in self._asked("entries", name=directory)[0]["entries"]]

    def size(self, name: str) -> int | None:
        size: int | None = self._asked("size", name=name)[0]["size"]
        return size

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        pieces, at, left = [], offset, length
        while left is None or left > 0:
            wanted = READ_BYTES if left is None else min(READ_BYTES, left)
            pieces.append(self._piece(name, at, wanted))
            if len(pieces[-1]) < wanted:
                break
            at, left = at + wanted, None if left is None else left - wanted
        return b"".join(pieces)

    def read_into(self, name: str, offset: int, place: memoryview) -> int:
        data = self.read(name, offset, len(place))
        place[: len(data)] = data
        return len(data)

    @contextmanager
    def open_read(self, name: str) -> Iterator[BinaryIO]:
        size = self.size(name)
        if size is None:
            raise StoreNotFound(f"{self._location}/{name} does not exist")

        def block(number: int) -> bytes:
            return self._piece(name, number * READ_BYTES, READ_BYTES)

        stream = BlockStream(size, READ_BYTES, block, ahead=1)
        with closing(stream):
            yield cast(BinaryIO, stream)

    def create(self, name: str, data: bytes) -> None:
        self._asked("create", name=name, data=base64.b64encode(data).decode())

    def put(self, name: str, data: bytes) -> None:
        self._asked("put", name=name, data=base64.b64encode(data).decode())

    def make_directory(self, name: str) -> None:
        self._asked("make_directory", name=name)

    def delete(self, name: str) -> None:
        self._asked("delete", name=name)

    def delete_tree(self, name: str) -> None:
        raise StorageUnavailable(READ_ONLY)

    def open_write(self, name: str, expected_bytes: int = 0) -> AbstractContextManager[BinaryIO]:
        raise StorageUnavailable(READ_ONLY)

    def _piece(self, name: str, offset: int, length: int) -> bytes:
        return self._asked("read", name=name, offset=offset, length=length)[1]

    def _asked(self, act: str, **arguments: Any) -> tuple[Raw, bytes]:
        """Raises what the other side's store raised; StorageUnavailable when there was no answer."""
        try:
            told, data = self._ask({"act": act, **arguments})
        except ResumableError as error:
            raise StorageUnavailable(str(error)) from error
        if "error" in told:
            raise BY_NAME.get(told["error"], StorageUnavailable)(told["text"])
        return told, data


# ---- the other side ----------------------------------------------------------------------------------------


def serve(found: Opened, questions: BinaryIO, answers: BinaryIO) -> None:
    """Until nobody asks any more."""
    for line in questions:
        told, data = answer(found, json.loads(line))
        answers.write(json.dumps({**told, "bytes": len(data)}).encode() + b"\n")
        answers.write(data)
        answers.flush()


def answer(found: Opened, question: Raw) -> tuple[Raw, bytes]:
    """What ``RemoteStore`` is told, and bytes with it. Never raises CheckpointError: it is told."""
    try:
        return _done(found, question)
    except CheckpointError as error:
        return {"error": type(error).__name__, "text": str(error)}, b""


def _done(found: Opened, question: Raw) -> tuple[Raw, bytes]:
    store, name = found.store, str(question.get("name", ""))
    match question["act"]:
        case "hello":
            return {"only": found.only, "visibility_seconds": store.visibility_seconds}, b""
        case "foreign":
            return {"names": found.foreign()}, b""
        case "entries":
            return {
                "entries": [[e.name, e.bytes, e.modified, e.is_directory] for e in store.entries(name)]
            }, b""
        case "size":
            return {"size": store.size(name)}, b""
        case "read":
            return {}, store.read(name, int(question["offset"]), min(int(question["length"]), READ_BYTES))
        case "create" | "put" as act:
            write = store.create if act == "create" else store.put
            write(_pin(name), base64.b64decode(question["data"]))
        case "delete":
            store.delete(_pin(name))
        case "make_directory" if name == PINS_DIRECTORY:
            store.make_directory(name)
        case act:
            raise StorageUnavailable(f"{act} {name}: {READ_ONLY}")
    return {}, b""


def _pin(name: str) -> str:
    if not name.startswith(f"{PINS_DIRECTORY}/"):
        raise StorageUnavailable(f"{name}: {READ_ONLY}")
    return name
