"""Names for the moments of a save, so that a test can end a process at exactly one of them. No torch.

Every act that a kill could tear apart from the next one stands between two calls of ``moment``. All names are
found by reading the code, so a campaign that kills at each of them misses none.
"""

from __future__ import annotations

import os
import signal

WISH = "RESUMABLE_MOMENT"  # a moment's name, or "<name>@<rank>"
NOTE = (
    "RESUMABLE_MOMENT_NOTE"  # a file that is made when it came to that; while it exists, nothing dies again
)
# Who dies. "group": everything in this process group at once, as with a machine. "rank": the rank of the
# writer that has come to it, which itself goes on.
WHO = "RESUMABLE_MOMENT_WHO"


def moment(name: str) -> None:
    """The process is at ``name`` now. Nothing happens unless the environment wants it to die there."""
    wish = os.environ.get(WISH)
    if wish is None or wish not in (name, f"{name}@{os.environ.get('RANK', '0')}"):
        return
    note = os.environ.get(NOTE)
    if note is not None:
        try:
            os.close(os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    victims = {"group": 0, "rank": os.getppid()}
    os.kill(victims.get(os.environ.get(WHO, ""), os.getpid()), signal.SIGKILL)
