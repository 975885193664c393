"""What goes wrong round a job on the cluster: its image, its quota, its storage, its namespace.

Each is said where people look, harms no other job, and is over when its cause is. Ranks are fakes, but for
the last test.
"""

from __future__ import annotations

import copy
from pathlib import Path

import moments
import pytest
from click.testing import CliRunner
from cluster_run import JOBS, ClusterRun, unplanned
from cluster_witness import Witness
from moments import Wish
from store_copy import fetch

from bed.api import path
from bed.fixtures import MakeNamespace
from bed.s3 import REGION, S3Server
from resumable_operator.cli.main import cli
from resumable_training.checkpoint.stores import open_store
from resumable_training.contract.labels import KIND, PLURAL

pytestmark = pytest.mark.timeout(300)

NO_IMAGE = "registry.example.com/nobody/none:1"


def rtj(run: ClusterRun, *arguments: str) -> str:
    """What it prints about the job."""
    environment = {"KUBECONFIG": str(run.plane.kubeconfig), "COLUMNS": "200"}
    result = CliRunner().invoke(cli, [*arguments, "-n", run.namespace], env=environment)
    assert result.exit_code == 0, result.output
    return result.output


def test_image_that_never_comes(cluster_run: ClusterRun) -> None:
    """Which image can't be pulled is said in condition, Event and `rtj status`; with another it runs."""
    run = cluster_run.faking()
    image = run.container["image"]
    run.container["image"] = NO_IMAGE
    run.create()
    assert NO_IMAGE in run.until_event("WorkersWaiting")
    run.wait(
        lambda: run.conditions()["WorkersReady"][1] in ("ErrImagePull", "ImagePullBackOff"), "the condition"
    )
    assert NO_IMAGE in rtj(run, "status", run.name)
    run.container["image"] = image
    run.change(template=run.spec["template"])
    status = run.until_step(10)
    assert (status.attempt.number, status.interruptions) == (1, ())
    run.until_condition("WorkersReady", "True", "AllReady")


def test_quota_that_is_raised(cluster_run: ClusterRun) -> None:
    """What a quota refuses is said; when it is raised the job starts without anybody's help."""
    run = cluster_run.faking()
    quotas = path("v1", "resourcequotas", run.namespace)
    run.api.create(quotas, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}})
    run.wait(lambda: "hard" in run.api.get(f"{quotas}/pods").get("status", {}), "the quota to be in force")
    run.create()
    run.until_condition("WorkersCreatable", "False", "QuotaExceeded")
    assert "exceeded quota" in run.until_event("WorkersRefused")
    run.api.patch(f"{quotas}/pods", {"spec": {"hard": {"pods": "2"}}})
    status = run.until_step(10)
    assert (status.attempt.number, status.size, status.interruptions) == (1, 2, ())
    run.until_condition("WorkersCreatable", "True", "Created")


def test_two_jobs_with_one_directory(cluster_run: ClusterRun) -> None:
    """The younger one is refused and told the fix, and gets no pod; told to take over, it starts."""
    run = cluster_run.faking().create()
    run.until_step(10)
    second = copy.copy(run)
    second.name, second.where = "second", path(JOBS, PLURAL, run.namespace, "second")
    body = {"apiVersion": JOBS, "kind": KIND, "metadata": {"name": second.name}, "spec": run.spec}
    run.api.create(path(JOBS, PLURAL, run.namespace), body)
    try:
        second.until_condition("Valid", "False", "StoreShared")
        assert "checkpoint.adopt: true" in second.until_event("SpecInvalid", f"{run.namespace}/{run.name}")
        assert second.pods() == {}
        run.change(suspend=True)
        run.until_phase("Suspended")
        second.change(checkpoint={"adopt": True})
        second.until_step(10)
        assert run.status().phase == "Suspended"
    finally:
        second.remove()


def test_namespace_is_deleted(cluster_run: ClusterRun, make_namespace: MakeNamespace) -> None:
    """With everything in it, under a running job: nothing of the job is left, the operator stays calm, and
    another job does not notice."""
    other = cluster_run.faking().create()
    doomed = ClusterRun(other.plane, other.nodes, other.operator, make_namespace()).faking().create()
    other.until_step(10)
    doomed.until_step(10)
    with Witness(doomed) as seen:
        doomed.api.delete(path("v1", "namespaces", name=doomed.namespace))
        doomed.until_gone()
        where = path("v1", "namespaces", name=doomed.namespace)
        doomed.wait(lambda: doomed.api.find(where) is None, "the namespace to go")
    assert set(seen.pods) == {"train-0-1", "train-1-1"}, "none was made anew"
    status = other.until_step(other.status().step + 30)
    assert (status.attempt.number, status.interruptions) == (1, ())
    process = other.operator.process
    assert process.process.poll() is None
    assert not [line for line in process.lines() if line["level"] == "error"]


def test_checkpoints_in_object_storage(
    cluster_run: ClusterRun, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    """Real training, with a Secret's credentials and a real S3 server: a rank is killed, and all ranks go on
    from the bucket. Every sample counts once."""
    run = cluster_run.training(30)
    keys = {**s3.environment(), "AWS_REGION": REGION}
    run.api.create(
        path("v1", "secrets", run.namespace),
        {
            "metadata": {"name": "bucket"},
            "stringData": {
                name: keys[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
            },
        },
    )
    storage = {
        "bucket": s3.bucket,
        "prefix": s3_url.rpartition("/")[2],
        "endpoint": s3.endpoint,
        "secretName": "bucket",
    }
    run.spec["checkpoint"] = {"s3": storage, "interval": {"steps": 10}}
    run.wish(Wish(moments.STEP, attempt=1, rank=1, nth=13))
    run.create()
    run.finish()
    fetch(open_store(s3_url), tmp_path / "store")
    status = run.finish_exact(tmp_path / "store")
    assert [(item.cause, item.resumed_step) for item in unplanned(status)] == [("crash", 10)]
    assert status.store == s3_url
