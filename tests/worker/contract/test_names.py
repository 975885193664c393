"""Names of checkpoints, records and workers: exact, and only ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract import env, events, exitcodes, labels, manifest, output, rankwire
from resumable_training.contract.progress import PHASES


@given(st.integers(0, 10**12), st.integers(0, 10**6))
def test_checkpoint_names_round_trip(step: int, record: int) -> None:
    """Step and record come back from the name."""
    assert manifest.parse_checkpoint_name(manifest.checkpoint_name(step, record)) == (step, record)


@given(st.integers(0, 10**10))
def test_record_names_round_trip(seq: int) -> None:
    """The number comes back from the name."""
    assert manifest.parse_record_name(manifest.record_name(seq)) == seq


@given(st.lists(st.integers(0, 99_999_999), unique=True, min_size=2))
def test_names_sort_as_their_numbers(numbers: list[int]) -> None:
    """A listing in name order is in the order of numbers."""
    names = [manifest.record_name(number) for number in sorted(numbers)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        "step-00000100",
        "step-00000100.7.tmp",
        "step-00000100.backup",
        "step-100.7",
        "xstep-00000100.7",
        "",
        "7",
    ],
)
def test_what_is_not_a_checkpoint(name: str) -> None:
    """Only the full name counts."""
    assert manifest.parse_checkpoint_name(name) is None


@pytest.mark.parametrize("name", ["7.json", "00000007.json.tmp", "00000007", ".00000007.json"])
def test_what_is_not_a_record(name: str) -> None:
    """Only the full name counts."""
    assert manifest.parse_record_name(name) is None


def test_worker_names() -> None:
    """Place and incarnation are in the name."""
    assert labels.worker_name("train", 2, 1) == "train-2-1"


def test_every_exit_code_has_a_meaning() -> None:
    """Codes are distinct, in 80-89 but for success, and described."""
    codes = {
        name: value
        for name, value in vars(exitcodes).items()
        if name.isupper() and isinstance(value, int) and not isinstance(value, bool)
    }
    assert set(codes.values()) == set(exitcodes.MEANING)
    assert all(80 <= code <= 89 for name, code in codes.items() if name != "SUCCESS")


@pytest.mark.parametrize(
    ("code", "phrase"),
    [(0, "finished"), (80, "drained"), (3, "exit code 3"), (-9, "SIGKILL"), (-99, "signal 99")],
)
def test_exit_in_words(code: int, phrase: str) -> None:
    """Exit codes and signals are said in words."""
    assert phrase in exitcodes.describe_exit(code)


def test_messages_of_ranks_are_events_of_the_same_name() -> None:
    """The agent passes reports on under the name they came with."""
    kinds = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    assert set(rankwire.FROM_RANK) - {rankwire.HELLO} <= kinds


def test_environment_names_are_ours_and_distinct() -> None:
    """No two names are the same, and none can meet a user's variable."""
    names = [value for name, value in vars(env).items() if name.isupper() and isinstance(value, str)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("RESUMABLE_") for name in names)
    assert len(set(PHASES)) == len(PHASES)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.binary())
def test_lines_of_output_round_trip(attempt: int, rank: int, text: bytes) -> None:
    """Whatever a rank prints, its line tells whose it is."""
    assert output.parse_line(output.lead(attempt, rank).encode() + text) == (attempt, rank, text)


@pytest.mark.parametrize("line", [b"", b"[agent] x", b"[attempt x rank 1] y", b" [attempt 1 rank 1] y"])
def test_what_is_not_a_rank_s_line(line: bytes) -> None:
    """Only the full lead counts."""
    assert output.parse_line(line) is None
