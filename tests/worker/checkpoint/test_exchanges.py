"""How often all ranks wait for each other in a restart: each time is every rank's turn on a core."""

from pathlib import Path

import pytest
import rank_programs
from foreign_programs import count_exchanges
from rank_programs import run_ranks

# The store is claimed; all see it and have left a probe; all have seen every probe.
PREFLIGHT = 3
# No old writer is left; the resume point, with its marker, which is long (two collectives); who wants which
# blocks; these are right; all is written; the record.
RESTORE = 7


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_collectives_of_a_restart(kind: str, tmp_path: Path) -> None:
    """On one machine so many on the library's group, and none on the training's own."""
    root = str(tmp_path / "store")
    run_ranks(2, rank_programs.save_run, tmp_path, root, kind, 1)
    found = run_ranks(2, count_exchanges, tmp_path, root, kind, False)
    assert found == [(PREFLIGHT, RESTORE, 0)] * 2


def test_on_several_machines_ranks_also_tell_what_they_need(tmp_path: Path) -> None:
    """One exchange more, and one for each piece that one rank has read for all others."""
    root = str(tmp_path / "store")
    run_ranks(2, rank_programs.save_run, tmp_path, root, "ddp", 1)
    pieces = 2  # the blocks: one of each rank's file
    assert (
        run_ranks(2, count_exchanges, tmp_path, root, "ddp", True)
        == [(PREFLIGHT, RESTORE + 1 + pieces, 0)] * 2
    )
