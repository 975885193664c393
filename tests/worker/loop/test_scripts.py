"""Unusual but legal scripts, and mistakes that end in an error that says what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from loop_ranks import Ranks


def test_break_save_and_a_second_loop(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """What was saved after ``break`` is where the next attempt's data begins, made after track or not."""
    first = start_ranks("odd_script", 2, stop_by_break_at=4)
    assert first.codes() == [0, 0], first.output()
    assert first.results()[0] == {"began": 0, "position": 24, "step": 6}
    second = start_ranks("odd_script", 2, stop_by_break_at=100)
    assert second.codes() == [0, 0], second.output()
    assert second.results()[0] == {"began": 24, "position": 60, "step": 14}  # 6 steps to the end of 2 epochs
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 3


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("poll", "a step can't be stopped in its middle"),
        ("reduction", "must be 'mean' or 'sum', not 'max'"),
        ("left early", "took 1 of its 3 micro-batches"),
        ("twice", "can be iterated only once"),
        ("save", "run.save() is for after the loop"),
        ("second track", "run.track is called once"),
        ("second start", "called once in a process"),
        ("second data", "called twice with the name 'train'"),
        ("option", "does not know workers; loader options are num_workers"),
        ("iterable", "its position can't be saved"),
    ],
)
def test_mistakes_are_named(start_ranks: Callable[..., Ranks], how: str, text: str) -> None:
    """Each mistake is a user error with its own text."""
    ranks = start_ranks("misuse", 1, checkpoints=None, how=how)
    assert ranks.codes() == [81], ranks.output()
    assert text in ranks.output()
