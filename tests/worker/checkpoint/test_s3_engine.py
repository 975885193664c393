"""Saving, resuming, retention and identity on a real S3 server, and what plain DCP makes of the result."""

import subprocess
import sys
from pathlib import Path

import pytest
import rank_programs
import torch
from engine_job import Job, make_state, save, start, weight
from rank_programs import run_ranks
from torch.distributed.checkpoint import state_dict_loader

from bed.s3 import S3Server
from resumable_training.checkpoint import TrainingState, documents, verify
from resumable_training.checkpoint.errors import NoResumePoint, StoreOwnership, Superseded
from resumable_training.checkpoint.listing import list_checkpoints, survey
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import MARKER_FILE


@pytest.fixture
def job(s3_url: str) -> Job:
    return Job(s3_url)


def fetch(store: Store, name: str, target: Path) -> None:
    """Copy one checkpoint into a directory, as `aws s3 cp --recursive` would."""
    target.mkdir()
    for entry in store.entries(name):
        (target / entry.name).write_bytes(store.read(f"{name}/{entry.name}"))


def flip(store: Store, name: str) -> None:
    data = bytearray(store.read(name))
    data[100] ^= 1
    store.put(name, bytes(data))


def test_the_next_attempt_goes_on_from_the_newest(job: Job) -> None:
    """Weights, step and position come back, and the record says whose parent it is."""
    start(job, 1, 5, 10)
    state = make_state()
    report = job.engine(2).restore(state)
    assert report is not None
    assert (report.checkpoint, report.step, report.samples, report.fallback) == (
        "step-00000010.1",
        10,
        80,
        (),
    )
    assert weight(state) == 10
    assert documents.read_records(job.store)[2].parent == "step-00000010.1"  # type: ignore[union-attr]
    assert job.warnings == []


def test_what_is_written_is_plain_dcp(job: Job, tmp_path: Path) -> None:
    """A downloaded checkpoint is read by an unmodified `dcp.load`, a large tensor in several parts too."""
    model = torch.nn.Linear(2_100, 2_000)
    engine = job.engine(1)
    engine.restore(TrainingState({"model": model}))
    assert save(engine, 3, TrainingState({"model": model})).ok
    fetch(job.store, "step-00000003.1", tmp_path / "copy")
    found = {"model": torch.nn.Linear(2_100, 2_000).state_dict()}
    state_dict_loader.load(found, checkpoint_id=tmp_path / "copy", no_dist=True)
    assert torch.equal(found["model"]["weight"], model.weight)
    assert torch.equal(found["model"]["bias"], model.bias)


def test_a_flipped_bit_leads_to_the_next_older_one(job: Job) -> None:
    """Proof of damage permits falling back, and says so."""
    start(job, 1, 5, 10)
    flip(job.store, "step-00000010.1/__0_0.distcp")
    state = make_state()
    report = job.engine(2).restore(state)
    assert report is not None
    assert (report.step, weight(state)) == (5, 5)
    assert [one.checkpoint for one in report.fallback] == ["step-00000010.1"]
    assert "falling back" in " ".join(job.warnings)


def test_a_rank_that_lacks_the_client_ends_all_with_its_number(
    s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    """Others have opened the store, and learn of it where they look for each other's files."""
    program = rank_programs.unlike_machines_run
    found = run_ranks(2, program, tmp_path, s3_url, s3.environment(), [1], [], False)
    assert found[0].startswith("StoreMisconfigured: rank 1 (on ")
    assert found[0].endswith(f"): {s3_url} needs obstore: pip install 'resumable-training[worker]'")
    assert found[1] == found[0]


@pytest.mark.parametrize("refused", [[0], [1]])
def test_a_rank_that_is_refused_ends_all_with_its_number(
    refused: list[int], s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    """Keys of its own that are wrong: a mistake of the user's on any rank, with the fix."""
    program = rank_programs.unlike_machines_run
    found = run_ranks(2, program, tmp_path, s3_url, s3.environment(), [], refused, False)
    assert found[0].startswith("StoreMisconfigured: " + ("rank 1: " if refused == [1] else ""))
    assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in found[0]
    assert found[1] == found[0]


def test_only_damaged_ones_are_no_fresh_start(job: Job) -> None:
    """Starting from nothing needs the user's word."""
    start(job, 1, 5)
    flip(job.store, "step-00000005.1/__0_0.distcp")
    with pytest.raises(NoResumePoint):
        job.engine(2).restore(make_state())


def test_half_a_checkpoint_is_no_checkpoint(job: Job) -> None:
    """What has no marker is passed over without a word about damage."""
    start(job, 1, 5, 10)
    job.store.delete(f"step-00000010.1/{MARKER_FILE}")
    report = job.engine(2).restore(make_state())
    assert report is not None
    assert (report.step, report.fallback) == (5, ())


def test_a_zombie_is_superseded(job: Job) -> None:
    """Once a newer attempt has its record, the old one commits nothing and says so."""
    zombie = start(job, 1, 5)
    start(job, 2, 10)
    with pytest.raises(Superseded):
        save(zombie, 15)
    assert job.resume_points == ["step-00000010.2", "step-00000005.1"]


def test_another_job_is_refused(job: Job) -> None:
    """The store belongs to the job that made it, whatever the bucket's rights say."""
    start(job, 1, 5)
    with pytest.raises(StoreOwnership, match="local/job"):
        Job(job.root, job="local/other").engine(1)
    Job(job.root, job="local/other").engine(1, adopt=True)


def test_retention_keeps_what_is_pinned(job: Job) -> None:
    """Old checkpoints go with all their objects, the newest two and pinned ones stay."""
    engine = start(job, 1, 1)
    documents.pin(job.store, "reader", documents.Pin("step-00000001.1", "reader", 1e12))
    for step in (2, 3, 4, 5):
        assert save(engine, step).ok
    assert job.resume_points == [f"step-0000000{step}.1" for step in (5, 4, 3, 1)]
    assert job.store.entries("step-00000002.1") == []
    assert job.warnings == []


def test_listing_and_verifying(job: Job) -> None:
    """`rtj checkpoints` sees the same as in a directory."""
    start(job, 1, 5, 10)
    flip(job.store, "step-00000005.1/__0_0.distcp")
    infos = list_checkpoints(job.store, 1e10, verify_bytes=True)
    assert [(info.name, info.complete, info.on_chain) for info in infos] == [
        ("step-00000010.1", True, True),
        ("step-00000005.1", True, True),
    ]
    assert infos[0].resumable
    assert infos[0].bytes > 1000
    assert infos[1].why_not.startswith("damaged")
    assert verify.verify_checkpoint(job.store, "step-00000010.1").outcome == verify.OK


STREAM = """
import resource, sys
from resumable_training.checkpoint.stores import open_store

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

store, piece = open_store(sys.argv[1]), bytes(1 << 20)
store.make_directory("d")
before = peak()
with store.open_write("d/s", 200 << 20) as stream:
    for _ in range(200):
        stream.write(piece)
with store.open_read("d/s") as stream:
    while stream.read(1 << 20):
        pass
print(peak() - before)
"""


def test_memory_is_bounded(s3_url: str) -> None:
    """A shard of 200 MiB goes up and comes down through a few parts and blocks of 8 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", STREAM, s3_url], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 120


def test_resume_from_another_store(job: Job, s3_url: str, tmp_path: Path) -> None:
    """`resumeFrom` takes the URL of a checkpoint elsewhere, and the chain begins there."""
    start(job, 1, 5)
    other = Job(f"{s3_url}-other")
    state = make_state()
    report = other.engine(1, resume_from=f"{s3_url}/step-00000005.1").restore(state)
    assert report is not None
    assert weight(state) == 5
    assert survey(other.store).chain.origin == f"{s3_url}/step-00000005.1"
    local = Job(tmp_path / "local")
    state = make_state()
    local.engine(1, resume_from=f"{s3_url}/step-00000005.1").restore(state)
    assert weight(state) == 5
