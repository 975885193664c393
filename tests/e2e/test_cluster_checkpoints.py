"""Checkpoints of a job that trains in a cluster: held and pruned through a pod, rolled back by its spec."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from cluster_run import ClusterRun

from resumable_operator.cli.main import cli
from resumable_training.contract.manifest import checkpoint_name as name
from resumable_training.data.audit import read_records

pytestmark = pytest.mark.timeout(400)
EVALUATE = ("--evaluate-every", "12")


def rtj(run: ClusterRun, *arguments: str) -> Result:
    env = {"KUBECONFIG": str(run.plane.kubeconfig), "COLUMNS": "200"}
    command, *rest = arguments
    result = CliRunner().invoke(cli, ["checkpoints", command, run.name, *rest, "-n", run.namespace], env=env)
    assert result.exit_code == 0, result.output + run.text()
    return result


def test_seen_pruned_and_rolled_back(cluster_run: ClusterRun) -> None:
    """While it trains a pod looks, holds and deletes; rolled back it drains, and goes on from step 6."""
    run = cluster_run.training(20, *EVALUATE, save_every=3)
    held = run.hold(1, ranks=1)
    run.wish(*held)
    run.create(replicas=1)
    run.await_moments(*held)  # in step 12
    marker = run.volume / "store" / name(9, 1) / ".metadata"
    run.wait(marker.exists, "the save of step 9")
    shown = json.loads(rtj(run, "show", "--step", "6", "--json").stdout)
    assert {"model.first.weight", "optimizer.state.first.weight.exp_avg"} <= {
        value["key"] for value in shown["values"]
    }
    assert "is held by me" in rtj(run, "pin", "6", "--holder", "me").stdout
    pruned = json.loads(rtj(run, "prune", "--keep", "2", "--yes", "--json").stdout)
    assert pruned["gone"] == [name(3, 1)]
    told = rtj(run, "rollback", "--to", "6", "--suspend")
    assert f"resumeFrom: {name(6, 1)}; it goes on from there" in told.output
    status = run.finish_exact()
    assert status.resumed_from == name(6, 1)
    assert [record.parent for record in read_records(run.volume / "store")] == [None, name(6, 1)]
    again = rtj(run, "unpin", "6", "--holder", "me")
    assert "no longer held" in again.stdout
