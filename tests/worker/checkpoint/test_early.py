"""Files that go to the disk while they are written: what is in them is what was written, advice or not."""

import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.checkpoint import early
from resumable_training.checkpoint.early import STRETCH_BYTES, EarlyFile
from resumable_training.checkpoint.local import LocalStore


def test_each_stretch_is_begun_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for all of it first, then one stretch after another, no gap; the rest is left to ``fsync``."""
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        early,
        "_functions",
        {name: lambda _, *numbers: told.append(numbers) or 0 for name in ("fallocate", "sync_file_range")},
    )
    with EarlyFile(tmp_path / "f", 5 * STRETCH_BYTES) as file:
        for size in (STRETCH_BYTES - 1, 1, STRETCH_BYTES + 7, 100):
            file.write(bytes(size))
        file.sync()
    assert told == [
        (1, 0, 5 * STRETCH_BYTES),
        (0, STRETCH_BYTES, 2),
        (STRETCH_BYTES, STRETCH_BYTES + 7, 2),
    ]


@pytest.mark.parametrize("known", [True, False], ids=["advised", "without advice"])
@pytest.mark.parametrize("expected", [0, 10, 1 << 20, 1 << 60], ids=["unknown", "short", "long", "absurd"])
def test_whatever_was_expected(
    expected: int, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong expectation, or a system that takes no advice, changes neither content nor length."""
    if not known:
        monkeypatch.setattr(early, "_functions", {})
    store, data = LocalStore(tmp_path, visibility_seconds=0.0), os.urandom(100_000)
    with store.open_write("f", expected) as stream:
        stream.write(data)
        assert (tmp_path / "f").stat().st_size <= len(data)
    assert (tmp_path / "f").read_bytes() == data


def test_room_that_was_not_needed_is_given_back(tmp_path: Path) -> None:
    """A disk is not filled by what was only expected."""
    with LocalStore(tmp_path).open_write("f", 64 << 20) as stream:
        stream.write(bytes(5000))
    assert (tmp_path / "f").stat().st_blocks * 512 < 32 << 20


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(1, 2000))
def test_it_is_an_ordinary_stream(pieces: list[bytes], buffer: int) -> None:
    """Pieces of any size, through a buffer of any size."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "f"
        with EarlyFile(path, 100) as file, io.BufferedWriter(file, buffer) as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            file.sync()
        assert path.read_bytes() == b"".join(pieces)
