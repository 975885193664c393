"""How this process was started, read from its environment. Pure and without torch.

Supervised: by an agent (``RESUMABLE_SOCKET`` is set). Torchrun: by anything that sets torchrun's variables.
Single: plain ``python train.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from resumable_training.contract import env
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.codec import ContractError, from_json
from resumable_training.errors import UserError

SUPERVISED = "supervised"
TORCHRUN = "torchrun"
SINGLE = "single"


@dataclass(frozen=True)
class Launch:
    """A rank's place and its names. ``checkpoint.directory`` empty: no checkpoints."""

    mode: str = SINGLE
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_address: str = ""
    master_port: int = 0
    agent_store: bool = False  # torchrun's agent hosts the store, not rank 0
    address: str = ""  # of this rank's worker
    job: str = "local/train"
    job_uid: str = ""
    attempt: int = 1
    socket: str = ""
    progress: str = ""
    stacks: str = ""
    trace_directory: str = ""
    high_water_samples: int = 0
    wanted_ns: int = 0  # on CLOCK_MONOTONIC, when its agent wanted this rank; 0: nobody says
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def store_prefix(self) -> str:
        """Keys of this attempt only: nobody of another job or attempt can meet us by mistake."""
        return f"resumable/{self.job_uid}/{self.attempt}"


def read_launch(environment: Mapping[str, str], script: str) -> Launch:
    """Launch from the process's environment; ``script`` is ``sys.argv[0]``.

    Raises:
        UserError: a variable is missing or malformed; the text names it.
    """
    common = Launch(
        job=environment.get(env.JOB) or f"local/{PurePath(script).stem or 'train'}",
        stacks=environment.get(env.STACKS, ""),
        progress=environment.get(env.PROGRESS, ""),
        trace_directory=environment.get(env.TRACE_DIR, ""),
        high_water_samples=_integer(environment, env.HIGH_WATER_SAMPLES, 0),
        wanted_ns=_integer(environment, env.WANTED_NS, 0),
        checkpoint=_checkpoint(environment),
    )
    if not environment.get(env.SOCKET) and "RANK" not in environment:
        return replace(common, job_uid="single")
    ranked = _ranked(common, environment)
    return _supervised(ranked, environment) if environment.get(env.SOCKET) else _torchrun(ranked, environment)


def _ranked(common: Launch, environment: Mapping[str, str]) -> Launch:
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise UserError(
            f"RANK is set but {', '.join(missing)} is not: start with rtj run, torchrun or plain python"
        )
    rank, world_size = _integer(environment, "RANK", 0), _integer(environment, "WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise UserError(f"RANK is {rank} and WORLD_SIZE is {world_size}: ranks go from 0 to WORLD_SIZE - 1")
    return replace(
        common,
        rank=rank,
        world_size=world_size,
        local_rank=_integer(environment, "LOCAL_RANK", 0),
        master_address=environment["MASTER_ADDR"],
        master_port=_integer(environment, "MASTER_PORT", 0),
    )


def _supervised(ranked: Launch, environment: Mapping[str, str]) -> Launch:
    return replace(
        ranked,
        mode=SUPERVISED,
        socket=environment[env.SOCKET],
        address=environment.get(env.WORKER_ADDRESS, ""),
        job_uid=environment.get(env.JOB_UID, ""),
        attempt=_integer(environment, env.ATTEMPT, 1),
    )


def _torchrun(ranked: Launch, environment: Mapping[str, str]) -> Launch:
    return replace(
        ranked,
        mode=TORCHRUN,
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job_uid=environment.get("TORCHELASTIC_RUN_ID", "torchrun"),
        attempt=_integer(environment, "TORCHELASTIC_RESTART_COUNT", 0) + 1,
    )


def _checkpoint(environment: Mapping[str, str]) -> CheckpointConfig:
    config = CheckpointConfig()
    text = environment.get(env.CHECKPOINT_CONFIG, "")
    if text:
        try:
            config = from_json(CheckpointConfig, text.encode())
        except ContractError as error:
            raise UserError(f"{env.CHECKPOINT_CONFIG}: {error}") from error
    return replace(config, directory=config.directory or environment.get(env.CHECKPOINT_DIR, ""))


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UserError(f"{name} must be a whole number, not {text!r}") from error
