"""Runs jobs on the bed's cluster: the operator as a process with its own rights, and what a job looks like.

Every wait is for a condition and bounded. Used by the end-to-end tests on Kubernetes through the fixtures of
tests/e2e/conftest.py, which shows ``text`` when a test fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import urllib.request
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import moments
from local_run import FAKE_RANK, accounted_for, carriers
from moments import Wish
from operator_process import PROGRAM, OperatorProcess, grant, revoke

from bed.api import ApiError, path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes, NodesError
from bed.processes import wait_until
from resumable_operator.model import Interruption, JobStatus, MemberStatus
from resumable_operator.stored import from_stored
from resumable_training.contract.labels import GROUP, KIND, LABEL_JOB, PLURAL, VERSION
from resumable_training.data.audit import Verdict, run_audit

Raw = dict[str, Any]

JOBS = f"{GROUP}/{VERSION}"
IMAGE = "resumable-training/worker:0.1.0"
TINY = Path(__file__).with_name("train_tiny.py")
BATCH = 12  # samples of a step of the tiny training
CLAIM, MOUNT = "data", "/data"  # checkpoints below store/, all else that ranks write beside it
PATIENCE_SECONDS = 150.0  # several cold starts of torch on a loaded machine
OWN, GROUP_LABEL = "bed.example/own", "bed.example/group"
OPTIONS = ("--status-seconds", "0.5", "--relist-seconds", "5")


class Operator:
    """The operator for the whole cluster, as a process with no more rights than deploy/ gives it."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._directory = directory
        self.namespace = f"operator-{secrets.token_hex(4)}"
        self._plane = plane
        plane.api.create(path("v1", "namespaces"), {"metadata": {"name": self.namespace}})
        self.kubeconfig = grant(plane, self.namespace, whole_cluster=True)
        self._runs: list[OperatorProcess] = []

    @property
    def process(self) -> OperatorProcess:
        return self._runs[-1]

    def start(self, *more: str) -> Self:
        """A fresh process; returns when it works. ``more`` options count before the usual ones."""
        self.begin(*more)
        self.process.await_ready()
        return self

    def begin(self, *more: str, program: Sequence[str] = PROGRAM) -> OperatorProcess:
        """As ``start``, but nothing is awaited; ``program`` as of ``OperatorProcess``."""
        log = self._directory / f"operator-{len(self._runs)}.log"
        options = ("--operator-namespace", self.namespace, *OPTIONS, *more)
        self._runs.append(OperatorProcess(log, self.kubeconfig, *options, program=program))
        return self.process

    def kill(self) -> None:
        self.process.kill()

    def remove(self) -> None:
        """All its processes, its rights and its namespace."""
        for process in self._runs:
            process.kill()
        revoke(self._plane, self.namespace)
        self._plane.api.delete(path("v1", "namespaces", name=self.namespace))

    def last_words(self, job: str, count: int = 40) -> str:
        """What it said last about a job, or about itself."""
        lines = self.process.log.read_text().splitlines()
        about = [line for line in lines if f'"{job}"' in line or '"level": "error"' in line]
        return "\n".join([*about[-count:], *lines[-5:]])


class ClusterRun:
    """One job in a namespace of its own. ``template`` and ``spec`` may be changed before ``create``."""

    def __init__(self, plane: ControlPlane, nodes: Nodes, operator: Operator, namespace: str) -> None:
        self.api = plane.api
        self.plane = plane
        self.nodes = nodes
        self.operator = operator
        self.namespace = namespace
        self.name = "train"
        self.steps = 0
        self.where = path(JOBS, PLURAL, namespace, self.name)
        claim = {
            "metadata": {"name": CLAIM},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        self.api.create(path("v1", "persistentvolumeclaims", namespace), claim)
        self.container: Raw = {
            "name": "worker",
            "image": IMAGE,
            "env": [{"name": "RESUMABLE_TRACE_DIR", "value": f"{MOUNT}/traces"}],
            "volumeMounts": [{"name": "data", "mountPath": MOUNT}],
            "resources": {"requests": {"cpu": "1", "memory": "256Mi"}},
        }
        self.pod: Raw = {
            "containers": [self.container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}],
        }
        self.spec: Raw = {
            "workers": {"replicas": 2},
            "checkpoint": {"persistentVolumeClaim": {"claimName": CLAIM, "path": "store"}},
            "recovery": {"shrinkAfterSeconds": 60, "drainSeconds": 30},
            "template": {"spec": self.pod},
        }

    # ---- making it -----------------------------------------------------------------------------------

    def own_nodes(self, *names: str) -> None:
        """Its pods go to these nodes of the test's own only, one to each of one CPU."""
        for name in names:
            body = {"metadata": {"labels": {GROUP_LABEL: self.namespace}}}
            self.api.patch(path("v1", "nodes", name=name), body)
        self.pod["nodeSelector"] = {GROUP_LABEL: self.namespace}
        self.pod["tolerations"] = [{"key": OWN, "operator": "Exists"}]

    def training(self, steps: int, *tiny: str, save_every: int = 10) -> Self:
        """Real training."""
        self.steps = steps
        self.container["command"] = ["python", str(TINY)]
        self.container["args"] = ["--steps", str(steps), "--batch", str(BATCH), *tiny]
        self.container["args"] += ["--result", f"{MOUNT}/result.json"]
        self.spec["checkpoint"]["interval"] = {"steps": save_every}
        return self

    def faking(self, *fake: str, steps: int = 10_000, checkpoint_every: int = 20) -> Self:
        """Ranks that speak the contract and train nothing."""
        self.container["command"] = ["python", str(FAKE_RANK)]
        self.container["args"] = ["--steps", str(steps), "--checkpoint-every", str(checkpoint_every), *fake]
        return self

    def wish(self, *wishes: Wish) -> None:
        """What its ranks do to themselves."""
        self.wait(self._has_volume, "the volume")
        (self.volume / "moments").mkdir()
        (self.volume / "moments").chmod(0o777)
        values = {moments.WISHES: moments.text_of(*wishes), moments.DIRECTORY: f"{MOUNT}/moments"}
        self.container["env"] += [{"name": name, "value": value} for name, value in values.items()]

    def hold(self, attempt: int, ranks: int, action: str = moments.DRAIN) -> list[Wish]:
        """Wishes: all ranks wait in that attempt's first evaluation until they are to drain, or for ever."""
        return [Wish(moments.EVALUATION, attempt, rank, action) for rank in range(ranks)]

    def await_moments(self, *wishes: Wish) -> None:
        """Until the ranks are there and wait."""
        notes = [wish.note(self.volume / "moments") for wish in wishes]
        self.wait(lambda: all(note.exists() for note in notes), f"{wishes}")

    def create(self, **workers: Any) -> Self:
        """Apply it; ``workers`` are fields of spec.workers."""
        self.spec["workers"] |= workers
        body = {"apiVersion": JOBS, "kind": KIND, "metadata": {"name": self.name}, "spec": self.spec}
        self.api.create(path(JOBS, PLURAL, self.namespace), body)
        return self

    def change(self, **spec: Any) -> None:
        """Merge into its spec."""
        self.api.patch(self.where, {"spec": spec})

    def scale(self, replicas: int) -> None:
        """As ``kubectl scale`` does."""
        self.api.patch(f"{self.where}/scale", {"spec": {"replicas": replicas}})

    def let_go(self, wish: Wish) -> None:
        """The rank that waits there goes on."""
        moments.let_go(self.volume / "moments", wish)

    def evict(self, worker: str) -> None:
        """Through the eviction API; ApiError 429 while a disruption budget forbids it."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": worker}}
        self.api.create(f"{self.pod_path(worker)}/eviction", eviction)

    def stop_by_queue(self, worker: str) -> None:
        """Set the condition with which Kueue announces that it stops a pod."""
        target = {"type": "TerminationTarget", "status": "True", "reason": "Preempted", "message": "no quota"}
        target["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.api.patch_status(self.pod_path(worker), {"status": {"conditions": [target]}}, "strategic")

    # ---- looking at it -------------------------------------------------------------------------------

    def object(self) -> Raw | None:
        return self.api.find(self.where)

    def status(self) -> JobStatus:
        return from_stored((self.object() or {}).get("status") or {})

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason of each."""
        return {item.type: (item.status, item.reason) for item in self.status().conditions}

    def events(self, reason: str) -> list[str]:
        """Messages of the job's Events with that reason, oldest first, each as often as it was told."""
        selector = f"involvedObject.kind={KIND},involvedObject.name={self.name},reason={reason}"
        found = self.api.list(path("v1", "events", self.namespace), fieldSelector=selector)
        return [event["message"] for event in found]

    def pods(self) -> dict[str, Raw]:
        """By name."""
        found = self.api.list(path("v1", "pods", self.namespace), labelSelector=f"{LABEL_JOB}={self.name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def members(self) -> list[str]:
        """Workers of the newest attempt, in order of rank."""
        return [member.worker for member in self.status().attempt.members]

    def node_of(self, worker: str) -> str:
        node: str = self.pods()[worker]["spec"]["nodeName"]
        return node

    def life(self, worker: str) -> tuple[str, int]:
        """What stays the same while its container goes on: the pod's uid, and the agent's pid."""
        return self.uids()[worker], self.agent(worker)

    def keys(self) -> list[str]:
        """Secrets of the job."""
        found = self.api.list(path("v1", "secrets", self.namespace), labelSelector=f"{LABEL_JOB}={self.name}")
        return [secret["metadata"]["name"] for secret in found]

    def pod_path(self, worker: str) -> str:
        return path("v1", "pods", self.namespace, worker)

    def agent(self, worker: str) -> int:
        """The agent's pid on this machine."""
        return self.nodes.pids(self.namespace, worker, "worker")[0]

    def ranks(self, worker: str) -> list[int]:
        """Pids of its ranks on this machine."""
        return [pid for pid in self.nodes.pids(self.namespace, worker, "worker") if _is_rank(pid)]

    def _has_volume(self) -> bool:
        claim = self.api.get(path("v1", "persistentvolumeclaims", self.namespace, CLAIM))
        return bool(claim["spec"].get("volumeName"))

    @property
    def volume(self) -> Path:
        """The claim's directory on this machine."""
        claim = self.api.get(path("v1", "persistentvolumeclaims", self.namespace, CLAIM))
        volume = self.api.get(path("v1", "persistentvolumes", name=claim["spec"]["volumeName"]))
        return Path(volume["spec"]["hostPath"]["path"])

    def result(self) -> Raw:
        found: Raw = json.loads((self.volume / "result.json").read_text())
        return found

    def processes(self) -> list[int]:
        """Living agents and ranks of the job, wherever they are."""
        return list(carriers(f"{self.namespace}/{self.name}"))

    # ---- waiting -------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Until it holds."""
        wait_until(condition, seconds, what, interval=0.1)

    def until(self, condition: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """Until its status fulfils ``condition``; that status."""
        found: list[JobStatus] = []

        def fulfilled() -> bool:
            found[:] = [self.status()]
            ended = found[0].phase in ("Succeeded", "Failed")
            done = condition(found[0])
            assert done or not ended, f"the job ended before {what}"
            return done

        self.wait(fulfilled, what)
        return found[0]

    def until_step(self, step: int, attempt: int = 1, size: int | None = None) -> JobStatus:
        """Until that attempt (or a later one) trains beyond ``step``."""
        return self.until(
            lambda status: (
                status.attempt.number >= attempt
                and status.attempt.state == "running"
                and status.step >= step
                and size in (None, status.size)
            ),
            f"step {step} of attempt {attempt} at size {size}",
        )

    def until_goes_on(self, attempt: int, size: int | None = None) -> JobStatus:
        """Until that attempt (or a later one) has done a step."""
        return self.until(
            lambda status: (
                status.attempt.number >= attempt
                and status.attempt.state == "running"
                and status.attempt.first_step_at is not None
                and size in (None, status.size)
            ),
            f"the first step of attempt {attempt} at size {size}",
        )

    def until_condition(self, name: str, status: str, reason: str) -> None:
        """Until that condition of the job says so."""
        self.wait(lambda: self.conditions().get(name) == (status, reason), f"{name}={status} ({reason})")

    def until_phase(self, phase: str) -> JobStatus:
        return self.until(lambda status: status.phase == phase, f"phase {phase}")

    def until_event(self, reason: str, words: str = "") -> str:
        """The message of the first Event with that reason and these words."""
        self.wait(
            lambda: any(words in text for text in self.events(reason)), f"an Event {reason} with {words!r}"
        )
        return next(text for text in self.events(reason) if words in text)

    def until_gone(self) -> None:
        """Neither the job nor a pod nor a process of it."""
        self.wait(lambda: self.object() is None, "the job to go")
        self.wait(lambda: not self.pods(), "its pods to go")
        self.wait(lambda: not self.processes(), "its processes to end")

    def remove(self) -> None:
        """Delete it, if it is there, and wait until nothing of it runs. Its pods need not be gone."""
        with contextlib.suppress(ApiError):
            self.api.delete(self.where, propagationPolicy="Background")
        for worker in self.pods():
            with contextlib.suppress(ApiError):
                self.api.delete(self.pod_path(worker), gracePeriodSeconds=0)
        self.wait(lambda: not self.processes(), "its processes to end")

    # ---- judging it ----------------------------------------------------------------------------------

    def finish(self) -> JobStatus:
        """Until it has succeeded and nothing of it runs; the last status."""
        status = self.until_phase("Succeeded")
        self.wait(lambda: not self.processes(), "its processes to end")
        assert self.conditions()["Succeeded"] == ("True", "AllRanksReturnedZero")
        assert self.conditions()["Running"][0] == "False"
        accounted_for(status.ledger)
        return status

    def audit(self, store: Path | None = None) -> Verdict:
        """Which samples made the weights. ``store``: where the checkpoints are, if not in the claim."""
        return run_audit(self.volume / "traces", store or self.volume / "store", self.steps * BATCH)

    def finish_exact(self, store: Path | None = None) -> JobStatus:
        """As ``finish``, and no sample was lost or doubled."""
        status = self.finish()
        verdict = self.audit(store)
        assert verdict.ok, verdict
        assert (self.result()["step"], self.result()["extras"]) == (self.steps, {"steps": self.steps})
        return status

    def text(self) -> str:
        """All that can explain a failure."""
        parts = [json.dumps((self.object() or {}).get("status"), indent=1)[-6000:]]
        described = self.plane.kubectl("get", "pods,events", "-n", self.namespace, check=False)
        parts += [described.stdout[-6000:], self.operator.last_words(f"{self.namespace}/{self.name}")]
        for worker in self.pods():
            with contextlib.suppress(NodesError, OSError):
                log = self.nodes.log_path(self.namespace, worker, "worker")
                parts.append(f"--- {worker}\n{log.read_text()[-2000:]}")
        return "\n".join(parts)


def _is_rank(pid: int) -> bool:
    try:
        return b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has just ended


def step_of(member: MemberStatus) -> int:
    """What its agent says that rank 0 has done; the API server is not asked."""
    with urllib.request.urlopen(f"http://{member.address}:{member.agent_port}/metrics", timeout=5) as answer:
        found = re.search(r"^resumable_agent_step(?:{.*})? (\d+)", answer.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def unplanned(status: JobStatus) -> list[Interruption]:
    return [ending for ending in status.interruptions if not ending.planned]


def causes(status: JobStatus) -> list[str]:
    """Of all endings, planned or not, oldest first."""
    return [ending.cause for ending in status.interruptions]
