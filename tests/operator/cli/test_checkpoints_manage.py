"""`rtj checkpoints` show, prune, pin and rollback on a store and on a run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from checkpoint_store import Store

from resumable_operator.cli.checkpoints_pins import until
from resumable_operator.cli.checkpoints_show import _facts
from resumable_operator.cli.directory_store import DirectoryStore
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.errors import RetryableError
from resumable_operator.model import JobStatus
from resumable_training.checkpoint.content import read_content
from resumable_training.checkpoint.files import single_process_is_fine
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.manifest import checkpoint_name as name


def fill(root: Path) -> Store:
    """Attempt 1 saved 10 to 50, and one save failed long ago."""
    made = Store(root)
    made.record(1)
    for step in (10, 20, 30, 40, 50):
        made.save(step, 1)
    left = made.save(25, 1, complete=False)
    for path in left.iterdir():
        os.utime(path, (1.0, 1.0))
    (root / "pins").mkdir()
    return made


@pytest.fixture
def made(tmp_path: Path) -> Store:
    return fill(tmp_path / "store")


def resume_points(made: Store) -> list[str]:
    return survey(LocalStore(made.root)).resume_points


# ---- prune ------------------------------------------------------------------------------------------------


def test_prune_only_says_what_would_go(made, rtj) -> None:
    """Nothing is deleted without --yes."""
    result = rtj("checkpoints", "prune", made.root)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].endswith("nothing is deleted without --yes")
    assert result.output.count("would go") == 3
    assert len(resume_points(made)) == 5


def test_prune_does_it(made, rtj) -> None:
    """By the same rules as retention, and what a failed save left goes with it."""
    result = rtj("checkpoints", "prune", made.root, "--keep", 2, "--yes")
    assert result.exit_code == 0
    assert resume_points(made) == [name(50, 1), name(40, 1)]
    assert not (made.root / name(25, 1)).exists()
    assert "2 complete checkpoints on the chain stay" in result.output
    assert "nothing to delete" in rtj("checkpoints", "prune", made.root, "--keep", 2).output


def test_prune_of_a_run_keeps_what_its_job_keeps(bare, rtj) -> None:
    """`keep` and `keepEverySteps` of the spec, and the checkpoint that its resumeFrom wants."""
    checkpoint = {"keep": 2, "keepEverySteps": 20, "resumeFrom": "10#2"}
    container = {"name": "worker", "command": ["python", "train.py"]}
    bare.job(
        {
            "workers": {"replicas": 1},
            "checkpoint": checkpoint,
            "template": {"spec": {"containers": [container]}},
        }
    )
    made = fill(bare.path / "checkpoints")
    told = json.loads(rtj("checkpoints", "prune", bare.path, "--yes", "--json").output)
    assert told["gone"] == [name(25, 1), name(30, 1)]
    assert resume_points(made) == [name(step, 1) for step in (50, 40, 20, 10)]


def test_prune_needs_a_store(made, rtj) -> None:
    """One checkpoint is not pruned; what holds it is named."""
    result = rtj("checkpoints", "prune", made.root / name(10, 1), "--yes")
    assert result.exit_code == 2
    assert f"give what holds it, {made.root}" in result.output


# ---- pins -------------------------------------------------------------------------------------------------


def test_a_pin_holds_against_prune(made, rtj) -> None:
    """Until it is given back."""
    assert rtj("checkpoints", "pin", made.root, 10, "--until", "7d", "--holder", "eval").exit_code == 0
    rtj("checkpoints", "prune", made.root, "--keep", 2, "--yes")
    assert name(10, 1) in resume_points(made)
    assert f"{name(10, 1)}: held by eval for " in rtj("checkpoints", "pins", made.root).output
    other = rtj("checkpoints", "unpin", made.root, 10)
    assert other.exit_code == 2
    assert "--all" in other.output
    assert rtj("checkpoints", "unpin", made.root, 10, "--all").exit_code == 0
    rtj("checkpoints", "prune", made.root, "--keep", 2, "--yes")
    assert resume_points(made) == [name(50, 1), name(40, 1)]


def test_a_damaged_pin_can_be_removed(made, rtj) -> None:
    """It holds everything; the message of prune says how, and then it works."""
    (made.root / "pins" / "x.json").write_bytes(b"{}")
    refused = rtj("checkpoints", "prune", made.root)
    assert refused.exit_code == 6
    assert "unpin --damaged" in refused.output
    assert "can't be read" in rtj("checkpoints", "pins", made.root).output
    assert rtj("checkpoints", "unpin", made.root, "--damaged").exit_code == 0
    assert rtj("checkpoints", "prune", made.root).exit_code == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("12h", 43200), ("2d", 172800), ("@1000060", 60)]
)
def test_lengths_and_moments(text: str, seconds: float) -> None:
    """From now on, or wall clock seconds."""
    assert until(text, 1_000_000.0) == 1_000_000.0 + seconds


@pytest.mark.parametrize("text", ["soon", "-1d", "2001-01-01", "@5", "7"])
def test_a_pin_that_would_hold_nothing_is_refused(text: str) -> None:
    """Past, or no time at all."""
    with pytest.raises(UsageProblem, match="--until"):
        until(text, 1_000_000_000.0)


# ---- roll-back --------------------------------------------------------------------------------------------


def test_roll_back_of_a_run(bare, rtj) -> None:
    """Says what is resumed and how to undo it; the list says the same."""
    made = fill(bare.job().path / "checkpoints")
    result = rtj("checkpoints", "rollback", bare.path, "--to", 20)
    assert result.exit_code == 0, result.output
    assert f"the next attempt resumes {name(20, 1)}: step 20, 320 samples" in result.output
    assert f"`rtj checkpoints rollback {bare.path} --to {name(50, 1)}` undoes this" in result.output
    listed = rtj("checkpoints", "list", bare.path, columns=200).output
    assert "a roll-back went on from step 20" in listed
    assert resume_points(made) == [name(20, 1), name(10, 1)]


def test_roll_back_names_the_steps_that_there_are(bare, rtj) -> None:
    """An incomplete one is none of them."""
    fill(bare.job().path / "checkpoints")
    result = rtj("checkpoints", "rollback", bare.path, "--to", 25)
    assert result.exit_code == 2
    assert "On the chain are steps 50, 40, 30, 20, 10" in result.output


def test_roll_back_of_a_running_job_is_refused(bare, rtj) -> None:
    """It says which process to stop, and how."""
    made = fill(bare.job().path / "checkpoints")
    with bare.owned():
        result = rtj("checkpoints", "rollback", bare.path, "--to", 20)
    assert result.exit_code == 2
    assert f"(process {os.getpid()}) trains in it: stop it by Ctrl-C, or give --suspend" in result.output
    assert len(resume_points(made)) == 5


def test_a_finished_job_is_not_rolled_back(bare, rtj) -> None:
    """Nothing would train on; how another job starts from there is said, for a checkpoint that there is."""
    made = fill(bare.job().status(JobStatus(phase="Succeeded")).path / "checkpoints")
    result = rtj("checkpoints", "rollback", bare.path, "--to", 20)
    assert result.exit_code == 2
    assert f"`rtj run --dir NEW --resume-from {made.root}/{name(20, 1)} ...`" in result.output
    assert "On the chain are steps 50" in rtj("checkpoints", "rollback", bare.path, "--to", 11).output
    assert len(resume_points(made)) == 5


OWNER = (
    "import fcntl, os, signal, sys\n"
    "file = open(sys.argv[1] + '/lock', 'w'); file.write(f'{os.getpid()}\\n'); file.flush()\n"
    "fcntl.flock(file, fcntl.LOCK_EX)\n"
    "pins = sys.argv[1] + '/checkpoints/pins'\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5 if os.listdir(pins) else 9))\n"
    "print('owned', flush=True)\n"
    "signal.pause()\n"
)


@pytest.fixture
def owner(bare) -> Iterator[subprocess.Popen[bytes]]:
    """A process that owns the run and ends at SIGTERM: with 5 if a checkpoint is pinned then, else with 9."""
    fill(bare.job().path / "checkpoints")
    process = subprocess.Popen([sys.executable, "-c", OWNER, bare.path], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"owned\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_roll_back_can_stop_the_run_first(bare, owner, rtj) -> None:
    """By SIGTERM, as a drain, whose retention can't delete the checkpoint; the record is made afterwards."""
    result = rtj("checkpoints", "rollback", bare.path, "--to", 20, "--suspend")
    assert result.exit_code == 0, result.output
    assert owner.wait(10) == 5
    store = LocalStore(bare.path / "checkpoints")
    assert survey(store).resume_points[0] == name(20, 1)
    assert list((bare.path / "checkpoints" / "pins").iterdir()) == []


@pytest.mark.parametrize("to", ["25", "11", "nonsense", name(30, 1)])
def test_what_cannot_be_gone_back_to_stops_nothing(bare, owner, rtj, to: str) -> None:
    """No such step, an incomplete one, a damaged one: the job trains on."""
    (bare.path / "checkpoints" / name(30, 1) / "__0_0.distcp").write_bytes(b"")
    result = rtj("checkpoints", "rollback", bare.path, "--to", to, "--suspend")
    assert result.exit_code == (1 if to == name(30, 1) else 2)
    assert ("is damaged: " in result.output) == (to == name(30, 1))
    assert "drains" not in result.output
    assert owner.poll() is None


def test_an_error_after_the_job_was_stopped_says_how_it_goes_on(bare, owner, rtj, monkeypatch) -> None:
    """The store went away, or an attempt began, between the question and the act."""

    def refuse(self: DirectoryStore, which: str) -> None:
        assert owner.wait(10) == 5
        raise RetryableError("the store has not answered")

    monkeypatch.setattr(DirectoryStore, "roll_back", refuse)
    result = rtj("checkpoints", "rollback", bare.path, "--to", 20, "--suspend")
    assert result.exit_code == 6
    assert "the store has not answered. Nothing was rolled back; the job was told to suspend" in result.output
    assert "the same `rtj run` command line continues it" in result.output


def test_roll_back_of_a_store_needs_the_users_word(made, rtj) -> None:
    """Nobody can see from it whether a job trains there."""
    result = rtj("checkpoints", "rollback", made.root, "--to", 20)
    assert result.exit_code == 2
    assert "add --yes" in result.output
    assert rtj("checkpoints", "rollback", made.root, "--to", 20, "--yes").exit_code == 0
    assert resume_points(made)[0] == name(20, 1)


# ---- show -------------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A checkpoint that plain DCP wrote."""
    import torch

    state = {
        "model": {"w": torch.zeros(4, 3, dtype=torch.bfloat16), "n": torch.tensor(7)},
        "optimizer": {"state": {"w": {"m": torch.zeros(4, 3)}}, "param_groups": [{"lr": 0.1}]},
    }
    with single_process_is_fine():
        dcp.save(state, checkpoint_id=tmp_path / "plain" / "epoch-1", no_dist=True)
    return tmp_path / "plain"


def test_show_tells_keys_shapes_and_types(real: Path, rtj) -> None:
    """Of a checkpoint by its own path, or of the newest in a directory; optimizers only when asked."""
    for where in (real, real / "epoch-1"):
        output = rtj("checkpoints", "show", where).output
        line = next(line.split() for line in output.splitlines() if "model.w" in line)
        assert line == ["model.w", "bfloat16", "4x3", "24", "B", "__0_0.distcp"]
        assert "optimizer.state.w.m" not in output
    assert "optimizer.state.w.m" in rtj("checkpoints", "show", real, "--all").output


def test_show_as_json(real: Path, rtj) -> None:
    """Programs get sizes in bytes and totals by group."""
    told = json.loads(rtj("checkpoints", "show", real, "--step", "epoch-1", "--json").output)
    by_key = {value["key"]: value for value in told["values"]}
    assert by_key["optimizer.state.w.m"]["bytes"] == 48
    assert by_key["model.n"]["shape"] == []
    groups = {group["name"]: (group["kind"], group["elements"], group["bytes"]) for group in told["groups"]}
    assert groups["model"] == ("module", 13, 32)
    assert groups["optimizer"][0] == "optimizer"
    assert told["bytes"] == sum(file["bytes"] for file in told["files"])


def test_show_counts_in_words(real: Path) -> None:
    """One rank wrote it, and one file is one file."""
    plain = read_content(LocalStore(real), "epoch-1", foreign=True)
    one = replace(plain, step=1, samples=1, world_size=1, attempt=1)
    assert _facts(one, 0.0) == ["step 1, 1 sample, attempt 1", "written by 1 rank; any number can load it"]
    many = replace(one, samples=16, world_size=3)
    assert _facts(many, 0.0) == [
        "step 1, 16 samples, attempt 1",
        "written by 3 ranks; any number can load it",
    ]


def test_show_of_a_damaged_one_says_how(made, rtj) -> None:
    """A marker that is no marker is never unpickled."""
    (made.root / name(50, 1) / ".metadata").write_bytes(b"other")
    result = rtj("checkpoints", "show", made.root)
    assert result.exit_code == 1
    assert "is damaged: .metadata is not the one that was committed" in result.output
    assert result.output.endswith("; the next older is step 40: --step 40\n")


def test_a_long_list_takes_one_read_for_each(tmp_path: Path, rtj, monkeypatch) -> None:
    """No directory of a complete checkpoint is listed, no shard is looked at: ten thousand take seconds."""
    made = Store(tmp_path / "store")
    made.record(1)
    count = 300
    for step in range(1, count + 1):
        made.save(step, 1)
    calls: list[str] = []
    for operation in ("read", "size", "entries"):
        plain = getattr(LocalStore, operation)
        monkeypatch.setattr(
            LocalStore,
            operation,
            lambda self, *arguments, _plain=plain, _name=operation: (
                calls.append(_name) or _plain(self, *arguments)
            ),
        )
    told = json.loads(rtj("checkpoints", "list", made.root, "--json").output)
    assert [item["step"] for item in told] == list(range(count, 0, -1))
    once = 2  # the record, and whose store it is
    counted = {one: calls.count(one) for one in set(calls)}
    assert counted == {"read": count + once, "size": count, "entries": 3}
