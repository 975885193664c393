"""Other programs that bring a training back, for the recovery benchmark's --peers: dlrover, NVRx, torchft.

Each is installed by peers_install.py. One that can't be had or started on this machine is reported with the
reason, never left out. What had to be set for each is in its note.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import launch
from contenders import (
    ELASTIC_STRIKES,
    NODES,
    Absent,
    Contender,
    kill_rank,
    replace_last_supervisor,
    script_environment,
    start_elastic,
)
from launch import Running
from peers_install import NotInstalled, Peer, environment_of, version_of
from recovery_cases import Leg

HEARTBEAT_TIMEOUT_MS = 1000
PORT_SECONDS = 30.0

DLROVER = Peer("dlrover-0.6.1", ("dlrover[torch,k8s]==0.6.1", "protobuf"), "dlrover")
NVRX_OLD = Peer("nvrx-0.4.1", ("nvidia-resiliency-ext==0.4.1",), "nvidia_resiliency_ext.fault_tolerance")
NVRX = Peer(
    "nvrx-0.6.0",
    ("defusedxml", "grpcio", "grpcio-tools", "httpx", "nvidia-ml-py", "psutil", "pyyaml"),
    "nvidia_resiliency_ext.fault_tolerance",
    ("nvidia-resiliency-ext==0.6.0", "manylinux_2_39_x86_64"),
)
TORCHFT = Peer("torchft-nightly", ("torchft-nightly",), "torchft")


def contenders() -> list[Contender | Absent]:
    """All of them, installed now where they were not."""
    found: list[Contender | Absent] = []
    makers: tuple[tuple[Peer, Callable[[Peer, Path], list[Contender]]], ...] = (
        (DLROVER, _dlrover),
        (NVRX, _nvrx),
        (NVRX_OLD, _nvrx),
        (TORCHFT, _torchft),
    )
    for peer, make in makers:
        try:
            print(f"{peer.name}: installing, unless it is there", flush=True)
            found += make(peer, environment_of(peer))
        except NotInstalled as error:
            found.append(Absent(peer.name, f"it can't be installed here: {error}"))
    return found


# ---- dlrover ---------------------------------------------------------------------------------------------


def _dlrover(peer: Peer, programs: Path) -> list[Contender]:
    note = "local master started by hand, each agent in a PID namespace of its own; plain DCP"
    names = ("rank", "rank-saved", "replaced", "lost")
    strikes = {name: ELASTIC_STRIKES[name] for name in names}
    return [Contender(peer.name, partial(start_dlrover, programs), strikes, frozenset({"lost"}), note)]


def start_dlrover(programs: Path, directory: Path, leg: Leg, ranks: int) -> Running:
    """A master, and an agent for each worker. The master counts as the first supervisor."""
    port = launch.free_port()
    environment = {
        "BENCH_PID_NAMESPACE": "1",
        "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}",
        "NODE_NUM": NODES[leg].rpartition(":")[2],
        **script_environment(),
    }
    running = Running(directory, environment)
    master = [programs / "python", "-u", "-m", "dlrover.python.master.main", "--platform", "local"]
    running.start(
        [*master, "--port", str(port), "--node_num", environment["NODE_NUM"], "--job_name", "bench"]
    )
    if not launch.wait_for(lambda: launch.listens(port), PORT_SECONDS):
        return running  # its log says why, when nothing trains
    isolated = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*isolated, programs / "dlrover-run", f"--nnodes={NODES[leg]}", "--max-restarts=1000"]
    command.append(f"--nproc-per-node={ranks if leg == 'one' else ranks // 2}")

    def agent(number: int) -> None:
        own = {"NODE_RANK": str(number), "NODE_ID": str(number), "WORKER_RANK": str(number)}
        running.start([*command, launch.HERE / "train_under_torchrun.py"], own)

    agent(0)
    if leg != "one":
        agent(1)
    running.more = partial(agent, 1)
    return running


# ---- NVRx ------------------------------------------------------------------------------------------------


def _nvrx(peer: Peer, programs: Path) -> list[Contender]:
    program = (programs / "python", "-m", "nvidia_resiliency_ext.fault_tolerance.launcher")
    start = partial(start_elastic, program, {})
    strikes = {"rank": kill_rank, "rank-saved": kill_rank, "replaced": replace_last_supervisor}
    return [Contender(peer.name, start, strikes, note="ft_launcher with its defaults; of fixed size only")]


# ---- torchft ---------------------------------------------------------------------------------------------


def _torchft(peer: Peer, programs: Path) -> list[Contender]:
    version = version_of(programs, "torchft-nightly")
    note = (
        f"{version}, a replica for each rank, heartbeat time-out {HEARTBEAT_TIMEOUT_MS} ms (5 s by default), "
        "each under a torchrun of its own that restarts it"
    )
    start = partial(start_torchft, programs)
    rank = {"rank": kill_rank}
    return [
        Contender(f"{peer.name}", start, rank, note=note, survives=True),
        Contender(f"{peer.name} stall", start, rank, note="until survivors go on", survives=True, fewer=1),
    ]


def start_torchft(programs: Path, directory: Path, leg: Leg, ranks: int) -> Running:
    """A lighthouse, and a torchrun of one rank for each replica."""
    port = launch.free_port()
    running = Running(directory, {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"})
    limits = ["--quorum_tick_ms", "100", "--heartbeat_timeout_ms", str(HEARTBEAT_TIMEOUT_MS)]
    lighthouse = [programs / "torchft_lighthouse", "--min_replicas", "1", "--join_timeout_ms", "10000"]
    running.start([*lighthouse, *limits, "--bind", f"127.0.0.1:{port}"])
    launch.wait_for(lambda: launch.listens(port), PORT_SECONDS)
    for replica in range(ranks):
        command = [programs / "python", "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1"]
        command += ["--max-restarts=1000", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        own = {"REPLICA_GROUP_ID": str(replica)}
        running.start([*command, launch.HERE / "train_under_torchft.py"], own)
    return running
