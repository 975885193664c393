"""Several ranks read each byte of a checkpoint once, and end with the values that were saved."""

from pathlib import Path
from typing import Any

import foreign_programs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from engine_job import Job
from rank_programs import make_state, run_ranks

from resumable_training.contract.manifest import MARKER_FILE

BULKY_BYTES = 20 * 4 * (1 << 21)
SPARE_BYTES = 64 << 20
STATE_BYTES = 3 * 4 * (2 * (1100 * 1100 + 1100) + 7 * 1100 + 7)


def loaded(tmp_path: Path, root: str, kind: str, world_size: int, attempt: int) -> list[dict[str, Any]]:
    return run_ranks(world_size, foreign_programs.load_wide, tmp_path, root, kind, attempt)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_byte_is_read_once_by_the_whole_job(kind: str, tmp_path: Path) -> None:
    """Saved at three ranks, loaded at one to four: no range is read twice, none is left out."""
    root = str(tmp_path / "store")
    saved = run_ranks(3, foreign_programs.save_wide, tmp_path, root, kind)[0]
    for attempt, world_size in enumerate((1, 2, 3, 4), 2):
        found = loaded(tmp_path, root, kind, world_size, attempt)
        assert all(one["values"] == saved for one in found)
        ranges = [one for rank in found for one in rank["ranges"]]
        assert len(ranges) == len(set(ranges))
        assert STATE_BYTES <= sum(rank["bytes"] for rank in found) <= 1.1 * STATE_BYTES
        if kind == "fsdp" and world_size == 3:
            assert all(len({file for file, _, _ in rank["ranges"]}) <= 2 for rank in found)
        assert max(rank["bytes"] for rank in found) <= STATE_BYTES / world_size + 16 * 1024 * 1024


def test_ranks_that_do_not_see_each_other_send_what_they_have_read(tmp_path: Path) -> None:
    """On several machines, or where one rank can't open the others' memory: still once, and all have all."""
    root = str(tmp_path / "store")
    saved = run_ranks(2, foreign_programs.save_wide, tmp_path, root, "ddp")[0]
    for attempt, where in enumerate(("apart", "blind"), 2):
        found = run_ranks(3, foreign_programs.load_wide, tmp_path, root, "ddp", attempt, where)
        assert all(one["values"] == saved for one in found)
        assert STATE_BYTES <= sum(rank["bytes"] for rank in found) <= 1.1 * STATE_BYTES


def test_a_rank_holds_its_share_beside_its_state(tmp_path: Path) -> None:
    """1/N of the checkpoint and 64 MB, with one rank the whole: on one machine, on several, sharded."""
    root = str(tmp_path / "store")
    run_ranks(2, foreign_programs.save_bulky, tmp_path, root)
    cases = [
        (1, "plain", False),
        (2, "plain", False),
        (4, "plain", False),
        (4, "plain", True),
        (2, "fsdp", False),
    ]
    for attempt, (world_size, kind, apart) in enumerate(cases, 2):
        found = run_ranks(world_size, foreign_programs.load_bulky, tmp_path, root, kind, attempt, apart)
        most = BULKY_BYTES / world_size + SPARE_BYTES
        assert max(one["peak"] for one in found) <= most, (world_size, kind, apart)


def test_replicas_of_shards_share_the_reading(tmp_path: Path) -> None:
    """HSDP: what two ranks have alike is read by one of them, and loads into what FSDP2 saved."""
    root = str(tmp_path / "store")
    saved = run_ranks(2, foreign_programs.save_wide, tmp_path, root, "fsdp")[0]
    found = loaded(tmp_path, root, "hsdp", 4, 2)
    assert all(one["values"] == saved for one in found)
    assert sum(rank["bytes"] for rank in found) <= 1.1 * STATE_BYTES


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_any_shard_of_any_tensor(block_bytes: int, tmp_path: Path) -> None:
    """Rows, columns, other orders of memory, half types; blocks that cut values, or hold all: bit-equal."""
    path = tmp_path / "ckpt"
    tensors = foreign_programs.odd_tensors()
    dcp.save(dict(tensors), checkpoint_id=path, no_dist=True)
    found = run_ranks(3, foreign_programs.read_sharded, tmp_path, str(path), block_bytes)
    for values, _ in found:
        assert values.keys() == tensors.keys()
        assert all(torch.equal(value, tensors[key]) for key, value in values.items())
    stored = sum(file.stat().st_size for file in path.iterdir() if file.name != MARKER_FILE)
    heads = 2048 * len(tensors)  # one that lies in two ranks' blocks is read by itself
    assert sum(read for _, read in found) <= stored + (heads if block_bytes == 1000 else 0)


def test_damage_that_only_one_rank_reads(tmp_path: Path) -> None:
    """It shows late, on one rank: no rank's state is touched, and the next older checkpoint is resumed."""
    for error, untouched, step, same in run_ranks(
        2, foreign_programs.late_damage, tmp_path, str(tmp_path / "store")
    ):
        assert error.startswith("NoResumePoint: resumeFrom: step-00000002.1 can't be used: __")
        assert error.endswith(". The next older one is step-00000001.1")
        assert untouched
        assert (step, same) == (1, True)


def test_what_nobody_needs_is_verified_too(tmp_path: Path) -> None:
    """A flipped bit among the values of a rank that is no more proves the checkpoint damaged."""
    job = Job(tmp_path / "store", job="local/test")
    run_ranks(2, foreign_programs.save_own_values, tmp_path, str(job.root))
    shard = job.root / "step-00000002.1" / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"\x01" * 1000) + 10_000_000] ^= 1
    shard.write_bytes(data)
    report = job.engine(2).restore(make_state("plain", 2, 1))
    assert report is not None
    assert report.step == 1
    assert "__1_0.distcp: the 8388608 bytes from 8388608 on" in report.fallback[0].why
