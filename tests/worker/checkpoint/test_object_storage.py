"""The library has no object storage yet, and says so before it trains."""

from pathlib import Path

import pytest

from resumable_training.checkpoint.engine import CheckpointEngine
from resumable_training.checkpoint.errors import StoreMisconfigured
from resumable_training.contract import exitcodes
from resumable_training.contract.assignment import CheckpointConfig


def test_a_url_is_not_taken_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket's URL ends the job with the fix, and not in a directory that vanishes with the container."""
    monkeypatch.chdir(tmp_path)
    config = CheckpointConfig(directory="s3://bucket/team")
    with pytest.raises(StoreMisconfigured, match="s3://bucket/team is object storage") as caught:
        CheckpointEngine(config, "ns/job", "uid", 1, None, 0, 1, print)
    assert caught.value.exit_code == exitcodes.USER_ERROR
    assert list(tmp_path.iterdir()) == []
