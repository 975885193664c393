"""Output of ranks: kept, prefixed, and never in the way of the rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import wait_until

from resumable_training.agent.outlet import Outlet
from resumable_training.agent.output import TAIL_LINES, OutputPump, RankOutput


class Pipes:
    """A pump between a rank's pipe and a pipe that stands for standard output."""

    def __init__(self, log: Path) -> None:
        self.shown, standard_output = os.pipe()
        self.warnings: list[str] = []
        self.outlet = Outlet(standard_output, limit_bytes=100_000)
        self.pump = OutputPump(self.outlet, self.warnings.append)
        read, self.rank = os.pipe()
        self.output: RankOutput = self.pump.add(read, "[attempt 1 rank 0] ", log)

    def finish(self) -> tuple[str, ...]:
        return self.pump.finish(self.output).result(20)

    def shown_text(self) -> str:
        assert self.outlet.flush(20)
        return os.read(self.shown, 1_000_000).decode()


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Pipes]:
    made = Pipes(tmp_path / "attempt-00001" / "rank-00000.log")
    yield made
    made.pump.close(made.output)


def test_lines_go_to_log_output_and_tail(pipes: Pipes) -> None:
    """Raw in the log, with attempt and rank in front on standard output, the last lines kept."""
    os.write(pipes.rank, b"one\ntwo\nno end")
    assert pipes.finish() == ("one", "two", "no end")
    assert pipes.output.log.path.read_bytes() == b"one\ntwo\nno end"
    lines = pipes.shown_text().splitlines()
    assert lines == ["[attempt 1 rank 0] " + text for text in ("one", "two", "no end")]


def test_the_tail_is_bounded(pipes: Pipes) -> None:
    """The last forty lines, long ones cut, bytes that are no text replaced."""
    os.write(pipes.rank, b"".join(b"line %d\n" % number for number in range(100)) + b"\xff" + b"x" * 9000)
    tail = pipes.finish()
    assert len(tail) == TAIL_LINES
    assert tail[-2] == "line 99"
    assert len(tail[-1]) == 2000
    assert tail[-1].startswith("�x")


def test_nobody_reads_standard_output(pipes: Pipes) -> None:
    """The rank writes on while the reader of standard output sleeps; what was dropped is counted later."""
    data = b"y" * 999 + b"\n"
    for _ in range(2000):  # far more than all pipes and queues hold
        os.write(pipes.rank, data)
    pipes.finish()
    assert pipes.output.log.path.stat().st_size == 2000 * len(data)
    text = ""
    while "dropped" not in text:
        text += os.read(pipes.shown, 1_000_000).decode()
        os.write(pipes.rank, b"more\n")


def test_standard_output_is_closed(pipes: Pipes) -> None:
    """The log goes on without it."""
    os.close(pipes.shown)
    for _ in range(200):
        os.write(pipes.rank, b"z" * 999 + b"\n")
    pipes.finish()
    assert pipes.output.log.path.stat().st_size == 200_000
    assert pipes.outlet.flush(20)


def test_end_of_the_rank_does_not_wait_for_its_children(pipes: Pipes) -> None:
    """A child that holds the pipe open does not hold back the last lines."""
    child = os.dup(pipes.rank)
    os.write(pipes.rank, b"last words")
    os.close(pipes.rank)
    assert pipes.finish() == ("last words",)
    os.close(child)


def test_full_disk_is_a_warning(tmp_path: Path) -> None:
    """Told once; the rank writes on, and its last lines are there all the same."""
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    pipes = Pipes(log)
    for _ in range(200):
        os.write(pipes.rank, b"w" * 999 + b"\n")
    assert pipes.finish()[-1] == "w" * 999
    assert len(pipes.warnings) == 1
    assert "No space left" in pipes.warnings[0]
    pipes.pump.close(pipes.output)


def test_log_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    """A file where the directory should be."""
    (tmp_path / "attempt-00001").write_text("")
    pipes = Pipes(tmp_path / "attempt-00001" / "log")
    os.write(pipes.rank, b"text\n")
    wait_until(lambda: pipes.warnings, "a warning")
    assert pipes.finish() == ("text",)
    pipes.pump.close(pipes.output)


def test_closing_frees_the_descriptors(pipes: Pipes) -> None:
    """After close, nothing of the rank is open any more."""
    os.write(pipes.rank, b"x\n")
    pipes.finish()
    pipes.pump.close(pipes.output)
    wait_until(lambda: pipes.output.ended and not pipes.output.log.is_open, "closed")
    with pytest.raises(OSError, match=r"."):
        os.fstat(pipes.output.descriptor)
