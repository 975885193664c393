"""Stacks on request: SIGUSR1 makes faulthandler write them to the file that the agent reads."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path
from typing import IO

_files: list[IO[bytes]] = []  # faulthandler keeps the descriptor only, so the file must stay open


def write_stacks_on_signal(path: str) -> None:
    """From now on SIGUSR1 writes all threads' stacks to ``path``, also while the rank is in a collective.

    Raises:
        OSError: the file can't be opened.
    """
    file = Path(path).open("ab", buffering=0)  # noqa: SIM115
    _files.append(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
