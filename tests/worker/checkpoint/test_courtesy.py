"""Writers stand behind the ranks, and are not starved."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resumable_training.checkpoint import meeting
from resumable_training.checkpoint.courtesy import NICE
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.writer import WriterProcess


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WriterProcess]:
    """Rank 0's of two, which has said that it is ready; it listens for the other's with a thread."""
    listener = meeting.listen("127.0.0.1")
    process = WriterProcess(listener.fileno())
    here = {"rank": 0, "world_size": 2, "store": LocalStore(tmp_path).location, "secret": "x"}
    process.send({"kind": "begin", **here, "host": "127.0.0.1", "port": 0, "listener": listener.fileno()})
    deadline = time.monotonic() + 60.0
    heard: list[str] = []
    while "ready" not in heard and time.monotonic() < deadline:
        heard += [message["kind"] for message in process.messages(0.5)]
    assert heard == ["ready"]
    yield process
    process.close()
    listener.close()


def test_a_writer_that_is_ready_gives_way(writer: WriterProcess) -> None:
    """Ten steps behind its rank, and it does not go first because it was just woken; it is not idle.

    With all of its threads.
    """
    threads = [int(path.name) for path in Path(f"/proc/{writer.pid}/task").iterdir()]
    assert len(threads) > 1
    behind = min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {behind}
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
