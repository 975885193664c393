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


def test_extras_of_rank_0_that_can_not_be_saved_end_all_ranks(start_ranks: Callable[..., Ranks]) -> None:
    """Before the first step, with one text and as a user error: none is left waiting for the others."""
    ranks = start_ranks("misuse", 3, how="extras")
    assert ranks.codes() == [81] * 3, ranks.output()
    assert ranks.output().count("run.extras.best is a torch.nn.modules.linear.Linear; only plain") == 3


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("nested", "its loops follow one another"),
        ("fraction", "global_batch_size must be a whole number, not 6.5"),
        ("no micro-batch", "micro_batch_size must be at least 1, not 0"),
        ("version", "version must be a string, not 3"),
    ],
)
def test_more_mistakes_are_named(start_ranks: Callable[..., Ranks], how: str, text: str) -> None:
    """Each mistake is a user error with its own text."""
    ranks = start_ranks("odd_scenarios:more_misuse", 1, how=how)
    assert ranks.codes() == [81], ranks.output()
    assert text in ranks.output()


def test_samples_count_over_all_data_sets(start_ranks: Callable[..., Ranks]) -> None:
    """The job's samples only grow, also when another data set begins, and over a resume."""
    first = start_ranks("odd_scenarios:two_sets", 1, until=3)
    assert first.codes() == [0], first.output()
    assert first.results()[0] == {"samples": [0, 8, 16, 20], "at": [16, 4]}
    second = start_ranks("odd_scenarios:two_sets", 1, until=5)
    assert second.codes() == [0], second.output()
    assert second.results()[0] == {"samples": [20, 24, 28], "at": [16, 12]}


def test_an_evaluation_that_fails_on_rank_0_keeps_nobody_waiting(start_ranks: Callable[..., Ranks]) -> None:
    """A script may catch its error: the other ranks are released and all finish."""
    ranks = start_ranks("odd_scenarios:failed_evaluation", 2)
    assert ranks.codes() == [0, 0], ranks.output()
    assert [found["caught"] for found in ranks.results()] == [1, 0]
    assert [found["step"] for found in ranks.results()] == [4, 4]


@pytest.mark.parametrize("how", ["break", "error"])
def test_a_step_that_was_not_applied_is_not_saved(start_ranks: Callable[..., Ranks], how: str) -> None:
    """Left before the optimizer's step: the samples of that step come again."""
    ranks = start_ranks("odd_scenarios:left_before_optimizer", 1, how=how)
    assert ranks.codes() == [0], ranks.output()
    assert ranks.results()[0] == {"step": 2, "position": 12}


def test_torchrun_started_again_counts_from_one(start_ranks: Callable[..., Ranks]) -> None:
    """Its restart count begins anew with each start: a lower one is not an attempt from the past."""
    third = start_ranks("odd_scenarios:short", 2, supervised=False, attempt=3)
    assert third.codes() == [0, 0], third.output()
    again = start_ranks("odd_scenarios:short", 2, supervised=False, attempt=1)
    assert again.codes() == [0, 0], again.output()
    assert again.results()[0] == {"step": 4}


@pytest.mark.parametrize(("how", "code", "text"), [("error", 1, "a mistake"), ("nan", 82, "step 3 is nan")])
def test_a_save_in_flight_lands_when_the_script_fails(
    start_ranks: Callable[..., Ranks], tmp_path: Path, how: str, code: int, text: str
) -> None:
    """Without an agent the writer ends with its rank: that waits for what it has copied, and says so."""
    ranks = start_ranks("odd_scenarios:fails_with_a_save_in_flight", 1, supervised=False, how=how)
    assert ranks.codes() == [code], ranks.output()
    assert text in ranks.output()
    assert "ends when the checkpoint in flight is stored" in ranks.output()
    assert (tmp_path / "checkpoints" / "step-00000002.1" / ".metadata").exists()
