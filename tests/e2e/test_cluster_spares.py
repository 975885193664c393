"""Spares on a real API server, under evictions as node drains make them: they step in, and may go themselves.

Ranks are fakes, so a test takes seconds.
"""

from __future__ import annotations

import pytest
from cluster_run import ClusterRun

from bed.api import path
from resumable_training.contract.labels import LABEL_JOB

pytestmark = pytest.mark.timeout(300)


def test_evictions_with_a_spare(cluster_run: ClusterRun) -> None:
    """Evicting the spare ends nothing; evicting a member drains it, and the spare keeps the size: no rework.

    The spare's pod is one of the job's like the others, so the same disruption budget guards it.
    """
    run = cluster_run.faking(checkpoint_every=10_000).create(spares=1)
    run.until_step(20)
    run.until_condition("WorkersReady", "True", "AllReady")
    first, second = run.members()
    (spare,) = set(run.pods()) - {first, second}
    assert run.ranks(spare) == []
    budgets = path("policy/v1", "poddisruptionbudgets", run.namespace)
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {LABEL_JOB: run.name}}}
    run.api.create(budgets, {"metadata": {"name": "one"}, "spec": spec})
    budget = f"{budgets}/one"
    run.wait(
        lambda: run.api.get(budget)["status"].get("currentHealthy") == 3, "the budget to count the spare"
    )
    run.evict(spare)
    run.wait(lambda: spare not in run.pods() and len(run.pods()) == 3, "another spare")
    run.until_condition("WorkersReady", "True", "AllReady")
    status = run.status()
    assert (status.attempt.number, status.interruptions, status.size) == (1, (), 2)
    (spare,) = set(run.pods()) - {first, second}

    run.wait(lambda: run.api.get(budget)["status"]["disruptionsAllowed"] >= 1, "the budget to allow one")
    run.evict(second)
    status = run.until_goes_on(2, size=2)
    (ending,) = status.interruptions
    assert (ending.cause, ending.rework_steps) == ("evicted", 0)
    assert (ending.size_before, ending.size_after) == (2, 2)
    assert set(run.members()) == {first, spare}
