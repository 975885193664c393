"""How ranks' lines look in the log of a pod: written by its agent, read by ``rtj logs``."""

from __future__ import annotations

import re
from typing import Optional, Tuple

AGENT_LEAD = "[agent] "  # leads what the agent says in between, such as that output was dropped
_LED = re.compile(rb"\[attempt (\d+) rank (\d+)\] (.*)", re.DOTALL)


def lead(attempt: int, rank: int) -> str:
    """What is in front of every line that a rank prints."""
    return "[attempt %d rank %d] " % (attempt, rank)


def parse_line(line: bytes) -> Optional[Tuple[int, int, bytes]]:
    """Attempt, rank and text of a line; None: no rank printed it."""
    match = _LED.fullmatch(line)
    return (int(match[1]), int(match[2]), match[3]) if match else None
