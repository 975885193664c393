"""`rtj` and `kubectl rtj` on a real API server, with jobs and pods that the tests make themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_store import Store, flip_a_bit
from cli_team import SECONDS, Raw, Team
from click.testing import CliRunner
from cluster_run import ClusterRun
from job_objects import IMAGE, worker_pod

from bed.api import Api, path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.pod_testing import PodWatch, phase
from bed.processes import wait_until
from bed.s3 import S3Server
from resumable_operator.cli.main import cli
from resumable_operator.model import (
    AttemptStatus,
    Condition,
    JobStatus,
    LedgerStatus,
    MemberStatus,
)
from resumable_training.checkpoint.stores import open_store
from resumable_training.contract.manifest import checkpoint_name


def status(**changes: Any) -> JobStatus:
    """Of a job that trains in its second attempt."""
    base = JobStatus(
        phase="Running",
        reason="all 2 workers train",
        conditions=(Condition(type="Valid", status="True", reason="Accepted"),),
        observed_generation=1,
        attempt=AttemptStatus(
            number=2,
            state="running",
            world_size=2,
            members=tuple(member(place) for place in range(2)),
        ),
        incarnations={"0": 1, "1": 1},
        size=2,
        step=200,
        ledger=LedgerStatus(
            started_at=1_700_000_000_000,
            settled_at=1_700_000_100_000,
            phases={"productive": 80_000, "starting": 20_000},
        ),
        started_at=1_700_000_000.0,
    )
    return base.model_copy(update=changes)


def member(place: int, name: str = "train") -> MemberStatus:
    return MemberStatus(
        worker=f"{name}-{place}-1",
        place=place,
        incarnation=1,
        address="127.0.0.9",
        agent_port=1,
        first_rank=place,
        ranks=1,
    )


@pytest.fixture
def team(control_plane: ControlPlane, namespace: str, job_kind: str) -> Team:
    """An administrator in a fresh namespace."""
    return Team(control_plane, namespace)


@pytest.fixture
def pods(team: Team, nodes: Nodes) -> Iterator[PodWatch]:
    """The namespace's pods, with nodes that run them."""
    with PodWatch(team.api, team.namespace) as watch:
        yield watch


def said(*lines: str, then: str = "sleep 600") -> str:
    """A script that prints these lines as an agent does, and goes on."""
    return "".join(f"echo '{line}'\n" for line in lines) + then


# ---- status, report, list ------------------------------------------------------------------------------


def test_status_shows_the_job_and_its_pods(team: Team, pods: PodWatch) -> None:
    """What is known of the job, where its workers are, and why one is nowhere."""
    job = team.submit(status())
    pods.create(
        worker_pod(job, 0, script="sleep 600", nodeName="node-2"),
        worker_pod(job, 1, nodeSelector={"no": "where"}),
    )
    pods.until("train-0-1", phase("Running"), SECONDS)
    pods.until("train-1-1", lambda pod: bool(pod["status"].get("conditions")), SECONDS)
    result = team.rtj("status", "train")
    assert result.exit_code == 0, result.output
    for text in (
        "train  Running: all 2 workers train",
        team.namespace,
        "2 pods: 1 pending, 1 running",
        "train-0-1  node-2  running  rank 0",
        "train-1-1  no node  pending  rank 1  Unschedulable: ",
        "2 (running), world size 2",
        "Valid=True (Accepted)",
    ):
        assert text in result.output
    assert "rtj run" not in result.output
    told = json.loads(team.rtj("status", "rtj/train", "--json").output)
    assert [pod["node"] for pod in told["pods"]] == ["node-2", ""]
    assert told["status"]["step"] == 200


def test_kubectl_finds_it(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plug-in it means the cluster that kubectl means, without being told."""
    team.submit(status())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    result = team.plane.kubectl("rtj", "status", "train", "-n", team.namespace)
    assert "train  Running" in result.stdout
    failed = team.plane.kubectl("rtj", "status", "nothing-of-that-name", check=False)
    assert failed.returncode == 2
    assert "namespace default has no job nothing-of-that-name" in failed.stderr


def test_a_job_that_no_operator_has_seen_says_so(team: Team) -> None:
    """An empty status is not shown as if it were one."""
    team.submit()
    result = team.rtj("status", "train")
    assert "no operator has looked at this job yet" in result.output
    assert "none yet" in result.output


def test_the_report_says_what_it_can_not_know(team: Team) -> None:
    """There is no history of saves in a cluster: no zeros stand for it."""
    team.submit(status(phase="Succeeded", finished_at=1_700_000_100.0))
    result = team.rtj("report", "train")
    assert result.exit_code == 0, result.output
    assert "goodput 80.0 %" in result.output
    assert "is not in a job's status" in result.output
    assert "0 made" not in result.output
    told = json.loads(team.rtj("report", "train", "--json").output)
    assert (told["checkpoints"]["made"], told["damagedLines"]) == (None, None)
    assert sum(item["seconds"] for item in told["phases"]) == pytest.approx(100.0)


def test_watching_goes_on_until_the_job_has_ended(team: Team) -> None:
    """A line per change; a status that somebody writes is seen."""
    team.submit(status())
    with team.running_rtj("status", "train", "--watch") as process:
        assert process.stdout is not None
        assert "all 2 workers train" in process.stdout.readline()
        team.tell(status(phase="Succeeded", reason="all ranks returned 0"))
        rest, errors = process.communicate(timeout=SECONDS)
    assert "Succeeded" in rest
    assert (process.returncode, errors) == (0, "")


def test_jobs_are_listed(team: Team) -> None:
    """Of one namespace, and of all."""
    team.submit(status())
    team.submit(name="other")
    lines = [line.split() for line in team.rtj("list").output.splitlines() if line.strip()]
    assert [(line[0], line[1]) for line in lines[1:] if line[0] in ("other", "train")] == [
        ("other", "Pending"),
        ("train", "Running"),
    ]
    env = {"KUBECONFIG": str(team.kubeconfig), "COLUMNS": "200"}
    everywhere = CliRunner().invoke(cli, ["list", "-A"], env=env).output
    assert [line.split()[:2] for line in everywhere.splitlines() if team.namespace in line] == [
        [team.namespace, "other"],
        [team.namespace, "train"],
    ]


def test_a_job_that_is_not_there_suggests_what_is(team: Team, make_namespace: Callable[..., str]) -> None:
    """A slip of the finger and a forgotten namespace are the usual reasons."""
    team.submit(name="gpt-small")
    result = team.rtj("status", "gpt-smal")
    assert (result.exit_code, "did you mean gpt-small?" in result.output) == (2, True)
    other = Team(team.plane, make_namespace())
    for command in ("status", "logs", "report"):
        result = other.rtj(command, "gpt-small")
        assert result.exit_code == 2
        assert f"there is one in namespace {team.namespace}" in result.output


# ---- logs ----------------------------------------------------------------------------------------------

OLD = ("[attempt 1 rank 0] old", "2026-11-29T20:00:00 [agent train-0-1] its own words")
ZERO = (*OLD, "[attempt 2 rank 0] zero a", "[attempt 2 rank 0] zero b")
ONE = ("[attempt 1 rank 1] older", "[attempt 2 rank 1] one a")


def test_logs_of_two_attempts(team: Team, pods: PodWatch) -> None:
    """The newest attempt unless another is asked for; by rank; without sidecars and the agent's own words."""
    job = team.submit(status())
    pods.create(worker_pod(job, 0, script=said(*ZERO)), worker_pod(job, 1, script=said(*ONE, then="exit 0")))
    pods.until("train-0-1", phase("Running"), SECONDS)
    pods.until("train-1-1", phase("Succeeded"), SECONDS)
    wait_until(
        lambda: "zero b" in team.rtj("logs", "train").output, SECONDS, "the output of the newest attempt"
    )
    assert team.rtj("logs", "train").output == "[2:0] zero a\n[2:0] zero b\n[2:1] one a\n"
    assert team.rtj("logs", "train", "--rank", "1").output == "one a\n"
    assert team.rtj("logs", "train", "--attempt", "1").output == "[1:0] old\n[1:1] older\n"
    assert team.rtj("logs", "train", "--attempt", "1", "--rank", "0").output == "old\n"
    wrong = team.rtj("logs", "train", "--attempt", "1", "--rank", "7")
    assert wrong.exit_code == 2
    assert "rank 7 printed nothing in attempt 1; there is output of ranks 0, 1" in wrong.output


def test_output_goes_with_its_pod(team: Team, pods: PodWatch) -> None:
    """Whose pod is gone is named, so that nobody takes the rest for all."""
    job = team.submit(status())
    pods.create(worker_pod(job, 0, script=said(*ZERO)))
    pods.until("train-0-1", phase("Running"), SECONDS)
    wait_until(lambda: "zero b" in team.rtj("logs", "train").output, SECONDS, "its output")
    result = team.rtj("logs", "train")
    assert (result.exit_code, result.stdout) == (0, "[2:0] zero a\n[2:0] zero b\n")
    assert result.stderr == "pod train-1-1 is gone, and the output went with it\n"


def test_following_shows_new_pods_and_new_attempts(team: Team, pods: PodWatch, nodes: Nodes) -> None:
    """Each line comes once, of pods that are there and of those that come, until the job has ended."""
    job = team.submit(status())
    until_told = "trap 'echo \"[attempt 3 rank 0] zero c\"; exit 0' USR1\nwhile :; do sleep 0.1; done"
    pods.create(worker_pod(job, 0, script=said(*ZERO, then=until_told)))
    with team.running_rtj("logs", "train", "-f") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["[2:0] zero a\n", "[2:0] zero b\n"]
        pods.create(worker_pod(job, 1, 2, script=said("[attempt 3 rank 1] one a", then="exit 0")))
        assert process.stdout.readline() == "[3:1] one a\n"
        os.kill(nodes.pids(team.namespace, "train-0-1", "worker")[0], signal.SIGUSR1)
        assert process.stdout.readline() == "[3:0] zero c\n"
        team.tell(status(phase="Succeeded"))
        rest, errors = process.communicate(timeout=SECONDS)
    assert (rest, process.returncode) == ("", 0), errors


# ---- checkpoints ---------------------------------------------------------------------------------------


def filled(root: Path) -> Store:
    """Attempt 1 saved 10 and 20; attempt 2 went on from 20 and saved 25."""
    store = Store(root)
    store.record(1)
    for step in (10, 20):
        store.save(step, 1)
    store.record(2, parent=checkpoint_name(20, 1))
    store.save(25, 2)
    return store


def test_checkpoints_on_a_claim(team: Team, pods: PodWatch) -> None:
    """A short pod reads the claim; what it finds is shown as if it were here, and it is no worker."""
    store = filled(team.claim() / "runs" / "a")
    storage = {"persistentVolumeClaim": {"claimName": "ckpt", "path": "runs/a"}}
    job = team.submit(status(), checkpoint=storage)
    pods.create(worker_pod(job, 0, script="exit 0"))
    pods.until("train-0-1", phase("Succeeded"), SECONDS)
    result = team.rtj("checkpoints", "list", "train")
    assert result.exit_code == 0, result.output
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    lines = {row.split()[0]: row for row in rows if row.startswith("step-")}
    assert list(lines) == [checkpoint_name(*at) for at in ((25, 2), (20, 1), (10, 1))]
    assert lines["step-00000025.2"].endswith("next resume point")
    told = json.loads(team.rtj("checkpoints", "list", "train", "--json").stdout)
    assert [item["step"] for item in told] == [25, 20, 10]

    assert team.rtj("checkpoints", "verify", "train").exit_code == 0
    flip_a_bit(store.root / checkpoint_name(20, 1))
    result = team.rtj("checkpoints", "verify", "train")
    assert result.exit_code == 1
    assert "step-00000020.1  damaged: __0_0.distcp" in result.stdout
    assert team.rtj("checkpoints", "verify", "train", "--step", "10").exit_code == 0
    result = team.rtj("checkpoints", "verify", "train", "--step", "11")
    assert (result.exit_code, "it has steps 25, 20, 10" in result.output) == (2, True)

    team.await_no_reader()
    readers = [pod for _, pod in pods.events if "-reader-" in pod["metadata"]["name"]]
    assert len({pod["metadata"]["name"] for pod in readers}) == 6
    assert {pod["spec"]["containers"][0]["image"] for pod in readers} == {IMAGE}
    assert {pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] for pod in readers} == {"rtj"}
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in readers} == {job["metadata"]["uid"]}


def test_checkpoints_in_a_bucket(team: Team, nodes: Nodes, s3: S3Server, s3_url: str, tmp_path: Path) -> None:
    """The pod has the job's Secret and endpoint; this machine needs neither."""
    store, remote = filled(tmp_path / "store"), open_store(s3_url)
    for file in (found for found in store.root.rglob("*") if found.is_file()):
        remote.put(str(file.relative_to(store.root)), file.read_bytes())
    keys = {name: value for name, value in s3.environment().items() if name != "AWS_ENDPOINT_URL"}
    secret = {"metadata": {"name": "bucket"}, "stringData": keys}
    team.api.create(path("v1", "secrets", team.namespace), secret)
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    place = {"bucket": bucket, "prefix": prefix, "endpoint": s3.endpoint, "secretName": "bucket"}
    team.submit(status(), checkpoint={"s3": place})
    result = team.rtj("checkpoints", "list", "train", "--image", IMAGE)
    assert result.exit_code == 0, result.output
    assert "next resume point" in result.stdout
    assert (
        f"{checkpoint_name(10, 1)}  ok" in team.rtj("checkpoints", "verify", "train", "--image", IMAGE).stdout
    )
    team.await_no_reader()


def test_a_job_is_suspended_and_resumed(team: Team) -> None:
    """One field of the spec; waiting ends when the operator says so."""
    job = team.submit(status())
    assert team.rtj("suspend", "train").exit_code == 0
    where = path("resumable.dev/v1alpha1", "resumabletrainingjobs", team.namespace, "train")
    changed = team.api.get(where)
    assert changed["spec"] == {**job["spec"], "suspend": True}
    with team.running_rtj("suspend", "train", "--wait") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Running: all 2 workers train\n"
        condition = Condition(type="Suspended", status="True", reason="SpecSuspend")
        generation = changed["metadata"]["generation"]
        team.tell(status(phase="Suspended", conditions=(condition,), observed_generation=generation))
        output, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, output.splitlines()[-1]) == (0, "job train is suspended")
    assert team.rtj("resume", "train").exit_code == 0
    assert not team.api.get(where)["spec"].get("suspend")


def test_a_store_that_nobody_has_written_yet(team: Team, nodes: Nodes) -> None:
    """No directory is not an error of the cluster; and without any pod the image must be given."""
    team.claim()
    team.submit(status(), checkpoint={"persistentVolumeClaim": {"claimName": "ckpt", "path": "new"}})
    result = team.rtj("checkpoints", "list", "train")
    assert (result.exit_code, "give it by --image" in result.output) == (2, True)
    result = team.rtj("checkpoints", "list", "train", "--image", IMAGE)
    assert result.exit_code == 2
    assert (
        "claim ckpt, path new: there is no such directory: no checkpoint was made there yet" in result.output
    )


def test_a_claim_of_one_node_is_read_there(team: Team, pods: PodWatch) -> None:
    """A ReadWriteOnce claim can be mounted only where a worker has it mounted."""
    filled(team.claim("ReadWriteOnce"))
    job = team.submit(status())
    pods.create(worker_pod(job, 0, script="sleep 600", nodeName="node-3"))
    pods.until("train-0-1", phase("Running"), SECONDS)
    assert team.rtj("checkpoints", "list", "train").exit_code == 0
    readers = [pod for _, pod in pods.events if "-reader-" in pod["metadata"]["name"]]
    assert {pod["spec"].get("nodeName") for pod in readers} - {None} == {"node-3"}


def test_the_reader_passes_the_restricted_standard(
    control_plane: ControlPlane, restricted_namespace: str, nodes: Nodes, job_kind: str
) -> None:
    """Where workers are let in, it is too."""
    team = Team(control_plane, restricted_namespace)
    filled(team.claim())
    team.submit(status())
    result = team.rtj("checkpoints", "list", "train", "--image", IMAGE)
    assert result.exit_code == 0, result.output


def test_an_image_that_is_nowhere(team: Team, nodes: Nodes) -> None:
    """Said at once, with what to do, and nothing stays."""
    team.claim()
    team.submit(status())
    result = team.rtj("checkpoints", "list", "train", "--image", "nowhere.example/none:1")
    assert result.exit_code == 6
    assert "ImagePullBackOff" in result.output
    assert "--image names another image" in result.output
    team.await_no_reader()


def test_a_reader_that_hangs_is_ended(team: Team, nodes: Nodes) -> None:
    """A store that never answers (here: a pipe that nobody writes) costs no more than the time limit."""
    store = filled(team.claim())
    manifest = store.root / checkpoint_name(25, 2) / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    team.submit(status())
    result = team.rtj("checkpoints", "list", "train", "--image", IMAGE, "--time-limit", "4")
    assert result.exit_code == 6
    assert "was ended after 4 s; allow more by --time-limit" in result.output
    team.await_no_reader()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_reader_is_deleted(team: Team, nodes: Nodes, number: signal.Signals) -> None:
    """While it waits the reason is shown; Ctrl-C takes the pod along."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "nobody-provides-it",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claims = path("v1", "persistentvolumeclaims", team.namespace)
    team.api.create(claims, {"metadata": {"name": "ckpt"}, "spec": spec})
    team.submit(status())
    with team.running_rtj("checkpoints", "list", "train", "--image", IMAGE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Unschedulable" in line and "PersistentVolumeClaim" in line:
                break
        assert len(team.readers()) == 1
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    team.await_no_reader()


# ---- rights --------------------------------------------------------------------------------------------


def grant(api: Api, namespace: str, *rules: Raw) -> None:
    """A service account `looker` with these rights."""
    api.create(path("v1", "serviceaccounts", namespace), {"metadata": {"name": "looker"}})
    group = "rbac.authorization.k8s.io"
    api.create(
        path(f"{group}/v1", "roles", namespace), {"metadata": {"name": "looker"}, "rules": list(rules)}
    )
    subject = {"kind": "ServiceAccount", "name": "looker", "namespace": namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": "looker"}
    binding = {"metadata": {"name": "looker"}, "subjects": [subject], "roleRef": reference}
    api.create(path(f"{group}/v1", "rolebindings", namespace), binding)


JOBS_RIGHT = {"apiGroups": ["resumable.dev"], "resources": ["resumabletrainingjobs"], "verbs": ["get"]}
PODS_RIGHT = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


@pytest.mark.parametrize(
    ("rules", "command", "missing"),
    [
        ((), ("status",), "may not get resumabletrainingjobs.resumable.dev"),
        ((JOBS_RIGHT,), ("status",), "may not list pods"),
        ((JOBS_RIGHT, PODS_RIGHT), ("logs",), "may not get pods/log"),
        ((JOBS_RIGHT, PODS_RIGHT), ("checkpoints", "list"), "may not create pods"),
    ],
)
def test_a_missing_right_is_named(
    team: Team, pods: PodWatch, rules: tuple[Raw, ...], command: tuple[str, ...], missing: str
) -> None:
    """Who asks, what for, where; and how to see it."""
    team.claim()
    job = team.submit(status())
    pods.create(worker_pod(job, 0, script="exit 0"))
    pods.until("train-0-1", phase("Succeeded"), SECONDS)
    grant(team.api, team.namespace, *rules)
    looker = Team(team.plane, team.namespace, team.plane.kubeconfig_for("looker", team.namespace))
    result = looker.rtj(*command, "train")
    assert result.exit_code == 6
    assert f"system:serviceaccount:{team.namespace}:looker {missing}" in result.output
    assert f"in namespace {team.namespace}" in result.output
    assert "kubectl auth can-i" in result.output
    assert team.readers() == []


def test_the_rights_that_the_document_names_are_enough(team: Team, pods: PodWatch) -> None:
    """With those in docs/cli.md, and no others, everything works."""
    document = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    rights = document.split("### Rights")[1].split("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in rights.splitlines() if line.startswith("| `")]
    rules = [
        {
            "apiGroups": ["resumable.dev" if resource.strip("`") == "resumabletrainingjobs" else ""],
            "resources": [resource.strip("`")],
            "verbs": [verb.strip("` ") for verb in verbs.split(",")],
        }
        for resource, verbs, *_ in rows
    ]
    filled(team.claim())
    job = team.submit(status())
    pods.create(worker_pod(job, 0, script=said(*ZERO, then="exit 0")))
    pods.until("train-0-1", phase("Succeeded"), SECONDS)
    grant(team.api, team.namespace, *rules)
    looker = Team(team.plane, team.namespace, team.plane.kubeconfig_for("looker", team.namespace))
    for command in (
        ("list",),
        ("status", "train"),
        ("report", "train"),
        ("logs", "train"),
        ("checkpoints", "list", "train"),
    ):
        result = looker.rtj(*command)
        assert result.exit_code == 0, (command, result.output)
    team.await_no_reader()


# ---- a job that an operator runs -----------------------------------------------------------------------


def test_of_a_job_that_really_trained(cluster_run: ClusterRun) -> None:
    """What operator, agents and library leave behind is what `rtj` reads."""
    run = cluster_run.training(40).create()
    run.finish_exact()
    team = Team(run.plane, run.namespace)
    assert "train  Succeeded" in team.rtj("status", run.name).output
    page = wait_until_told(team, run.name, "2 pods: 2 succeeded")  # which they have after their agents' word
    assert "rank 1" in page
    assert "no operator" not in page
    line = "resumable_training: no checkpoint yet: starting at step 0\n"
    assert team.rtj("logs", run.name).output == f"[1:0] {line}"
    assert team.rtj("logs", run.name, "--rank", "0").output == line
    report = json.loads(team.rtj("report", run.name, "--json").output)
    assert report["step"] == 40
    assert report["checkpoints"]["blockingSeconds"] > 0
    found = json.loads(team.rtj("checkpoints", "list", run.name, "--json").stdout)
    assert found[0]["step"] == 40
    verified = team.rtj("checkpoints", "verify", run.name)
    assert verified.exit_code == 0, verified.output
    assert len(verified.stdout.splitlines()) == len(found)
    page = report_page_without_pods(team, run.name)
    assert "<h3>Loss" in page
    assert "could not be read" not in page
    assert re.search(r'"points":\[.*\[[0-9.]+,40,40,', page)
    for item in json.loads(team.rtj("report", run.name, "--json").output)["phases"]:
        assert f">{item['seconds']:,.3f}<" in page
    team.await_no_reader()


def wait_until_told(team: Team, name: str, words: str) -> str:
    """The page of its status, when it has them."""
    pages: list[str] = []

    def told() -> bool:
        pages.append(team.rtj("status", name).output)
        return words in pages[-1]

    wait_until(told, SECONDS, f"its status to have {words!r}")
    return pages[-1]


def report_page_without_pods(team: Team, name: str) -> str:
    """`rtj report --html` when all of the job's pods are gone: from its status and its store alone."""
    where = path("v1", "pods", team.namespace)
    pods = team.api.list(where)
    image = next(each["image"] for pod in pods for each in pod["spec"].get("initContainers") or [])
    for pod in pods:
        team.api.delete(f"{where}/{pod['metadata']['name']}")
    wait_until(lambda: not team.api.list(where), SECONDS, "the job's pods to be gone")
    result = team.rtj("report", name, "--html", "-", "--image", image)
    assert result.exit_code == 0, result.output
    return result.stdout
