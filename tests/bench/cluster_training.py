"""What the cluster benchmark strikes: a cluster with the operator in it, and one training after the other.

A real API server, scheduler and node controller, kubelets whose containers are processes of this machine, and
the operator as a process with the chart's rights, which writes down what it hears (noting_operator.py).
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import launch
import noting_operator
from cluster_cases import WORKERS
from cluster_run import CLAIM, MOUNT, ClusterRun, Operator
from recovery_cases import SAVE_EVERY, Leg

from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from resumable_operator.crd import crd

WATCH_SECONDS = 2.0
Raw = dict[str, Any]


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

    def world(self) -> int:
        """Ranks of its newest step."""
        steps = self.steps()
        return int(steps[-1]["world"]) if steps else WORKERS

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
    run.own_nodes(*(bed.add_node() for _ in range(WORKERS + (leg == "spared"))))
    run.container["command"] = ["python", str(launch.HERE / "train_with_library.py")]
    run.container["env"] += [
        {"name": launch.TRACE, "value": f"{MOUNT}/trace.jsonl"},
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ]
    run.spec["checkpoint"]["interval"] = {"steps": SAVE_EVERY}
    run.spec["recovery"] = {"growCooldownSeconds": 0, "drainSeconds": 20}
    spares = 1 if leg == "spared" else 0
    run.create(replicas=WORKERS, min=1 if leg == "elastic" else WORKERS, spares=spares)
    job = Training(bed, run)
    try:
        yield job
    finally:
        if job.lost_address is not None:
            drop_packets("del", job.lost_address)
        for machine in bed.machines:
            bed.nodes.remove(machine)
        bed.machines.clear()
        run.remove()


def drop_packets(verb: str, address: str) -> None:
    """``add`` or ``del``: nothing that is sent to this pod arrives.

    Pods' addresses are this machine's own, so that a route of the local table decides. What is sent on an old
    connection vanishes; who opens a new one is told that it can't, as by a router.
    """
    route = ["ip", "route", verb, "blackhole", f"{address}/32", "table", "local"]
    subprocess.run(route, check=True, capture_output=True, timeout=10)


def _lines(file: Path) -> list[Raw]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
