"""Real training that keeps its checkpoints in object storage is killed, and ends with the right weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import moments
import pytest
from moments import Wish
from store_copy import fetch
from training_run import BATCH, TINY, TrainingRun, assert_same, causes

from bed.s3 import S3Server
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.stores import open_store

pytestmark = pytest.mark.timeout(900)
STEPS = 40
NOISY = ("--dropout", "0.1")


def write_job(path: Path, prefix: str, s3: S3Server, result: Path) -> Path:
    """The job of a cluster, as a file for one machine: the endpoint is in it, the credentials are not."""
    command = [sys.executable, "-u", str(TINY), "--steps", str(STEPS), "--batch", str(BATCH)]
    container = {"name": "worker", "command": [*command, "--result", str(result), *NOISY]}
    storage = {"bucket": s3.bucket, "prefix": prefix, "endpoint": s3.endpoint}
    spec = {
        "workers": {"replicas": 2},
        "template": {"spec": {"containers": [container]}},
        "checkpoint": {"s3": storage, "interval": {"steps": 10}},
    }
    kind = {"apiVersion": "resumable.dev/v1alpha1", "kind": "ResumableTrainingJob"}
    path.write_text(json.dumps({**kind, "metadata": {"name": "tiny"}, "spec": spec}))
    return path


def test_same_weights_bit_for_bit(
    training: TrainingRun,
    undisturbed: Callable[..., dict[str, Any]],
    s3: S3Server,
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed between steps, with shards written and no manifest, and before the marker: nothing is lost."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")  # the job says where
    training.wish(
        Wish(moments.STEP, attempt=1, rank=1, nth=13),
        Wish(moments.SHARDS, attempt=2, rank=0, nth=1),
        Wish(moments.BEFORE_MARKER, attempt=3, nth=2),
    )
    job = write_job(tmp_path / "job.yaml", s3_url.rpartition("/")[2], s3, training.result_path)
    training.start("--trace-samples", str(job))
    status = training.finish()
    assert causes(status) == ["crash", "crash", "crash"]
    assert [ending.rework_steps for ending in status.interruptions] == [3, 10, 10]
    assert status.store == s3_url
    assert "checkpoints go to object storage" in training.shown()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert survey(open_store(s3_url)).resume_points[0] == f"step-{STEPS:08d}.4"
    fetch(open_store(s3_url), training.store)
    training.check(STEPS)
    assert_same(training.result(), undisturbed(2, *NOISY))
