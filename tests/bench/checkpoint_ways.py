"""Ways of saving that the checkpoint benchmark compares; each is used by every rank of a gloo group."""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from resumable_training.checkpoint import CheckpointEngine, TrainingState
from resumable_training.contract.assignment import CheckpointConfig

_CACHE_BYTES = 64 << 20


class Way:
    """One way. ``begin`` is what the loop waits for; ``landed`` never waits."""

    name = ""

    def __init__(self, state: TrainingState, directory: Path, rank: int, group: Any) -> None:
        self.state, self.directory, self.rank, self.group = state, directory, rank, group
        self.world_size = dist.get_world_size()

    def ready(self) -> None:
        """Everything that is done before the first step."""

    def prepare(self) -> None:
        """What the caller of DCP does before its call, not counted: the state dict."""

    def begin(self, number: int) -> None:
        raise NotImplementedError

    def landed(self) -> bool:
        return True

    def before_load(self) -> None:
        """What a restart does before it loads."""

    def load(self, number: int) -> None:
        """Restore save ``number`` into the live state."""
        state = self._state_dict()
        dcp.load(state, checkpoint_id=self.path(number), process_group=self.group)

    def close(self) -> None:
        """Leave no process behind."""

    def path(self, number: int) -> Path:
        return self.directory / f"{number}"

    def _state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.state.modules["model"], self.state.optimizers["optimizer"])
        return {"model": model, "optimizer": optimizer}


class Ours(Way):
    """This library."""

    name = "resumable-training"

    def ready(self) -> None:
        self._engine = self._make(1)
        self._engine.restore(self.state)

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
        self._engine.save(self.state, step=number, samples=number, shared={}, per_rank={"rng": b"r" * 5000})

    def landed(self) -> bool:
        report = self._engine.poll()
        assert report is None or report.ok, report
        return report is not None

    def before_load(self) -> None:
        self._engine.close()
        self._engine = self._make(2)

    def load(self, number: int) -> None:
        assert self._engine.restore(self.state) is not None

    def path(self, number: int) -> Path:
        return self.directory / "store" / f"step-{number:08d}.1"

    def close(self) -> None:
        self._engine.close()


class TorchSave(Way):
    """``torch.save`` of everything by rank 0, which FSDP gathers before."""

    name = "torch.save on rank 0"

    def begin(self, number: int) -> None:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        optimizer = self.state.optimizers["optimizer"]
        state = get_state_dict(self.state.modules["model"], optimizer, options=whole)
        if self.rank == 0:
            self.path(number).mkdir()
            with (self.path(number) / "__0_0.pt").open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
        dist.barrier(self.group)

    def load(self, number: int) -> None:
        torch.load(self.path(number) / "__0_0.pt", weights_only=True)


class PlainDcp(Way):
    """``dcp.save``."""

    name = "dcp.save"

    def prepare(self) -> None:
        self._prepared = self._state_dict()

    def begin(self, number: int) -> None:
        dcp.save(self._prepared, checkpoint_id=self.path(number), process_group=self.group)


class AsyncDcp(PlainDcp):
    """``dcp.async_save`` with its default, a thread."""

    name = "dcp.async_save, thread"
    kind = AsyncCheckpointerType.THREAD
    _future: Future[Any] | None = None
    stager: Any = None

    def begin(self, number: int) -> None:
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
        self._future = told

    def landed(self) -> bool:
        return self._future is None or self._future.done()


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
