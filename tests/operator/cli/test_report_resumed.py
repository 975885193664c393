"""What the report says of a recovery that went on from memory."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from resumable_operator.cli.html.sections import endings
from resumable_operator.cli.report import render
from resumable_operator.cli.report_model import build_report
from resumable_operator.cli.report_resumed import Resumed, resumed_by_attempt, resumed_told
from resumable_operator.cli.run_history import HistoryEvent, Lines
from resumable_operator.cli.rundir import JobFile
from resumable_operator.model import Interruption, JobStatus, LedgerStatus
from resumable_training.checkpoint.history import AttemptHistory, Begin, Restored

NAME = "step-00000020.1"
CRASH = Interruption(
    attempt=1, cause="crash", at=10.0, message="killed", size_before=2, size_after=2, resumed_step=20
)

STATUS = JobStatus(phase="Running", ledger=LedgerStatus(started_at=0), interruptions=(CRASH,))
JOB = JobFile("local", "train", "u-1", 0.0, {})


def event(kind: str, at: float, attempt: int, **data: Any) -> HistoryEvent:
    return HistoryEvent(at, "train-0-1", kind, attempt, data)


def resumed(memory: int, storage: int, late: bool) -> Resumed:
    return Resumed(step=20, checkpoint=NAME, memory_bytes=memory, storage_bytes=storage, told_late=late)


def restored(attempt: int = 2, checkpoint: Any = NAME, **more: Any) -> HistoryEvent:
    return event("restored", 12, attempt, step=20, checkpoint=checkpoint, **more)


UNTOLD = "; its ranks did not live to tell that it was stored"


@pytest.mark.parametrize(
    ("memory", "storage", "late", "told"),
    [
        (0, 5_000_000, False, ""),
        (0, 0, False, ""),  # an older library tells neither
        (117_400_000, 0, False, "resumed step 20 from memory (117.4 MB)"),
        (117_400_000, 2_000, False, "resumed step 20 from memory (117.4 MB, 2.0 kB from storage)"),
        (900, 900, False, "resumed step 20 from memory (900 B, 900 B from storage)"),
        (2_000, 117_400_000, False, "resumed step 20 in part from memory (2.0 kB, 117.4 MB from storage)"),
        (900, 0, True, f"resumed step 20 from memory (900 B){UNTOLD}"),
        (0, 900, True, f"resumed step 20{UNTOLD}"),  # another worker's
    ],
)
def test_words(memory: int, storage: int, late: bool, told: str) -> None:
    """Nothing of a restore from storage alone, which is what everybody expects."""
    assert resumed_told(resumed(memory, storage, late)) == told


def test_nothing_is_known_of_an_attempt_that_told_nothing() -> None:
    """Nor of one that began at nothing, or tells what makes no sense."""
    assert resumed_told(None) == ""
    assert resumed_by_attempt([restored(checkpoint=None), restored(3, checkpoint="")]) == {}
    (odd,) = resumed_by_attempt([restored(memory_bytes="many", storage_bytes=None)]).values()
    assert (odd.memory_bytes, odd.storage_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("attempt", "checkpoint", "late"), [(2, NAME, True), (1, NAME, False), (2, "step-00000010.1", False)]
)
def test_what_the_next_attempt_tells_of_its_ranks_did_not(attempt: int, checkpoint: str, late: bool) -> None:
    """The ranks that made it did not live to: else it is a checkpoint like any other."""
    made = event("checkpoint", 11, attempt, step=20, checkpoint=checkpoint)
    saved_later = event("checkpoint", 30, 2, step=40, checkpoint="step-00000040.2")
    found = resumed_by_attempt([made, restored(memory_bytes=900), saved_later])
    assert found == {2: resumed(900, 0, late)}


def test_it_stands_beside_what_was_seen_of_the_ending() -> None:
    """In the terminal and on the page; not where nobody told what came after."""
    told = f"resumed step 20 from memory (900 B){UNTOLD}"
    made = event("checkpoint", 11, 2, step=20, checkpoint=NAME)
    for history, shown in (((made, restored(memory_bytes=900)), True), ((), False)):
        found = build_report(JOB, STATUS, Lines(history, 0), 60.0)
        out = io.StringIO()
        render(found, Console(file=out, width=160))
        assert (told in out.getvalue()) == shown
        assert (told in str(endings(found))) == shown


def test_histories_beside_the_checkpoints_tell_it_too() -> None:
    """Without a run directory, but for whether its ranks told of it."""
    begin, line = Begin(12.0, 0, 2, 2), Restored(12.5, 500, 20, 160, NAME, memory_bytes=900)
    histories = (AttemptHistory(2, begin, line),)
    found = build_report(JOB, STATUS, None, 60.0, histories=histories)
    assert found.endings[0].resumed == resumed(900, 0, False)
