"""Where the time of one of our recoveries went (pure; tested by test_stages.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resumable_training.contract import events

STAGES = ("detect", "stop", "decide", "start", "rendezvous", "restore", "warmup", "redo", "other")
WITNESSES = (events.RANK_EXITED, events.HANG, events.PEER_UNREACHABLE, events.ATTEMPT_ENDED)


def split(history: Iterable[Mapping[str, Any]], struck_at: float, recovered_at: float) -> dict[str, float]:
    """Seconds of each stage from ``struck_at`` to ``recovered_at`` (wall clock), which they add up to.

    detect: strike to the first witness; stop: to the last survivor's report that its ranks are gone; decide:
    to the first agent that holds the next assignment; start: to the end of rank 0's set-up (process, imports,
    the script before the group); then rank 0's own phases of the new attempt. What is left, the first new
    step too, is "other".
    """
    entries = [entry for entry in history if entry["at"] >= struck_at]
    detected = _first(entries, WITNESSES, struck_at)
    assigned = _first(entries, (events.ASSIGNED,), detected)
    stopped = max(
        (e["at"] for e in entries if e["kind"] == events.ATTEMPT_ENDED and e["at"] <= assigned),
        default=detected,
    )
    started = _first(entries, (events.RANKS_STARTED,), assigned)
    phases = _rank_phases(entries, recovered_at)
    seconds = {
        "detect": detected - struck_at,
        "stop": stopped - detected,
        "decide": assigned - stopped,
        "start": started - assigned + phases.get("setup", 0.0),
        "rendezvous": phases.get("rendezvous", 0.0),
        "restore": phases.get("restoring", 0.0),
        "warmup": phases.get("warmup", 0.0),
        "redo": phases.get("rework", 0.0),
    }
    seconds["other"] = (recovered_at - struck_at) - sum(seconds.values())
    return seconds


def ledger_stages(status: Mapping[str, Any], struck_at: float) -> dict[str, float] | None:
    """Seconds by stage of the newest interruption after ``struck_at``, as the job's own ledger has them.

    ``status``: as it is stored. None: it goes on, or the ending was planned.
    """
    endings = [ending for ending in status["interruptions"] if ending["at"] >= struck_at]
    return next((dict(e["stages"]) for e in reversed(endings) if e.get("stages") is not None), None)


def _first(entries: list[Mapping[str, Any]], kinds: tuple[str, ...], otherwise: float) -> float:
    return min((e["at"] for e in entries if e["kind"] in kinds and e["at"] >= otherwise), default=otherwise)


def _rank_phases(entries: list[Mapping[str, Any]], recovered_at: float) -> dict[str, float]:
    """Rank 0's seconds by phase in the newest attempt, from its first report after the recovery."""
    reports = [e for e in entries if e["kind"] == events.PROGRESS and e["data"]["rank"] == 0]
    newest = max((e["attempt"] for e in reports), default=0)
    own = [e for e in reports if e["attempt"] == newest]
    late = [e for e in own if e["at"] >= recovered_at] or own[-1:]
    return {name: ms / 1000 for e in late[:1] for name, ms in e["data"]["phase_ms"].items()}
