"""What a user does to a job on a real API server: change it, scale it, end it."""

from __future__ import annotations

import pytest
from cluster_run import CLAIM, ClusterRun, causes, unplanned

from bed.api import ApiError

pytestmark = pytest.mark.timeout(300)

LATE = 10_000  # no checkpoint before a drain


def test_live_settings(cluster_run: ClusterRun) -> None:
    """Save interval and limits reach the running attempt; nothing restarts."""
    run = cluster_run.faking().create()
    run.until_step(30)
    run.change(checkpoint={"interval": {"steps": 7}}, recovery={"hangSeconds": 100})
    run.until_event("SettingsPushed")
    status = run.until(lambda status: status.observed_generation == 2, "the change to be seen")
    status = run.until_step(status.step + 30)
    assert (status.attempt.number, status.interruptions) == (1, ())


def test_scale(cluster_run: ClusterRun) -> None:
    """`kubectl scale` up and down: one planned ending each, pods kept as far as they are wanted."""
    run = cluster_run.faking(checkpoint_every=50)
    run.spec["recovery"] |= {"growCooldownSeconds": 1}
    run.create(min=1, max=3)
    run.until_step(30)
    lives = {worker: run.life(worker) for worker in run.members()}
    run.plane.kubectl("scale", "rtj", run.name, "--replicas=3", "-n", run.namespace)
    status = run.until_goes_on(2, size=3)
    assert {worker: run.life(worker) for worker in lives} == lives
    assert run.object()["status"]["replicas"] == 3
    run.plane.kubectl("scale", "rtj", run.name, "--replicas=1", "-n", run.namespace)
    status = run.until_goes_on(3, size=1)
    (kept,) = run.members()
    assert run.life(kept) == lives[kept]
    run.wait(lambda: set(run.pods()) == {kept}, "the others to go")
    assert [(item.cause, item.rework_steps) for item in status.interruptions] == [("scale", 0)] * 2
    assert unplanned(status) == []


def test_other_template(cluster_run: ClusterRun) -> None:
    """Another template: drain, then all pods are new ones."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    before = run.uids()
    run.container["env"].append({"name": "GREETING", "value": "hello"})
    run.change(template=run.spec["template"])
    status = run.until_goes_on(2, size=2)
    assert [(item.cause, item.rework_steps) for item in status.interruptions] == [("config", 0)]
    assert set(run.members()) == {"train-0-2", "train-1-2"}
    run.wait(lambda: run.pods().keys().isdisjoint(before), "the old pods to go")
    run.until_event("TemplateChanged")
    env = run.pods()["train-0-2"]["spec"]["containers"][0]["env"]
    assert {"name": "GREETING", "value": "hello"} in env


def test_bad_template_harms_nothing(cluster_run: ClusterRun) -> None:
    """A template that the API server refuses: said with its field, while the attempt goes on."""
    run = cluster_run.faking().create()
    run.until_step(30)
    run.container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/nowhere"}]
    run.change(template=run.spec["template"])
    run.until(lambda _: run.conditions()["Valid"] == ("False", "TemplateInvalid"), "the condition")
    status = run.until_step(run.status().step + 30)
    assert (status.attempt.number, status.phase) == (1, "Running")
    (valid,) = [item for item in status.conditions if item.type == "Valid"]
    assert "volumeMounts[0].name" in valid.message
    assert valid.observed_generation == 2


def test_suspended_from_the_start(cluster_run: ClusterRun) -> None:
    """A job that is made suspended, as queues do, has no pods until it is let go."""
    run = cluster_run.faking()
    run.spec["suspend"] = True
    run.create()
    run.until_phase("Suspended")
    assert run.pods() == {}
    run.change(suspend=False)
    status = run.until_step(10)
    assert (status.attempt.number, status.interruptions) == (1, ())


def test_suspension_has_a_deadline(cluster_run: ClusterRun) -> None:
    """A script that does not drain cannot keep its pods."""
    run = cluster_run.faking("--ignore-drain")
    run.spec["recovery"]["drainSeconds"] = 1
    run.create()
    run.until_step(30)
    run.change(suspend=True)
    run.until_phase("Suspended")
    run.wait(lambda: not run.pods() and not run.processes(), "all pods to go")


def test_ttl(cluster_run: ClusterRun) -> None:
    """A finished job is deleted when its time is over, and takes its pods and its key along."""
    run = cluster_run.faking(steps=20)
    run.spec["ttlSecondsAfterFinished"] = 2
    run.create()
    run.wait(lambda: bool(run.pods()), "its pods")
    run.until_gone()
    run.wait(lambda: not run.keys(), "its key to go")


def test_deadline(cluster_run: ClusterRun) -> None:
    """A job that is too old drains and has failed; its checkpoint stays."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    run.change(activeDeadlineSeconds=1)
    status = run.until_phase("Failed")
    run.wait(lambda: not run.processes(), "its processes to end")
    assert run.conditions()["Failed"] == ("True", "DeadlineExceeded")
    assert causes(status) == ["deadline"]
    assert status.checkpoint is not None
    run.until_event("Failed", "activeDeadlineSeconds")


def test_deleted(cluster_run: ClusterRun) -> None:
    """`kubectl delete`: its pods drain by themselves and are gone, like its key; the volume stays."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    run.plane.kubectl("delete", "rtj", run.name, "-n", run.namespace, "--wait=false")
    run.until_gone()
    run.wait(lambda: not run.keys(), "its key to go")
    assert (run.volume / "store" / "fake-checkpoint.json").exists(), "its pods drained"


def test_deleted_in_the_foreground_without_an_operator(cluster_run: ClusterRun) -> None:
    """Foreground deletion needs nobody but the garbage collector."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    run.operator.kill()
    try:
        run.api.delete(run.where, propagationPolicy="Foreground")
        run.until_gone()
        assert (run.volume / "store" / "fake-checkpoint.json").exists(), "its pods drained"
        run.wait(lambda: not run.keys(), "its key to go")
    finally:
        run.operator.start()


def test_refused_at_apply(cluster_run: ClusterRun) -> None:
    """The API server says itself what is wrong with a spec, in words that name the fix."""
    run = cluster_run.faking()
    with pytest.raises(ApiError) as refused:
        run.create(min=3)
    assert refused.value.status == 422
    assert "replicas must lie between min and max" in refused.value.message
    assert run.object() is None


def test_wrong_claim(cluster_run: ClusterRun) -> None:
    """A claim that does not exist is said before the first pod is made; with another it starts."""
    run = cluster_run.faking()
    run.spec["checkpoint"]["persistentVolumeClaim"]["claimName"] = "nothing"
    run.create()
    run.until(lambda _: run.conditions().get("Valid") == ("False", "ClaimNotFound"), "the condition")
    assert run.pods() == {}
    assert "nothing" in run.until_event("SpecInvalid")
    storage = {"persistentVolumeClaim": {"claimName": CLAIM}}
    with pytest.raises(ApiError, match="changes only while the job is suspended"):
        run.change(checkpoint=storage)
    run.change(checkpoint=storage, suspend=True)
    run.until_phase("Suspended")
    run.change(suspend=False)
    run.until_step(10)
    assert run.conditions()["Valid"] == ("True", "Checked")
