"""PURE: from what a rank left behind (page, output, exit code) to what the operator is told."""

from __future__ import annotations

import re
import signal
from typing import Dict, Optional, Sequence

from resumable_training.agent.hang import BEFORE_FIRST_STEP
from resumable_training.contract import exitcodes
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.progress import Progress

# What a rank prints when a peer went away in a collective; the fault is the peer's, not its own.
PEER_ERRORS = re.compile(
    "|".join(
        (
            r"Connection closed by peer",
            r"Connection reset by peer",
            r"Connection refused",
            r"Broken pipe",
            r"remote process exited",
            r"Socket Timeout",
            r"Timed out waiting \d+ms for (recv|send) operation",
            r"Application timeout caused pair closure",
            r"recvValue failed|sendBytes failed|recv, got 0 bytes",
            r"Watchdog caught collective operation timeout",
            r"ncclRemoteError|ncclSystemError|NCCL communicator was aborted",
            r"DistBackendError|DistNetworkError",
        )
    )
)
_LEFT_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


def progress_report(rank: int, progress: Progress) -> ProgressReport:
    """The report of a rank that uses the library.

    Each phase is rounded down to milliseconds and ``settled_ms`` is their sum after the start: so no phase
    ever runs backwards and the sum is exact.
    """
    phase_ms = {name: value // 1_000_000 for name, value in progress.phase_ns.items() if value >= 1_000_000}
    started_ms = progress.started_ns // 1_000_000
    return ProgressReport(
        rank=rank,
        started_ms=started_ms,
        settled_ms=started_ms + sum(phase_ms.values()),
        phase=progress.phase,
        step=progress.step,
        samples=progress.samples,
        phase_ms=phase_ms,
        rework_steps=progress.rework_steps,
        step_seconds=finite(progress.step_seconds) or 0.0,
        loss=finite(progress.loss),
    )


def finite(value: Optional[float]) -> Optional[float]:
    """None for what JSON can't carry: infinities and NaN."""
    return value if value is not None and abs(value) < float("inf") else None


def opaque_report(rank: int, started_ms: int, now_ms: int) -> ProgressReport:
    """The report of a rank that does not use the library: it runs, that is all we know."""
    phase_ms: Dict[str, int] = {"setup": now_ms - started_ms}
    return ProgressReport(rank, started_ms, now_ms, "setup", 0, 0, phase_ms, uses_library=False)


def before_first_step(progress: Optional[Progress], base_step: int) -> bool:
    """Has the rank done no step in this attempt? ``base_step``: last step count seen before the first one."""
    if progress is None or progress.phase in BEFORE_FIRST_STEP:
        return True
    worked = progress.phase_ns.get("productive", 0) + progress.phase_ns.get("rework", 0)
    return worked == 0 and progress.step <= base_step


def peer_suspect(code: int, tail: Sequence[str]) -> bool:
    """Does the exit look like the consequence of a peer's end?"""
    if code == exitcodes.PEER_LOST:
        return True
    own_word = code in exitcodes.MEANING
    killed = code < 0 and code != -signal.SIGABRT  # an NCCL watchdog ends its process by abort()
    return not own_word and not killed and _names_peer(tail)


def _names_peer(tail: Sequence[str]) -> bool:
    return any(PEER_ERRORS.search(line) for line in tail)


def clean_exit(code: int, asked_by_signal: bool) -> bool:
    """Did the rank end as it should? ``asked_by_signal``: we sent SIGTERM to a script without the library."""
    return code in (exitcodes.SUCCESS, exitcodes.DRAINED) or (asked_by_signal and left_by_sigterm(code))


def left_by_sigterm(code: int) -> bool:
    """Killed by SIGTERM, or a shell's word that its command was."""
    return code in _LEFT_BY_SIGTERM
