"""The progress page: what is read is what was written, whole or not at all, also after the writer's death."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resumable_training.contract.progress import PHASES, SIZE, Progress, ProgressPage

INTEGER = st.integers(0, 2**62)
CONTENT = st.builds(
    Progress,
    pid=INTEGER,
    started_ns=INTEGER,
    beat_ns=INTEGER,
    phase=st.sampled_from(PHASES),
    phase_since_ns=INTEGER,
    step=INTEGER,
    samples=INTEGER,
    rework_steps=INTEGER,
    step_seconds=st.floats(allow_nan=False),
    loss=st.none() | st.floats(allow_nan=False),
    phase_ns=st.fixed_dictionaries(dict.fromkeys(PHASES, INTEGER)),
    in_loop=st.booleans(),
)


@given(st.lists(CONTENT, min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_last_written_is_read(tmp_path: Path, contents: list[Progress]) -> None:
    """Another mapping of the same file shows the last thing written."""
    path = tmp_path / "page"
    reader = ProgressPage(path, create=True)
    writer = ProgressPage(path)
    for content in contents:
        writer.write(content)
    assert reader.read() == contents[-1]
    writer.close()
    reader.close()


def test_nothing_written_yet(tmp_path: Path) -> None:
    """A fresh page, also one over an old one's file, reads as None."""
    path = tmp_path / "page"
    page = ProgressPage(path, create=True)
    assert page.read() is None
    page.write(Progress(step=5))
    page.close()
    again = ProgressPage(path, create=True)
    assert again.read() is None
    again.close()


def test_loss_that_is_not_a_number_is_none(tmp_path: Path) -> None:
    """NaN stands for "unknown" on the page."""
    page = ProgressPage(tmp_path / "page", create=True)
    page.write(Progress(loss=math.nan))
    read = page.read()
    assert read is not None
    assert read.loss is None
    page.close()


def test_not_a_page(tmp_path: Path) -> None:
    """Other files are refused, short ones and long ones."""
    for content in (b"short", b"x" * SIZE):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a progress page"):
            ProgressPage(path)


def test_the_file_has_no_hole(tmp_path: Path) -> None:
    """Its blocks exist when it is made, so that a full disk can't kill the writer with SIGBUS later."""
    path = tmp_path / "page"
    ProgressPage(path, create=True).close()
    os.sync()
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks > 0


def test_writer_that_died_in_the_middle(tmp_path: Path) -> None:
    """A torn write reads as None, never as a mixture; the next writer repairs the page."""
    path = tmp_path / "page"
    page = ProgressPage(path, create=True)
    page.write(Progress(step=1, samples=64))
    with path.open("r+b") as file:
        file.seek(8)
        file.write((3).to_bytes(8, "little"))  # the sequence of a write that began and never ended
    assert page.read() is None
    successor = ProgressPage(path)
    successor.write(Progress(step=2, samples=128))
    read = page.read()
    assert read is not None
    assert (read.step, read.samples) == (2, 128)
    successor.close()
    page.close()


WRITER = """
import sys
from resumable_training.contract.progress import Progress, ProgressPage
page = ProgressPage(sys.argv[1])
step = 0
while True:
    step += 1
    page.write(Progress(step=step, samples=step * 64, rework_steps=step, beat_ns=step))
"""


def test_no_mixture_while_a_process_writes_and_after_it_is_killed(tmp_path: Path) -> None:
    """All fields of every read belong to one write, and what is left after SIGKILL is whole or None."""
    path = tmp_path / "page"
    page = ProgressPage(path, create=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    reads = 0
    try:
        while reads < 2000:
            assert writer.poll() is None
            reads += _check(page.read())
    finally:
        writer.kill()
        writer.wait()
    _check(page.read())
    page.close()


def _check(progress: Progress | None) -> int:
    if progress is None:
        return 0
    step = progress.step
    assert (progress.samples, progress.rework_steps, progress.beat_ns) == (step * 64, step, step)
    return 1
