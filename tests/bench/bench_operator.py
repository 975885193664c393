"""The operator under many jobs: from a pod's failure to the next assignments, start, memory, requests, CPU.

A real control plane, the operator as a process with the chart's rights, and simulated kubelets and agents
(``sim_*.py``); all in a network namespace of its own, where every address is the simulator's. ``make
bench-operator`` runs it; it prints a table and writes tests/bench/results/operator.json.

Measured in turn, at each size: all jobs started from nothing; CPU and requests while they train; workers
that fail, one of them in every other job with a replacement awaited, then in the others going on smaller at
once, at each rate; the operator killed and started again; the same objects under a naive kopf operator.
``--peer jobset`` adds the same jobs as JobSets (``peer_jobset``), on an API server of their own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import platform
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import operator_table
import peer_jobset
import peer_table
import yaml
from operator_process import AGENT_IMAGE, grant
from operator_table import MODES, rate_name
from plane_requests import PlaneRequests, each, rates
from sim_cluster import Simulator
from sim_measure import CpuMeter, Scrape, grown, load, memory_mb, page, pulse, scraper, spread
from sim_peer import PEERS, run_peer
from sim_pods import SCHEDULER

from bed.api import path
from bed.control_plane import ControlPlane
from bed.processes import Component, wait_until
from resumable_operator.crd import crd
from resumable_training.contract import metrics as names
from resumable_training.contract.labels import GROUP, PLURAL, VERSION

RESULTS = Path(__file__).parent / "results"
EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "gpt-pvc.yaml"
OPERATOR_NAMESPACE, NAMESPACE, CLAIM = "resumable-system", "bench", "gpt-checkpoints"
PORT = 8080
NEVER = 86_400.0
PATIENCE_SECONDS = 1800.0  # for all jobs to run, on a busy machine
READY_SECONDS = 300.0
PLANE = ("kube-apiserver", "etcd", "kube-controller-manager")  # whose CPU is told
Raw = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One size, and how much is measured at it."""

    jobs: int
    workers: int
    strikes: int  # in each mode, at each rate
    rates: tuple[float, ...]  # strikes a second
    settle_seconds: float
    idle_seconds: float
    starts: int
    peers: bool


class Operator:
    """The operator as its Deployment starts it, on a port of its own."""

    def __init__(self, directory: Path, kubeconfig: Path, options: list[str]) -> None:
        self.directory, self.kubeconfig, self.options = directory, kubeconfig, options
        self.began = 0.0
        self._running: Component | None = None

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "resumable_operator", "--agent-image", AGENT_IMAGE]
        command += ["--operator-namespace", OPERATOR_NAMESPACE, "--port", str(PORT), *self.options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        self.began = time.monotonic()
        self._running = Component.start(
            command, self.directory / "operator.log", {**environment, "KUBECONFIG": str(self.kubeconfig)}
        )

    def await_ready(self) -> float:
        """Seconds since its start."""
        wait_until(self.is_ready, READY_SECONDS, "/readyz")
        return time.monotonic() - self.began

    def is_ready(self) -> bool:
        """Raises: ComponentDied."""
        assert self._running is not None
        self._running.require_running()
        return page(PORT, "/readyz")[0] == 200

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()


@dataclass
class Bench:
    """Everything that runs, for one size."""

    plan: Plan
    plane: ControlPlane
    simulator: Simulator
    operator: Operator

    # ---- the jobs --------------------------------------------------------------------------------

    def create_jobs(self) -> None:
        where = path(f"{GROUP}/{VERSION}", PLURAL, NAMESPACE)
        bodies = [job_body(number, self.plan.workers) for number in range(self.plan.jobs)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda body: self.plane.api.create(where, body), bodies))

    def await_training(self) -> float:
        """Until all jobs train; seconds."""
        began = time.monotonic()

        def trains() -> bool:
            self.operator.is_ready()
            return bool(self.simulator.do("facts")["training"] == self.plan.jobs)

        wait_until(trains, PATIENCE_SECONDS, "all jobs to train", interval=0.25)
        return time.monotonic() - began

    def cold_start(self) -> Raw:
        """From jobs without a pod to all of them training."""
        meter = self._meter()
        self.create_jobs()
        seconds = self.await_training()
        return {"seconds": seconds, "cpu": meter.shares(), "load": load()}

    # ---- measurements ----------------------------------------------------------------------------

    def idle(self) -> Raw:
        """CPU, passes and requests while nothing happens but training."""
        before, asked, meter = Scrape.of(PORT), PlaneRequests.of(self.plane), self._meter()
        time.sleep(self.plan.idle_seconds)
        shares, after = meter.shares(), Scrape.of(PORT)
        seconds = after.at - before.at
        passes = after.total(f"{names.OPERATOR_PASSES_TOTAL}") - before.total(names.OPERATOR_PASSES_TOTAL)
        return {
            "seconds": seconds,
            "cpu": shares,
            "passes_per_second": passes / seconds,
            "requests_per_second": {
                kind: count / seconds for kind, count in grown(_requests(before), _requests(after)).items()
            },
            "plane_requests_per_second": rates(asked, PlaneRequests.of(self.plane)),
            "memory_mb": memory_mb(self.operator.pid),
            "load": load(),
        }

    def allow_to_shrink(self) -> None:
        """Jobs that would have waited for a replacement go on without it from now on."""
        change = {"spec": {"recovery": {"shrinkAfterSeconds": 0}}}
        for name in job_names(self.plan.jobs):
            if mode_of(name) == "shrink":
                self.plane.api.patch(path(f"{GROUP}/{VERSION}", PLURAL, NAMESPACE, name), change)
        time.sleep(self.plan.settle_seconds)

    def all_strikes(self, idle: Raw) -> dict[str, Raw]:
        """Recoveries in both modes, by rate."""
        found: dict[str, Raw] = {name: {} for name in map(rate_name, self.plan.rates)}
        for mode in MODES:
            if mode == "shrink":
                self.allow_to_shrink()
            for turn, rate in enumerate(self.plan.rates):
                found[rate_name(rate)][mode] = self.strikes(mode, rate, turn, idle)
        return found

    def strikes(self, mode: str, rate: float, turn: int, idle: Raw) -> Raw:
        """Recoveries of the jobs of this mode at this rate. ``turn``: how often they were struck before."""
        names_of_mode = [name for name in job_names(self.plan.jobs) if mode_of(name) == mode]
        chosen = in_turn(names_of_mode, self.plan.strikes, skipped=turn * self.plan.strikes)
        jobs = [f"{NAMESPACE}/{name}" for name in chosen]
        self.simulator.do("mark")
        before, asked, meter = Scrape.of(PORT), PlaneRequests.of(self.plane), self._meter()
        with scraper(PORT) as scrapes, pulse(PORT) as beats:
            found = self.simulator.do("strike", jobs=jobs, rate=rate)
        seconds, shares = meter.seconds, meter.shares()
        self.await_whole()
        after = Scrape.of(PORT)
        seen = self.simulator.do("seen")
        routine = {kind: rate * (after.at - before.at) for kind, rate in idle["requests_per_second"].items()}
        requests = grown(_requests(before), _requests(after))
        times = [run["seconds"] for run in found if run["seconds"] is not None]
        say(f"{mode}, {rate_name(rate)} a second: {json.dumps(spread(times))}")
        return {
            "recoveries": len(times),
            "never": len(found) - len(times),
            "seconds": spread(times),
            "with_write_seconds": spread(run["with_write_seconds"] for run in found if run["seconds"]),
            "stages": _stages(run["stages"] for run in found if run["seconds"]),
            "waits": _waits(before, after, len(found)),
            "loop_seconds": spread(beats.seconds),
            "shrunk": sum(run["size_after"] < run["size"] for run in found),
            "requests_per_recovery": {
                kind: round((count - routine.get(kind, 0.0)) / len(found), 2)
                for kind, count in requests.items()
            },
            "plane_requests_per_recovery": each(
                asked, PlaneRequests.of(self.plane), idle["plane_requests_per_second"], len(found)
            ),
            "cpu": shares,
            "cpu_ms_per_recovery": {
                name: 1000 * (share - idle["cpu"][name]) * seconds / len(found)
                for name, share in shares.items()
            },
            "scrape_seconds": spread(scrapes.seconds),
            "simulator_lag_p99": seen["lag_p99"],
            "load": load(),
        }

    def await_whole(self) -> None:
        """Until failed pods are gone and the agents of others in their place are followed. A recovery leaves
        that for later; it is counted all the same, and a pod that is still there after a restart is no agent
        to be found."""
        pods = self.plan.jobs * self.plan.workers

        def whole() -> bool:
            facts = self.simulator.do("facts")
            return bool(facts["agents"] == facts["followed"] == pods)

        wait_until(whole, READY_SECONDS, "all failed pods to be replaced", interval=0.05)

    def restart(self) -> Raw:
        """A fresh process over the same objects; seconds since its start."""
        self.operator.kill()
        self.simulator.do("mark")
        self.operator.start()
        ready = self.operator.await_ready()
        facts = self.simulator.do("facts")
        wait_until(
            lambda: self.simulator.do("seen")["agents"] >= facts["agents"], READY_SECONDS, "all agents"
        )
        seen = self.simulator.do("seen")
        return {
            "synced": ready,
            "all_jobs_seen": seen["jobs_at"] - self.operator.began,
            "all_agents_followed": seen["agents_at"] - self.operator.began,
            "memory_mb": memory_mb(self.operator.pid),
            "load": load(),
        }

    def run(self) -> Raw:
        """All of it."""
        plan, results = self.plan, {}
        self.operator.start()
        self.operator.await_ready()
        results["empty_memory_mb"] = memory_mb(self.operator.pid)
        results["cold_start"] = self.cold_start()
        say(f"{plan.jobs} jobs train after {results['cold_start']['seconds']:.1f} s")
        time.sleep(plan.settle_seconds)
        results["idle"] = self.idle()
        results["rates"] = self.all_strikes(results["idle"])
        results["memory_mb"] = memory_mb(self.operator.pid)
        results["starts"] = [self.restart() for _ in range(plan.starts)]
        self.operator.kill()
        if plan.peers:
            results["peers"] = {
                peer: run_peer(peer, self.plane, self.operator.directory, NAMESPACE, plan.jobs)
                for peer in PEERS
            }
        return results

    def _meter(self) -> CpuMeter:
        planes = {name: pid for name, pid in self.plane.pids.items() if name in PLANE}
        return CpuMeter({"operator": self.operator.pid, "simulator": self.simulator.pid, **planes})


def _requests(scrape: Scrape) -> dict[str, float]:
    return scrape.by(f"{names.OPERATOR_API_REQUESTS_TOTAL}", "verb", "resource")


def _stages(runs: Iterable[dict[str, float]]) -> dict[str, dict[str, float]]:
    """By stage; one that a run did not have took it no time."""
    chosen = list(runs)
    names_seen = list(dict.fromkeys(name for run in chosen for name in run))
    return {name: spread(run.get(name, 0.0) for run in chosen) for name in names_seen}


def _waits(before: Scrape, after: Scrape, recoveries: int) -> dict[str, float]:
    """Seconds of each kind for each recovery: what they were on average, and how many there were.

    Of the whole operator, also of what it does anyway while nothing happens.
    """
    kinds = {
        "queue": names.OPERATOR_QUEUE_SECONDS,
        "pass": names.OPERATOR_PASS_SECONDS,
        "API request": names.OPERATOR_API_REQUEST_SECONDS,
    }
    found = {}
    for kind, name in kinds.items():
        count = after.total(f"{name}_count") - before.total(f"{name}_count")
        seconds = after.total(f"{name}_sum") - before.total(f"{name}_sum")
        found[f"{kind}, mean seconds"] = seconds / count if count else 0.0
        found[f"{kind}, a recovery"] = count / recoveries
    return found


def say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


# ---- what the jobs are -------------------------------------------------------------------------------


def job_names(count: int) -> list[str]:
    return [f"gpt-{number:04d}" for number in range(count)]


def in_turn(names: list[str], count: int, skipped: int) -> list[str]:
    """So many of these, again and again from the first to the last."""
    return [names[number % len(names)] for number in range(skipped, skipped + count)]


def mode_of(name: str) -> str:
    """Every other job waits for a replacement; the others go on with the survivors at once. One of those that
    is struck again has the replacement by then, and keeps the size that it has.
    """
    return "shrink" if int(name[-4:]) % 2 else "replace"


def job_body(number: int, workers: int) -> Raw:
    """The example with that many workers, its pods for the simulated kubelets."""
    (name,) = job_names(number + 1)[-1:]
    _, body = yaml.safe_load_all(EXAMPLE.read_text())
    body["metadata"]["name"] = name
    spec = body["spec"]
    spec["checkpoint"]["persistentVolumeClaim"]["path"] = name
    spec["template"]["spec"]["schedulerName"] = SCHEDULER
    if mode_of(name) == "shrink":
        spec["workers"] = {"replicas": workers, "min": 1}
        spec["recovery"] = {"shrinkAfterSeconds": NEVER, "growCooldownSeconds": NEVER}
    else:
        spec["workers"] = {"replicas": workers}
    return body


def claim() -> Raw:
    body, _ = yaml.safe_load_all(EXAMPLE.read_text())
    return dict(body)


# ---- running -----------------------------------------------------------------------------------------


@contextmanager
def bench(plan: Plan, options: list[str]) -> Iterator[Bench]:
    """A control plane of its own with everything on it; all of it is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="rb-"))
    try:
        with ControlPlane.start(directory / "plane") as plane:
            plane.define_kind(crd())
            for namespace in (OPERATOR_NAMESPACE, NAMESPACE):
                plane.api.create(path("v1", "namespaces"), {"metadata": {"name": namespace}})
            kubeconfig = grant(plane, OPERATOR_NAMESPACE, whole_cluster=True)
            plane.api.create(path("v1", "persistentvolumeclaims", NAMESPACE), claim())
            connection = {"url": plane.url, "token": plane.admin_token, "ca_file": str(plane.ca_file)}
            with Simulator(directory, operator_namespace=OPERATOR_NAMESPACE, **connection) as simulator:
                operator = Operator(directory, kubeconfig, options)
                try:
                    yield Bench(plan, plane, simulator, operator)
                finally:
                    operator.kill()
    except BaseException:
        shutil.copytree(directory, KEPT, dirs_exist_ok=True, ignore=shutil.ignore_patterns("plane", "*.sock"))
        say(f"logs are in {KEPT}")
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


KEPT = RESULTS / "operator-logs"


def beside(plan: Plan) -> Raw:
    """The peer at the same size, with the same failures, at the last rate."""
    return peer_jobset.measure(
        plan.jobs,
        plan.workers,
        strikes=plan.strikes,
        rate=plan.rates[-1],
        settle_seconds=plan.settle_seconds,
        idle_seconds=plan.idle_seconds,
        starts=plan.starts,
        kept=KEPT,
    )


def enter_namespace(arguments: list[str]) -> None:
    """Go on in a network namespace of our own, as root of a user namespace if need be; does not return."""
    privilege = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *privilege, "--net", sys.executable, __file__, "--inside", *arguments]
    os.execvp("unshare", command)


def raise_loopback() -> None:
    """It is down in a fresh namespace."""
    name, up = b"lo", 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", name, up))  # SIOCSIFFLAGS


def rate_of(text: str) -> float:
    """Raises: ValueError, ArgumentTypeError: that is none."""
    rate = float(text)
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"nothing fails {text} times a second")
    return rate


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="200x5,1000x10", help="JOBSxWORKERS, several with commas")
    parser.add_argument("--strikes", type=int, default=250, help="failures in each mode, at each rate")
    parser.add_argument(
        "--rate",
        type=rate_of,
        nargs="+",
        default=[1.0, 4.0],
        help="failures a second, one after the other; the peer has the last",
    )
    parser.add_argument("--settle", type=float, default=20.0, help="seconds between start and measurement")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of watching how nothing happens")
    parser.add_argument("--starts", type=int, default=2, help="times that the operator is started anew")
    parser.add_argument("--no-peers", action="store_true", help="leave the naive kopf operators out")
    parser.add_argument("--peer", choices=("jobset",), help="measure this beside the operator")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/")
    parser.add_argument("--output", type=Path, default=RESULTS / "operator.json")
    parser.add_argument("--operator-option", action="append", default=[], help="for the operator; repeat")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if len(set(map(rate_name, options.rate))) < len(options.rate):
        parser.error("--rate: the same rate twice")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    if not options.inside:
        enter_namespace(sys.argv[1:])
    raise_loopback()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes: dict[str, Raw] = {}
    for size in options.sizes.split(","):
        jobs, workers = (int(number) for number in size.split("x"))
        plan = Plan(
            jobs,
            workers,
            options.strikes,
            tuple(options.rate),
            options.settle,
            options.idle,
            options.starts,
            not options.no_peers,
        )
        say(f"{size}: {jobs} jobs of {workers} pods")
        with bench(plan, options.operator_option) as running:
            sizes[size] = running.run()
        if options.peer:
            say(f"{size}: the same as JobSets")
            sizes[size][options.peer] = beside(plan)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps({"machine": machine, "sizes": sizes}, indent=1) + "\n")
    table = operator_table.lines(sizes)
    print("", *table, *operator_table.ways(sizes), sep="\n")
    print(f"\nwritten: {options.output}")
    if options.peer:
        table = peer_table.lines(sizes, options.peer)
        print("", *table, sep="\n")
    if options.write_docs:
        part = options.peer or operator_table.PART
        told = options.rate[-1:] if options.peer else options.rate
        print(f"written: {operator_table.write(table, options.strikes, told, part)}")


if __name__ == "__main__":
    main()
