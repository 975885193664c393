"""`rtj checkpoints` on directories that plain PyTorch DCP wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with one DCP checkpoint, saved by a single process without our library."""
    state = {"weight": torch.arange(30.0).reshape(10, 3), "step": 5, "nested": {"bias": torch.ones(2)}}
    dcp.save(state, checkpoint_id=tmp_path / "epoch-3", no_dist=True)
    return tmp_path


def test_another_programs_checkpoint_is_listed_and_its_structure_verified(saved: Path, rtj) -> None:
    """It is accepted as whole, and it is said that its bytes can't be vouched for."""
    assert "epoch-3  (another program's" in rtj("checkpoints", "list", saved).output
    for directory in (saved, saved / "epoch-3"):
        result = rtj("checkpoints", "verify", directory)
        assert (result.exit_code, result.output) == (0, "epoch-3  ok (structure only: it has no manifest)\n")


def test_the_one_that_is_offered_to_resume_from_is_marked(saved: Path, rtj) -> None:
    """The newest that is whole, as the agent chooses it: a newer one that is damaged is passed over."""
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=saved / "epoch-4", no_dist=True)
    os.utime(saved / "epoch-4" / ".metadata", (2e9, 2e9))
    told = rtj("checkpoints", "list", saved).output.splitlines()
    assert [line.split()[0] for line in told] == ["epoch-4", "epoch-3"]
    assert [line.endswith("next resume point") for line in told] == [True, False]
    next((saved / "epoch-4").glob("*.distcp")).write_bytes(b"")
    told = rtj("checkpoints", "list", saved).output.splitlines()
    assert [line.endswith("next resume point") for line in told] == [False, True]


def test_a_shard_that_is_too_short_is_proof_of_damage(saved: Path, rtj) -> None:
    """The marker says how long every shard must be at least."""
    (shard,) = (saved / "epoch-3").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-1])
    result = rtj("checkpoints", "verify", saved)
    assert result.exit_code == 1
    assert f"damaged: {shard.name} has" in result.output


def test_verifying_needs_no_torch(saved: Path) -> None:
    """A machine that only sees the store can verify it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from resumable_operator.cli.main import cli\n"
        f"cli.main(['checkpoints', 'verify', {str(saved)!r}, '--json'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [item["outcome"] for item in json.loads(result.stdout)] == ["ok"]
