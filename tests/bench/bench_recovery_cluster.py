"""From a strike to the first *new* step on a real API server, with real training in process-backed pods.

The operator runs as a process with the chart's rights; the model is body.py's. What counts is the time until
a step that nobody had done before, at the size that is wanted; where ranks can be stopped at a step it is the
pause of training. Prints a table, stages and aims; writes recovery_cluster.json into tests/bench/results. Run
by `make bench-recovery-cluster`; needs root on Linux.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import cluster_cases
import launch
import noting_operator
import recovery_cases as cases
import recovery_file
import stages
from cluster_cases import SCENARIOS, Found
from cluster_run import CLAIM, MOUNT, ClusterRun, Operator
from recovery_cases import NOTICE_SECONDS, SAVE_EVERY, Leg, Outcome, Scenario

from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from resumable_operator.crd import crd
from resumable_training.contract import events

RESULTS = Path(__file__).parent / "results"
START_SECONDS, MOMENT_SECONDS, RECOVER_SECONDS, BOOK_SECONDS = 180.0, 90.0, 120.0, 15.0
MISSED_SECONDS = 10.0  # as long as Kubernetes is waited for to miss a node
RUNS, QUICK_RUNS = 10, 2
WORKERS = 2
WATCH_SECONDS = 2.0
Raw = dict[str, Any]


class Broken(Exception):
    """A job did not come as far as the strike; the message has its last words."""


class MissedNodes:
    """Watches for the moment in which a node is said not to be ready."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.api
        self._when: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def when(self, node: str) -> float | None:
        """Wall clock in seconds; None: not yet."""
        return self._when.get(node)

    def _follow(self) -> None:
        while not self._end.is_set():
            for event in self._api.watch(path("v1", "nodes"), WATCH_SECONDS):
                found = event["object"]
                conditions = found.get("status", {}).get("conditions", [])
                ready = [item["status"] for item in conditions if item["type"] == "Ready"]
                if ready == ["True"]:
                    self._when.pop(found["metadata"]["name"], None)
                else:
                    self._when.setdefault(found["metadata"]["name"], time.time())


@dataclass
class Bed:
    """A cluster with the operator in it."""

    plane: ControlPlane
    nodes: Nodes
    operator: Operator
    notes: Path
    missed: MissedNodes
    machines: list[str] = field(default_factory=list)  # that the job has had
    _number: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """A fresh one; nothing of it is left afterwards."""
        directory = Path(tempfile.mkdtemp(prefix="rc-"))
        try:
            with ControlPlane.start(directory / "plane") as plane:
                plane.define_kind(crd())
                with Nodes.start(plane, directory / "nodes") as nodes:
                    operator = Operator(plane, directory)
                    try:
                        notes = directory / "notes"
                        operator.begin(program=noting_operator.program(notes))
                        operator.process.await_ready()
                        with MissedNodes(plane) as missed:
                            yield cls(plane, nodes, operator, notes, missed)
                    finally:
                        operator.remove()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def add_node(self) -> str:
        """With room for one worker."""
        name = f"machine-{next(self._number)}"
        self.nodes.add(name, cpu=1)
        self.machines.append(name)
        return name

    def namespace(self) -> str:
        name = f"bench-{next(self._number)}"
        self.plane.api.create(path("v1", "namespaces"), {"metadata": {"name": name}})
        wanted = (
            path("v1", "serviceaccounts", name, "default"),
            path("v1", "configmaps", name, "kube-root-ca.crt"),
        )
        wait_until(lambda: all(self.plane.api.find(where) for where in wanted), 60.0, "the namespace")
        return name


@dataclass
class Training:
    """One job on the cluster, and what its ranks and the operator wrote down."""

    bed: Bed
    run: ClusterRun
    silent: str | None = None  # a machine that is dead, as far as anybody can tell
    lost_address: str | None = None  # of its pod: nothing arrives there

    def __post_init__(self) -> None:
        self._volume = self.run.volume  # the API server is not to be asked for it again and again
        self.trace = launch.Trace(self._volume / "trace.jsonl")

    def steps(self) -> list[launch.Line]:
        return self.trace.lines("step")

    def step(self) -> int:
        steps = self.steps()
        return int(steps[-1]["step"]) if steps else 0

    def saved(self) -> int:
        """Step of the newest complete checkpoint; 0: none."""
        marked = [path.parent.name for path in (self._volume / "store").glob("step-*/.metadata")]
        return max((int(name.removeprefix("step-").partition(".")[0]) for name in marked), default=0)

    def last_member(self) -> str:
        return self.run.members()[-1]

    def rank_process(self, rank: int) -> int:
        """Number of that rank's newest process, inside its container."""
        return int([line for line in self.trace.lines("rank") if line["rank"] == rank][-1]["pid"])

    def history(self) -> list[Raw]:
        return _lines(self.bed.notes / noting_operator.HISTORY)

    def api(self) -> list[tuple[float, float]]:
        """When each write of the operator began and ended."""
        return [(line["began"], line["ended"]) for line in _lines(self.bed.notes / noting_operator.API)]


@contextmanager
def training(bed: Bed, leg: Leg) -> Iterator[Training]:
    """A job that trains on machines of its own."""
    run = ClusterRun(bed.plane, bed.nodes, bed.operator, bed.namespace())
    claim = path("v1", "persistentvolumeclaims", run.namespace, CLAIM)
    run.wait(lambda: bool(run.api.get(claim)["spec"].get("volumeName")), "the volume")
    run.own_nodes(*(bed.add_node() for _ in range(WORKERS)))
    run.container["command"] = ["python", str(launch.HERE / "train_with_library.py")]
    run.container["env"] += [
        {"name": launch.TRACE, "value": f"{MOUNT}/trace.jsonl"},
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ]
    run.spec["checkpoint"]["interval"] = {"steps": SAVE_EVERY}
    run.spec["recovery"] = {"growCooldownSeconds": 0, "drainSeconds": 20}
    run.create(replicas=WORKERS, min=1 if leg == "elastic" else WORKERS)
    job = Training(bed, run)
    try:
        yield job
    finally:
        if job.lost_address is not None:
            _drop_packets("del", job.lost_address)
        for machine in bed.machines:
            bed.nodes.remove(machine)
        bed.machines.clear()
        run.remove()


# ---- strikes: when each was, wall clock in seconds -------------------------------------------------------


def kill_rank(job: Training) -> float:
    worker = job.last_member()
    number = job.rank_process(WORKERS - 1)
    pids = [pid for pid in job.run.nodes.pids(job.run.namespace, worker, "worker") if _inner(pid) == number]
    return _signal(pids, signal.SIGKILL)


def kill_container(job: Training) -> float:
    return _signal([job.run.agent(job.last_member())], signal.SIGKILL)


def silence_machine(job: Training) -> float:
    """Its processes stand still, its kubelet is cut off, and what is sent to its pod is dropped: not even a
    kernel answers there, and no connection breaks."""
    worker = job.last_member()
    machine = job.run.node_of(worker)
    address = job.run.pods()[worker]["status"]["podIP"]
    _drop_packets("add", address)
    job.lost_address = address
    struck_at = _signal(job.run.nodes.pids(job.run.namespace, worker), signal.SIGSTOP)
    job.run.nodes.partition(machine)
    job.silent = machine
    return struck_at


def _drop_packets(verb: str, address: str) -> None:
    """``add`` or ``del``: nothing that is sent to this pod arrives.

    Pods' addresses are this machine's own, so that a route of the local table decides. What is sent on an old
    connection vanishes; who opens a new one is told that it can't, as by a router.
    """
    route = ["ip", "route", verb, "blackhole", f"{address}/32", "table", "local"]
    subprocess.run(route, check=True, capture_output=True, timeout=10)


def add_machine(job: Training) -> float:
    struck_at = time.time()
    job.run.own_nodes(job.bed.add_node())
    return struck_at


def spot_notice(job: Training) -> float:
    machine = job.run.node_of(job.last_member())
    struck_at = time.time()
    job.run.nodes.spot_notice(machine, "gke", seconds=NOTICE_SECONDS)
    return struck_at


STRIKES: dict[str, Callable[[Training], float]] = {
    "rank": kill_rank,
    "pod": kill_container,
    "dead": silence_machine,
    "grow": add_machine,
    "preempt": spot_notice,
}


def _inner(pid: int) -> int | None:
    """The number of a process inside its container; None: it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


def _signal(pids: Sequence[int], number: signal.Signals) -> float:
    now = time.time()
    for pid in pids:
        os.kill(pid, number)
    return now


# ---- one leg ---------------------------------------------------------------------------------------------


def run_leg(bed: Bed, leg: Leg, wanted: Sequence[Scenario]) -> Iterator[tuple[Scenario, Found]]:
    """Start a job and strike it with each scenario in turn; ends early when it never recovers."""
    with training(bed, leg) as job:
        if not launch.wait_for(lambda: job.step() >= cases.SETTLE_STEPS, START_SECONDS):
            raise Broken(f"the job does not train\n{job.run.text()}")
        for scenario in wanted:
            found = strike(job, scenario)
            yield scenario, found
            if found.outcome.seconds is None:
                return


def strike(job: Training, scenario: Scenario) -> Found:
    """Wait for the moment, strike, wait for a new step at the wanted size."""
    since = job.step()
    if not launch.wait_for(lambda: cases.is_time(scenario, job.step(), job.saved(), since), MOMENT_SECONDS):
        raise Broken(f"no moment for {scenario.name} at step {job.step()}\n{job.run.text()}")
    struck_at = STRIKES[scenario.name](job)
    world = scenario.world(WORKERS)
    if not launch.wait_for(
        lambda: cases.first_new(job.steps(), struck_at, world) is not None, RECOVER_SECONDS
    ):
        print(job.run.text(), flush=True)
        return Found(Outcome(None))
    index = cases.first_new(job.steps(), struck_at, world)
    assert index is not None
    outcome = cases.judge(job.steps(), struck_at, index, scenario.planned)
    missed = _missed_after(job, struck_at) if job.silent else None
    return _explained(job, outcome, struck_at, missed)


def _explained(job: Training, outcome: Outcome, struck_at: float, missed: float | None) -> Found:
    """With what the operator and the agents said of it, once they have said it all."""
    assert outcome.after_strike is not None
    recovered_at = struck_at + outcome.after_strike

    def is_told() -> bool:
        return any(entry["at"] > recovered_at and entry["kind"] == events.PROGRESS for entry in job.history())

    if not launch.wait_for(is_told, BOOK_SECONDS):
        return Found(outcome, missed=missed)
    history = job.history()
    split = stages.split(history, struck_at, recovered_at)
    assigned = [
        entry["at"]
        for entry in history
        if entry["kind"] == events.ASSIGNED and struck_at < entry["at"] < recovered_at
    ]
    until = max(assigned, default=recovered_at)
    seconds, writes = cluster_cases.under_way(job.api(), struck_at + split["detect"], until)
    return Found(replace(outcome, split=split), seconds, writes, split["detect"] + split["stop"], missed)


def _missed_after(job: Training, struck_at: float) -> float | None:
    """When the node controller said that the silent machine is not ready; its pods end here afterwards."""
    assert job.silent is not None
    machine, job.silent = job.silent, None
    where = path("v1", "nodes", name=machine)

    def condition() -> Raw:
        found = job.run.api.get(where)["status"]["conditions"]
        return next(item for item in found if item["type"] == "Ready")

    seen = launch.wait_for(lambda: condition()["status"] != "True", MISSED_SECONDS)
    at = job.bed.missed.when(machine) if seen else None
    job.run.nodes.die(machine)
    return None if at is None else at - struck_at


def _lines(file: Path) -> list[Raw]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# ---- running ---------------------------------------------------------------------------------------------


def run_all(wanted: Sequence[Scenario], runs: int) -> dict[str, list[Found]]:
    """``runs`` of every scenario, one leg after the other."""
    results: dict[str, list[Found]] = {scenario.name: [] for scenario in wanted}
    legs = list(dict.fromkeys(scenario.leg for scenario in wanted))
    with Bed.made() as bed:
        for number in range(runs):
            for leg in legs:
                try:
                    for scenario, found in run_leg(bed, leg, [one for one in wanted if one.leg == leg]):
                        results[scenario.name].append(found)
                        _tell(f"{number + 1}/{runs}", scenario, found)
                except Broken as broken:
                    print(f"  {number + 1}/{runs}  BROKEN: {broken}", flush=True)
    return results


def _tell(where: str, scenario: Scenario, found: Found) -> None:
    outcome = found.outcome
    took = "never" if outcome.seconds is None else f"{outcome.seconds:.2f} s"
    print(f"  {where}  {scenario.name:<8} {took:>8}  {outcome.redone} redone", flush=True)


def write_results(results: dict[str, list[Found]], directory: Path) -> Path:
    """All runs and what they ran on, as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    plain = {
        "machine": recovery_file.machine(),
        "aims": [str(aim) for aim in cluster_cases.aims(results)],
        "runs": {name: [asdict(one) for one in found] for name, found in results.items()},
    }
    file = directory / "recovery_cluster.json"
    file.write_text(json.dumps(plain, indent=1) + "\n")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--runs", type=int, default=RUNS, help="of each scenario [%(default)s]")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs")
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory for the JSON")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs: nothing would be measured")
    if "dead" in options.scenario and shutil.which("ip") is None:
        parser.error("a machine that falls silent needs the program ip (iproute2)")
    wanted = [scenario for scenario in SCENARIOS if scenario.name in options.scenario]
    results = run_all(wanted, min(options.runs, QUICK_RUNS) if options.quick else options.runs)
    if not any(results.values()):
        raise SystemExit("nothing was measured: no file is written")
    lines = [*cluster_cases.tables(results), "", "Aims:"]
    lines += [f"  {aim}" for aim in cluster_cases.aims(results)]
    print("\n".join(lines))
    print(f"\nwritten: {write_results(results, options.output)}")


if __name__ == "__main__":
    main()
