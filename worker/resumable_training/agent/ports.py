"""Where the master of an attempt listens: below the ephemeral range, seeded by job and attempt.

A port in the ephemeral range can be taken by any outgoing connection between choosing and binding it. The
seed keeps two attempts, and two jobs on one machine, apart.

An agent holds such a port ready all the time and tells it with its state: then the next attempt with its rank
0 can be sent to all members at once. Held means bound: nobody else gets it until its ranks are started.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import List, Optional, Tuple

LOWEST = 20000
FALLBACK = (20000, 32000)
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST_ROOM = 1000


def master_range(ephemeral: Optional[Tuple[int, int]]) -> Tuple[int, int]:
    """PURE: [low, high) of ports to choose from, given the ephemeral range (None: unknown)."""
    if ephemeral is None:
        return FALLBACK
    low, high = ephemeral
    if low - LOWEST >= _LEAST_ROOM:
        return LOWEST, low
    if low - 1024 >= _LEAST_ROOM:
        return 1024, low
    if 65535 - high >= _LEAST_ROOM:
        return high + 1, 65536
    return FALLBACK


def port_candidates(job_uid: str, attempt: int, ports: Tuple[int, int], count: int = 32) -> List[int]:
    """PURE: ports to try, in order; another attempt or job gets another sequence."""
    low, high = ports
    digests = (
        hashlib.sha256(("%s/%d/%d" % (job_uid, attempt, index)).encode()).digest() for index in range(count)
    )
    return [low + int.from_bytes(digest[:8], "big") % (high - low) for digest in digests]


def ephemeral_range() -> Optional[Tuple[int, int]]:
    """The kernel's range for outgoing connections; None where it can't be read (macOS)."""
    try:
        low, high = _RANGE_FILE.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return None


def bindable(address: str, port: int) -> bool:
    """Can rank 0 bind this port? On ``address``, and on the wildcard address that torch's store binds."""
    return all(_bind(_family(address), where, port) for where in (address, _wildcard(address)))


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _wildcard(address: str) -> str:
    return "::" if ":" in address else "0.0.0.0"  # noqa: S104 - nothing is served there


def _bind(family: int, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
        return True


class HeldPort:
    """A port that nobody else can bind until it is let go."""

    def __init__(self, number: int, holder: socket.socket) -> None:
        self.number = number
        self._holder = holder

    def let_go(self) -> None:
        """It may be bound now. Again: nothing new."""
        self._holder.close()


def hold_port(address: str, seed: str, attempt: int, but: int = 0) -> Optional[HeldPort]:
    """The first of the candidates that can be had, other than ``but``; None when there is none."""
    for port in port_candidates(seed, attempt, master_range(ephemeral_range())):
        if port != but and _bind(_family(address), address, port):
            holder = _hold(address, port)
            if holder is not None:
                return HeldPort(port, holder)
    return None


def _hold(address: str, port: int) -> Optional[socket.socket]:
    """Bound to the wildcard address, without SO_REUSEADDR: that keeps away everybody from all addresses."""
    holder = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        holder.bind((_wildcard(address), port))
    except OSError:
        holder.close()
        return None
    return holder


def choose_master_port(address: str, job_uid: str, attempt: int) -> Optional[int]:
    """A port that was bindable just now, or None when none of the candidates was."""
    candidates = port_candidates(job_uid, attempt, master_range(ephemeral_range()))
    return next((port for port in candidates if bindable(address, port)), None)
