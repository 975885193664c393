"""Output from the logs of pods: which lines, of which attempt, in which order, and what is gone."""

from __future__ import annotations

from typing import Any

import pytest
from job_objects import in_phase, stored_job, worker_pod

from resumable_operator.errors import ClusterRefused, RetryableError
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus

Raw = dict[str, Any]


def told(number: int = 2, phase: str = "Running", state: str = "running", places: int = 2) -> JobStatus:
    """A status whose newest attempt has one rank in each of so many workers."""
    members = tuple(
        MemberStatus(
            worker=f"train-{place}-1",
            place=place,
            incarnation=1,
            address="a",
            agent_port=1,
            first_rank=place,
            ranks=1,
        )
        for place in range(places)
    )
    return JobStatus.model_validate(
        {
            "phase": phase,
            "reason": "because",
            "attempt": AttemptStatus(number=number, state=state, members=members),
            "incarnations": {str(place): 1 for place in range(places)},
        }
    )


def pod(place: int, phase: str = "Running", incarnation: int = 1) -> Raw:
    return in_phase(worker_pod(stored_job(), place, incarnation), phase)


ZERO = [
    "00001 [attempt 1 rank 0] old",
    "00002 2026-11-29T20:00:00 [agent train-0-1] its own words",
    "00003 [attempt 2 rank 0] zero a",
    "00004 [attempt 2 rank 0] ",
]
ONE = ["00001 [attempt 1 rank 1] older", "00002 [attempt 2 rank 1] one a"]
LOGS = {"train-0-1": ZERO, "train-1-1": ONE}


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ((), "[2:0] zero a\n[2:0] \n[2:1] one a\n"),
        (("--rank", "0"), "zero a\n\n"),
        (("--attempt", "1"), "[1:0] old\n[1:1] older\n"),
        (("--attempt", "1", "--rank", "1"), "older\n"),
    ],
)
def test_lines_of_one_attempt_in_order_of_places(cluster, rtj, options: tuple[str, ...], output: str) -> None:
    """Whatever order the API lists pods in, and without what agents say about themselves."""
    cluster((stored_job(told()), [pod(1), pod(0)]), logs=LOGS)
    result = rtj("logs", "train", "-n", "team", *options)
    assert (result.exit_code, result.output) == (0, output)


def test_only_the_pod_with_the_rank_is_read(cluster, rtj) -> None:
    """Of a thousand pods one has rank 7; members of the newest attempt tell which."""
    session = cluster((stored_job(told()), [pod(0), pod(1)]), logs=LOGS)
    rtj("logs", "train", "-n", "team", "--rank", "1")
    assert [name for name, _ in session.reads] == ["train-1-1"]


def test_what_was_printed_long_before_the_attempt_is_not_asked_for(cluster, rtj) -> None:
    """With room for clocks that differ; the container is the worker's, whatever sidecars there are."""
    status = told()
    attempt = status.attempt.model_copy(update={"reserved_at": 1_795_987_823.5})
    session = cluster(
        (stored_job(status.model_copy(update={"attempt": attempt})), [pod(0)]), logs={"train-0-1": []}
    )
    rtj("logs", "train", "-n", "team")
    _, query = session.reads[0]
    assert query == {
        "container": "worker",
        "timestamps": "true",
        "follow": "false",
        "sinceTime": "2026-11-29T21:25:23.5Z",
    }


def test_an_attempt_that_has_printed_nothing_yet_gives_way_to_the_one_before(cluster, rtj) -> None:
    """Right after a failure one wants to see why; it is said which attempt that is."""
    cluster((stored_job(told(3)), [pod(0), pod(1)]), logs=LOGS)
    result = rtj("logs", "train", "-n", "team")
    assert result.stdout == "[2:0] zero a\n[2:0] \n[2:1] one a\n"
    assert result.stderr == "attempt 3 has printed nothing yet; this is attempt 2\n"


@pytest.mark.parametrize(
    ("options", "pods", "message"),
    [
        (("--attempt", "7"), [0, 1], "attempt 7 left no output; there is that of 1, 2"),
        (
            ("--attempt", "1", "--rank", "5"),
            [0, 1],
            "rank 5 printed nothing in attempt 1; there is output of ranks 0, 1",
        ),
        ((), [], "job train has no pods: because"),
        (("--rank", "3"), [2], "job train has no output: no rank has printed anything yet"),
        ((), [2], "job train has no output: no rank has printed anything yet"),
    ],
)
def test_what_is_not_there_is_a_usage_error_that_says_what_is(
    cluster, rtj, options: tuple[str, ...], pods: list[int], message: str
) -> None:
    """A wrong number is answered with the right ones."""
    cluster((stored_job(told(places=0)), [pod(place) for place in pods]), logs={**LOGS, "train-2-1": []})
    result = rtj("logs", "train", "-n", "team", *options)
    assert result.exit_code == 2
    assert message in result.output


def test_a_pod_that_waits_has_no_output_yet(cluster, rtj) -> None:
    """It is not asked, and no error."""
    session = cluster((stored_job(told()), [pod(0), pod(1, "Pending")]), logs=LOGS)
    assert rtj("logs", "train", "-n", "team").exit_code == 0
    assert {name for name, _ in session.reads} == {"train-0-1"}


def test_pods_that_are_gone_are_named(cluster, rtj) -> None:
    """Members of the newest attempt; for an older one, all that there were."""
    status = told().model_copy(update={"incarnations": {"0": 2, "1": 1}})
    cluster((stored_job(status), [pod(0, incarnation=2), pod(1)]), logs={**LOGS, "train-0-2": ZERO[2:]})
    newest = rtj("logs", "train", "-n", "team")
    assert newest.stderr == "pod train-0-1 is gone, and the output went with it\n"
    older = rtj("logs", "train", "-n", "team", "--attempt", "1")
    assert (older.stdout, older.stderr) == (
        "[1:1] older\n",
        "pod train-0-1 is gone, and the output went with it\n",
    )


@pytest.mark.parametrize("read", [True, False])
def test_a_suspended_job_whose_pods_are_gone_says_that_once(cluster, rtj, read: bool) -> None:
    """Nobody may think that nothing was ever printed; also where the pods went while we read."""
    status = told(phase="Suspended", state="ended")
    cluster((stored_job(status), [pod(0, "Succeeded"), pod(1, "Succeeded")] if read else []), logs={})
    result = rtj("logs", "train", "-n", "team")
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "pods train-0-1, train-1-1 are gone, and the output went with them" in result.output
    assert "because" in result.output
    assert "yet" not in result.output


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_an_attempt_that_has_printed_nothing_is_waited_for(cluster, rtj, phase: str) -> None:
    """Its pods are there; those of earlier incarnations being gone says nothing about it."""
    status = told().model_copy(update={"incarnations": {"0": 4, "1": 7}})
    cluster((stored_job(status), [pod(0, phase), pod(1)]), logs={"train-0-1": [], "train-1-1": []})
    result = rtj("logs", "train", "-n", "team")
    assert result.exit_code == 2
    assert result.output == "Error: job train: attempt 2 has not written anything yet (because)\n"


def test_of_many_pods_that_are_gone_some_are_named(cluster, rtj) -> None:
    """A line that can be read, of a job with a thousand workers too."""
    cluster((stored_job(told(places=1000)), []), logs={})
    result = rtj("logs", "train", "-n", "team")
    assert "pods train-0-1, train-1-1, train-2-1 and 997 more are gone" in result.output


def test_a_log_that_can_not_be_read_is_said_and_the_others_are_shown(cluster, rtj) -> None:
    """A dead node takes its logs along for now; only when nothing can be read it is an error."""
    away = RetryableError("get pods/log train-1-1: no route to host (HTTP 502)")
    cluster((stored_job(told()), [pod(0), pod(1)]), logs={"train-0-1": ZERO, "train-1-1": away})
    result = rtj("logs", "train", "-n", "team")
    assert (result.exit_code, result.stdout) == (0, "[2:0] zero a\n[2:0] \n")
    assert "the log of pod train-1-1 can't be read: get pods/log train-1-1: no route" in result.stderr
    cluster((stored_job(told()), [pod(1)]), logs={"train-1-1": away})
    assert rtj("logs", "train", "-n", "team").exit_code == 6


def test_output_that_an_agent_dropped_is_said(cluster, rtj) -> None:
    """Nobody may think that it was all."""
    log = [
        "00001 [attempt 2 rank 0] a",
        "00002 [agent] 512 bytes of output dropped: nobody reads fast enough",
    ]
    cluster((stored_job(told()), [pod(0), pod(1)]), logs={"train-0-1": log, "train-1-1": []})
    result = rtj("logs", "train", "-n", "team")
    assert result.stdout == "[2:0] a\n"
    assert "train-0-1: 512 bytes of output dropped" in result.stderr


# ---- follow --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resumable_operator.cli.cluster_logs.POLL_SECONDS", 0.01)


def test_following_reads_new_pods_and_later_attempts_once(cluster, rtj) -> None:
    """A connection that ends is taken up where it was; lines of attempts before are left out."""
    logs = {**LOGS, "train-2-1": ["00001 [attempt 3 rank 2] two a"]}
    cluster(
        (stored_job(told()), [pod(0)]),
        (stored_job(told()), [pod(0), pod(1)]),
        (stored_job(told()), [pod(0), pod(1)]),
        (stored_job(told(3)), [pod(0), pod(1), pod(2)]),
        (stored_job(told(3)), [pod(0), pod(1), pod(2, "Succeeded")]),
        (stored_job(told(3, "Succeeded", "ended")), [pod(0), pod(1), pod(2, "Succeeded")]),
        logs=logs,
    )
    result = rtj("logs", "train", "-n", "team", "-f")
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["[2:0] ", "[2:0] zero a", "[2:1] one a", "[3:2] two a"]


def test_following_an_attempt_ends_with_it(cluster, rtj) -> None:
    """Later attempts' output does not belong to it."""
    logs = {"train-0-1": [*ZERO, "00005 [attempt 3 rank 0] c"], "train-1-1": ONE}
    cluster((stored_job(told()), [pod(0), pod(1)]), (stored_job(told(3)), [pod(0), pod(1)]), logs=logs)
    result = rtj("logs", "train", "-n", "team", "-f", "--attempt", "2", "--rank", "0")
    assert (result.exit_code, result.output) == (0, "zero a\n\n")


def test_following_a_job_that_is_deleted_ends(cluster, rtj) -> None:
    """What its pods had printed until then is shown."""
    cluster((stored_job(told()), [pod(0), pod(1)]), (None, []), logs=LOGS)
    result = rtj("logs", "train", "-n", "team", "-f")
    assert (result.exit_code, result.stderr) == (0, "the job was deleted\n")
    assert "[2:1] one a\n" in result.stdout


def test_following_waits_for_an_api_server_that_is_away(
    cluster, rtj, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, and no line comes twice after it is back."""
    session = cluster(
        (stored_job(told()), [pod(0), pod(1)]),
        (stored_job(told()), [pod(0), pod(1)]),
        (stored_job(told(2, "Failed", "ended")), [pod(0), pod(1)]),
        logs=LOGS,
    )
    looks, whole = iter([None, RetryableError("get x: no answer")]), session.job

    async def job(name: str) -> Raw:
        error = next(looks, None)
        if error is not None:
            raise error
        return await whole(name)

    monkeypatch.setattr(session, "job", job)
    result = rtj("logs", "train", "-n", "team", "-f")
    assert (result.exit_code, result.stderr) == (0, "get x: no answer; trying again\n")
    assert sorted(result.stdout.splitlines()) == ["[2:0] ", "[2:0] zero a", "[2:1] one a"]


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_missing_right_ends_it(cluster, rtj, follow: tuple[str, ...]) -> None:
    """It would be missing for every pod."""
    no = ClusterRefused("Forbidden", "may not get pods/log")
    cluster((stored_job(told()), [pod(0)]), logs={"train-0-1": no})
    result = rtj("logs", "train", "-n", "team", *follow)
    assert result.exit_code == 6
    assert "may not get pods/log" in result.output
