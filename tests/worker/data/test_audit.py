"""The audit accepts exactly the histories in which every sample counted once, in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resumable_training.contract.manifest import Record
from resumable_training.data.audit import Consumed, Stretch, audit, lineage, main, read_traces


def _part(attempt: int, first: int, end: int, step: int = 1) -> Consumed:
    positions = tuple(range(first, end))
    return Consumed(attempt, step, positions, tuple(position + 100 for position in positions))


def _id_at(position: int) -> int:
    return position + 100


LINE = [Stretch(1, 0, 20), Stretch(3, 20, None)]


def test_lineage_walks_back_from_the_newest_record() -> None:
    """Each record contributes from its parent's position up to where its successor resumed."""
    records = [
        Record(1, "uid", 1, None),
        Record(2, "uid", 2, "step-00000002.1", 2, 20),
        Record(3, "uid", 3, "step-00000002.1", 2, 20),
    ]
    assert lineage(records) == LINE


def test_lost_work_beyond_the_resume_point_is_not_counted() -> None:
    """What an attempt did after the checkpoint that was resumed, and attempts off the chain, don't matter."""
    consumed = [_part(1, 0, 30), _part(2, 20, 40), _part(3, 20, 50)]
    verdict = audit(LINE, consumed, _id_at, 50)
    assert verdict.ok
    assert (verdict.samples, verdict.attempts) == (50, (1, 3))


@pytest.mark.parametrize(
    ("consumed", "problem"),
    [
        ([_part(1, 0, 19), _part(3, 20, 50)], "1 position was skipped, the first is 19"),
        ([_part(1, 0, 20), _part(3, 20, 50), _part(3, 49, 50)], "position 49 was consumed twice"),
        ([_part(1, 0, 20), _part(3, 20, 49)], "1 position was skipped, the first is 49"),
        ([_part(1, 0, 20), _part(3, 20, 52)], "2 positions lie beyond the last expected sample 49"),
        (
            [_part(1, 0, 20), Consumed(3, 1, tuple(range(20, 50)), tuple(range(20, 50)))],
            "gave sample 20, the order says 120",
        ),
    ],
)
def test_every_kind_of_damage_is_named(consumed: list[Consumed], problem: str) -> None:
    """Skipped, repeated, surplus and wrong samples are each found and said."""
    verdict = audit(LINE, consumed, _id_at, 50)
    assert not verdict.ok
    assert any(problem in text for text in verdict.problems)


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """A torn last line of a trace does not end the audit; the step it belongs to was never counted."""
    whole = json.dumps({"step": 1, "first_position": 0, "positions": [0, 1], "ids": [5, 6]})
    (tmp_path / "attempt-00002-rank-00001.jsonl").write_text(whole + "\n" + whole[:20])
    assert read_traces(tmp_path) == [Consumed(2, 1, (0, 1), (5, 6))]


def test_an_empty_store_fails_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No checkpoint, no proof: exit code 1 and a message."""
    assert main(["--traces", str(tmp_path), "--store", str(tmp_path), "--json"]) == 1
    assert "no complete checkpoint" in json.loads(capsys.readouterr().out)["problems"][0]
