"""DCP's own writer over a store: DCP plans and formats, the store opens the files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from resumable_training.checkpoint.errors import CheckpointError, StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import BlockHasher
from resumable_training.contract.manifest import MARKER_FILE, FileEntry


class StoreFiles(FileSystemBase):
    """The files of one checkpoint. Shards are streamed and hashed; the marker is kept for the commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.expected_bytes = 0  # of a shard
        self.written: dict[str, FileEntry] = {}
        self.failure: OSError | CheckpointError | None = None  # torch hides the cause of a failed access
        self.marker: bytes | None = None
        self._pending_marker: io.BytesIO | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        name = str(path)
        assert mode == "wb", "a writer reads nothing"
        if name.endswith(f"/{MARKER_FILE}.tmp"):
            self._pending_marker = io.BytesIO()
            yield self._pending_marker
        else:
            with self._writing(name) as hashing:
                yield hashing

    @contextmanager
    def _writing(self, name: str) -> Iterator[io.IOBase]:
        try:
            with self._store.open_write(name, self.expected_bytes) as stream:
                hashing = _HashingStream(stream, self)
                yield hashing
            self.written[name.rpartition("/")[2]] = hashing.hasher.entry()
        except (OSError, CheckpointError) as error:
            self.failure = self.failure or error
            raise

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """DCP puts its marker in place; here it is only kept, for the commit that follows the manifest."""
        assert self._pending_marker is not None
        self.marker = self._pending_marker.getvalue()

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """The directory was claimed before."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._store.size(str(path)) is not None

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise AssertionError(f"nothing in a checkpoint is replaced: {path}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class _HashingStream(io.RawIOBase):
    """Hashes what passes through; DCP writes strictly forward."""

    def __init__(self, stream: BinaryIO, files: StoreFiles) -> None:
        self._stream = stream
        self._files = files
        self.hasher = BlockHasher()
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self._stream.write(view)
        except (OSError, CheckpointError) as error:
            self._files.failure = self._files.failure or error
            raise
        self.hasher.update(view)
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()


class StoreWriter(FileSystemWriter):
    """Writes one checkpoint into a claimed directory. One thread: DCP swallows errors of any other."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(name, single_file_per_rank=True, sync_files=False, thread_count=1)
        self.files = StoreFiles(store)
        self.fs = cast(Any, self.files)  # the store syncs what it closes
        self.path = cast(Any, name)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # DCP would make the directory and look for an older checkpoint in it

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.files.expected_bytes = sum(_bytes_of(item) for item in plan.items)
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            if self.files.failure is not None:
                raise StorageUnavailable(_describe(self.files.failure)) from error
            # Only plain errors travel between ranks: an exception that can't be pickled would leave the
            # others waiting.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _bytes_of(item: WriteItem) -> int:
    """Of a tensor's part; what is no tensor is small."""
    if item.tensor_data is None:
        return 0
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize


def _describe(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


@contextmanager
def single_process_is_fine() -> Iterator[None]:
    """DCP warns when it works without a process group; one rank on its own is no accident here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
