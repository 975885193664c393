"""The demo makes room for itself only where nothing can be lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resumable_operator.cli.demo import EXAMPLE, NAME, _audit_detail, _clear
from resumable_operator.cli.exitcodes import UsageProblem


def _run(directory: Path, name: str, module: str) -> Path:
    containers = [{"name": "worker", "command": ["python", "-m", module]}]
    spec = {"workers": {"replicas": 1}, "template": {"spec": {"containers": containers}}}
    job = {"namespace": "local", "name": name, "uid": "u", "spec": spec, "created": 1.0}
    directory.mkdir()
    (directory / "job.json").write_text(json.dumps(job))
    return directory


def test_an_earlier_demo_is_removed(tmp_path: Path) -> None:
    """The demo's own directory is used again; one that does not exist is fine."""
    earlier = _run(tmp_path / "demo", NAME, EXAMPLE)
    _clear(earlier)
    assert not earlier.exists()
    _clear(earlier)


@pytest.mark.parametrize(("name", "module"), [("train", "my.train"), (NAME, "my.train"), ("gpt", EXAMPLE)])
def test_somebodys_run_is_never_removed(tmp_path: Path, name: str, module: str) -> None:
    """A run directory that the demo did not make stays as it is, checkpoints and all."""
    run = _run(tmp_path / "run", name, module)
    with pytest.raises(UsageProblem, match="no demo"):
        _clear(run)
    assert (run / "job.json").exists()


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    """A directory that is no run directory is refused."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageProblem, match="not a run directory"):
        _clear(tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_checks_are_told_in_words() -> None:
    """Attempts as people list them."""
    verdict = {"ok": True, "samples": 640, "attempts": [1, 2, 4]}
    assert _audit_detail(verdict) == "640 samples through attempts 1, 2, 4"
