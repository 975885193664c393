"""Operators that are two, away for long, of another version, or have another master key.

Ranks are fakes: they don't notice each other's end, so what nobody acts on stays as it is.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import other_operator
import pytest
from cluster_run import ClusterRun, Operator, causes, step_of
from cluster_witness import Witness

from bed.api import path
from resumable_operator.keys import SECRET_NAME
from resumable_training.contract.labels import ANNOTATION_KEY_ID, KIND

pytestmark = pytest.mark.timeout(300)

LATE = 10_000  # no checkpoint: no endings are given back
WRITES_A_SECOND = 8.0  # of two operators that may write a changed status every half second


@pytest.fixture(autouse=True)
def usual_operator(cluster_run: ClusterRun) -> None:
    """Each test begins with the operator at work."""
    if cluster_run.operator.process.process.poll() is not None:
        cluster_run.operator.start()


def trains_on(run: ClusterRun, steps: int) -> None:
    """Rank 0 does so many more steps; the API server is not asked."""
    member = run.status().attempt.members[0]
    reached = step_of(member) + steps
    run.wait(lambda: step_of(member) >= reached, f"step {reached}")


def test_two_operators(cluster_run: ClusterRun) -> None:
    """A second one that looks after the same cluster does no harm: one pod and one attempt follow a loss, and
    they do not overwrite each other without end."""
    run = cluster_run
    first = run.operator.process
    run.operator.start()
    began = time.monotonic()
    with Witness(run) as seen:
        run.faking(steps=150).create(replicas=3)
        run.until_step(30)
        os.kill(run.agent("train-1-1"), signal.SIGKILL)
        status = run.until_goes_on(2)
        assert run.members() == ["train-0-1", "train-1-2", "train-2-1"]
        status = run.finish()
        writes = seen.writes
    assert (causes(status), status.attempt.number, status.step) == (["node_lost"], 2, 150)
    assert len(status.budgets.infrastructure) <= 1
    assert writes <= 60 + WRITES_A_SECOND * (time.monotonic() - began)
    assert len(run.events("Interrupted")) <= 2, "each may tell once"
    for process in (first, run.operator.process):
        assert process.process.poll() is None
        assert not [line for line in process.lines() if line["level"] == "error"]
    first.kill()


@pytest.fixture
def second_operator(cluster_run: ClusterRun, tmp_path: Path) -> Iterator[Operator]:
    """Installed in another namespace, with a master key of its own, for the same jobs."""
    second = Operator(cluster_run.plane, tmp_path)
    try:
        yield second.start()
    finally:
        second.remove()


def test_two_installations(cluster_run: ClusterRun, second_operator: Operator) -> None:
    """Of two with different keys one looks after a job, from its start on; the other says that it is there,
    and leaves it alone: all pods have one key, and one pod and one attempt follow a loss."""
    run = cluster_run
    with Witness(run):
        run.faking(steps=150).create(replicas=3)
        run.until_step(30)
        assert "leaves the job alone" in run.until_event("OtherOperator")
        os.kill(run.agent("train-1-1"), signal.SIGKILL)
        run.until_goes_on(2)
        assert run.members() == ["train-0-1", "train-1-2", "train-2-1"]
        assert len(set(key_ids(run).values())) == 1
        status = run.finish()
    assert (causes(status), status.attempt.number, status.step) == (["node_lost"], 2, 150)
    assert len(run.events("OtherOperator")) == 1
    for operator in (run.operator, second_operator):
        assert operator.process.process.poll() is None
        assert not [line for line in operator.process.lines() if line["level"] == "error"]


@pytest.mark.soak
def test_takes_over_from_one_that_is_gone(cluster_run: ClusterRun, second_operator: Operator) -> None:
    """When the first installation has ceased the second one looks after its jobs: workers that it can't talk
    to are replaced on purpose, and not a step is done twice."""
    second_operator.kill()
    run = cluster_run.faking("--step-seconds", "0.05", steps=600).create()
    with Witness(run):
        run.until_step(30)
        theirs = run.status().operator
        before = set(key_ids(run).values())
        run.operator.kill()
        second_operator.begin(program=other_operator.program("impatient")).await_ready()
        run.until_goes_on(2)
        assert run.status().operator not in ("", theirs)
        assert run.members() == ["train-0-2", "train-1-2"]
        assert before.isdisjoint(key_ids(run)[worker] for worker in run.members())
        status = run.finish()
    assert [item.planned for item in status.interruptions] == [True]
    assert status.ledger.rework_steps == 0


def test_faults_while_it_was_away(cluster_run: ClusterRun) -> None:
    """A rank dies, later a whole pod: the one that comes back names the first cause, and replaces once."""
    run = cluster_run.faking(checkpoint_every=LATE).create(replicas=3)
    with Witness(run):
        run.until_step(30)
        kept = run.life("train-0-1")
        run.operator.kill()
        os.kill(run.ranks("train-1-1")[0], signal.SIGKILL)
        trains_on(run, 150)  # later than what counts as one event
        os.kill(run.agent("train-2-1"), signal.SIGKILL)
        run.wait(lambda: run.pods()["train-2-1"]["status"]["phase"] == "Failed", "the kubelet to see it")
        reached = step_of(run.status().attempt.members[0])
        run.operator.start()
        status = run.until_goes_on(2, size=3)
        assert run.members() == ["train-0-1", "train-1-1", "train-2-2"]
        assert run.life("train-0-1") == kept
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.worker, ending.code) == ("crash", "train-1-1", -signal.SIGKILL)
    assert causes(status) == ["crash"]
    assert (len(status.budgets.user_error), len(status.budgets.infrastructure)) == (0, 1)
    assert status.high_water_step >= reached, "what was done meanwhile is known"
    ledger = status.ledger
    assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at


def test_job_ends_while_it_was_away(cluster_run: ClusterRun) -> None:
    """Training that came to its end unseen has succeeded, with all its steps."""
    run = cluster_run.faking(steps=120).create()
    run.until_step(30)
    run.operator.kill()
    run.wait(lambda: not run.ranks("train-0-1") and not run.ranks("train-1-1"), "the ranks to end")
    run.operator.start()
    status = run.finish()
    assert (status.step, status.attempt.number, status.interruptions) == (120, 1, ())
    assert len(run.events("Succeeded")) == 1


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_job_is_deleted_while_it_was_away(cluster_run: ClusterRun, cascade: str) -> None:
    """Deletion needs no operator."""
    run = cluster_run.faking().create()
    run.until_step(30)
    run.operator.kill()
    run.plane.kubectl("delete", "rtj", run.name, "-n", run.namespace, f"--cascade={cascade}", "--wait=false")
    run.until_gone()


def test_newer_operator(cluster_run: ClusterRun) -> None:
    """An upgrade under a running job: its older agents train on, are told apart, and can be given another
    attempt in place."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(30)
        lives = {worker: run.life(worker) for worker in run.members()}
        run.operator.kill()
        process = run.operator.begin(program=other_operator.program("next-contract"))
        process.await_ready()
        run.wait(lambda: run.conditions().get("AgentOutdated") == ("True", "OlderContract"), "AgentOutdated")
        assert run.status().attempt.number == 1
        os.kill(run.ranks("train-1-1")[0], signal.SIGKILL)
        status = run.until_goes_on(2)
        assert causes(status) == ["crash"]
        assert {worker: run.life(worker) for worker in run.members()} == lives
    run.operator.kill()


def master(run: ClusterRun) -> str:
    return path("v1", "secrets", run.operator.namespace, SECRET_NAME)


def key_ids(run: ClusterRun) -> dict[str, str]:
    return {name: pod["metadata"]["annotations"][ANNOTATION_KEY_ID] for name, pod in run.pods().items()}


def test_rotated_master_key(cluster_run: ClusterRun) -> None:
    """New pods get a key of the new master, the others are spoken to with theirs."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(30)
        data = run.api.get(master(run))["data"]
        new = base64.b64encode(secrets.token_bytes(32)).decode()
        run.api.patch(master(run), {"data": {"current": new, "previous": data["current"]}})
        run.wait(lambda: run.operator.process.says("the master key was changed"), "it to be taken over")
        os.kill(run.agent("train-1-1"), signal.SIGKILL)
        status = run.until_goes_on(2)
        assert run.members() == ["train-0-1", "train-1-2"]
        assert causes(status) == ["node_lost"]
        ids = key_ids(run)
        assert ids["train-0-1"] != ids["train-1-2"]
    secrets_of_job = [
        secret["metadata"]["name"]
        for secret in run.api.list(path("v1", "secrets", run.namespace))
        if any(owner["kind"] == KIND for owner in secret["metadata"].get("ownerReferences", ()))
    ]
    assert len(secrets_of_job) == 2


def test_deleted_master_key(cluster_run: ClusterRun) -> None:
    """Under a working operator it is put back as it was."""
    run = cluster_run
    before = run.api.get(master(run))["data"]
    run.api.delete(master(run))
    run.wait(lambda: run.api.find(master(run)) is not None, "the Secret to come back")
    assert run.api.get(master(run))["data"] == before


@pytest.mark.soak
def test_lost_master_key(cluster_run: ClusterRun) -> None:
    """It is gone while no operator works: training goes on, which is said; after a time all workers are
    replaced by ones that can be spoken to, and the job ends as it should."""
    run = cluster_run.faking("--step-seconds", "0.05", steps=600).create()
    with Witness(run):
        run.until_step(30)
        before = run.status()
        run.operator.kill()
        run.api.delete(master(run))
        run.operator.begin(program=other_operator.program("takes-over")).await_ready()
        run.wait(lambda: run.conditions().get("AgentKeyMismatch", ("", ""))[0] == "True", "AgentKeyMismatch")
        trains_on(run, 50)
        assert run.status().attempt.number == before.attempt.number
        assert run.members() == [member.worker for member in before.attempt.members]
        run.operator.kill()
        run.operator.begin(program=other_operator.program("impatient")).await_ready()
        status = run.until_goes_on(2)
        assert set(run.members()).isdisjoint(member.worker for member in before.attempt.members)
        assert run.conditions()["AgentKeyMismatch"][0] == "False"
        status = run.finish()
    assert [item.planned for item in status.interruptions] == [True]
    assert status.ledger.rework_steps == 0
    run.operator.kill()
