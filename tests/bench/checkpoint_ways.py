"""Ways of saving that the checkpoint benchmark compares; each is used by every rank of a gloo group."""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from resumable_training.checkpoint import CheckpointEngine, Reached, TrainingState
from resumable_training.contract.assignment import CheckpointConfig

_CACHE_BYTES = 64 << 20
_WRITER_SECONDS, _LOOK_SECONDS = 60.0, 0.01


class Way(ABC):
    """One way. ``begin`` is what the loop waits for."""

    name = ""

    def __init__(self, state: TrainingState, directory: Path, rank: int, group: Any) -> None:
        self.state, self.directory, self.rank, self.group = state, directory, rank, group
        self.world_size = dist.get_world_size()

    def ready(self) -> None:  # noqa: B027  most ways do nothing
        """Everything that is done before the first step."""

    def prepare(self) -> None:  # noqa: B027
        """What the caller of DCP does before its call, not counted: the state dict."""

    @abstractmethod
    def begin(self, number: int) -> None:
        """Save the state as number ``number``; it may be changed again when this returns."""

    @abstractmethod
    def durable_at(self) -> float | None:
        """When the save became durable (``time.perf_counter``); None: not yet. Never waits."""

    def before_load(self) -> None:  # noqa: B027
        """What a restart does before it has a model to load into."""

    @abstractmethod
    def load(self, number: int, fresh: TrainingState) -> None:
        """Restore save ``number`` into a model and an optimizer that were just made."""

    def close(self) -> None:  # noqa: B027
        """Leave no process behind."""

    def path(self, number: int) -> Path:
        return self.directory / f"{number}"


class Ours(Way):
    """This library."""

    name = "resumable-training"
    _began = 0.0

    def ready(self) -> None:
        self._engine = self._make(1)
        self._engine.restore(self.state)
        self._engine.poll()  # as when a first step is done: the writer starts, long before a first save
        deadline = time.monotonic() + _WRITER_SECONDS
        while not self._engine.standing:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no checkpoint writer within {_WRITER_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)

    def _make(self, attempt: int) -> CheckpointEngine:
        config = CheckpointConfig(directory=str(self.directory / "store"))
        host = "127.0.0.1"
        group = self.group if self.world_size > 1 else None
        engine = CheckpointEngine(
            config, "bench/bench", "uid", attempt, group, self.rank, self.world_size, print, host=host
        )
        engine.preflight()
        return engine

    def begin(self, number: int) -> None:
        self._began = time.perf_counter()
        self._engine.save(self.state, Reached(number, number, {}, {"rng": b"r" * 5000}))

    def durable_at(self) -> float | None:
        report = self._engine.poll()
        assert report is None or report.ok, report
        return self._began + report.durable_ms / 1000 if report is not None else None

    def before_load(self) -> None:
        self._engine.close()
        self._engine = self._make(2)

    def load(self, number: int, fresh: TrainingState) -> None:
        report = self._engine.restore(fresh)
        assert report is not None
        assert report.step == number

    def path(self, number: int) -> Path:
        return self.directory / "store" / f"step-{number:08d}.1"

    def close(self) -> None:
        self._engine.close()


class _Synchronous(Way):
    """Durable when ``begin`` returns."""

    _durable_at = 0.0

    def begin(self, number: int) -> None:
        self.save(number)
        self._durable_at = time.perf_counter()

    @abstractmethod
    def save(self, number: int) -> None:
        """All of it."""

    def durable_at(self) -> float | None:
        return self._durable_at


class TorchSave(_Synchronous):
    """``torch.save`` of everything by rank 0, which FSDP gathers before."""

    name = "torch.save on rank 0"

    def save(self, number: int) -> None:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_state_dict(*_both(self.state), options=whole)
        if self.rank == 0:
            self.path(number).mkdir()
            with (self.path(number) / "__0_0.pt").open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
        dist.barrier(self.group)

    def load(self, number: int, fresh: TrainingState) -> None:
        model, optimizer = torch.load(self.path(number) / "__0_0.pt", weights_only=True)
        _set(fresh, model, optimizer, StateDictOptions(full_state_dict=True))


class _OfDcp(Way):
    """What PyTorch's checkpoints have in common."""

    def prepare(self) -> None:
        self._prepared = _state_dict(self.state)

    def load(self, number: int, fresh: TrainingState) -> None:
        """As PyTorch's own tutorial has it."""
        state = _state_dict(fresh)
        dcp.load(state, checkpoint_id=self.path(number), process_group=self.group)
        _set(fresh, state["model"], state["optimizer"])


class PlainDcp(_OfDcp, _Synchronous):
    """``dcp.save``."""

    name = "dcp.save"

    def save(self, number: int) -> None:
        dcp.save(self._prepared, checkpoint_id=self.path(number), process_group=self.group)


class AsyncDcp(_OfDcp):
    """``dcp.async_save`` with its default, a thread."""

    name = "dcp.async_save, thread"
    kind = AsyncCheckpointerType.THREAD
    stager: Any = None

    def begin(self, number: int) -> None:
        self._durable_at: float | None = None
        told: Any = dcp.async_save(
            self._prepared,
            checkpoint_id=self.path(number),
            process_group=self.group,
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        if not isinstance(told, Future):
            told.staging_completion.result()
            told = told.upload_completion
        self._future: Future[Any] = told
        told.add_done_callback(self._landed)

    def _landed(self, future: Future[Any]) -> None:
        self._durable_at = time.perf_counter()

    def durable_at(self) -> float | None:
        if self._future.done():
            self._future.result()  # raises what went wrong
        return self._durable_at


class ProcessDcp(AsyncDcp):
    """The same with a process."""

    name = "dcp.async_save, process"
    kind = AsyncCheckpointerType.PROCESS

    def close(self) -> None:
        from torch.distributed.checkpoint._async_process_executor import _ProcessBasedAsyncCheckpointExecutor

        executor = getattr(_ProcessBasedAsyncCheckpointExecutor, "_executor", None)
        if executor is not None:
            executor.shutdown()


class StagedDcp(AsyncDcp):
    """A thread, and one stager that is kept, so that its memory is warm from the second save on."""

    name = "dcp.async_save, kept stager"

    def ready(self) -> None:
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        self.stager = DefaultStager(options)

    def close(self) -> None:
        self.stager.close()


WAYS: tuple[type[Way], ...] = (Ours, TorchSave, PlainDcp, AsyncDcp, ProcessDcp, StagedDcp)


def _both(state: TrainingState) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    return state.modules["model"], state.optimizers["optimizer"]


def _state_dict(state: TrainingState) -> dict[str, Any]:
    model, optimizer = get_state_dict(*_both(state))
    return {"model": model, "optimizer": optimizer}


def _set(state: TrainingState, model: Any, optimizer: Any, options: StateDictOptions | None = None) -> None:
    set_state_dict(*_both(state), model_state_dict=model, optim_state_dict=optimizer, options=options)


def quietly() -> None:
    """DCP warns about what is meant here."""
    warnings.simplefilter("ignore")


class Floor:
    """One copy of what one rank has to store into memory that is there: less than that no save can cost.

    As in a training, other memory was touched in between, so that nothing of it is in a cache.
    """

    def __init__(self, state: TrainingState, world_size: int, sharded: bool) -> None:
        parts = [*state.modules["model"].parameters()]
        for values in state.optimizers["optimizer"].state.values():
            parts += [value for value in values.values() if value.numel() > 1]
        local = [part.to_local() if hasattr(part, "to_local") else part.detach() for part in parts]
        size = sum(part.nbytes for part in local) // (1 if sharded else world_size)
        self._source, self._target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        self._other = torch.ones(_CACHE_BYTES, dtype=torch.uint8)

    def seconds(self) -> float:
        self._other.add_(1)
        began = time.perf_counter()
        self._target.copy_(self._source)
        took = time.perf_counter() - began
        self._other.add_(1)
        return took
