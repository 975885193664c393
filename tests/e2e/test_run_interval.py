"""The interval ``auto`` in a real run: what the library uses, says and reports, and what is exported."""

from __future__ import annotations

import math
import re
import signal

import moments
import pytest
from moments import Wish
from training_run import TINY, TrainingRun

from resumable_operator.decide.observation import Job
from resumable_operator.metrics import JOB_FAMILIES
from resumable_operator.model import JobStatus, parse_spec
from resumable_training.contract import metrics as names

pytestmark = pytest.mark.timeout(900)
DRAINED = 5
_SAID = re.compile(r"saving every ([0-9.]+) s: Daly's optimum; .* every ([0-9]+) s \(M\)")


def test_the_interval_moves_after_an_interruption(training: TrainingRun) -> None:
    """One interruption halves M, so the interval shrinks by the root of 2; the operator exports the same."""
    first = Wish(moments.STEP, attempt=1, nth=5, action=moments.DRAIN)
    killed = Wish(moments.STEP, attempt=2, nth=5)
    last = Wish(moments.STEP, attempt=3, nth=5, action=moments.DRAIN)
    training.wish(first, killed, last)
    training.start("--save-every-steps", "2", str(TINY), "--", "--steps", "40")
    training.await_moment(first)
    training.signal(signal.SIGINT)
    training.finish(DRAINED)
    assert "saving every" not in training.log(1)  # the user has set it

    training.start(str(TINY), "--", "--steps", "40")
    training.await_moment(last)
    (before, mtbf_before), (after, mtbf_after) = said(training.log(2)), said(training.log(3))
    assert mtbf_after == pytest.approx(mtbf_before / 2, rel=0.05)
    assert after == pytest.approx(before / math.sqrt(2), rel=0.05)
    training.signal(signal.SIGINT)
    status = training.finish(DRAINED)

    assert status.checkpoint is not None
    told = training.history("checkpoint")[-1]["data"]
    used = told["interval_seconds"]
    assert (status.checkpoint.interval_seconds, status.checkpoint.interval_bound) == (
        used,
        told["interval_bound"],
    )
    assert exported(status) == used


def said(log: str) -> tuple[float, float]:
    """The interval and M that the library gave as its reason when the attempt began."""
    found = _SAID.search(log)
    assert found is not None, log
    return float(found[1]), float(found[2])


def exported(status: JobStatus) -> float:
    """The recommended interval as Prometheus sees it."""
    job = Job("ns", "train", "uid", 1, parse_spec({"workers": {"replicas": 1}}), status)
    families = {family.name: family for family in JOB_FAMILIES}
    value = families[names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS].values(job, 0.0)
    assert isinstance(value, float)
    return value
