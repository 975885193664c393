"""A checkpoint store in S3-compatible object storage, through obstore. No torch.

There are no directories in object storage: a claimed one is an object ``.directory`` in it, made create-only.
Small operations are tried again here, so that each answer is judged; the parts of an upload are tried again
by obstore, which alone knows them. Credentials and endpoint come from the environment (``AWS_...``), as the
operator sets them, or from the machine's role.
"""

from __future__ import annotations

import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from resumable_training.checkpoint import s3_errors
from resumable_training.checkpoint.blocks import BlockStream
from resumable_training.checkpoint.errors import (
    StorageRefused,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    StoreNotFound,
)
from resumable_training.checkpoint.s3_errors import MISSING, REFUSED, Problem
from resumable_training.checkpoint.s3_upload import Upload, part_bytes
from resumable_training.checkpoint.store import Advice, Entry

if TYPE_CHECKING:
    from obstore.store import S3Store as Client

T = TypeVar("T")

DIRECTORY_FILE = ".directory"
READ_BYTES = 8 * 1024 * 1024
READ_AHEAD = 3  # further ranges that are asked for while a stream is read on and on
LEAST_BYTES_PER_SECOND = 1024 * 1024  # a request that is slower counts as stalled
_CHANCE = random.SystemRandom()  # never the global generator: the training draws from that
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ADDRESS = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
SETTINGS = (  # variables that say who we are, and where
    *_ENDPOINTS,
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


@dataclass(frozen=True)
class Patience:
    """How long the server may have trouble, in seconds."""

    request: float = 60.0  # one request, and more for a large part
    connect: float = 10.0
    retry: float = 60.0  # no new try begins later than this after the first
    first_pause: float = 0.2  # between tries; doubles, with jitter
    longest_pause: float = 10.0


class S3Store:
    """Store (see ``store.Store``) below ``s3://BUCKET/PREFIX``."""

    visibility_seconds = 2.0  # object storage is consistent today; what is missing is asked for again anyway

    def __init__(
        self,
        url: str,
        patience: Patience | None = None,
        environment: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Raises StoreMisconfigured for an URL without a bucket, for variables that make no sense, and where
        obstore is not installed.

        ``environment``: ``SETTINGS`` for this store alone, above those of the process.
        ``tell``: told once of a server that is waited for.
        """
        self._bucket, self._prefix = split_url(url)
        self._patience = patience or Patience()
        self._environment = dict(environment or {})
        self._tell: Callable[[str], None] | None = tell
        self._judged = self._client(retries=0)

    def _client(self, *, retries: int, request_seconds: float | None = None) -> Client:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store as Client
        except ImportError as error:
            raise StoreMisconfigured(
                f"{self.location} needs obstore: pip install 'resumable-training[worker]'"
            ) from error
        patience = self._patience
        endpoint = _endpoint({**os.environ, **self._environment})
        own = {name.lower(): value for name, value in self._environment.items() if name in SETTINGS}
        try:
            return Client(
                self._bucket,
                prefix=self._prefix or None,
                config=cast(Any, {"disable_bulk_delete": True, **own}),  # not every server has bulk deletion
                client_options={
                    "timeout": timedelta(seconds=request_seconds or patience.request),
                    "connect_timeout": timedelta(seconds=patience.connect),
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(seconds=patience.retry),
                    "backoff": {
                        "init_backoff": timedelta(seconds=patience.first_pause),
                        "max_backoff": timedelta(seconds=patience.longest_pause),
                    },
                },
            )
        except BaseError as error:  # it reads more variables than we do
            why = str(error).splitlines()[0]
            raise StoreMisconfigured(f"{self.location}: {why}: mend that variable AWS_...") from error

    @property
    def location(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def advice(self) -> Advice:
        return Advice(
            writable="Give the job credentials that may read, write, list and delete there.",
            shared="All ranks need the same bucket, prefix and AWS_ENDPOINT_URL, and a server that shows a"
            " new object to everybody at once.",
            create_only="This server ignores If-None-Match, so two attempts could not be told apart. Use one"
            " that has conditional writes, as current releases of AWS S3, MinIO, Ceph, SeaweedFS and R2 do.",
        )

    def prepare_root(self) -> None:
        """The bucket must be there; one listing shows whether it can be reached."""
        self.entries()

    # Names and content ----------------------------------------------------------------------------------

    def entries(self, directory: str = "") -> list[Entry]:
        import obstore

        at = _checked(directory) if directory else ""
        found = self._try(at, lambda: obstore.list_with_delimiter(self._judged, at or None))
        entries = [
            Entry(name, int(meta["size"]), meta["last_modified"].timestamp(), is_directory=False)
            for meta in found["objects"]
            if (name := _below(meta["path"], at)) not in ("", DIRECTORY_FILE)
        ]
        directories = (_below(path, at) for path in found["common_prefixes"])
        entries += [Entry(name, 0, 0.0, is_directory=True) for name in directories if name]
        return sorted(entries, key=lambda entry: entry.name)

    def size(self, name: str) -> int | None:
        import obstore

        try:
            return int(self._ask(name, lambda: obstore.head(self._judged, _checked(name)))["size"])
        except StoreNotFound:
            return None
        except StorageRefused:
            self.entries(name.rpartition("/")[0])  # the answer to HEAD has no reason in it, this one has
            raise

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        if length is None and offset == 0:
            return self._ask(name, lambda: bytes(obstore.get(self._judged, _checked(name)).bytes()))
        if length is None:
            size = self.size(name)
            if size is None:
                raise StoreNotFound(f"{self._full(name)} does not exist")
            length = max(0, size - offset)
        return self._range(name, offset, length)

    def read_into(self, name: str, offset: int, place: memoryview) -> int:
        data = self._range(name, offset, len(place))
        place[: len(data)] = data
        return len(data)

    def _range(self, name: str, offset: int, length: int) -> bytes:
        import obstore

        def get() -> bytes:
            try:
                data = obstore.get_range(self._judged, _checked(name), start=offset, length=length)
            except obstore.exceptions.BaseError as error:
                if _problem(error).status == 416:  # it ends before
                    return b""
                raise
            return bytes(data)

        return self._ask(name, get) if length else b""

    @contextmanager
    def open_read(self, name: str) -> Iterator[BinaryIO]:
        size = self.size(name)
        if size is None:
            raise StoreNotFound(f"{self._full(name)} does not exist")
        stream = BlockStream(
            size, READ_BYTES, lambda number: self._range(name, number * READ_BYTES, READ_BYTES), READ_AHEAD
        )
        with closing(stream):
            yield cast(BinaryIO, stream)

    # Writing --------------------------------------------------------------------------------------------

    def create(self, name: str, data: bytes) -> None:
        """One conditional PUT. What is there already is ours if it is the same: a try of ours has won."""
        import obstore

        def put() -> bool:
            try:
                obstore.put(self._judged, _checked(name), data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError as error:
                if _problem(error).status == 409:  # another one's is under way: it may still fail
                    raise obstore.exceptions.GenericError(str(error)) from error
                return False
            return True

        if not self._try(name, put) and self.read(name) != data:
            raise StoreExists(f"{self._full(name)} exists already")

    def put(self, name: str, data: bytes) -> None:
        import obstore

        self._try(name, lambda: obstore.put(self._judged, _checked(name), data, use_multipart=False))

    def make_directory(self, name: str) -> None:
        if self.entries(name) or self.size(name) is not None:
            raise StoreExists(f"{self._full(name)} exists already")
        self.create(f"{name}/{DIRECTORY_FILE}", uuid.uuid4().hex.encode())

    @contextmanager
    def open_write(self, name: str, expected_bytes: int = 0) -> Iterator[BinaryIO]:
        if self.size(name) is not None:
            raise StoreExists(f"{self._full(name)} exists already")
        each = part_bytes(expected_bytes)
        seconds = self._patience.request + each / LEAST_BYTES_PER_SECOND
        client = self._client(retries=10, request_seconds=seconds)
        with closing(Upload(client, _checked(name), each, lambda: self._wrapped(name))) as upload:
            yield cast(BinaryIO, upload)
            upload.finish()
        if (found := self.size(name)) != upload.tell():
            raise StorageUnavailable(f"{self._full(name)} has {found} bytes, {upload.tell()} were written")

    # Deleting -------------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        import obstore

        try:
            self._try(name, lambda: obstore.delete(self._judged, _checked(name)))
        except StoreNotFound:
            return

    def delete_tree(self, name: str) -> None:
        """The claim goes last: until then the name can't be claimed anew."""
        import obstore

        if not name:
            raise ValueError("the root of a store is never deleted")
        at = _checked(name)

        def below() -> list[str]:
            pages = obstore.list(self._judged, at, chunk_size=1000)
            return [meta["path"] for page in pages for meta in page]

        claim = f"{at}/{DIRECTORY_FILE}"
        for path in sorted(self._try(name, below), key=lambda path: path == claim):
            self.delete(path)

    # Trouble --------------------------------------------------------------------------------------------

    def _ask(self, name: str, work: Callable[[], T]) -> T:
        """As ``_try``, but "missing" is believed only if the listing of its directory lacks the name, too.

        A proxy's 404, or that of a bucket that is gone, must not pass for a proof.
        """
        for _ in range(2):
            try:
                return self._try(name, work)
            except StoreNotFound:
                directory, _, last = name.rpartition("/")
                if all(entry.name != last or entry.is_directory for entry in self.entries(directory)):
                    raise
        raise StorageUnavailable(f"{self._full(name)} is listed, and can't be found")

    def _try(self, name: str, work: Callable[[], T]) -> T:
        """Do one request, again while the server has trouble.

        Raises:
            StoreNotFound, StorageRefused, StorageUnavailable.
        """
        import obstore

        pause, deadline = self._patience.first_pause, time.monotonic() + self._patience.retry
        while True:
            try:
                return work()
            except (obstore.exceptions.BaseError, OSError) as error:
                problem = _problem(error)
                wait = pause * _CHANCE.uniform(0.5, 1.0)
                if problem.kind in (MISSING, REFUSED) or time.monotonic() + wait > deadline:
                    raise self._error(name, problem) from error
                self._tell_of(name, problem, deadline - time.monotonic())
            time.sleep(wait)
            pause = min(2 * pause, self._patience.longest_pause)

    def _tell_of(self, name: str, problem: Problem, left: float) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(f"{self._full(name)}: {problem.text}; trying again for up to {left:.0f} s")

    @contextmanager
    def _wrapped(self, name: str) -> Iterator[None]:
        import obstore

        try:
            yield
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._error(name, _problem(error)) from error

    def _error(self, name: str, problem: Problem) -> Exception:
        text = f"{self._full(name)}: {problem.text}"
        if problem.kind == MISSING:
            return StoreNotFound(text)
        return StorageRefused(text) if problem.kind == REFUSED else StorageUnavailable(text)

    def _full(self, name: str) -> str:
        return f"{self.location}/{name}".rstrip("/")


def _endpoint(given: Mapping[str, str]) -> str:
    """The server's address; empty: AWS's own.

    Raises:
        StoreMisconfigured: it is none (``minio:9000``), which would end the client without a word.
    """
    name = next((name for name in _ENDPOINTS if given.get(name)), "")
    if name and not _ADDRESS.fullmatch(given[name]):
        raise StoreMisconfigured(f"{name} is {given[name]!r}: give an address such as https://minio:9000")
    return given[name] if name else ""


def split_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://BUCKET/PREFIX``.

    Raises:
        StoreMisconfigured: it is no such URL.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if scheme != "s3" or not bucket or "?" in rest or "#" in rest:
        raise StoreMisconfigured(f"{url} is not of the form s3://BUCKET/PREFIX")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise StoreMisconfigured(f"{url}: the prefix has an empty part, or one of dots")
    return bucket, prefix


def _checked(name: str) -> str:
    """Names never leave the root."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name in a store")
    return name


def _below(path: str, directory: str) -> str:
    """The part of ``path`` below ``directory``; empty for the directory itself (as some browsers make it)."""
    return path.removeprefix(directory).strip("/") if path.startswith(directory) else ""


def _problem(error: Any) -> Problem:
    return s3_errors.understand(type(error).__name__, str(error))
