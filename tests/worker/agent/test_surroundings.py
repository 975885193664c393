"""What the agent adds for ranks where the image lacks it."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from resumable_training.agent import surroundings
from resumable_training.agent.surroundings import amend, socket_directory

NAMED = {"USER": "me", "TMPDIR": "/"}


@pytest.mark.parametrize("home", ["", "/nonexistent", "/etc/passwd"])
def test_home_that_is_none(tmp_path: Path, home: str) -> None:
    """Not set, not there, or no directory: one in the scratch space."""
    assert amend({**NAMED, "HOME": home}, tmp_path) == {"HOME": str(tmp_path / "home")}
    assert (tmp_path / "home").is_dir()


@pytest.mark.parametrize(
    ("home", "modes", "stays"),
    [
        ("/", os.R_OK | os.X_OK, False),
        ("/", os.R_OK | os.X_OK | os.W_OK, True),
        ("/usr", os.R_OK | os.X_OK, True),
        ("/usr", 0, False),
    ],
)
def test_home_by_what_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, modes: int, stays: bool
) -> None:
    """A home with things to read stays; the root directory, where nobody lives, only if it can be written."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != home or mode & ~modes == 0)
    assert ("HOME" not in amend({**NAMED, "HOME": home}, tmp_path)) == stays


def test_nameless_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry gets a name, unless a variable has one."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert amend({"HOME": "/", "TMPDIR": "/"}, tmp_path) == {"USER": "resumable", "LOGNAME": "resumable"}
    assert amend({"HOME": "/", "TMPDIR": "/", "LOGNAME": "me"}, tmp_path) == {}


def test_no_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be written, one in the scratch space."""
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK) or path == "/")
    added = amend({"HOME": "/", "USER": "me", "TMPDIR": "/nowhere"}, tmp_path)
    assert added == {"TMPDIR": str(tmp_path / "tmp")}


def test_sockets_in_the_first_place_that_is_short_and_writable(tmp_path: Path) -> None:
    """TMPDIR if it is short; else /tmp; else the scratch space; each time a directory of its own."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        first, second = (socket_directory({"TMPDIR": short}, long) for _ in range(2))
        assert first.parent == second.parent == Path(short)
        assert first != second
    other = socket_directory({"TMPDIR": str(long)}, long)
    assert other.parent == Path("/tmp")
    other.rmdir()


def test_sockets_where_only_scratch_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scratch space will do, when its path is short enough; else that is said."""
    monkeypatch.setattr(surroundings, "_TEMPORARY", ("/proc",))
    monkeypatch.setattr(surroundings, "SOCKET_PATH_LIMIT", 200)
    found = socket_directory({"TMPDIR": "/nowhere"}, tmp_path)
    assert found.parent == tmp_path
    monkeypatch.setattr(surroundings, "SOCKET_PATH_LIMIT", 20)
    with pytest.raises(OSError, match="is too long"):
        socket_directory({}, tmp_path)
