"""What an image and its user may lack, and ranks expect: a home, a user's name, a temporary directory.

A pod runs any image as user 1000, whom its ``/etc/passwd`` need not know, maybe on a read-only root. Then
``/.cache`` can't be made, ``getpass.getuser`` finds no name, and ``tempfile`` no place.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import Dict, Mapping

SOCKET_PATH_LIMIT = 80  # of a directory for sockets: sun_path holds 108 bytes (104 on macOS)
USER_NAME = "resumable"
_USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # what getpass looks at, in this order
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - what tempfile looks at


def amend(environment: Mapping[str, str], scratch: Path) -> Dict[str, str]:
    """The variables to add, with directories below ``scratch`` made for them.

    Raises:
        OSError: they can't be made.
    """
    added = {}
    if not _is_home(environment.get("HOME", "")):
        added["HOME"] = _make(scratch / "home")
    if not any(environment.get(name) for name in _USER_VARIABLES) and not _has_name():
        added.update(USER=USER_NAME, LOGNAME=USER_NAME)
    if not _has_temporary(environment):
        added["TMPDIR"] = _make(scratch / "tmp")
    return added


def socket_directory(environment: Mapping[str, str], scratch: Path) -> Path:
    """A new directory with a path short enough for unix sockets.

    Raises:
        OSError: there is no place for one.
    """
    for parent in (environment.get("TMPDIR", ""), *_TEMPORARY, str(scratch)):
        if parent and len(os.fsencode(parent)) < SOCKET_PATH_LIMIT - len("/rtj-12345678"):
            try:
                return Path(tempfile.mkdtemp(prefix="rtj-", dir=parent))
            except OSError:
                continue  # not there, or not for us
    raise OSError("no place for unix sockets: /tmp can't be written, and the path %s is too long" % scratch)


def _is_home(home: str) -> bool:
    """One that can be entered; the root directory, which runtimes give to unknown users, must be writable."""
    needed = os.R_OK | os.X_OK | (os.W_OK if home == "/" else 0)
    return bool(home) and os.path.isdir(home) and os.access(home, needed)


def _has_name() -> bool:
    try:
        return bool(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return False


def _has_temporary(environment: Mapping[str, str]) -> bool:
    named = [environment[name] for name in ("TMPDIR", "TEMP", "TMP") if environment.get(name)]
    return any(os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) for path in (*named, *_TEMPORARY))


def _make(path: Path) -> str:
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
