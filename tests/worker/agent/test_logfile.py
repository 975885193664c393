"""Logs of ranks: all of them, or as much as a pod's scratch space should hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_process import AgentProcess, script
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.agent.logfile import LogFile, forget_old_attempts
from resumable_training.contract import events


@given(pieces=st.lists(st.binary(min_size=1, max_size=30), max_size=30), limit=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_the_end_is_kept(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limit: int) -> None:
    """Without a limit everything is there; with one the last bytes, and never more than twice the limit."""
    path = tmp_path_factory.mktemp("log") / "a" / "rank.log"
    log = LogFile(path, limit)
    for piece in pieces:
        log.write(piece)
    log.close()
    parts = [path.with_name("rank.log.1"), path]
    kept = b"".join(part.read_bytes() for part in parts if part.exists())
    written = b"".join(pieces)
    assert written.endswith(kept)
    assert not pieces or kept.endswith(pieces[-1])
    if limit == 0:
        assert kept == written
    assert limit == 0 or len(kept) <= 2 * max(limit, 30)


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    """What is there counts towards the limit."""
    path = tmp_path / "rank.log"
    path.write_bytes(b"123456")
    log = LogFile(path, 8)
    log.write(b"abc")
    log.close()
    assert (path.read_bytes(), (tmp_path / "rank.log.1").read_bytes()) == (b"abc", b"123456")


@pytest.mark.parametrize(("keep", "left"), [(0, {1, 2, 3, 10}), (1, {10}), (8, {3, 10}), (99, {1, 2, 3, 10})])
def test_old_attempts(tmp_path: Path, keep: int, left: set[int]) -> None:
    """The newest stay, and all that is no attempt's."""
    (tmp_path / "attempt-x").mkdir()
    for number in (1, 2, 3, 10):
        (tmp_path / f"attempt-{number:05d}").mkdir()
        (tmp_path / f"attempt-{number:05d}" / "rank-00000.log").touch()
    forget_old_attempts(tmp_path, 10, keep)
    expected = {f"attempt-{number:05d}" for number in left} | {"attempt-x"}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_an_agent_bounds_its_logs(tmp_path: Path) -> None:
    """As it was told, for ranks that say much and jobs that restart often."""
    with AgentProcess(tmp_path, script("print('x' * 9999)"), log_bytes=5000, log_attempts=2) as agent:
        for attempt in (1, 2, 3):
            agent.begin(attempt=attempt, ranks=1)
            assert agent.ended(attempt) == events.SUCCEEDED
        logs = Path(agent.spec.log_directory)
        assert sorted(path.name for path in logs.iterdir()) == ["attempt-00002", "attempt-00003"]
