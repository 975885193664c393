"""``python -m resumable_training.agent.bundle OUT.pyz``: the agent as one file for any image with Python."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Dict, Sequence

import resumable_training

PARTS = ("contract", "agent")
# Any Python must understand this. A PID 1 without a handler never sees SIGTERM, and importing takes a moment.
_ENTRY = """\
import os
import signal
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("agent: python3 is %s here; 3.9 or newer is needed\\n" % sys.version.split()[0])
    sys.exit(2)
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
from resumable_training.agent.__main__ import main

sys.exit(main())
"""
_PACKAGE = '"""The agent\'s part of resumable-training."""\n'
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes


def contents(root: Path) -> Dict[str, bytes]:
    """Files of the bundle by name: contract, agent, and a package that imports nothing."""
    files = {"__main__.py": _ENTRY.encode(), "resumable_training/__init__.py": _PACKAGE.encode()}
    for part in PARTS:
        for path in sorted((root / part).glob("*.py")):
            files["resumable_training/%s/%s" % (part, path.name)] = path.read_bytes()
    return files


def write_bundle(target: Path) -> None:
    """Write an executable zipapp.

    Raises:
        OSError: ``target`` can't be written.
    """
    root = Path(resumable_training.__file__).parent
    with target.open("wb") as file:
        file.write(_SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents(root).items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    target.chmod(0o755)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m resumable_training.agent.bundle OUT.pyz\n")
        return 2
    write_bundle(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
