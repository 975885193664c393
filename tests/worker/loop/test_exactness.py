"""Weights, samples and learning rates after kills are those of a training that nobody disturbed."""

import json
from collections.abc import Callable

import pytest
from loop_ranks import Ranks

SAVE_EVERY_3 = json.dumps({"every_steps": 3})


@pytest.mark.parametrize(
    ("world_size", "wrap"),
    [(1, "ddp"), (2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp")],
)
def test_weights_are_bit_identical_after_a_kill(
    start_ranks: Callable[..., Ranks], world_size: int, wrap: str
) -> None:
    """One world size, killed twice in mid-interval: weights, rates and losses equal the undisturbed run's."""
    kill_twice(start_ranks, world_size, wrap, {6})


def test_weights_are_bit_identical_whichever_save_has_landed(start_ranks: Callable[..., Ranks]) -> None:
    """Saves are under way while training goes on and is killed: the last one that landed is as good."""
    kill_twice(start_ranks, 2, "ddp", {0, 3, 4, 5, 6, 7}, settle=False)


def kill_twice(
    start_ranks: Callable[..., Ranks], world_size: int, wrap: str, begins: set[int], **more: bool
) -> None:
    """``begins``: steps that the third attempt may resume from."""
    options = {"until": 11, "wrap": wrap, "width": 32, **more}
    whole = start_ranks("train", world_size, config=SAVE_EVERY_3, checkpoints="a", **options)
    assert whole.codes() == [0] * world_size, whole.output()
    for step in (5, 8):
        killed = start_ranks(
            "train",
            world_size,
            config=SAVE_EVERY_3,
            checkpoints="b",
            die={"step": step, "rank": world_size - 1},
            **options,
        )
        assert killed.wait_one(world_size - 1) == -9, killed.output()
        killed.kill_all()
        killed.codes()
    resumed = start_ranks("train", world_size, config=SAVE_EVERY_3, checkpoints="b", **options)
    assert resumed.codes() == [0] * world_size, resumed.output()
    for before, after in zip(whole.results(), resumed.results(), strict=True):
        assert after["began"] in begins
        assert after["digest"] == before["digest"]
        assert after["losses"] == before["losses"][after["began"] :]
        assert after["rates"] == before["rates"]
        assert after["extras"] == {"steps_seen": 11}


def test_sample_sequence_is_exact_across_world_sizes(start_ranks: Callable[..., Ranks], tmp_path) -> None:
    """1, 3, 2 ranks in turn, over an epoch's end: the trace of the surviving steps is the order itself."""
    from resumable_training.data.order import Stream

    traces = tmp_path / "traces"
    config = json.dumps({"every_steps": 4})
    for attempt, (world_size, until) in enumerate([(1, 4), (3, 9), (2, 14)], 1):
        ranks = start_ranks(
            "train",
            world_size,
            config=config,
            environment={"RESUMABLE_TRACE_DIR": str(traces)},
            until=until,
            length=37,
            global_batch=7,
            dropout=0.0,
        )
        assert ranks.codes() == [0] * world_size, ranks.output()
        assert len(list(traces.glob(f"attempt-{attempt:05d}-rank-*.jsonl"))) == world_size
    lines = [json.loads(line) for path in traces.iterdir() for line in path.read_text().splitlines()]
    consumed = sorted(
        (position, sample)
        for line in lines
        for position, sample in zip(line["positions"], line["ids"], strict=True)
    )
    stream = Stream(37, 3)
    assert consumed == list(enumerate(stream.ids(0, 14 * 7).tolist()))
    assert {line["first_position"] for line in lines if line["step"] == 10} == {63}


def test_weights_agree_within_rounding_across_world_sizes(start_ranks: Callable[..., Ranks]) -> None:
    """Without per-rank randomness, 2 then 3 ranks give the losses of one rank to float tolerance."""
    options = {"dropout": 0.0, "length": 40, "global_batch": 7}
    alone = start_ranks("train", 1, checkpoints="a", config=SAVE_EVERY_3, until=8, **options)
    assert alone.codes() == [0]
    first = start_ranks("train", 2, checkpoints="b", config=SAVE_EVERY_3, until=3, **options)
    assert first.codes() == [0, 0]
    then = start_ranks("train", 3, checkpoints="b", config=SAVE_EVERY_3, until=8, **options)
    assert then.codes() == [0, 0, 0], then.output()
    expected = alone.results()[0]["losses"][3:]
    summed = [
        sum(losses) / 3 for losses in zip(*(result["losses"] for result in then.results()), strict=True)
    ]
    assert summed == pytest.approx(expected, rel=1e-3)


def test_loader_processes_change_nothing(start_ranks: Callable[..., Ranks]) -> None:
    """Samples with random augmentation are the same from this process and from loader processes."""
    found = []
    for workers in (0, 2):
        ranks = start_ranks("train", 2, checkpoints=f"w{workers}", until=5, data_workers=workers)
        assert ranks.codes() == [0, 0], ranks.output()
        found.append(ranks.results()[0]["digest"])
    assert found[0] == found[1]


def test_evaluation_leaves_random_numbers_alone(start_ranks: Callable[..., Ranks]) -> None:
    """Drawing numbers inside a declared evaluation changes no weight; leaving it by break is no harm."""
    found = []
    for batches in (1, 4):
        how = {"every": 2, "batches": batches, "seconds": 0, "how": "main_only", "break_at": 3}
        ranks = start_ranks("train", 2, checkpoints=f"b{batches}", until=5, evaluate=how)
        assert ranks.codes() == [0, 0], ranks.output()
        found.append(ranks.results()[0]["digest"])
    assert found[0] == found[1]


def test_another_data_set_is_refused(start_ranks: Callable[..., Ranks]) -> None:
    """A changed length and seed at resume end in USER_ERROR with a text that names both and the way out."""
    assert start_ranks("train", 1, until=2).codes() == [0]
    changed = start_ranks("train", 1, until=4, length=65, data_seed=4)
    assert changed.codes() == [81]
    for words in (
        "number of samples was 64 and is now 65",
        "seed of the order was 3 and is now 4",
        "accept_changes",
    ):
        assert words in changed.output()


def test_another_global_batch_is_allowed(start_ranks: Callable[..., Ranks]) -> None:
    """The position is in samples, so a larger batch goes on at the same sample."""
    assert start_ranks("train", 1, until=3, global_batch=10).codes() == [0]
    ranks = start_ranks("train", 1, until=4, global_batch=40, length=64)
    assert ranks.codes() == [0], ranks.output()
    assert ranks.results()[0]["epoch"] == (30 + 40) // 64


@pytest.mark.parametrize(("world_size", "wrap"), [(2, "ddp"), (3, "ddp"), (2, "fsdp")])
def test_running_statistics_are_rank_0s(
    start_ranks: Callable[..., Ranks], world_size: int, wrap: str
) -> None:
    """Buffers that differ between ranks come back as rank 0 had them, in the model and in its average."""
    whole = start_ranks("odd_scenarios:batch_norm", world_size, checkpoints="a", until=6, wrap=wrap)
    assert whole.codes() == [0] * world_size, whole.output()
    for until in (3, 6):
        ranks = start_ranks("odd_scenarios:batch_norm", world_size, checkpoints="b", until=until, wrap=wrap)
        assert ranks.codes() == [0] * world_size, ranks.output()
    assert ranks.results()[0] == whole.results()[0]
