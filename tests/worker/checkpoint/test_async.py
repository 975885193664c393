"""Asynchronous saves of one rank: values, what changes between saves, and a writer that dies anywhere."""

import contextlib
import copy
import gc
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_job import Job, make_state, save, start, weight
from test_state import same
from torch import nn

from resumable_training import checkpoint
from resumable_training.checkpoint import (
    CheckpointEngine,
    Reached,
    SaveReport,
    TrainingState,
    arena,
    plan,
    verify,
    writer,
)
from resumable_training.checkpoint.async_save import AsynchronousSaver
from resumable_training.checkpoint.errors import NotPlain, Superseded
from resumable_training.checkpoint.listing import list_checkpoints, survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.moments import NOTE, WISH
from resumable_training.checkpoint.snapshot import Snapshot

SOURCES = Path(checkpoint.__file__).parent


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Its engines are closed at the end, with their writers."""
    job = AsyncJob(tmp_path / "store", host="127.0.0.1")
    yield job
    for engine in job.engines:
        with contextlib.suppress(Superseded):
            engine.close()


class AsyncJob(Job):
    """Remembers its engines."""

    def engine(self, attempt: int, **config: Any) -> CheckpointEngine:
        engine = super().engine(attempt, **config)
        self.__dict__.setdefault("engines", []).append(engine)
        return engine

    engines: list[CheckpointEngine]


def begun(job: Job, attempt: int = 1, **config: Any) -> CheckpointEngine:
    engine = job.engine(attempt, **config)
    engine.restore(make_state())
    return engine


@pytest.mark.parametrize("background", [True, False])
def test_a_checkpoint_has_one_size(tmp_path: Path, background: bool) -> None:
    """What a save reports is what a list of the store says, and what the disk has: all of its files."""
    job = AsyncJob(tmp_path / "store", host="127.0.0.1") if background else Job(tmp_path / "store")
    engine = begun(job)
    try:
        begun_save = save(engine, 10)
        report = engine.wait() or begun_save
        assert report.ok
        (info,) = list_checkpoints(LocalStore(tmp_path / "store"), time.time())
        on_disk = sum(file.stat().st_size for file in (tmp_path / "store" / report.name).iterdir())
        assert report.bytes == info.bytes == on_disk
    finally:
        engine.close()


def writer_pid(engine: CheckpointEngine) -> int:
    return int(engine._saver._process.pid)  # type: ignore[attr-defined]


def landed(engine: CheckpointEngine, seconds: float = 60.0) -> SaveReport:
    """As a loop hears of it: by asking at its boundaries."""
    return eventually(engine.poll, seconds)


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def durable(engine: CheckpointEngine, step: int, state: TrainingState | None = None) -> SaveReport:
    save(engine, step, state)
    report = engine.wait()
    assert report is not None
    return report


# Values ---------------------------------------------------------------------------------------------------


def test_the_loop_goes_on_and_the_step_asked_for_is_stored(job: Job) -> None:
    """The report comes when it is durable; weights that change right after the call are not those stored."""
    engine, state = begun(job), make_state(7.0)
    report = save(engine, 1, state)
    nn.init.constant_(state.modules["model"].weight, 8.0)  # type: ignore[arg-type]
    assert not report.durable
    assert engine.busy
    final = landed(engine)
    assert (final.ok, final.durable, final.step) == (True, True, 1)
    assert final.bytes > 0
    assert final.durable_ms >= final.blocking_ms
    restored = make_state()
    assert job.engine(2).restore(restored).step == 1  # type: ignore[union-attr]
    assert weight(restored) == 7.0


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)
    optimizer.step()


def lower_rate(state: TrainingState) -> None:
    state.optimizers["optimizer"].param_groups[0]["lr"] = 1  # an integer now


def other_weights(state: TrainingState) -> None:
    state.modules["model"][0].weight.data = torch.full((4, 3), 5.0)  # type: ignore[index]


def loaded_optimizer(state: TrainingState) -> None:
    optimizer = state.optimizers["optimizer"]
    told = copy.deepcopy(optimizer.state_dict())
    for values in told["state"].values():
        values["exp_avg"].fill_(3.0)
    optimizer.load_state_dict(told)


def frozen_and_reset(state: TrainingState) -> None:
    state.modules["model"][0].bias.requires_grad_(False)  # type: ignore[index]
    state.optimizers["optimizer"].state.pop(state.modules["model"][0].bias)  # type: ignore[index]


def new_buffer(state: TrainingState) -> None:
    state.modules["model"][0].register_buffer("extra", torch.arange(2000))  # type: ignore[index]


def reshaped_buffer(state: TrainingState) -> None:
    state.modules["model"].seen = torch.ones(3, 1000, dtype=torch.bfloat16)


CHANGES = [lower_rate, other_weights, loaded_optimizer, frozen_and_reset, new_buffer, reshaped_buffer]


def layers() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model.register_buffer("seen", torch.zeros(5))
    return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_between_saves_is_stored_as_it_is(
    job: Job, change: Callable[[TrainingState], None]
) -> None:
    """Tensors that were replaced, keys that came or went, values of another type: not what was there once."""
    engine, state = job.engine(1), layers()
    engine.restore(state)
    trained(state.modules["model"], state.optimizers["optimizer"])
    assert durable(engine, 1, state).ok
    change(state)
    trained(state.modules["model"], state.optimizers["optimizer"])
    assert durable(engine, 2, state).ok
    fresh = layers()
    if change in (new_buffer, reshaped_buffer, frozen_and_reset):
        change_shapes(fresh, change)
    assert job.engine(2).restore(fresh).step == 2  # type: ignore[union-attr]
    assert same(state, fresh)


def change_shapes(state: TrainingState, change: Callable[[TrainingState], None]) -> None:
    """A model that the second checkpoint fits."""
    trained(state.modules["model"], state.optimizers["optimizer"])
    change(state)


class Doubled(nn.Linear):
    """Its state dict holds tensors that are nowhere else."""

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return {key: value * 2 for key, value in super().state_dict(*arguments, **options).items()}


def test_a_state_dict_of_ones_own_is_built_at_every_save(job: Job) -> None:
    """Where values can't be found again, they are asked for again: said once, and copied by the same plan."""
    model = Doubled(3, 2)
    engine, state = job.engine(1), TrainingState({"model": model})
    engine.restore(state)
    plans = []
    for step in (1, 2, 3):
        nn.init.constant_(model.weight, float(min(step, 2)))
        assert durable(engine, step, state).ok
        plans.append(engine._saver._snapshot.plan)  # type: ignore[attr-defined]
    assert all(one is plans[0] for one in plans)
    (said,) = job.warnings
    assert said.startswith("model.weight is made anew by a state_dict() or a hook")
    restored = TrainingState({"model": nn.Linear(3, 2)})
    job.engine(2).restore(restored)
    assert weight(restored) == 4.0


def test_small_values_that_outgrow_their_place(job: Job) -> None:
    """Texts of any size follow the tensors; the arena grows when they need it."""
    engine, state = begun(job), make_state(1.0)
    sizes = (10, 3 << 20, 5)
    for step, size in enumerate(sizes, 1):
        engine.save(state, Reached(step, step, {"x": "x" * size}, {"rng": b"r" * size}))
        assert engine.wait().ok  # type: ignore[union-attr]
    for step, size in enumerate(sizes, 1):
        name = f"step-{step:08d}.1"
        report = job.engine(step + 1, resume_from=name).restore(make_state())
        assert report is not None
        assert (report.step, report.shared, report.per_rank) == (
            step,
            {"x": "x" * size},
            {"rng": b"r" * size},
        )


def test_what_only_pickle_could_keep_is_refused(job: Job) -> None:
    """In the loop, by the save that meets it, as with synchronous saves."""
    engine, state = job.engine(1), layers()
    engine.restore(state)
    assert durable(engine, 1, state).ok
    with pytest.raises(NotPlain, match="extras"):
        engine.save(state, Reached(2, 2, {"extras": {"f": object()}}))


# Where it can't be done -------------------------------------------------------------------------------------


def test_without_memory_saves_are_synchronous(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once, with the numbers; every checkpoint is there."""
    monkeypatch.setattr(arena, "free_bytes", lambda: 1 << 20)
    engine = begun(job)
    assert all(save(engine, step).durable for step in (1, 2))
    assert engine.wait().ok  # type: ignore[union-attr]
    (said,) = job.warnings
    assert "1 MiB are free" in said
    assert "stops training" in said
    assert job.resume_points == ["step-00000002.1", "step-00000001.1"]


def test_tensors_of_unknown_kinds_are_left_to_dcp(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by name, and stored."""
    monkeypatch.setattr(plan, "DTYPES", frozenset())
    assert save(begun(job), 1, make_state(4.0)).durable
    assert "model.weight is of type torch.float32" in job.warnings[0]
    restored = make_state()
    job.engine(2).restore(restored)
    assert weight(restored) == 4.0


def test_without_a_writer_saves_are_synchronous(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can't start is said, and costs no checkpoint."""
    monkeypatch.setattr(writer, "PROGRAM", "raise SystemExit(3)")
    assert save(begun(job), 1).durable
    assert "code 3" in job.warnings[0]
    assert job.resume_points == ["step-00000001.1"]


def test_a_kind_of_tensor_that_comes_later_is_left_to_dcp(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save that meets it fails and says which; planned anew, saves are synchronous from then on."""
    engine, state = job.engine(1), layers()
    engine.restore(state)
    assert durable(engine, 1, state).ok
    monkeypatch.setattr(plan, "DTYPES", frozenset({"float32"}))
    reshaped_buffer(state)
    failed = durable(engine, 2, state)
    assert (failed.ok, failed.unlike) == (False, True)
    assert "rank 0: model.seen is of type torch.bfloat16" in failed.message
    again = engine.save(state, Reached(3, 24), anew=True)
    assert (again.ok, again.durable) == (True, True)
    assert engine.poll() is None
    assert job.resume_points == ["step-00000003.1", "step-00000001.1"]


def test_what_ranks_hold_is_said_once_for_each_change(job: Job) -> None:
    """Saves that are planned anew one after another, and find the same each time, warn once."""
    engine, state = begun(job), make_state(1.0)
    assert durable(engine, 1, state).ok
    for step in (2, 3, 4):
        engine.save(state, Reached(step, step), anew=True)
        assert engine.wait().ok  # type: ignore[union-attr]
    (said,) = job.warnings
    assert said.endswith("planned anew, they hold the same again")


def test_a_first_save_that_was_refused_is_no_agreement(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the script goes on: the next save finds out what there is, as the first one would have."""
    engine = begun(job)
    with pytest.raises(NotPlain, match="extras"):
        engine.save(make_state(), Reached(1, 8, {"extras": object()}))
    monkeypatch.setattr(plan, "DTYPES", frozenset())
    report = save(engine, 2)
    assert (report.ok, report.durable) == (True, True)
    assert "model.weight is of type torch.float32" in job.warnings[0]


@pytest.mark.parametrize(("limit", "room"), [("max", 4 << 20), ("3145728", (3 << 20) - 1000 + 300)])
def test_free_memory_is_the_machines_or_the_containers(tmp_path: Path, limit: str, room: int) -> None:
    """The smaller of both; what the container only caches can be had."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 200\nactive_file 100\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n")
    assert arena.free_bytes(tmp_path, tmp_path / "meminfo") == room


# Failures ---------------------------------------------------------------------------------------------------


def test_a_failed_save_is_told_and_the_next_one_works(job: Job) -> None:
    """What lies in its place is not touched, and training goes on."""
    engine = begun(job)
    (job.store.root / "step-00000001.1").mkdir()  # type: ignore[attr-defined]
    save(engine, 1)
    report = landed(engine)
    assert not report.ok
    assert "exists already" in report.message
    assert "1 in a row" in job.warnings[0]
    assert durable(engine, 2).ok
    assert job.resume_points == ["step-00000002.1"]


def test_storage_that_hangs_does_not_stop_the_loop(job: Job) -> None:
    """The writer stands still; the loop asks, is told that the save is under way, and goes on."""
    engine = begun(job)
    assert durable(engine, 1).ok
    os.kill(writer_pid(engine), signal.SIGSTOP)
    save(engine, 2)
    assert all(engine.poll() is None and engine.busy for _ in range(100))
    os.kill(writer_pid(engine), signal.SIGCONT)
    assert landed(engine).ok


def test_a_newer_attempt_ends_this_one_at_its_next_boundary(job: Job) -> None:
    """The writer finds its record; nothing is committed, and the loop learns it by asking."""
    engine = begun(job)
    begun(job, 2)
    save(engine, 1)
    with pytest.raises(Superseded, match="record 2"):
        landed(engine)
    assert job.resume_points == []


WRITERS_MOMENTS = sorted(
    {
        name
        for path in SOURCES.glob("*.py")
        for name in re.findall(r'moment\("((?:save|retain)\.[a-z-]+)"\)', path.read_text())
    }
    - {"save.copy", "save.copied"}  # of the rank itself
    - {"save.stored"}  # of other ranks' writers
)


@pytest.mark.parametrize("name", WRITERS_MOMENTS)
def test_a_writer_killed_at_any_moment(
    job: Job, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save is committed whole or leaves nothing, as it was told; the next ones work."""
    monkeypatch.setenv(WISH, name)
    monkeypatch.setenv(NOTE, str(tmp_path / "died"))
    engine = begun(job, keep_last=2)
    told = {}
    for step in (1, 2, 3, 4):
        save(engine, step)
        told[step] = landed(engine).ok
        eventually(lambda: not engine.busy or engine.poll() is not None)
    assert (tmp_path / "died").exists()
    assert list(told.values()).count(False) <= 1
    engine.close()
    seen = survey(LocalStore(job.root))
    assert seen.resume_points == ["step-00000004.1", "step-00000003.1"]
    assert seen.incomplete == ()
    for point in seen.resume_points:
        assert verify.verify_checkpoint(job.store, point).outcome == verify.OK
    restored = make_state()
    job.engine(2).restore(restored)
    assert weight(restored) == 4.0


def test_a_writer_that_dies_with_nothing_to_do_costs_nothing(job: Job) -> None:
    """The next save finds it dead, and its successor stores that."""
    engine = begun(job)
    assert durable(engine, 1).ok
    eventually(lambda: not engine.busy or engine.poll())
    pid = writer_pid(engine)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
    assert durable(engine, 2).ok
    assert writer_pid(engine) != pid
    assert job.resume_points == ["step-00000002.1", "step-00000001.1"]


def test_a_writer_that_always_dies_fails_each_save_and_no_more(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not replaced for ever within one save, and training goes on."""
    monkeypatch.setenv(WISH, "save.landed")
    engine = begun(job)
    for step in (1, 2):
        save(engine, step)
        assert "signal 9" in landed(engine).message


# Life and death ---------------------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_signals_to_the_group_do_not_end_it(job: Job) -> None:
    """SIGTERM and SIGINT mean the rank, which drains with a last save."""
    engine = begun(job)
    assert engine.poll() is None  # the first step is done: the writer starts
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(writer_pid(engine), number)
    pid = writer_pid(engine)
    assert durable(engine, 1).ok
    assert writer_pid(engine) == pid
    engine.close()
    assert gone(pid)


def lost(_snapshot: Snapshot) -> bool:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_copy_that_is_lost_with_its_gpu_is_not_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error on a GPU each question to it raises: a rank that ends with one just ends."""
    engine = begun(job)
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "copied", lambda self: False)
        save(engine, 1)
        patch.setattr(Snapshot, "copied", lost)
        patch.setattr(AsynchronousSaver, "_hear", lambda self, seconds: pytest.fail("it waits"))
        engine.hand_over(3600.0)
        engine.land(3600.0)
    report = engine.wait()  # no GPU was lost here
    assert report is not None
    assert report.ok


RANK = """
import sys, os, signal
sys.path.insert(0, {here!r})
from pathlib import Path
from engine_job import Job, make_state, save
engine = Job(Path({root!r}), host="127.0.0.1").engine(1)
engine.restore(make_state())
assert engine._saver._has_writer()
pid = engine._saver._process.pid
os.kill(pid, signal.SIGSTOP)
save(engine, 1)
print(pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_dies_with_its_rank(tmp_path: Path) -> None:
    """Also in the middle of a save and stopped; what it had begun is no checkpoint."""
    program = RANK.format(here=str(Path(__file__).parent), root=str(tmp_path / "store"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    eventually(lambda: gone(int(done.stdout)))
    assert survey(LocalStore(tmp_path / "store")).complete == ()


def test_it_is_small() -> None:
    """Neither torch nor NumPy: it starts in a tenth of a second and takes a few megabytes."""
    program = (
        "import sys; import resumable_training.checkpoint.writer_main;"
        " print([name for name in ('torch', 'numpy', 'obstore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_both_kinds_of_saves_make_the_same_checkpoints(job: Job) -> None:
    """Whoever resumes sees no difference."""
    assert durable(begun(job), 1, make_state(2.0)).ok
    other = Job(job.root)
    engine = start(other, 2, 5)
    assert durable(begun(job, 3), 7, make_state(3.0)).ok
    assert job.resume_points == ["step-00000007.3", "step-00000005.2", "step-00000001.1"]
    assert engine.record is not None


def test_what_was_replaced_is_not_held(job: Job) -> None:
    """A save holds on to no tensor: memory of replaced state is free again."""
    engine, state = job.engine(1), layers()
    engine.restore(state)
    trained(state.modules["model"], state.optimizers["optimizer"])
    assert durable(engine, 1, state).ok
    optimizer = state.optimizers["optimizer"]
    replaced = weakref.ref(next(iter(optimizer.state.values()))["exp_avg"].untyped_storage())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    gc.collect()
    assert replaced() is None


def test_memory_that_was_short_once_may_be_there_later(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that needs a larger arena and can't have it fails; the next one that can is stored."""
    engine, state = begun(job), make_state(1.0)
    assert durable(engine, 1, state).ok
    large = {"text": "x" * (3 << 20)}
    with monkeypatch.context() as patch:
        patch.setattr(arena, "free_bytes", lambda: 1 << 20)
        engine.save(state, Reached(2, 2, large))
        report = engine.wait()
        assert report is not None
        assert not report.ok
        assert "1 MiB are free" in report.message
    engine.save(state, Reached(3, 3, large))
    assert engine.wait().ok  # type: ignore[union-attr]
    assert job.resume_points == ["step-00000003.1", "step-00000001.1"]


def test_on_object_storage(s3_url: str) -> None:
    """The writer finds the bucket and its credentials as the rank does; retention runs there, too."""
    job = Job(s3_url, host="127.0.0.1")
    engine = begun(job, keep_last=2)
    for step in (1, 2, 3):
        assert durable(engine, step).ok
    engine.close()
    assert job.resume_points == ["step-00000003.1", "step-00000002.1"]
    restored = make_state()
    Job(s3_url).engine(2).restore(restored)
    assert weight(restored) == 3.0
