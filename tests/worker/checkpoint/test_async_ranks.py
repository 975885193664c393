"""Asynchronous saves of several ranks: who stores what, what plain DCP makes of it, and writers that die."""

from pathlib import Path
from typing import Any

import async_programs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_programs import run_ranks
from test_ranks import assert_same
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore

NEWEST = "step-00000002.1"


def assert_plain_dcp_reads(directory: Path, expected: dict[str, Any], scratch: Path) -> None:
    """Every tensor, by `dcp.load` and by `dcp_to_torch_save`, which know nothing of ours."""
    tensors = expected["tensors"]
    model = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    state: dict[str, Any] = {}
    for key, value in tensors.items():
        if key.startswith("state."):
            parameter, _, name = key.removeprefix("state.").rpartition(".")
            state.setdefault(parameter, {})[name] = value
    template = {
        "model": {key: torch.zeros_like(value) for key, value in model.items()},
        "optimizer": {
            "state": {
                parameter: {name: torch.zeros_like(value) for name, value in values.items()}
                for parameter, values in state.items()
            }
        },
    }
    dcp.load(template, checkpoint_id=directory, no_dist=True)
    dcp_to_torch_save(directory, scratch)
    for found in (template, torch.load(scratch, weights_only=True)):
        for key, value in model.items():
            assert torch.equal(found["model"][key], value), key
        for parameter, values in state.items():
            for name, value in values.items():
                assert torch.equal(found["optimizer"]["state"][parameter][name], value), (parameter, name)


@pytest.mark.parametrize(("kind", "world_size"), [("ddp", 1), ("ddp", 3), ("fsdp", 2), ("hsdp", 4)])
def test_each_byte_is_stored_once_and_all_ranks_store_alike(
    kind: str, world_size: int, tmp_path: Path
) -> None:
    """Values of the step asked for, whatever training did next; read by plain DCP, and by ours elsewhere."""
    root = tmp_path / "store"
    expected = run_ranks(world_size, async_programs.saved_run, tmp_path, str(root), kind)[0]
    assert verify.verify_checkpoint(LocalStore(root), NEWEST).outcome == verify.OK
    sizes = [path.stat().st_size for path in (root / NEWEST).glob("*.distcp")]
    assert len(sizes) == world_size
    assert max(sizes) < 1.1 * sum(sizes) / world_size
    assert sum(sizes) < 1.1 * sum(value.nbytes for value in expected["tensors"].values())
    assert_plain_dcp_reads(root / NEWEST, expected, tmp_path / "all.pt")
    other = 2 if world_size != 2 else 3
    for found in run_ranks(
        other, async_programs.loaded_run, tmp_path, str(root), "fsdp" if kind != "ddp" else "ddp"
    ):
        assert_same(found, expected)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_writer_that_is_killed_costs_one_save(victim: int, tmp_path: Path) -> None:
    """Reported on all ranks as failed, nothing of it stays, and its successor saves the next one."""
    root = tmp_path / "store"
    for ok, message, again in run_ranks(2, async_programs.killed_writer_run, tmp_path, str(root), victim):
        assert not ok
        assert "signal 9" in message or "went away" in message
        assert again
    assert survey(LocalStore(root)).resume_points == ["step-00000003.1", "step-00000001.1"]
    assert survey(LocalStore(root)).incomplete == ()
    assert verify.verify_checkpoint(LocalStore(root), "step-00000003.1").outcome == verify.OK


@pytest.mark.parametrize("how", ["ends", "mute"])
def test_one_rank_without_a_writer_has_all_save_without(how: str, tmp_path: Path) -> None:
    """No rank copies while not all could, nor waits for another in vain; the save itself is whole."""
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.unlike_writers_run, tmp_path, str(root), how)
    assert found == [([False] * 3, True, False)] * 2
    assert survey(LocalStore(root)).resume_points == ["step-00000004.1"]
    assert verify.verify_checkpoint(LocalStore(root), "step-00000004.1").outcome == verify.OK


def test_a_writer_that_hangs_does_not_hold_up_the_next_save(tmp_path: Path) -> None:
    """Its rank ends it when the others are through with that save, and goes on with another writer."""
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.hung_writer_run, tmp_path, str(root))
    assert found == [[True, True], [True, True]]
    assert survey(LocalStore(root)).resume_points == ["step-00000003.1", "step-00000001.1"]
    assert verify.verify_checkpoint(LocalStore(root), "step-00000003.1").outcome == verify.OK


def test_what_only_some_ranks_have_is_stored_by_them(tmp_path: Path) -> None:
    """Slices are for what all ranks have alike; the rest is neither lost nor makes the save fail."""
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.unlike_run, tmp_path, str(root))
    assert found == [{"ok": True, "message": ""}] * 2
    template = {"model": {"common": torch.zeros(3000), "own-0": torch.ones(2000), "own-1": torch.zeros(2000)}}
    dcp.load(template, checkpoint_id=root / "step-00000001.1", no_dist=True)
    assert template["model"]["common"].eq(1).all()
    assert template["model"]["own-0"].eq(0).all()
    assert template["model"]["own-1"].eq(1).all()


def test_tensors_on_parts_of_the_mesh_are_stored_once(tmp_path: Path) -> None:
    """Meshes that hold the same share it, as replicas on one mesh do; plain DCP reads it at another size."""
    root = tmp_path / "store"
    saved = run_ranks(4, async_programs.part_of_a_mesh_run, tmp_path, str(root))
    assert saved == [(True, "", True)] * 4
    directory = root / "step-00000001.1"
    sizes = [path.stat().st_size for path in directory.glob("*.distcp")]
    assert len(sizes) == 4
    assert max(sizes) < 1.1 * sum(sizes) / 4
    whole = async_programs.placed_values()
    assert sum(sizes) < 1.05 * (sum(value.nbytes for value in whole.values()) + 400 * 300 * 4)
    assert run_ranks(3, async_programs.plain_dcp_run, tmp_path, str(directory)) == [True] * 3
    assert verify.verify_checkpoint(LocalStore(root), "step-00000001.1").outcome == verify.OK


@pytest.mark.parametrize(
    ("elements", "user", "steps"), [(7, 1, (1, 2, 3, 4)), (5000, 0, (1, 2, 2, 4))], ids=["later", "same step"]
)
def test_ranks_that_become_unlike_are_planned_for_anew(
    elements: int, user: int, steps: tuple[int, ...], tmp_path: Path
) -> None:
    """State that one rank alone gets: the save that meets it commits nothing, the next one has it.

    Also one of the same step, as the last save of a run: nothing is left in its way.
    """
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.lazy_run, tmp_path, str(root), elements, user, steps)
    for reports, _, _ in found:
        assert [(step, ok) for step, ok, _ in reports] == list(
            zip(steps, [True, False, True, True], strict=True)
        )
        assert "rank 0 and rank 1 do not hold the tensors together" in reports[1][2]
    (told,) = [line for line in found[0][1] if "planned anew" in line]
    assert "optimizer.state.lazy.momentum_buffer is" in told
    assert f"torch.float32[{elements}] on rank {user}" in told
    assert survey(LocalStore(root)).incomplete == ()
    expected = dict(zip(["common", "lazy"], found[user][2], strict=True))
    read = {name: {"momentum_buffer": torch.zeros_like(value)} for name, value in expected.items()}
    dcp.load({"optimizer": {"state": read}}, checkpoint_id=root / "step-00000004.1", no_dist=True)
    for name, value in expected.items():
        assert torch.equal(read[name]["momentum_buffer"], value)


def test_room_is_looked_for_for_all_ranks_of_a_machine(tmp_path: Path) -> None:
    """They take it at the same time: what is enough for one of them may be too little for all."""
    found = run_ranks(2, async_programs.short_run, tmp_path, str(tmp_path / "store"))
    assert [durable for durable, _ in found] == [[False, True]] * 2
    (said,) = found[0][1]
    assert "a copy of the state of 2 ranks needs 2 MiB of memory, 65 MiB are free" in said
