"""`python -m bed demo`: the story of `rtj demo` on a Kubernetes cluster, with machines instead of workers.

An example of deploy/ is applied with kubectl, then its machines are powered off, taken by a spot notice, and
one of its ranks is stopped. It uses nothing that a user could not, but for the machines. The verdict at the
end is made of checks that can fail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bed.api import Object, path
from bed.control_plane import ControlPlane
from bed.install import InstallFailed, install, trouble_of
from bed.nodes import Nodes
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus
from resumable_operator.stored import from_stored

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "gpt-pvc.yaml"
NAMESPACE = "default"
NAME = "gpt"
WORKERS = 3
STEPS = 240
GLOBAL_BATCH = 24
SAVE_EVERY_STEPS = 20
SPOT_SECONDS = 30
# Done since the newest checkpoint when something is broken: a fault must have something to lose.
STEPS_AT_RISK = 6
TRACES = "/checkpoints/traces"
LOOK_SECONDS = 5.0

Check = tuple[str, bool, str]
Say = Callable[[str], None]


@dataclass
class Stage:
    """The cluster of the demo: small machines, so that each has room for one worker and no more."""

    plane: ControlPlane
    nodes: Nodes
    say: Say
    _machines: int = 0
    _shown: tuple[object, ...] = ()
    _steps_seen: dict[int, set[int]] = field(default_factory=dict)  # by attempt
    _began: float = field(default_factory=time.monotonic)

    def add_machine(self) -> None:
        """One with room for one worker."""
        self._machines += 1
        self.nodes.add(f"machine-{self._machines}", cpu="1.5", memory="4Gi")

    def job(self) -> Object:
        """As it is in the API server."""
        return self.plane.api.get(path("resumable.dev/v1alpha1", "resumabletrainingjobs", NAMESPACE, NAME))

    def status(self) -> JobStatus:
        """Of the job; what changed is said."""
        status = from_stored(self.job().get("status"))
        shown = (status.phase, status.workers, status.reason)
        if shown != self._shown:
            self._shown = shown
            seconds = time.monotonic() - self._began
            self.say(
                f"{seconds:6.1f} s  step {status.step:<4} {status.workers:4} {status.phase}: {status.reason}"
            )
        return status

    def step(self, attempt: AttemptStatus) -> int:
        """From the agent of rank 0: the job's status says it too, but not at once. 0: not known yet.

        An agent that was in an attempt before still has that one's step until there is a new one.
        """
        member = next(member for member in attempt.members if member.first_rank == 0)
        step = _step_of(member)
        seen = self._steps_seen.setdefault(attempt.number, set())
        seen.add(step)
        return step if len(seen) > STEPS_AT_RISK else 0

    def worker_with_machine(self) -> tuple[str, str]:
        """The last member of the attempt, and the node that it is on."""
        member = self.status().attempt.members[-1].worker
        pod = self.plane.api.get(path("v1", "pods", NAMESPACE, member))
        return member, pod["spec"]["nodeName"]


def power_off(stage: Stage) -> None:
    """A machine is gone without a word."""
    worker, machine = stage.worker_with_machine()
    stage.say(f"          {machine} is powered off, with {worker} on it")
    stage.nodes.die(machine)


def spot_notice(stage: Stage) -> None:
    """A machine is going to be taken."""
    worker, machine = stage.worker_with_machine()
    stage.say(f"          {machine}, with {worker} on it, gets a spot notice: {SPOT_SECONDS} s")
    stage.nodes.spot_notice(machine, seconds=SPOT_SECONDS)


def stop_rank(stage: Stage) -> None:
    """A rank hangs."""
    worker, _ = stage.worker_with_machine()
    ranks = [pid for pid in stage.nodes.pids(NAMESPACE, worker) if _is_rank(pid)]
    stage.say(f"          a rank of {worker} is stopped (SIGSTOP)")
    os.kill(ranks[0], signal.SIGSTOP)


def add_two(stage: Stage) -> None:
    """There is room again."""
    stage.say("          two new machines join the cluster")
    stage.add_machine()
    stage.add_machine()


@dataclass(frozen=True)
class Scene:
    """One thing that is done, when so many workers train, and what must come of it."""

    title: str
    size: int
    act: Callable[[Stage], None]
    cause: str | None  # of the interruption that must follow; None: none may


SCENES = (
    Scene("a machine loses its power: the job goes on with two workers", 3, power_off, "node_lost"),
    Scene("another gets a spot notice: it drains, the job goes on with one", 2, spot_notice, "preempted"),
    Scene("a rank of the last one is stopped: it hangs", 1, stop_rank, "hang"),
    Scene("two machines join: the job grows after its next checkpoint", 1, add_two, None),
)


def play(directory: Path, say: Say, seconds: float, steps: int = STEPS) -> list[Check]:
    """The whole story in a cluster of its own below `directory`; its checks. TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    with (
        ControlPlane.start(directory / "plane") as plane,
        Nodes.start(plane, directory / "nodes") as nodes,
    ):
        stage = Stage(plane, nodes, say)
        nodes.add("system", cpu="0.9", memory="4Gi")
        for _ in range(WORKERS):
            stage.add_machine()
        say("A cluster with one node for the operator and three machines. helm install, and kubectl apply:")
        install(plane, {"nodeSelector": {"kubernetes.io/hostname": "system"}})
        say(plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=documents(steps)).stdout.rstrip())
        for number, scene in enumerate(SCENES, 1):
            _await(stage, lambda status, scene=scene: _mid_interval(stage, status, scene), deadline)
            say(f"{number}. {scene.title}")
            scene.act(stage)
        status = _await(stage, lambda status: status.finished_at is not None, deadline)
        say(plane.kubectl("get", "rtj,pods", "-n", NAMESPACE).stdout)
        return judge(status, _audit(directory / "nodes", steps), steps)


def documents(steps: int) -> str:
    """The example, shorter, saving more often, quicker to grow, and with a trace of its samples."""
    claim, job = yaml.safe_load_all(EXAMPLE.read_text())
    spec = job["spec"]
    spec["checkpoint"]["interval"] = {"steps": SAVE_EVERY_STEPS}
    spec["recovery"] = {"growCooldownSeconds": 3, "drainSeconds": 20}
    worker = spec["template"]["spec"]["containers"][0]
    worker["args"] = ["--steps", str(steps), "--batch", str(GLOBAL_BATCH)]
    worker["env"] = [{"name": "RESUMABLE_TRACE_DIR", "value": TRACES}]
    return str(yaml.safe_dump_all([claim, job], sort_keys=False))


def judge(status: JobStatus, audit: Mapping[str, Any], steps: int) -> list[Check]:
    """All checks on a finished demo: (what, held, detail)."""
    causes = [item.cause for item in status.interruptions if not item.planned]
    wanted = [scene.cause for scene in SCENES if scene.cause]
    redone = sum(item.rework_steps for item in status.interruptions if item.cause == "preempted")
    ledger = status.ledger
    gap = sum(ledger.phases.values()) - (ledger.settled_at - ledger.started_at)
    members = len(status.attempt.members)
    return [
        ("the job succeeded", status.phase == "Succeeded", f"{status.phase}: {status.reason}"),
        ("every fault became one interruption", causes == wanted, f"{causes}, wanted {wanted}"),
        ("the spot notice cost no step", redone == 0, f"{redone} steps redone"),
        ("it grew back", members == WORKERS, f"{members} workers at the end"),
        ("all steps were done", status.step == steps, f"{status.step} of {steps}"),
        ("the phases sum to the job's age", gap == 0, f"goodput {status.goodput}"),
        ("the final weights saw samples 0..N-1 in order, each once", audit["ok"], _detail(audit)),
    ]


def _mid_interval(stage: Stage, status: JobStatus, scene: Scene) -> bool:
    """The attempt trains at the scene's size, and some of its steps are not in a checkpoint yet."""
    attempt = status.attempt
    earlier = sum(1 for other in SCENES[: SCENES.index(scene)] if other.cause)
    at_size = attempt.number > earlier and len(attempt.members) == scene.size
    if attempt.state != "running" or not at_size:
        return False
    step = stage.step(attempt)
    fresh = step % SAVE_EVERY_STEPS
    at_risk = STEPS_AT_RISK <= fresh <= SAVE_EVERY_STEPS - STEPS_AT_RISK
    return step > SAVE_EVERY_STEPS and step >= attempt.start_step + STEPS_AT_RISK and at_risk


def _step_of(member: MemberStatus) -> int:
    """As its agent's metrics say; 0 when they don't, or it does not answer."""
    url = f"http://{member.address}:{member.agent_port}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found = re.search(r"^resumable_agent_step(?:{.*})? (\d+)", answer.read().decode(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _await(stage: Stage, ready: Callable[[JobStatus], bool], deadline: float) -> JobStatus:
    """The status when it is so, or when the job has ended.

    TimeoutError at `deadline`; InstallFailed when the operator does not come up again.
    """
    look = time.monotonic() + LOOK_SECONDS
    while not ready(status := stage.status()) and status.finished_at is None:
        if time.monotonic() > deadline:
            events = stage.plane.kubectl("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp").stdout
            raise TimeoutError(
                f"the demo did not get there in time: {status.phase}, {status.reason}\n{events}"
            )
        if time.monotonic() > look:
            if trouble := trouble_of(stage.plane):
                raise InstallFailed(f"the operator does not stay up: {trouble}")
            look = time.monotonic() + LOOK_SECONDS
        time.sleep(0.2)
    return status


def _is_rank(pid: int) -> bool:
    return b"\0LOCAL_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def _audit(nodes: Path, steps: int) -> dict[str, Any]:
    [claim] = (nodes / "claims").glob(f"{NAMESPACE}_gpt-checkpoints_*")
    command = [sys.executable, "-m", "resumable_training.data.audit", "--json"]
    command += ["--traces", str(claim / Path(TRACES).name), "--store", str(claim / NAME)]
    command += ["--total", str(steps * GLOBAL_BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"ok": False, "problems": [done.stderr.strip() or "the audit printed nothing"]}
    return verdict


def _detail(verdict: Mapping[str, Any]) -> str:
    if verdict["ok"]:
        return f"{verdict['samples']} samples through attempts {verdict['attempts']}"
    return "; ".join(verdict["problems"])
