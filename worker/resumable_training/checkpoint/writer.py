"""A rank's end of its writer process: start it, speak to it, notice its death."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from resumable_training.checkpoint.courtesy import give_way
from resumable_training.contract.framing import Inbox, Message, send

_NOT_MEANT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # for the rank; they reach whole groups
_CLOSE_SECONDS = 60.0  # for retention that is still at work
_ROOT = str(Path(__file__).resolve().parents[2])
# The package is found as here, even where the script has put its place on the path; last, so that nothing in
# that place hides a module of the standard library.
PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    " from resumable_training.checkpoint.writer_main import main; main()"
)


class WriterDied(Exception):
    """The text says how."""


class WriterProcess:
    """One process. All methods are called by the thread that made it: the kernel ends it with that thread."""

    def __init__(self, listener: int = -1) -> None:
        """``listener``: a socket's descriptor that it inherits. Raises OSError when it can't be started."""
        ours, theirs = socket.socketpair()
        given = [theirs.fileno(), *([listener] if listener >= 0 else [])]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_MEANT)  # the new process begins like that
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, _ROOT, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=given,
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        give_way(self._process.pid)  # at once: its own start already is not to cost the ranks a core
        self._socket = ours
        self._inbox = Inbox(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message, *descriptors: int) -> None:
        """Raises WriterDied."""
        try:
            send(self._socket, message, descriptors)
        except OSError as error:
            raise WriterDied(self._how()) from error

    def messages(self, seconds: float = 0.0) -> list[Message]:
        """What it has said, waiting for the first word for up to ``seconds``.

        Raises:
            WriterDied: it is gone, and everything that it said was told before.
        """
        poll = select.poll()  # not select, which knows no descriptors above 1023
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return []
        found = self._inbox.waiting()
        if not found and self._inbox.closed:
            raise WriterDied(self._how())
        return found

    def close(self) -> None:
        """Let it end, once it has done what it is at."""
        try:
            self.send({"kind": "close"})
            self._process.wait(_CLOSE_SECONDS)
        except (WriterDied, subprocess.TimeoutExpired):
            self.kill()
        self._socket.close()

    def kill(self) -> None:
        """End it now. One that waits for a disk goes when that answers; nobody waits for it here."""
        self._process.kill()
        self._socket.close()

    def _how(self) -> str:
        try:
            code: Any = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the checkpoint writer closed its socket"
        return f"the checkpoint writer was ended by {f'signal {-code}' if code < 0 else f'code {code}'}"
