"""A server in trouble: saves succeed or fail cleanly, and a resume takes the right checkpoint or none."""

from functools import partial

import pytest
import s3_proxy as trouble
import torch
from engine_job import Job, make_state, save, start, weight
from s3_proxy import S3Proxy

from resumable_training.checkpoint import CheckpointEngine, TrainingState, s3, s3_upload
from resumable_training.checkpoint.errors import StorageUnavailable, StoreMisconfigured
from resumable_training.contract.manifest import MARKER_FILE

SHARD = "__0_0.distcp"
PATIENCE = s3.Patience
PASSING = [trouble.SLOW_DOWN, trouble.ERROR, trouble.RESET, trouble.LOST, trouble.STALLED]


@pytest.fixture
def job(s3_url: str, s3_trouble: S3Proxy) -> Job:
    return Job(s3_url)


def be_patient(monkeypatch: pytest.MonkeyPatch, request: float) -> None:
    """Give up a request after that many seconds, and never the whole."""
    monkeypatch.setattr(s3, "Patience", partial(PATIENCE, request=request, retry=60.0, first_pause=0.02))


def resumed(job: Job, attempt: int) -> int:
    """The step that a new attempt goes on from; its weights must be those of it."""
    state = make_state()
    report = job.engine(attempt).restore(state)
    assert report is not None
    assert report.fallback == ()
    assert weight(state) == report.step
    return report.step


@pytest.mark.parametrize("kind", PASSING)
def test_trouble_that_passes_is_not_seen_when_writing(
    job: Job, s3_trouble: S3Proxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Every PUT of a save and of a record fails, or its answer is lost: one checkpoint in the end."""
    be_patient(monkeypatch, 3.0)
    start(job, 1, 5)
    whats = [SHARD] if kind == trouble.STALLED else [SHARD, "manifest.json", MARKER_FILE, "records/"]
    faults = [s3_trouble.trouble(kind, "PUT", what, times=1) for what in whats]
    start(job, 2, 10)
    assert [fault.times for fault in faults] == [0] * len(faults)
    assert job.resume_points == ["step-00000010.2", "step-00000005.1"]
    assert resumed(job, 3) == 10
    assert job.warnings == []


@pytest.mark.parametrize("kind", [*PASSING, trouble.TRUNCATED, trouble.GONE])
def test_trouble_that_passes_is_not_seen_when_reading(
    job: Job, s3_trouble: S3Proxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Reads and listings that fail lead to the newest checkpoint all the same."""
    be_patient(monkeypatch, 3.0)
    start(job, 1, 5, 10)
    reads = [
        ("GET", SHARD),
        ("HEAD", MARKER_FILE),
        ("GET", MARKER_FILE),
        ("GET", "manifest.json"),
        ("GET", "list-type=2"),
    ]
    faults = [
        s3_trouble.trouble(kind, *read, times=1) for read in reads[: 1 if kind == trouble.STALLED else 5]
    ]
    assert resumed(job, 2) == 10
    assert [fault.times for fault in faults] == [0] * len(faults)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *[
            (kind, SHARD)
            for kind in (*PASSING, trouble.TRUNCATED, trouble.GONE, trouble.EXPIRED, trouble.SHORT)
        ],
        *[(kind, MARKER_FILE) for kind in (trouble.TRUNCATED, trouble.GONE, trouble.DENIED)],
    ],
)
def test_what_can_not_be_read_is_never_damage(job: Job, s3_trouble: S3Proxy, kind: str, what: str) -> None:
    """While the newest checkpoint can't be read, nothing older is taken and no record is written."""
    start(job, 1, 5, 10)
    engine = job.engine(2)
    s3_trouble.trouble(kind, "GET", what)
    with pytest.raises(StorageUnavailable):
        engine.restore(make_state())
    s3_trouble.calm()
    assert not any("falling back" in text for text in job.warnings)
    assert [entry.name for entry in job.store.entries("records")] == ["00000001.json"]
    assert resumed(job, 3) == 10


def test_a_marker_that_comes_short_once(job: Job, s3_trouble: S3Proxy) -> None:
    """Two looks that differ prove nothing: it is looked at anew, and is whole."""
    start(job, 1, 5, 10)
    s3_trouble.trouble(trouble.SHORT, "GET", MARKER_FILE, times=1)
    assert resumed(job, 2) == 10


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (trouble.SLOW_DOWN, SHARD),
        (trouble.STALLED, SHARD),
        (trouble.DENIED, SHARD),
        (trouble.ERROR, "manifest.json"),
        (trouble.RESET, MARKER_FILE),
        (trouble.EXPIRED, MARKER_FILE),
        (trouble.LOST, MARKER_FILE),
    ],
)
def test_a_save_that_fails_leaves_no_checkpoint(job: Job, s3_trouble: S3Proxy, kind: str, what: str) -> None:
    """Training goes on with a warning, the next save succeeds, and half a checkpoint is never resumed."""
    engine = start(job, 1, 5)
    s3_trouble.trouble(kind, "PUT", f"step-00000010.1/{what}")
    report = save(engine, 10)
    s3_trouble.calm()
    assert not report.ok
    assert "training goes on" in job.warnings[-1]
    assert job.resume_points == ["step-00000005.1"]
    assert save(engine, 15).ok
    assert resumed(job, 2) == 15


def test_many_parts_through_trouble(job: Job, s3_trouble: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a large shard are tried again one by one, and the whole is right."""
    monkeypatch.setattr(s3_upload, "LEAST_PART", 5 * 1024 * 1024)
    be_patient(monkeypatch, 30.0)
    model = torch.nn.Linear(3_000, 2_500)
    engine = job.engine(1)
    engine.restore(TrainingState({"model": model}))
    for number in (1, 3, 5):
        s3_trouble.trouble(trouble.SLOW_DOWN, "PUT", f"partNumber={number}&", times=2)
    s3_trouble.trouble(trouble.RESET, "PUT", "partNumber=2&", times=1)
    assert save(engine, 3, TrainingState({"model": model})).ok
    assert s3_trouble.count("PUT", "partNumber=") >= 6 + 7
    s3_trouble.trouble(trouble.TRUNCATED, "GET", SHARD, times=3)
    found = torch.nn.Linear(3_000, 2_500)
    assert job.engine(2).restore(TrainingState({"model": found})) is not None
    assert torch.equal(found.weight, model.weight)
    assert job.warnings == []


def test_an_upload_that_fails_is_given_up(
    job: Job, s3_trouble: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that were sent already are removed: they would be paid for and never be seen."""
    model = torch.nn.Linear(3_000, 2_500)
    engine = job.engine(1)
    engine.restore(TrainingState({"model": model}))
    s3_trouble.trouble(trouble.DENIED, "PUT", "partNumber=2&")
    assert not save(engine, 3, TrainingState({"model": model})).ok
    assert s3_trouble.count("DELETE", "uploadId=") == 1
    assert job.resume_points == []


def test_a_server_without_conditions_is_refused(job: Job, s3_trouble: S3Proxy) -> None:
    """Two attempts could not be told apart there; the message says what to use."""
    s3_trouble.trouble(trouble.CARELESS, "PUT")
    with pytest.raises(StoreMisconfigured, match=r"ignores If-None-Match.*MinIO"):
        job.engine(1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (trouble.EXPIRED, r"ExpiredToken.*renew them.*checkpoint\.s3\.secretName"),
        (trouble.DENIED, r"AccessDenied.*grant s3:ListBucket"),
    ],
)
def test_credentials_are_named_with_the_fix(job: Job, s3_trouble: S3Proxy, kind: str, words: str) -> None:
    """At the start the job ends with what to do; while it trains, each save says so and training goes on."""
    engine = start(job, 1, 5)
    for method in ("GET", "PUT", "HEAD", "DELETE"):
        s3_trouble.trouble(kind, method)
    with pytest.raises(StoreMisconfigured, match=words):
        job.engine(2)
    with pytest.raises(StorageUnavailable, match=words):
        job.engine(2, known_checkpoint=True)
    report = save(engine, 10)
    assert not report.ok
    assert "training goes on" in job.warnings[-1]


def test_trouble_at_the_start_may_pass(job: Job, s3_trouble: S3Proxy) -> None:
    """A server that asks to slow down is no fault of the user's."""
    s3_trouble.trouble(trouble.SLOW_DOWN, "GET")
    with pytest.raises(StorageUnavailable, match="SlowDown") as caught:
        job.engine(1)
    assert not isinstance(caught.value, StoreMisconfigured)


def test_a_bucket_that_is_gone_proves_nothing(job: Job, s3_trouble: S3Proxy) -> None:
    """When everything is 404 of a gateway, checkpoints are neither missing nor damaged."""
    engine: CheckpointEngine = start(job, 1, 5)
    for method in ("GET", "HEAD", "PUT"):
        s3_trouble.trouble(trouble.GONE, method)
    assert not save(engine, 10).ok
    with pytest.raises((StorageUnavailable, StoreMisconfigured)):
        job.engine(2)
    s3_trouble.calm()
    assert resumed(job, 3) == 5
