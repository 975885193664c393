"""Several ranks read each byte of a checkpoint once, and end with the values that were saved."""

from pathlib import Path
from typing import Any

import foreign_programs
import pytest
from rank_programs import run_ranks

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


def test_replicas_of_shards_share_the_reading(tmp_path: Path) -> None:
    """HSDP: what two ranks have alike is read by one of them, and loads into what FSDP2 saved."""
    root = str(tmp_path / "store")
    saved = run_ranks(2, foreign_programs.save_wide, tmp_path, root, "fsdp")[0]
    found = loaded(tmp_path, root, "hsdp", 4, 2)
    assert all(one["values"] == saved for one in found)
    assert sum(rank["bytes"] for rank in found) <= 1.1 * STATE_BYTES
