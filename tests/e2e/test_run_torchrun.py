"""A script that knows only torchrun and DCP runs unmodified, and finds its newest complete checkpoint."""

from __future__ import annotations

from pathlib import Path

from local_run import LocalRun

SCRIPT = Path(__file__).parent.parent / "fakes" / "torchrun_script.py"


def test_unmodified_script_is_restarted_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """Its second attempt is offered the newest complete DCP directory, not the damaged one beside it."""
    with LocalRun(tmp_path) as run:
        damaged = run.directory / "checkpoints" / "ckpt-99"
        damaged.mkdir(parents=True)
        (damaged / ".metadata").write_bytes(b"not a pickle")
        run.start("--workers", "2", str(SCRIPT), "--", "20", "12")
        status = run.finish()
        assert (status.phase, status.attempt.number) == ("Succeeded", 2)
        assert [ending.code for ending in status.interruptions] == [7]
        log = (run.directory / "logs/attempt-00002/rank-00000.log").read_text()
        assert "rank 0 of 2 starts at 10" in log
        assert status.ledger.phases.get("running_opaque", 0) > 0
