"""From a strike to the first *new* step on a real API server, with real training in process-backed pods.

The operator runs as a process with the chart's rights; the model is body.py's. What counts is the time until
a step that nobody had done before, at the size that is wanted; where ranks can be stopped at a step it is the
pause of training. Prints a table, stages and aims; writes recovery_cluster.json into tests/bench/results, and
with --write-docs into docs/, too. Run by `make bench-recovery-cluster`; needs root on Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cluster_cases
import cluster_table
import launch
import recovery_cases as cases
import recovery_main
import stages
from cluster_cases import SCENARIOS, WORKERS, Found
from cluster_training import Bed, Raw, Training, drop_packets, training
from recovery_cases import NOTICE_SECONDS, Leg, Scenario
from recovery_main import Benchmark

from bed.api import path
from resumable_training.contract import events

START_SECONDS, MOMENT_SECONDS, RECOVER_SECONDS, BOOK_SECONDS = 180.0, 90.0, 120.0, 15.0
MISSED_SECONDS = 10.0  # as long as Kubernetes is waited for to miss a node
TESTS = launch.HERE.parent
# What is trained, what it runs on, how it is struck, and what is taken down of it; not how that is told.
METHOD = [
    *(
        launch.HERE / f"{name}.py"
        for name in (
            *("bench_recovery_cluster", "cluster_cases", "cluster_training", "noting_operator"),
            *("body", "launch", "recovery_cases", "stages", "train_with_library"),
        )
    ),
    *(
        TESTS / "fakes" / f"{name}.py"
        for name in ("cluster_run", "local_run", "moments", "mortal_operator", "operator_process")
    ),
    TESTS / "bed",
]
BENCHMARK = Benchmark(
    "recovery_cluster",
    METHOD,
    SCENARIOS,
    Found,
    cluster_table.tables,
    cluster_table.aims,
    cluster_table.PUBLISHED,
)


class Broken(Exception):
    """A job did not come as far as the strike; the message has its last words."""


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
    drop_packets("add", address)
    job.lost_address = address
    struck_at = _signal(job.run.nodes.pids(job.run.namespace, worker), signal.SIGSTOP)
    job.run.nodes.partition(machine)
    job.silent = machine
    return struck_at


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
    "rank-saved": kill_rank,
    "pod": kill_container,
    "spare": kill_container,
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
            if found.seconds is None:
                return


def strike(job: Training, scenario: Scenario) -> Found:
    """Wait for the moment, strike, wait for a new step at the wanted size."""
    if job.world() < WORKERS and scenario.name != "grow":  # of two, the one before has left one
        joined_at = add_machine(job)
        if not launch.wait_for(
            lambda: cases.first_new(job.steps(), joined_at, WORKERS) is not None, RECOVER_SECONDS
        ):
            raise Broken(f"the job does not grow\n{job.run.text()}")
    since = job.step()
    if not launch.wait_for(lambda: cases.is_time(scenario, job.step(), job.saved(), since), MOMENT_SECONDS):
        raise Broken(f"no moment for {scenario.name} at step {job.step()}\n{job.run.text()}")
    struck_at = STRIKES[scenario.name](job)
    world = scenario.world(WORKERS)
    if not launch.wait_for(
        lambda: cases.first_new(job.steps(), struck_at, world) is not None, RECOVER_SECONDS
    ):
        print(job.run.text(), flush=True)
        return Found(None)
    index = cases.first_new(job.steps(), struck_at, world)
    assert index is not None
    outcome = cases.judge(job.steps(), struck_at, index, scenario.planned)
    missed = _missed_after(job, struck_at) if job.silent else None
    return _explained(job, outcome, struck_at, missed)


def _explained(job: Training, outcome: cases.Outcome, struck_at: float, missed: float | None) -> Found:
    """With what the operator and the agents said of it, once they have said it all."""
    assert outcome.after_strike is not None
    recovered_at = struck_at + outcome.after_strike

    def is_told() -> bool:
        return any(entry["at"] > recovered_at and entry["kind"] == events.PROGRESS for entry in job.history())

    if not launch.wait_for(is_told, BOOK_SECONDS):
        return Found(**vars(outcome), missed=missed)
    history = job.history()
    split = stages.split(history, struck_at, recovered_at)
    assigned = [
        entry["at"]
        for entry in history
        if entry["kind"] == events.ASSIGNED and struck_at < entry["at"] < recovered_at
    ]
    until = max(assigned, default=recovered_at)
    seconds, writes = cluster_cases.under_way(job.api(), struck_at + split["detect"], until)
    return Found(
        **vars(outcome) | {"split": split},
        api_seconds=seconds,
        api_writes=writes,
        known=split["detect"] + split["stop"],
        missed=missed,
    )


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
    took = "never" if found.seconds is None else f"{found.seconds:.2f} s"
    print(f"  {where}  {scenario.name:<10} {took:>8}  {found.redone} redone", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    recovery_main.add_options(parser, SCENARIOS)
    options = recovery_main.parse(parser)
    if "dead" in options.scenario and shutil.which("ip") is None:
        parser.error("a machine that falls silent needs the program ip (iproute2)")
    wanted = [scenario for scenario in SCENARIOS if scenario.name in options.scenario]
    planned = {WORKERS: {scenario.name: [cluster_table.SIDE] for scenario in wanted if options.runs}}
    begun = recovery_main.begin(BENCHMARK, options, planned, notes={cluster_table.SIDE: ""})
    found = run_all(wanted, options.runs) if options.runs else {}
    recovery_main.end(begun, cluster_table.by_size(found))


if __name__ == "__main__":
    main()
