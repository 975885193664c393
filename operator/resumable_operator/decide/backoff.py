"""How long to wait before trying again: exponential, with a jitter that is fixed for a job and a try."""

from __future__ import annotations

import hashlib


def delay_seconds(uid: str, count: int, base_seconds: float, longest_seconds: float) -> float:
    """Wait before try ``count`` + 1 (``count`` from 1): doubles, capped, times 0.5 to 1.5.

    The factor is a hash of job and count: decisions draw no random numbers, and two jobs that block each
    other do not come back in step.
    """
    digest = hashlib.sha256(f"{uid}/{count}".encode()).digest()
    factor = 0.5 + int.from_bytes(digest[:4], "big") / 2**32
    return min(longest_seconds, base_seconds * 2.0 ** min(count - 1, 30)) * factor
