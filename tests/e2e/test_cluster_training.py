"""Real training on a real API server: whatever happens, every sample counts once."""

from __future__ import annotations

import pytest
from cluster_run import ClusterRun

pytestmark = pytest.mark.timeout(400)


def test_trains_to_the_end(cluster_run: ClusterRun) -> None:
    """Two workers train on one volume; every sample once, nothing left but pods that have ended."""
    run = cluster_run.training(40).create()
    status = run.finish_exact()
    assert (status.attempt.number, status.interruptions) == (1, ())
    assert run.conditions()["Valid"] == ("True", "Checked")
    assert len(run.events("AttemptReserved")) == len(run.events("Succeeded")) == 1
    assert {pod["status"]["phase"] for pod in run.pods().values()} == {"Succeeded"}
