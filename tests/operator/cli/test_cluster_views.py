"""Status, report and list of jobs in a cluster, built from objects and rendered as those of runs are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from job_objects import CREATED, in_phase, stored_job, worker_pod
from run_samples import BEGIN, LEDGER, STATUS

from resumable_operator.cli.cluster_views import report_of, story_of, view_of
from resumable_operator.cli.jobs import cells
from resumable_operator.cluster.kube_objects import seconds
from resumable_operator.errors import SpecError
from resumable_operator.model import JobStatus, MemberStatus

Raw = dict[str, Any]
NOW = 1_700_000_200.0
MEMBERS = tuple(
    MemberStatus(
        worker=f"train-{place}-1",
        place=place,
        incarnation=1,
        address="a",
        agent_port=1,
        first_rank=4 * place,
        ranks=4,
    )
    for place in range(2)
)
TOLD = STATUS.model_copy(
    update={
        "observed_generation": 1,
        "attempt": STATUS.attempt.model_copy(update={"members": MEMBERS}),
    }
)


def pods(*phases: str) -> list[Raw]:
    job = stored_job()
    return [in_phase(worker_pod(job, place), phase) for place, phase in enumerate(phases)]


def test_the_page_is_that_of_a_run_with_pods_in_place_of_its_owner(cluster, run, rtj) -> None:
    """One rendering for both worlds: all other lines are the same."""
    ended = TOLD.model_copy(update={"finished_at": BEGIN + 100})  # the clock of both stands still
    cluster((stored_job(ended), pods("Running", "Running")))
    run.status(ended)
    ours = rtj("status", "train", "-n", "team").output.splitlines()
    theirs = rtj("status", run.path).output.splitlines()

    def comparable(lines: list[str]) -> set[str]:
        return {" ".join(line.split()) for line in lines if not line.strip().startswith("run ")}

    assert comparable(theirs) - comparable(ours) == set()
    assert {" ".join(line.split()) for line in ours} >= {
        "namespace team",
        "pods 2 pods: 2 running",
        "train-0-1 node-1 running ranks 0-3",
        "train-1-1 node-1 running ranks 4-7",
    }


def test_pods_in_trouble_come_first_and_many_are_counted(cluster, rtj) -> None:
    """Of a thousand workers one sees the one that does not run."""
    many = pods(*(["Running"] * 20))
    many[17] = in_phase(worker_pod(stored_job(), 17), "Pending", waiting={"reason": "ImagePullBackOff"})
    cluster((stored_job(TOLD), many))
    output = rtj("status", "train", "-n", "team").output
    lines = [line.split() for line in output.splitlines()]
    shown = [line[0] for line in lines if "node-1" in line]
    assert shown[0] == "train-17-1"
    assert "ImagePullBackOff" in output
    assert len(shown) == 12
    assert "and 8 more" in output


OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
NO_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "no\nway"}}


@pytest.mark.parametrize(
    ("told", "state", "phase", "reason"),
    [
        ("Running", {}, "running", ""),
        ("Failed", OOM, "failed", "OOMKilled"),
        ("Pending", NO_IMAGE, "pending", "ErrImagePull: no way"),
    ],
)
def test_a_pod_in_one_line(told: str, state: Raw, phase: str, reason: str) -> None:
    """What it does, and why not more."""
    pod = in_phase(worker_pod(stored_job(), 0), told, **state)
    (line,) = view_of(stored_job(TOLD), [pod], NOW).pods
    assert (line.phase, line.reason) == (phase, reason)


def test_a_pod_that_is_going_says_why() -> None:
    """A spot notice or an eviction is seen before the pod is gone."""
    pod = in_phase(worker_pod(stored_job(), 0), "Running")
    pod["metadata"] |= {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 30}
    pod["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    ]
    (line,) = view_of(stored_job(TOLD), [pod], NOW).pods
    assert (line.phase, line.reason) == ("ending", "EvictionByEvictionAPI")


ENDED = TOLD.model_copy(update={"phase": "Failed", "finished_at": NOW})


@pytest.mark.parametrize(
    ("status", "meta", "note"),
    [
        (None, {}, "no operator has looked at this job yet"),
        (TOLD, {"generation": 2}, "the spec was changed; what follows is about the one before"),
        (ENDED, {"generation": 2}, "no effect. Delete it and create it again: it continues its checkpoints"),
        (TOLD, {"deletionTimestamp": CREATED}, "the job is being deleted"),
    ],
)
def test_what_a_reader_must_know_is_said(cluster, rtj, status: Any, meta: Raw, note: str) -> None:
    """A status can be missing or old, and looks like any other."""
    job = stored_job(status)
    job["metadata"] |= meta
    cluster((job, []))
    assert note in " ".join(rtj("status", "train", "-n", "team").output.split())
    assert "no operator" not in " ".join(view_of(stored_job(TOLD), [], NOW).notes)


def test_a_job_without_a_status_counts_from_its_creation() -> None:
    """Not from 1970."""
    created = seconds(CREATED)
    assert created is not None
    view = view_of(stored_job(), [], created + 12.0)
    assert view.goodput.age_seconds == 12.0
    assert view.status.phase == "Pending"


def test_a_status_that_can_not_be_read_names_the_field() -> None:
    """Edited by hand, or by a newer operator."""
    job = stored_job(TOLD)
    job["status"]["step"] = "many"
    for build in (lambda: view_of(job, [], NOW), lambda: report_of(job, NOW)):
        with pytest.raises(SpecError, match=r"status.*step"):
            build()


def test_watching_ends_when_the_job_is_deleted(cluster, rtj, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and is no error."""
    monkeypatch.setattr("resumable_operator.cli.cluster_source.WATCH_SECONDS", 0)
    cluster((stored_job(TOLD), []), (None, []))
    result = rtj("status", "train", "-n", "team", "--watch")
    assert (result.exit_code, result.stderr) == (0, "the job was deleted\n")
    assert "Running" in result.stdout


# ---- report --------------------------------------------------------------------------------------------


def test_no_job_in_a_cluster_is_cut_off() -> None:
    """The operator may be away and its pods gone: it is looked after all the same."""
    job = stored_job(TOLD)
    assert not view_of(job, [], NOW).cut_off
    assert not report_of(job, NOW).cut_off
    assert not story_of(job, NOW, ()).report.cut_off


def test_the_report_takes_costs_from_the_newest_save() -> None:
    """What a history would tell is unknown, not zero; the rest is as for a run."""
    job = stored_job(TOLD.model_copy(update={"finished_at": 1_700_000_100.0}))
    told = report_of(job, NOW)
    numbers = told.checkpoints
    assert (numbers.made, numbers.failed, numbers.total_bytes, numbers.fallbacks) == (None,) * 4
    assert (numbers.blocking_seconds, numbers.durable_seconds) == (0.12, 0.2)
    assert told.damaged_lines is None
    assert [item.cause for item in told.endings] == ["node_lost", "scale"]
    assert told.interval is not None
    assert told.interval.used_seconds is None
    assert told.goodput.age_seconds == 100.0


@pytest.mark.parametrize(
    ("interval", "used"),
    [({"seconds": 50.0}, 50.0), ({"steps": 10}, 4.0), ({"steps": 1000, "seconds": 60.0}, 60.0)],
)
def test_an_interval_that_the_spec_sets_is_the_used_one(interval: Raw, used: float) -> None:
    """Steps by their measured duration; whichever comes first."""
    claim = {"persistentVolumeClaim": {"claimName": "ckpt"}}
    told = report_of(stored_job(TOLD, checkpoint={**claim, "interval": interval}), NOW)
    assert told.interval is not None
    assert told.interval.used_seconds == pytest.approx(used)


def test_the_report_of_a_job_in_a_cluster_says_what_is_not_kept(cluster, rtj) -> None:
    """In words, where the numbers would be."""
    cluster((stored_job(TOLD), []))
    output = " ".join(rtj("report", "train", "-n", "team").output.split())
    assert "Checkpoints: newest step-00000190.3, 12.5 MB; it stopped training for 120 ms" in output
    assert "is not in a job's status" in output
    assert "should have been" in output
    cluster((stored_job(JobStatus(ledger=LEDGER)), []))
    assert "Checkpoints: none yet" in rtj("report", "train", "-n", "team").output


@pytest.mark.parametrize("columns", [40, 79, 120])
@pytest.mark.parametrize("command", ["status", "report"])
def test_no_line_is_wider_than_the_terminal(cluster, rtj, command: str, columns: int) -> None:
    """Pods fold as everything does."""
    cluster((stored_job(TOLD), pods("Running", "Pending")))
    result = rtj(command, "train", "-n", "team", columns=columns)
    assert result.exit_code == 0
    assert all(len(line) <= columns for line in result.output.splitlines())


# ---- list ----------------------------------------------------------------------------------------------


def test_a_line_of_the_list() -> None:
    """From the object as it is: one that can't be read as a job must not hide the others."""
    created = seconds(CREATED)
    assert created is not None
    job = stored_job(TOLD)
    job["status"] |= {"workers": "3/3", "goodput": "80.0%", "reason": "x" * 200 + "\nmore"}
    told = cells(job, created + 3600)
    assert told | {"reason": ""} == {
        "namespace": "team",
        "job": "train",
        "phase": "Running",
        "workers": "3/3",
        "step": "200",
        "checkpoint": "step 190",
        "attempt": "3",
        "goodput": "80.0%",
        "age": "1 h 00 min",
        "reason": "",
    }
    assert len(told["reason"]) == 64
    assert cells({"metadata": job["metadata"], "status": {"phase": 3}}, created)["phase"] == "3"


def test_the_list_has_one_namespace_or_all(rtj) -> None:
    """Both at once is a mistake."""
    result = rtj("list", "-A", "-n", "team")
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_json_of_a_job_in_a_cluster(cluster, rtj) -> None:
    """The same object as of a run, with pods."""
    cluster((stored_job(TOLD), pods("Running")))
    told = json.loads(rtj("status", "train", "-n", "team", "--json").output)
    assert (told["namespace"], told["owner"], told["notes"]) == ("team", None, [])
    assert told["pods"] == [
        {"name": "train-0-1", "node": "node-1", "phase": "running", "reason": "", "ranks": "0-3"}
    ]
    assert told["status"]["step"] == 200


def test_a_job_that_no_operator_has_seen_has_no_attempt(cluster, rtj) -> None:
    """Not one of number 0."""
    cluster((stored_job(None), []))
    assert "attempt       none yet" in rtj("status", "train", "-n", "team").output


def test_a_single_rank_is_one(cluster, rtj) -> None:
    """`rank 0`: its number, not a count."""
    one = TOLD.attempt.members[0].model_copy(update={"first_rank": 0, "ranks": 1})
    attempt = TOLD.attempt.model_copy(update={"members": (one,)})
    cluster((stored_job(TOLD.model_copy(update={"attempt": attempt})), pods("Running")))
    assert "running  rank 0" in rtj("status", "train", "-n", "team").output
