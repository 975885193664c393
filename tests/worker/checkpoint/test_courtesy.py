"""Writers stand behind the ranks, and are not starved."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resumable_training.checkpoint.courtesy import NICE
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.writer import WriterProcess


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WriterProcess]:
    """One that has said that it is ready."""
    process = WriterProcess()
    here = {"rank": 0, "world_size": 1, "store": LocalStore(tmp_path).location}
    process.send({"kind": "begin", **here, "secret": "", "host": "127.0.0.1", "port": 0, "listener": -1})
    deadline = time.monotonic() + 60.0
    heard: list[str] = []
    while "ready" not in heard and time.monotonic() < deadline:
        heard += [message["kind"] for message in process.messages(0.5)]
    assert heard == ["ready"]
    yield process
    process.close()


def test_a_writer_that_is_ready_gives_way(writer: WriterProcess) -> None:
    """Ten steps behind its rank, and it does not go first because it was just woken; it is not idle."""
    assert os.getpriority(os.PRIO_PROCESS, writer.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
    assert os.sched_getscheduler(writer.pid) == os.SCHED_BATCH
