"""Starting ranks: their environment (PURE) and the one seam behind which a process is made.

``RankStarter`` is that seam: ``ColdStarter`` is here, and ``preload.PreloadStarter`` can take its place.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Generator, Mapping, Protocol, Sequence, Tuple

from resumable_training.agent import reap
from resumable_training.contract import CONTRACT_VERSION, env
from resumable_training.contract.assignment import AgentSpec, Assignment
from resumable_training.contract.codec import to_json

MAX_RESTARTS = 1_000_000  # torchrun's number; the operator's budgets are what really bounds attempts


@dataclass(frozen=True)
class RankFiles:
    """Where a rank meets its agent."""

    socket: str
    progress: str
    stacks: str


@dataclass(frozen=True)
class RankPlan:
    """All that is needed to start one rank."""

    rank: int
    command: Tuple[str, ...]
    environment: Dict[str, str]
    directory: str  # working directory; empty: the agent's own


@dataclass(frozen=True)
class StartedRank:
    """``output``: read end of the pipe that the rank's stdout and stderr go to."""

    pid: int
    output: int


class RankStarter(Protocol):
    """Makes the process of a rank, as a child of the main thread, in its own session."""

    def begin(self) -> None:
        """The agent serves, and its loop runs."""
        ...

    async def until_ready(self, unless: Callable[[], bool]) -> None:
        """Called before the ranks of an attempt are started; may wait for what starts them sooner.

        Args:
            unless: it is of no use any more.
        """
        ...

    def close(self) -> None:
        """The agent ends; no rank lives any more."""
        ...

    def reaped(self, ended: Sequence[Tuple[int, int]]) -> None:
        """Children of the agent that have ended, as (pid, code)."""
        ...

    def memory_bytes(self) -> int:
        """What is held for starting ranks."""
        ...

    def warming(self) -> bool:
        """``until_ready`` would wait now."""
        ...

    def start(self, plans: Sequence[RankPlan]) -> Generator[StartedRank, None, None]:
        """Start the ranks of a worker, in this order; each runs when it is handed out, and not before.

        Raises:
            OSError: no process could be made.
            ValueError: its arguments or variables can be those of no process.
        """
        ...

    def kill(self, started: StartedRank) -> None:
        """SIGKILL the rank, which has not been reaped; of the others in its group ``reap`` takes care."""
        ...


class ColdStarter:
    """A fresh interpreter for every rank, through the trampoline."""

    def begin(self) -> None:
        """Nothing to prepare."""

    async def until_ready(self, unless: Callable[[], bool]) -> None:
        """It always is."""

    def close(self) -> None:
        """Nothing is left."""

    def reaped(self, ended: Sequence[Tuple[int, int]]) -> None:
        """None is held."""

    def memory_bytes(self) -> int:
        """Nothing."""
        return 0

    def warming(self) -> bool:
        return False

    def start(self, plans: Sequence[RankPlan]) -> Generator[StartedRank, None, None]:
        for plan in plans:
            yield start_cold(plan)

    def kill(self, started: StartedRank) -> None:
        reap.send(started.pid, signal.SIGKILL)


def start_cold(plan: RankPlan) -> StartedRank:
    """A fresh interpreter, or whatever the command is.

    Raises:
        OSError, ValueError: as ``RankStarter.start``.
    """
    read, write = os.pipe()
    try:
        arguments = [str(os.getpid()), plan.directory, *plan.command]
        pid = spawn("trampoline", arguments, plan.environment, {1: write, 2: write})
    except (OSError, ValueError):
        os.close(read)
        raise
    finally:
        os.close(write)
    return StartedRank(pid, read)


def spawn(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Mapping[int, int]
) -> int:
    """Run a stand-alone module of this package in a bare interpreter; the pid.

    Must be called from the main thread: PDEATHSIG follows the thread, not the process. Descriptors that are
    not given are /dev/null (standard input) or inherited (1, 2).
    """
    source = pkgutil.get_data("resumable_training.agent", module + ".py")  # works inside a zipapp too
    assert source is not None
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in descriptors.items()]
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        if 0 not in descriptors:
            actions.append((os.POSIX_SPAWN_DUP2, null, 0))
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", source.decode(), *arguments],
            dict(environment),
            file_actions=actions,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
        )
    finally:
        os.close(null)


def rank_plan(
    spec: AgentSpec,
    assignment: Assignment,
    local_rank: int,
    files: RankFiles,
    inherited: Mapping[str, str],
    now_ns: int,
) -> RankPlan:
    """PURE: how to start one rank of this worker. ``now_ns``: on CLOCK_MONOTONIC."""
    environment = own_environment(spec, assignment.env, inherited)
    environment.update(_torchrun(assignment, local_rank))
    environment.update(_resumable(spec, assignment, files))
    environment[env.WANTED_NS] = str(now_ns)
    rank = assignment.member().first_rank + local_rank
    return RankPlan(rank, spec.command, environment, spec.working_directory)


def own_environment(
    spec: AgentSpec, assigned: Mapping[str, str], inherited: Mapping[str, str]
) -> Dict[str, str]:
    """PURE: the user's own variables. Unbuffered, so that the last words of a killed rank are not lost.

    Args:
        assigned: ``env`` of the assignment.
        inherited: the agent's own.
    """
    result = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    result.update(inherited)
    result.update(spec.environment)
    result.update(assigned)
    for name in (env.AGENT_SPEC, env.POD_ADDRESS):  # the agent's own
        result.pop(name, None)
    if not assigned.get(env.RESUME_FROM):
        result.pop(env.RESUME_FROM, None)  # the same at every start would undo what was trained since
    return result


def _torchrun(assignment: Assignment, local_rank: int) -> Dict[str, str]:
    """What ``torchrun`` sets."""
    member = assignment.member()
    rank, world = str(member.first_rank + local_rank), str(assignment.world_size)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(member.ranks),
        "GROUP_RANK": str(assignment.members.index(member)),
        "GROUP_WORLD_SIZE": str(len(assignment.members)),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "MASTER_ADDR": assignment.master_address,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(MAX_RESTARTS),
        "TORCHELASTIC_RUN_ID": assignment.job_uid,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _resumable(spec: AgentSpec, assignment: Assignment, files: RankFiles) -> Dict[str, str]:
    result = {
        env.CONTRACT: str(CONTRACT_VERSION),
        env.JOB: assignment.job,
        env.JOB_UID: assignment.job_uid,
        env.RUN_ID: assignment.job_uid,
        env.ATTEMPT: str(assignment.attempt),
        env.WORKER: spec.worker,
        env.WORKER_ADDRESS: spec.address,
        env.SOCKET: files.socket,
        env.PROGRESS: files.progress,
        env.STACKS: files.stacks,
        env.HIGH_WATER_SAMPLES: str(assignment.high_water_samples),
        env.CHECKPOINT_CONFIG: to_json(assignment.checkpoint).decode(),
        env.HANG_SECONDS: repr(assignment.limits.hang_seconds),
    }
    if assignment.checkpoint.directory:
        result[env.CHECKPOINT_DIR] = assignment.checkpoint.directory
    return result


def log_root(spec: AgentSpec) -> Path:
    return Path(spec.log_directory or Path(spec.directory, "logs"))


def log_path(spec: AgentSpec, attempt: int, rank: int) -> Path:
    """``attempt-00001/rank-00000.log`` below the job's log directory."""
    return log_root(spec) / ("attempt-%05d" % attempt) / ("rank-%05d.log" % rank)
