"""The split of a recovery into stages, on a history written by hand."""

import stages


def _entry(at: float, kind: str, attempt: int, **data: object) -> dict[str, object]:
    return {"at": at, "kind": kind, "attempt": attempt, "worker": "train-0-1", "data": data}


def test_stages_add_up_to_the_recovery() -> None:
    """Each stage gets its own seconds and what nothing explains is "other"."""
    phase_ms = {
        "setup": 2000,
        "rendezvous": 100,
        "restoring": 500,
        "warmup": 300,
        "rework": 700,
        "productive": 400,
    }
    history = [
        _entry(9.0, "rank_exited", 1, rank=5),  # before the kill: another story
        _entry(10.1, "rank_exited", 1, rank=1),
        _entry(10.2, "attempt_ended", 1, outcome="failed"),
        _entry(10.25, "assigned", 2),
        _entry(10.35, "ranks_started", 2),
        _entry(14.1, "progress", 2, rank=0, phase_ms=phase_ms),
    ]
    seconds = {name: round(value, 3) for name, value in stages.split(history, 10.0, 14.1).items()}
    assert seconds == {
        "detect": 0.1,
        "stop": 0.1,
        "decide": 0.05,
        "start": 2.1,
        "rendezvous": 0.1,
        "restore": 0.5,
        "warmup": 0.3,
        "redo": 0.7,
        "other": 0.15,
    }


def test_an_empty_history_is_all_other() -> None:
    """Without a history nothing is claimed."""
    seconds = stages.split([], 10.0, 14.0)
    assert seconds["other"] == 4.0
    assert sum(seconds.values()) == 4.0
