"""The peer of bench-operator, as far as it can be told without building it: objects, counts and the table."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import peer_table
import pytest
from peer_jobset import (
    HEALTH_PORT,
    JOBSET,
    METRICS_PORT,
    VERSION,
    WEBHOOK_PORT,
    configuration,
    jobset_body,
    reconciles,
    webhooks,
)
from peer_jobset_sim import LABEL_ATTEMPT, LABEL_NAME, JobSets
from plane_requests import PlaneRequests, counted, each, rates

PAGE = """
# HELP apiserver_request_total requests
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 7
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="200",resource="jobs",subresource="status",verb="PUT"} 3
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 99
apiserver_request_total{code="0",resource="pods",subresource="",verb="WATCH"} 5
apiserver_request_total{code="200",resource="",subresource="/readyz",verb="GET"} 5
apiserver_request_sli_duration_seconds_count{resource="pods",verb="POST"} 8
"""


def test_requests_are_those_of_controllers() -> None:
    """All codes of a verb and resource count together; kubelets' writes, watches and probes do not."""
    assert counted(PAGE) == {"POST pods": 8.0, "PUT jobs/status": 3.0}


def test_routine_is_taken_off() -> None:
    """What is asked for anyway, by its rate, is no part of a recovery; what comes to nothing is left out."""
    before = PlaneRequests({"POST pods": 10.0, "GET pods": 100.0}, at=0.0)
    after = PlaneRequests({"POST pods": 30.0, "GET pods": 120.0, "DELETE jobs": 4.0}, at=10.0)
    assert rates(before, after) == {"POST pods": 2.0, "GET pods": 2.0, "DELETE jobs": 0.4}
    assert each(before, after, {"GET pods": 2.0}, events=4) == {"DELETE jobs": 1.0, "POST pods": 5.0}


def test_a_jobset_is_one_job_that_restarts_whole() -> None:
    """The example's pods, all at once, without a limit of restarts that the benchmark could meet."""
    spec = jobset_body("gpt-0001", 5)["spec"]
    ((replicated),) = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (5, 5, 0)
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["failurePolicy"]["maxRestarts"] > 10**6
    assert spec["network"] == {"enableDNSHostnames": False}


def test_webhooks_reach_the_manager_on_this_machine() -> None:
    """By address instead of a Service, with the API server's authority; of pods only those of JobSets."""
    hooks = [
        {"clientConfig": {"service": {"path": f"/{kind}"}}, "rules": [{"resources": [kind]}]}
        for kind in ("jobsets", "pods")
    ]
    (made,) = webhooks([{"webhooks": hooks}], "QUJD")
    of_jobsets, of_pods = made["webhooks"]
    assert of_pods["clientConfig"] == {"url": f"https://127.0.0.1:{WEBHOOK_PORT}/pods", "caBundle": "QUJD"}
    assert "objectSelector" in of_pods
    assert "objectSelector" not in of_jobsets


def test_the_manager_listens_where_it_is_asked() -> None:
    """Three ports on the loopback device, no two the same."""
    text = configuration(Path("/certificates"))
    assert json.loads(text)["webhook"]["certDir"] == "/certificates"
    assert len({WEBHOOK_PORT, METRICS_PORT, HEALTH_PORT}) == 3
    assert f"127.0.0.1:{METRICS_PORT}" in text


def test_reconciles_of_other_kinds_do_not_count() -> None:
    """Whatever came of them."""
    name = "controller_runtime_reconcile_total"
    text = (
        f'{name}{{controller="jobset",result="success"}} 5\n{name}{{controller="jobset",result="error"}} 1\n'
    )
    assert reconciles(text + f'{name}{{controller="pod",result="success"}} 9\n') == 6.0
    assert reconciles("") == 0.0


def test_what_is_built_is_what_is_named() -> None:
    """The version in the title is the module's."""
    assert f"sigs.k8s.io/jobset v{VERSION}" in (JOBSET.directory / "go.mod").read_text()


class FakeApi:
    """Pods that a JobSet's controllers make: what is put into ``events`` is watched, phases are kept."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.phases: list[tuple[str, str]] = []

    async def watch(self, _path: str, **_query: str) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self.events.get()

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        self.phases.append((path.split("/")[-2], body["status"]["phase"]))

    def tell(self, kind: str, name: str, attempt: int, **meta: str) -> None:
        labels = {LABEL_NAME: "gpt", LABEL_ATTEMPT: str(attempt)}
        self.events.put_nowait(
            {
                "type": kind,
                "object": {
                    "metadata": {"uid": name, "name": name, "namespace": "n", "labels": labels, **meta}
                },
            }
        )


async def test_a_recovery_ends_with_the_last_new_pod() -> None:
    """Survivors that are told to stop end at once; half of the next attempt is not enough."""
    api = FakeApi()
    jobsets = JobSets(api, workers=2)  # type: ignore[arg-type]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        watching = group.create_task(jobsets.run())
        for name in ("a0", "b0"):
            api.tell("ADDED", name, 0)
        striking = group.create_task(jobsets.strike(["gpt"], rate=1000.0))
        while ("a0", "Failed") not in api.phases and ("b0", "Failed") not in api.phases:
            await asyncio.sleep(0.01)
        (struck,) = [name for name, phase in api.phases if phase == "Failed"]
        (survivor,) = {"a0", "b0"} - {struck}
        api.tell("MODIFIED", survivor, 0, deletionTimestamp="now")
        api.tell("ADDED", "a1", 1)
        while ("a1", "Running") not in api.phases or (survivor, "Failed") not in api.phases:
            await asyncio.sleep(0.01)
        assert not striking.done()
        assert (await jobsets.facts())["whole"] == 0
        api.tell("ADDED", "b1", 1)
        (run,) = await striking
        assert (await jobsets.facts())["whole"] == 1
        watching.cancel()
    assert set(run["stages"]) == {"stopped", "created", "all run"}
    assert sum(run["stages"].values()) == pytest.approx(run["seconds"])


SIDE = {"plane_requests_per_recovery": {"POST pods": 1.0, "PUT jobs": 2.5}, "cpu": {"kube-apiserver": 0.5}}
AT_PEERS_RATE = {
    "replace": {**SIDE, "seconds": {"p50": 0.04, "p99": 0.12}, "recoveries": 25, "never": 0},
    "shrink": {"seconds": {"p50": 0.1, "p99": 0.2}},
}
OURS = {
    "rates": {"1": {"replace": {}, "shrink": {}}, "2": AT_PEERS_RATE},
    "starts": [{"synced": 3.0, "all_jobs_seen": 4.0}, {"synced": 2.0, "all_jobs_seen": 3.5}],
    "memory_mb": {"rss": 120.4},
}
THEIRS = {
    "restart": {**SIDE, "seconds": {"p50": 2.5, "p99": 3.5}, "recoveries": 25, "never": 1},
    "starts": [{"synced": 1.5, "all_jobs_seen": 1.75}],
    "memory_mb": {"manager": {"rss": 60.0}},
}


@pytest.mark.parametrize(
    ("title", "ours", "theirs"),
    [
        ("pod failed -> next attempt complete, p50 s", "0.04", "2.50"),
        ("   going on without the lost pod:    p50 s", "0.10", "-"),
        ("recoveries", "25", "25"),
        ("never complete", "0", "1"),
        ("pods made anew, a recovery", "1.00", "1.00"),
        ("requests to the API server, a recovery", "3.50", "3.50"),
        ("memory: the operator, the manager, RSS MB", "120", "60.00"),
        ("start -> all jobs seen, s", "3.50", "1.75"),
    ],
)
def test_each_side_has_its_column(title: str, ours: str, theirs: str) -> None:
    """Numbers of one size side by side; a dash where a side has no such thing; the best of all starts."""
    table = peer_table.lines({"5x3": {**OURS, "jobset": THEIRS}, "9x9": OURS}, "jobset")
    assert table[0].split() == ["5x3", "ours", "5x3", "jobset"]
    (row,) = [line for line in table if line.startswith(f"{title} ")]
    assert row.removeprefix(title).split() == [ours, theirs]
