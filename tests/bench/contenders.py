"""Who takes part in the recovery benchmark, how each is started and how it is struck: `rtj run` and torchrun.

Others are in peers.py. All train body.py's model with the same interval of saves.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import launch
from launch import Running
from recovery_cases import NOTICE_SECONDS, REPLACED_AFTER_SECONDS, SAVE_EVERY, Leg
from recovery_table import COLD, COPIES, OURS, SPARE

from resumable_operator.cluster.local_control import call
from resumable_operator.cluster.local_files import RunFiles

PROGRAMS = Path(sys.executable).parent
GROUP_TIMEOUT_SECONDS = 10
NODES: dict[Leg, str] = {"one": "1", "fixed": "2", "elastic": "1:2"}
Strike = Callable[[Running], float]


@dataclass(frozen=True)
class Contender:
    """``strikes``: by scenario, the act and when it was (wall clock, seconds); what is missing it can't do or
    is not asked. ``slow``: scenarios in which it waits most of a minute, repeated less often. ``note``: what
    a reader must know of its settings."""

    name: str
    start: Callable[[Path, Leg, int], Running]
    strikes: Mapping[str, Strike]
    slow: frozenset[str] = frozenset()
    note: str = ""
    is_ours: bool = False
    is_ready: Callable[[Running], bool] = lambda running: True  # to be struck
    survives: bool = False  # rank 0 goes on while another is replaced (torchft)
    fewer: int = 0  # ranks that may be missing when it counts as going on


@dataclass(frozen=True)
class Absent:
    """One that could not take part, and why."""

    name: str
    reason: str


# ---- ours ------------------------------------------------------------------------------------------------


def start_ours(options: tuple[str, ...], spares: int, directory: Path, leg: Leg, ranks: int) -> Running:
    """``rtj run`` with the shape of the leg."""
    workers = {"one": "1:1", "fixed": "2", "elastic": "1:2"}[leg]
    processes = ranks if leg == "one" else ranks // 2
    command = [PROGRAMS / "rtj", "run", "--dir", directory / "run", "--quiet", "--workers", workers]
    command += ["--processes-per-worker", str(processes), "--save-every-steps", str(SAVE_EVERY)]
    command += ["--grow-cooldown", "0", *options, *(["--spares", str(spares)] if spares else [])]
    running = Running(directory)
    running.start([*command, launch.HERE / "train_with_library.py"])
    return running


def our_files(running: Running) -> RunFiles:
    """The run directory of one of ours."""
    return RunFiles(running.directory / "run")


def our_status(running: Running) -> dict[str, Any]:
    """Status of one of ours, as it is stored."""
    status: dict[str, Any] = json.loads(our_files(running).status.read_text())["status"]
    return status


def our_fault(fault: str, running: Running, **wishes: Any) -> float:
    """What ``rtj fault`` does, without the start of another interpreter; returns when it was asked for."""
    if fault != "add-worker":
        wishes["worker"] = our_status(running)["attempt"]["members"][-1]["worker"]
    now = time.time()
    call(our_files(running), {"fault": fault, **wishes})
    return now


def kill_rank(running: Running) -> float:
    return launch.signal_rank(running, running.last_rank(), signal.SIGKILL)


def stop_rank(running: Running) -> float:
    return launch.signal_rank(running, running.last_rank(), signal.SIGSTOP)


OUR_STRIKES: dict[str, Strike] = {
    "rank": kill_rank,
    "rank-saved": kill_rank,
    "hang": stop_rank,
    "replaced": partial(our_fault, "kill-worker", back_after=REPLACED_AFTER_SECONDS),
    "lost": partial(our_fault, "kill-worker"),
    "grow": partial(our_fault, "add-worker"),
    "preempt": partial(our_fault, "preempt", grace=NOTICE_SECONDS),
}
COPIES_STRIKES = {name: OUR_STRIKES[name] for name in ("rank", "hang", "replaced", "lost")}
COLD_STRIKES = {name: OUR_STRIKES[name] for name in ("rank", "rank-saved", "replaced", "lost")}


def ours() -> list[Contender]:
    """Ours as it is, with cold starts, with copies in memory, and with a spare for a killed worker."""
    note = "finds a stopped process after 3 s; a spare holds no ranks, and waits warm"
    copies = ("--memory-every", "1")
    of_copies = (
        "copies the state after each step; what a lost worker held is lost with it, so that copies save a"
        " killed rank's steps and no lost worker's; a strike in the middle of a copy costs that one step"
    )
    cold, spare = ("--no-preload",), {"replaced": partial(our_fault, "kill-worker")}
    return [
        Contender(OURS, partial(start_ours, (), 0), OUR_STRIKES, note=note, is_ours=True),
        Contender(COLD, partial(start_ours, cold, 0), COLD_STRIKES, is_ours=True),
        Contender(COPIES, partial(start_ours, copies, 0), COPIES_STRIKES, note=of_copies, is_ours=True),
        Contender(SPARE, partial(start_ours, (), 1), spare, is_ours=True, is_ready=all_preloaded),
    ]


def all_preloaded(running: Running) -> bool:
    """Every worker of ours, the spare too, has imported what its ranks need."""
    logs = [path / "agent.log" for path in our_files(running).workers.iterdir()]
    return all(log.exists() and "preloaded" in log.read_text() for log in logs)


# ---- torchrun, and what takes its options ------------------------------------------------------------------


def start_elastic(
    program: tuple[str | Path, ...], environment: Mapping[str, str], directory: Path, leg: Leg, ranks: int
) -> Running:
    """``torchrun``, or what takes its options; two agents meet at a store that the first one holds."""
    running = Running(directory, {**environment, **script_environment()})
    command = [
        *program,
        "--max-restarts=1000",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{launch.free_port()}",
        f"--rdzv-id={directory.name}",
        f"--nnodes={NODES[leg]}",
        f"--nproc-per-node={ranks if leg == 'one' else ranks // 2}",
    ]

    def agent(is_host: bool) -> None:
        running.start(
            [*command, f"--rdzv-conf=is_host={int(is_host)}", launch.HERE / "train_under_torchrun.py"]
        )

    agent(is_host=True)
    if leg != "one":
        agent(is_host=False)
    running.more = partial(agent, is_host=False)
    return running


def script_environment() -> dict[str, str]:
    """Of train_under_torchrun.py."""
    return {"BENCH_GROUP_TIMEOUT": str(GROUP_TIMEOUT_SECONDS)}


def kill_last_supervisor(running: Running) -> float:
    """The last worker's machine is lost."""
    return launch.kill_supervisor(running, -1)


def replace_last_supervisor(running: Running) -> float:
    """It is lost, and another is there a second later."""
    struck_at = launch.kill_supervisor(running, -1)
    running.later(REPLACED_AFTER_SECONDS, running.more)
    return struck_at


def add_supervisor(running: Running) -> float:
    """Another worker arrives."""
    now = time.time()
    running.more()
    return now


def preempt_last_supervisor(running: Running) -> float:
    """SIGTERM, as a machine's notice reaches a process, and SIGKILL when the notice is over."""
    victim = running.processes[-1]
    now = time.time()
    victim.terminate()
    running.later(NOTICE_SECONDS, lambda: launch.kill_supervisor(running, running.processes.index(victim)))
    return now


ELASTIC_STRIKES: dict[str, Strike] = {
    "rank": kill_rank,
    "rank-saved": kill_rank,
    "hang": stop_rank,
    "replaced": replace_last_supervisor,
    "lost": kill_last_supervisor,
    "grow": add_supervisor,
    "preempt": preempt_last_supervisor,
}
TORCHRUN = Contender(
    "torchrun",
    partial(start_elastic, (PROGRAMS / "torchrun",), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    ELASTIC_STRIKES,
    slow=frozenset({"hang", "lost", "grow", "preempt"}),
    note="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it mostly does not recover a gloo rank here; "
    f"time-outs are its defaults, but the group's is {GROUP_TIMEOUT_SECONDS} s (30 min by default): it is "
    "all that ends a hang",
)
