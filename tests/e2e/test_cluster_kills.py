"""The operator is killed at its own writes in mid-recovery; a fresh one completes it all the same.

Ranks are fakes but for the last test. Every write of a recovery: test_cluster_soak.py.
"""

from __future__ import annotations

from pathlib import Path

import mortal_operator
import pytest
from cluster_run import ClusterRun
from cluster_witness import Witness
from kill_stories import STORIES, await_death, mortal, play
from mortal_operator import Death

pytestmark = pytest.mark.timeout(300)

DEATHS = (
    Death("before", "PUT status", 1),  # nothing is known of the loss yet
    Death("after", "PUT status", 1),  # that the attempt ends is written, nothing is done
    Death("after", "POST pods", 1),  # the new pod is made, and nobody heard so
    Death("before", "PUT assignment", 1),  # the next attempt is reserved, nobody is told
    Death("after", "PUT assignment", 1),  # rank 0's agent alone knows of it
)


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{death.when}-{death.effect}-{death.nth}")
def test_killed_in_a_recovery(cluster_run: ClusterRun, tmp_path: Path, death: Death) -> None:
    """A pod fails, and the operator dies at that write: one pod and one attempt follow all the same."""
    assert play(cluster_run, STORIES["failed pod"], tmp_path, death)


def test_killed_while_samples_count(cluster_run: ClusterRun, tmp_path: Path) -> None:
    """Real training: a pod is deleted, all drain, and the operator dies when the next attempt has begun in
    one of two places. Each sample counts once, and no step is done twice."""
    run = cluster_run.training(30, "--evaluate-every", "12")
    held = run.hold(1, ranks=2)
    run.wish(*held)
    death = Death("after", "PUT assignment", 1)
    with mortal(run, tmp_path, death) as process, Witness(run):
        run.create()
        run.await_moments(*held)
        mortal_operator.arm(tmp_path)
        run.api.delete(run.pod_path(run.members()[1]))
        assert await_death(run, process)
        status = run.finish_exact()
    assert [(item.cause, item.rework_steps) for item in status.interruptions] == [("evicted", 0)]
    assert status.attempt.number == 2
