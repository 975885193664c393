"""Objects that somebody edits or deletes by hand, an address that is used again, and agents that lie.

Ranks are fakes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import other_operator
import pytest
from cluster_run import MOUNT, ClusterRun, causes
from cluster_witness import Witness

from bed.api import ApiError, path
from bed.fixtures import AddNode, MakeNamespace
from bed.kubelet_addresses import WISH
from resumable_training.contract.labels import KIND

pytestmark = pytest.mark.timeout(300)

LATE = 10_000
LYING = Path(__file__).parent.parent / "fakes" / "lying"
Raw = dict[str, Any]


@pytest.fixture(autouse=True)
def usual_operator(cluster_run: ClusterRun) -> None:
    """Each test begins with the operator at work."""
    if cluster_run.operator.process.process.poll() is not None:
        cluster_run.operator.start()


def two_attempts(run: ClusterRun) -> ClusterRun:
    """A job whose second pod has been replaced once, at work again."""
    run.faking().create()
    run.until_step(30)
    os.kill(run.agent("train-1-1"), signal.SIGKILL)
    run.until_goes_on(2)
    assert run.members() == ["train-0-1", "train-1-2"]
    return run


def edit_status(run: ClusterRun, **fields: Any) -> None:
    """Merge into the status; None takes a field away."""
    run.api.patch_status(run.where, {"status": fields})


def wipe_status(run: ClusterRun) -> None:
    run.api.patch(f"{run.where}/status", [{"op": "remove", "path": "/status"}], "json")


def test_status_is_wiped(cluster_run: ClusterRun) -> None:
    """All that the operator remembers is gone: what exists counts. No number or name is used again, and the
    job goes on in the pods that it has."""
    run = two_attempts(cluster_run)
    uids = run.uids()
    wipe_status(run)
    status = run.until_goes_on(3)
    assert run.members() == ["train-0-1", "train-1-2"]
    assert run.uids().items() >= {name: uids[name] for name in run.members()}.items()
    assert status.step > 0
    os.kill(run.agent("train-1-2"), signal.SIGKILL)
    run.until_goes_on(status.attempt.number + 1)
    assert run.members() == ["train-0-1", "train-1-3"]


EDITS: dict[str, Raw] = {
    "attempt lowered": {"attempt": {"number": 1}},
    "digest": {"attempt": {"digest": "0" * 32}},
    "membership": {"attempt": {"members": []}},
    "incarnations lowered": {"incarnations": {"0": 0, "1": 1}},
    "incarnations gone": {"incarnations": None},
    "succeeded": {"phase": "Succeeded"},
    "state": {"attempt": {"state": "ended"}},
}


AT_ALL_TIMES = ("attempt lowered", "membership", "incarnations gone", "state")
_EDITS = [pytest.param(edit, marks=() if edit in AT_ALL_TIMES else pytest.mark.soak) for edit in EDITS]


@pytest.mark.parametrize("edit", _EDITS)
def test_status_is_edited(cluster_run: ClusterRun, edit: str) -> None:
    """A line of the status says something else than the world: the job goes on, nothing is numbered or named
    twice. After the edit a pod is lost, so that each number and name is needed."""
    run = two_attempts(cluster_run)
    with Witness(run) as seen:
        edit_status(run, **EDITS[edit])
        run.wait(lambda: run.status().phase == "Running", "the job to run on")
        os.kill(run.agent("train-1-2"), signal.SIGKILL)
        status = run.until_goes_on(3)
        run.wait(lambda: "train-1-3" in run.members(), "train-1-3 to take part")
        assert run.members() == ["train-0-1", "train-1-3"]
        assert status.phase == "Running"
        assert set(seen.pods) == {"train-0-1", "train-1-2", "train-1-3"}
        seen.attempts.pop(1, None)  # somebody else wrote that
        if edit in ("digest", "membership"):
            seen.attempts.pop(2, None)


def test_status_is_refused(cluster_run: ClusterRun) -> None:
    """Values of another type don't get in."""
    run = cluster_run.faking().create()
    with pytest.raises(ApiError) as refused:
        edit_status(run, attempt={"number": "two"})
    assert refused.value.status == 422
    assert "status.attempt.number" in refused.value.message


def test_status_cannot_be_read(cluster_run: ClusterRun) -> None:
    """What the operator can't read it does not overwrite: it says so, training goes on, and when it is put
    right the same attempt goes on."""
    run = cluster_run.faking().create()
    run.until_step(30)
    lives = {worker: run.life(worker) for worker in run.members()}
    edit_status(run, packed="nonsense")

    def told() -> bool:
        conditions = (run.object() or {})["status"]["conditions"]
        return any(
            (item["type"], item["status"]) == ("Valid", "False") and "packed" in item["message"]
            for item in conditions
        )

    run.wait(told, "the condition to say so")
    edit_status(run, packed=None)
    run.wait(lambda: run.conditions()["Valid"][0] == "True", "it to be valid again")
    status = run.until_step(run.status().step + 20)
    assert status.attempt.number == 1
    assert {worker: run.life(worker) for worker in run.members()} == lives


def owned_secrets(run: ClusterRun) -> list[str]:
    found = run.api.list(path("v1", "secrets", run.namespace))
    return [
        secret["metadata"]["name"]
        for secret in found
        if any(owner["kind"] == KIND for owner in secret["metadata"].get("ownerReferences", ()))
    ]


@pytest.mark.soak
def test_key_is_deleted(cluster_run: ClusterRun) -> None:
    """The Secret with the job's key: running pods have read it, the next pod finds it made again."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(30)
        (name,) = owned_secrets(run)
        run.api.delete(path("v1", "secrets", run.namespace, name))
        os.kill(run.agent("train-1-1"), signal.SIGKILL)
        status = run.until_goes_on(2, size=2)
        assert run.members() == ["train-0-1", "train-1-2"]
        assert causes(status) == ["node_lost"]
        assert owned_secrets(run) == [name]


@pytest.mark.soak
def test_all_pods_are_deleted(cluster_run: ClusterRun) -> None:
    """All at once and without grace: all are made anew, under new names; training goes on where it was."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(60)
        run.plane.kubectl("delete", "pods", "--all", "-n", run.namespace, "--grace-period=0", "--force")
        status = run.until_goes_on(2, size=2)
        assert run.members() == ["train-0-2", "train-1-2"]
        assert status.attempt.start_step >= 40


def test_everything_owned_is_deleted(cluster_run: ClusterRun) -> None:
    """Pods and the key, while no operator works."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(60)
        run.operator.kill()
        for name in owned_secrets(run):
            run.api.delete(path("v1", "secrets", run.namespace, name))
        run.plane.kubectl("delete", "pods", "--all", "-n", run.namespace, "--grace-period=0", "--force")
        run.wait(lambda: not run.pods(), "the pods to go")
        run.operator.start()
        status = run.until_goes_on(2, size=2)
        assert run.members() == ["train-0-2", "train-1-2"]
        assert status.attempt.start_step >= 40
        assert len(owned_secrets(run)) == 1


def test_labels_are_taken_off(cluster_run: ClusterRun) -> None:
    """A pod without the labels that it is watched by is lost to the job; its place is filled."""
    run = cluster_run.faking().create()
    run.until_step(30)
    labels = dict.fromkeys(run.pods()["train-1-1"]["metadata"]["labels"])
    run.api.patch(run.pod_path("train-1-1"), {"metadata": {"labels": labels}})
    run.until_goes_on(2, size=2)
    assert run.members() == ["train-0-1", "train-1-2"]
    run.api.delete(run.pod_path("train-1-1"), gracePeriodSeconds=0)


def test_address_is_used_again(
    cluster_run: ClusterRun, make_namespace: MakeNamespace, add_node: AddNode
) -> None:
    """A pod on a dead node is still in the API, and another job's pod gets its address: neither job takes the
    other's agent for its own."""
    first = cluster_run.faking()
    first.own_nodes(add_node(cpu=1), add_node(cpu=1), add_node(cpu=1))
    first.create()
    second = ClusterRun(first.plane, first.nodes, first.operator, make_namespace())
    try:
        with Witness(first), Witness(second):
            first.until_step(30)
            address = first.pods()["train-1-1"]["status"]["podIP"]
            first.nodes.die(first.node_of("train-1-1"))
            second.spec["template"]["metadata"] = {"annotations": {WISH: address}}
            second.faking().create(replicas=1)
            second.until_step(30)
            assert second.pods()["train-0-1"]["status"]["podIP"] == address
            status = first.until_goes_on(2, size=2)
            assert causes(status) == ["node_lost"]
            assert first.members() == ["train-0-1", "train-1-2"]
            assert first.pods()["train-1-1"]["status"]["podIP"] == address, "it is still there"
            status = second.until_step(second.status().step + 50)
            assert (status.attempt.number, status.interruptions) == (1, ())
    finally:
        second.remove()


def lying(run: ClusterRun, how: str) -> ClusterRun:
    """The agent of train-1-1 will lie so."""
    run.faking()
    lie = f"{MOUNT}/lie"
    run.container["env"] += [
        {"name": "PATH", "value": f"{LYING}:{Path(sys.executable).parent}:{os.environ['PATH']}"},
        {"name": "REAL_PYTHON", "value": sys.executable},
        {"name": "LIAR", "value": f"train-1-1 {how} {lie}"},
    ]
    return run


@pytest.fixture
def impatient(cluster_run: ClusterRun) -> Iterator[None]:
    """The operator waits for nothing."""
    cluster_run.operator.kill()
    cluster_run.operator.begin(program=other_operator.program("impatient")).await_ready()
    yield
    cluster_run.operator.kill()


@pytest.mark.usefixtures("impatient")
def test_agent_tells_of_an_old_attempt(cluster_run: ClusterRun) -> None:
    """An agent that says, signed, that it is at an attempt before: its ranks count as gone, and as it never
    takes the next assignment either, by its own word, its pod is replaced. Nothing is the script's fault."""
    run = lying(cluster_run, "old").create()
    with Witness(run):
        run.until_step(60)
        kept = run.life("train-0-1")
        (run.volume / "lie").touch()
        run.wait(lambda: run.members() == ["train-0-1", "train-1-2"], "the liar to be replaced")
        status = run.until_goes_on(run.status().attempt.number)
        assert run.life("train-0-1") == kept
    assert set(causes(status)) <= {"unknown", "node_lost"}
    assert status.budgets.user_error == ()
    assert status.attempt.start_step >= 40


@pytest.mark.usefixtures("impatient")
def test_agent_is_not_signed(cluster_run: ClusterRun) -> None:
    """An agent that is not believed any more: training goes on for a while, then its pod is replaced."""
    run = lying(cluster_run, "unsigned").create()
    with Witness(run):
        run.until_step(60)
        kept = run.life("train-0-1")
        (run.volume / "lie").touch()
        assert "train-1-1" in run.until_event("AgentNotBelieved")
        status = run.until_goes_on(2)
        assert run.members() == ["train-0-1", "train-1-2"]
        assert run.life("train-0-1") == kept
    assert [(item.cause, item.planned) for item in status.interruptions] == [("drained", True)]
    assert status.ledger.rework_steps == 0


def test_agent_talks_garbage(cluster_run: ClusterRun) -> None:
    """An agent whose words are no HTTP, to its neighbour either, is as good as none: a lost worker."""
    run = lying(cluster_run, "garbage").create()
    with Witness(run):
        run.until_step(60)
        kept = run.life("train-0-1")
        (run.volume / "lie").touch()
        assert "train-1-1" in run.until_event("AgentNotBelieved")
        status = run.until_goes_on(2)
        assert run.members() == ["train-0-1", "train-1-2"]
        assert run.life("train-0-1") == kept
    assert causes(status) == ["node_lost"]
