"""A drain request ends a real training at one agreed step, with everything committed, wherever it is."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from loop_ranks import Ranks, eventually

from resumable_training.contract.manifest import parse_checkpoint_name

DRAINED = 80


def newest_step(checkpoints: Path) -> int:
    return max(found[0] for path in checkpoints.iterdir() if (found := parse_checkpoint_name(path.name)))


def drained(ranks: Ranks, tmp_path: Path) -> int:
    """All ranks say drained; returns the committed step, which rank 0 reported to its agent."""
    assert ranks.codes() == [DRAINED] * len(ranks.pids), ranks.output()
    step = newest_step(tmp_path / "checkpoints")
    assert ranks.agents[0].kinds("checkpoint")[-1]["step"] == step
    assert f"stopped after step {step}" in ranks.output()
    return step


@pytest.mark.parametrize("asked", [0, 2])
def test_drain_between_steps(start_ranks: Callable[..., Ranks], tmp_path: Path, asked: int) -> None:
    """Any rank's agent may ask; the next attempt starts at the committed step and finishes."""
    signal_file = tmp_path / "go"
    slow = {str(step): 0.02 for step in range(1, 1000)}
    ranks = start_ranks(
        "train", 3, until=1000, step_seconds=slow, signal_file=str(signal_file), signal_step=4
    )
    eventually(signal_file.exists)
    ranks.agents[asked].send(kind="drain", reason="test", seconds=30)
    step = drained(ranks, tmp_path)
    assert 4 <= step < 500
    assert {message["rank"] for agent in ranks.agents for message in agent.kinds("hello")} == {0, 1, 2}
    again = start_ranks("train", 2, until=step + 2)
    assert again.codes() == [0, 0], again.output()
    assert again.results()[0]["began"] == step
    assert again.agents[0].kinds("restored")[0]["step"] == step


def test_drain_before_the_first_step_commits_nothing(
    start_ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    """A request that is there from the beginning stops before step 1 of a fresh job."""
    ranks = start_ranks("train", 2, until=50)
    ranks.agents[1].send(kind="drain", reason="early", seconds=30)
    assert set(ranks.codes()) <= {DRAINED}, ranks.output()
    # Whether a step was begun first is a race; if none was, nothing is committed.
    saved = [path for path in (tmp_path / "checkpoints").iterdir() if parse_checkpoint_name(path.name)]
    assert len(saved) <= 1


def test_drain_in_a_long_first_step(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """The step in the making is finished and committed, and no other is begun."""
    signal_file = tmp_path / "go"
    ranks = start_ranks("train", 2, until=50, step_seconds={"1": 1.0}, signal_file=str(signal_file))
    eventually(signal_file.exists)
    ranks.agents[1].send(kind="drain", reason="test", seconds=30)
    assert drained(ranks, tmp_path) == 1


@pytest.mark.parametrize("how", ["all", "main_only"])
def test_drain_in_an_evaluation(start_ranks: Callable[..., Ranks], tmp_path: Path, how: str) -> None:
    """An evaluation of ten minutes is left at once, with the state of the step before it; nothing that the
    evaluation drew is in the weights after the resume, and the script can learn that it was cut."""
    signal_file = tmp_path / "go"
    evaluate = {"every": 3, "batches": 6000, "seconds": 0.1, "how": how, "signal_file": str(signal_file)}
    ranks = start_ranks("train", 3, until=50, evaluate=evaluate)
    eventually(signal_file.exists)
    eventually(lambda: ranks.progress(2).phase == "evaluating")
    began = time.monotonic()
    ranks.agents[2].send(kind="drain", reason="test", seconds=30)
    assert drained(ranks, tmp_path) == 3
    assert time.monotonic() - began < 30
    short = {"every": 3, "batches": 2, "seconds": 0, "how": how}
    whole = start_ranks("train", 3, checkpoints="whole", until=5, evaluate=short)
    assert whole.codes() == [0] * 3
    resumed = start_ranks("train", 3, until=5, evaluate=short)
    assert resumed.codes() == [0] * 3, resumed.output()
    for before, after in zip(whole.results(), resumed.results(), strict=True):
        assert after["began"] == 3
        assert after["digest"] == before["digest"]
        assert after["evaluation_cut"]
        assert not before["evaluation_cut"]


def test_drain_while_rank_0_alone_evaluates(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """The others are in the next step already: rank 0 finishes, joins it, and that step is committed.

    Meanwhile the others' pages show that they wait for an evaluation, so that nobody calls it a hang.
    """
    signal_file = tmp_path / "go"
    evaluate = {"every": 3, "batches": 12, "seconds": 0.1, "how": "rank_0", "signal_file": str(signal_file)}
    ranks = start_ranks("train", 2, until=50, evaluate=evaluate)
    eventually(signal_file.exists)
    eventually(lambda: ranks.progress(1).phase == "evaluating")
    ranks.agents[1].send(kind="drain", reason="test", seconds=30)
    assert drained(ranks, tmp_path) == 4


@pytest.mark.parametrize(("evaluated", "committed"), [(0, 1), (3, 3)])
def test_drain_while_others_wait_for_the_word_of_rank_0(
    start_ranks: Callable[..., Ranks], tmp_path: Path, evaluated: int, committed: int
) -> None:
    """Which evaluates alone, before a loop or where a save is due: it commits nothing before it has met them
    where they wait. What it says about saves would else meet the first words of a commit."""
    waits = tmp_path / "waits"
    evaluate = {"every": evaluated, "batches": 100_000, "seconds": 0.01, "how": "until_drain"}
    config = json.dumps({"every_steps": 3})
    ranks = start_ranks("train", 2, until=50, evaluate={**evaluate, "waits": str(waits)}, config=config)
    eventually(waits.exists)
    ranks.agents[1].send(kind="drain", reason="test", seconds=30)
    assert drained(ranks, tmp_path) == committed


def test_drain_while_rank_0_alone_evaluates_after_the_loop(
    start_ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    """All is committed, and the others are at their end: it leaves the evaluation at once, and alone."""
    signal_file = tmp_path / "go"
    evaluate = {"every": -1, "batches": 100_000, "seconds": 0.01, "how": "rank_0"}
    ranks = start_ranks("train", 2, until=2, evaluate={**evaluate, "signal_file": str(signal_file)})
    eventually(signal_file.exists)
    ranks.agents[1].send(kind="drain", reason="test", seconds=30)
    assert ranks.codes() == [DRAINED, 0], ranks.output()
    assert newest_step(tmp_path / "checkpoints") == 2


def test_sigterm_drains_without_an_agent(start_ranks: Callable[..., Ranks], tmp_path: Path, nursery) -> None:
    """Under torchrun, SIGTERM to one rank is a drain request to all."""
    signal_file = tmp_path / "go"
    slow = {str(step): 0.02 for step in range(1, 1000)}
    ranks = start_ranks(
        "train",
        2,
        supervised=False,
        until=1000,
        step_seconds=slow,
        signal_file=str(signal_file),
        signal_step=3,
    )
    eventually(signal_file.exists)
    nursery.ask(do="kill", pid=ranks.pids[1], signal=15)
    assert ranks.codes() == [DRAINED] * 2, ranks.output()
    assert newest_step(tmp_path / "checkpoints") >= 3


def test_settings_change_live(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """A new interval from the agent is followed by all ranks within the next announcements."""
    signal_file = tmp_path / "go"
    slow = {str(step): 0.02 for step in range(1, 1000)}
    ranks = start_ranks(
        "train",
        2,
        until=1000,
        step_seconds=slow,
        config=json.dumps({"every_steps": 100000}),
        signal_file=str(signal_file),
        signal_step=2,
    )
    eventually(signal_file.exists)
    settings = {"directory": str(tmp_path / "checkpoints"), "every_steps": 5}
    ranks.agents[0].send(kind="settings", checkpoint=settings)
    eventually(lambda: len(ranks.agents[0].kinds("checkpoint")) >= 2)
    ranks.agents[0].send(kind="drain", reason="enough", seconds=30)
    assert ranks.codes() == [DRAINED] * 2, ranks.output()
    steps = [message["step"] for message in ranks.agents[0].kinds("checkpoint")]
    assert all(step % 5 == 0 for step in steps[:2])
    assert ranks.agents[0].kinds("checkpoint")[0]["interval_steps"] == 5
