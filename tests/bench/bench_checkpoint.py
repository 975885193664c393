"""What a save and a restart cost, beside other ways of saving the same state (``make bench-checkpoint``).

For DDP and FSDP2 at several world sizes, for a state of many tensors and for one that is mostly a single
tensor, every way of ``checkpoint_ways`` in turn: how long the loop stands still (as a ratio to one copy of
what a rank has to store), how much slower its steps are while a save is under way, what both cost it
together, how long until it is durable, bytes per rank, memory, and a restart. Ratios are to what the same
rank measured right before each save, at the same time as all others. Building DCP's state dict is not
counted against a save with DCP.
A restart restores into a model and an optimizer that were just made. Memory is looked at during the first
save and one more at the end, which count for nothing else, since looking takes time itself.
The tables have medians over ranks and saves from the second on; the JSON has every number. A second, short
one is of a large state: what a save costs besides its copy shows beside copies of a few milliseconds only.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import queue
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import checkpoint_table

_CONTEXT = multiprocessing.get_context("forkserver")
_RESULTS = Path(__file__).parent / "results" / "checkpoint.json"
_LARGE_SAVES = checkpoint_table.LEAST_SAVES + 1  # at most, with the first: each takes seconds
_STEP_SECONDS = 0.02
_SAMPLE_SECONDS = 0.02
_HEARD_SECONDS = 0.2  # until the benchmark looks at memory, or no longer does
Setting = tuple[dict[str, Any], list[str]]  # options, and names of ways
MEASURED = ("floors", "stalls", "durable", "steps", "slow_steps")


def make_state(options: dict[str, Any]) -> Any:
    """Parameters and AdamW; with its two moments, once it has stepped, ``megabytes``."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from resumable_training.checkpoint import TrainingState

    world_size, elements = options["world_size"], options["megabytes"] * (1 << 20) // 12
    if options["shape"] == "many":
        width = 512
        rows = [(width, width)] * max(1, elements // (width * width + width))
        model: nn.Module = nn.Sequential(*(nn.Linear(*row) for row in rows))
    else:
        fat, rest = elements * 6 // 10 // 512, elements * 4 // 10 // (512 * 512)
        model = nn.Sequential(nn.Embedding(fat, 512), *(nn.Linear(512, 512, bias=False) for _ in range(rest)))
    if options["wrap"] == "ddp" and world_size > 1:
        model = DistributedDataParallel(model)
    elif options["wrap"] == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.AdamW(model.parameters())
    return TrainingState({"model": model}, {"optimizer": optimizer})


def step(state: Any) -> None:
    """So that there are moments."""
    import torch

    for parameter in state.modules["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizers["optimizer"].step()
    state.optimizers["optimizer"].zero_grad()


class Work:
    """A step that keeps one core busy for about the same time."""

    def __init__(self) -> None:
        import torch

        self._values = torch.randn(256, 256)
        began = time.perf_counter()
        for _ in range(20):
            self._values @ self._values
        self._times = max(1, round(_STEP_SECONDS / ((time.perf_counter() - began) / 20)))

    def step(self) -> float:
        began = time.perf_counter()
        for _ in range(self._times):
            self._values @ self._values
        return time.perf_counter() - began


def rank_main(rank: int, options: dict[str, Any], results: Any, told: Any) -> None:
    import torch
    import torch.distributed as dist
    from checkpoint_ways import WAYS, Floor, quietly

    torch.set_num_threads(1)
    gc.freeze()  # as ranks do: or a collection that walks all of torch falls into one measurement or another
    quietly()
    log = os.open(Path(options["directory"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options["port"]), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(options["world_size"]), "LOCAL_RANK": str(rank)}
    world_size = options["world_size"]
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=300))
    way = next(way for way in WAYS if way.name == options["way"])
    state = make_state(options)
    step(state)
    group = dist.new_group(backend="gloo")
    floor, work = Floor(state, world_size, options["wrap"] == "fsdp"), Work()
    told.put(os.getpid())
    dist.barrier()
    running = way(state, Path(options["directory"]), rank, group)
    running.ready()
    found: dict[str, Any] = {name: [] for name in MEASURED}
    last = options["saves"] + 1  # of which memory alone is measured, as of the first
    for number in range(1, last + 1):
        if number in (2, last):
            told.put(None)
            time.sleep(_HEARD_SECONDS)
        one = measured_save(running, number, floor, work)
        for name in MEASURED if number < last else ():
            found[name].append(one[name])
        found["bytes"] = written(running.path(number), rank)
        if rank == 0 and number > 1:
            shutil.rmtree(running.path(number - 1), ignore_errors=True)
    told.put(None)
    found |= measured_load(running, last, make_state(options), state)
    running.close()
    results.put((rank, found))
    results.close()
    results.join_thread()
    dist.barrier()
    os._exit(0)  # some ways leave processes and threads that would be waited for


def measured_save(running: Any, number: int, floor: Any, work: Work) -> dict[str, Any]:
    """One save of a way, and right before it a copy, and steps without a save. Seconds."""
    import torch.distributed as dist

    dist.barrier()
    alone = statistics.mean(work.step() for _ in range(6))
    dist.barrier()
    copying = floor.seconds()
    running.prepare()
    dist.barrier()
    began = time.perf_counter()
    running.begin(number)
    stalled = time.perf_counter() - began
    steps = []
    while (durable := running.durable_at()) is None:
        steps.append(work.step())
    dist.barrier()
    meanwhile = statistics.mean(steps) if steps else None
    values = (copying, stalled, durable - began, alone, meanwhile)
    return dict(zip(MEASURED, values, strict=True))


def measured_load(running: Any, number: int, fresh: Any, state: Any) -> dict[str, Any]:
    """Restore into ``fresh``, which must be like ``state`` then."""
    import torch.distributed as dist

    running.before_load()
    dist.barrier()
    forget_peak()
    before, began = read_bytes(), time.perf_counter()
    running.load(number, fresh)
    took, read = time.perf_counter() - began, read_bytes() - before
    peak = memory_of_self("VmHWM") - memory_of_self("VmRSS")
    require_alike(fresh, state)
    dist.barrier()
    return {"load": took, "read": read, "load_peak": max(0, peak)}


def require_alike(fresh: Any, state: Any) -> None:
    """What is fast and restores something else is no way."""
    import torch

    pairs = zip(fresh.modules["model"].parameters(), state.modules["model"].parameters(), strict=True)
    for now, then in pairs:
        assert torch.equal(_local(now), _local(then))
        states = (one.optimizers["optimizer"].state[p] for one, p in ((fresh, now), (state, then)))
        moments, wanted = states
        assert all(torch.equal(_local(moments[name]), _local(wanted[name])) for name in wanted)


def _local(tensor: Any) -> Any:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu()


def forget_peak() -> None:
    """VmHWM counts from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_of_self(what: str) -> int:
    """Bytes of a line of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))


def written(directory: Path, rank: int) -> int:
    return sum(path.stat().st_size for path in directory.glob(f"__{rank}_*"))


def read_bytes() -> int:
    """That this process asked files for, from wherever they came."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(lines[0].split()[1])


class Memory(threading.Thread):
    """Memory of processes and all their children; what they share counts once. Looking takes time itself."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self._pids = pids
        self._over = threading.Event()
        self.looking = threading.Event()
        self.looking.set()
        self.first = self._now()
        self.most = self.first

    def run(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            if self.looking.is_set():
                self.most = max(self.most, self._now())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _now(self) -> int:
        return sum(map(_pss, _families(self._pids)))


def _families(pids: list[int]) -> set[int]:
    found, left = set(pids), list(pids)
    while left:
        try:
            told = Path(f"/proc/{left[-1]}/task/{left.pop()}/children").read_text(encoding="ascii")
        except OSError:
            continue
        children = [int(pid) for pid in told.split()]
        found.update(children)
        left += children
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """One way in one setting."""
    results, told = _CONTEXT.Queue(), _CONTEXT.Queue()
    with tempfile.TemporaryDirectory(dir=options["where"]) as directory:
        options = {**options, "directory": directory, "port": _free_port()}
        ranks = [
            _CONTEXT.Process(target=rank_main, args=(rank, options, results, told))
            for rank in range(options["world_size"])
        ]
        for process in ranks:
            process.start()
        try:
            memory = Memory([told.get(timeout=120) for _ in ranks])
            memory.start()
            for switch in (memory.looking.clear, memory.looking.set, memory.stop):
                for _ in ranks:
                    told.get(timeout=600)
                switch()
            extra = memory.most - memory.first
            found = dict(results.get(timeout=600) for _ in ranks)
        except queue.Empty:
            for path in sorted(Path(directory).glob("rank-*.log")):
                print(f"--- {path.name}\n{path.read_text()}", file=sys.stderr)
            raise
        finally:
            for process in ranks:
                process.join(20)
                process.kill()
    return summary(options, [found[rank] for rank in range(len(ranks))], extra)


def summary(options: dict[str, Any], ranks: list[dict[str, Any]], extra: int) -> dict[str, Any]:
    """``extra`` is of all ranks together."""
    later = [
        dict(zip(("floor", "stall", "durable", "step", "slow_step"), one, strict=True))
        for rank in ranks
        for one in list(zip(*(rank[n] for n in MEASURED), strict=True))[1:]
    ]
    slow = [one["slow_step"] / one["step"] for one in later if one["slow_step"]]
    lost = [
        one["stall"] + (one["durable"] - one["stall"]) * (1 - one["step"] / (one["slow_step"] or one["step"]))
        for one in later
    ]
    return {
        **{key: options[key] for key in ("way", "wrap", "shape", "world_size", "megabytes")},
        "saves": len(ranks[0]["stalls"]) - 1,
        "floor_ms": statistics.median(one["floor"] for one in later) * 1000,
        "first_stall_ms": max(rank["stalls"][0] for rank in ranks) * 1000,
        "stall_ms": statistics.median(one["stall"] for one in later) * 1000,
        "stall": statistics.median(one["stall"] / one["floor"] for one in later),
        "slow_down": statistics.median(slow) if slow else None,
        "lost_ms": statistics.median(lost) * 1000,
        "durable_ms": statistics.median(one["durable"] for one in later) * 1000,
        "written_most": max(rank["bytes"] for rank in ranks),
        "written": sum(rank["bytes"] for rank in ranks),
        "read_most": max(rank["read"] for rank in ranks),
        "read": sum(rank["read"] for rank in ranks),
        "load_ms": max(rank["load"] for rank in ranks) * 1000,
        "extra_bytes": extra // len(ranks),
        "load_peak": max(rank["load_peak"] for rank in ranks),
        "ranks": ranks,
    }


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(chosen: argparse.Namespace, ways: Sequence[str]) -> tuple[list[Setting], list[Setting]]:
    """What is measured, and by which of the ``ways``: what was asked for, and the large state."""
    wanted = [way for way in ways if not chosen.ways or way in chosen.ways]
    where = {"where": chosen.where}
    small = {"megabytes": chosen.megabytes, "saves": chosen.saves, **where}
    large = {"megabytes": chosen.also_megabytes, "saves": min(chosen.saves, _LARGE_SAVES), **where}
    asked: list[Setting] = [
        ({"wrap": wrap, "shape": shape, "world_size": ranks, **small}, wanted)
        for wrap in chosen.wraps
        for shape in chosen.shapes
        for ranks in chosen.ranks
    ]
    few = [way for way in wanted if way in checkpoint_table.LARGE_WAYS]
    if not few or not chosen.also_megabytes:
        return asked, []
    there = {checkpoint_table.key(setting) for setting, _ in asked}
    besides: list[Setting] = [
        ({"wrap": wrap, "shape": "many", "world_size": ranks, **large}, few)
        for wrap in chosen.wraps
        for ranks in (1, 2)
    ]
    return asked, [one for one in besides if checkpoint_table.key(one[0]) not in there]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    found.add_argument("--megabytes", type=int, default=96, help="of the state")
    found.add_argument("--saves", type=int, default=5)
    found.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    found.add_argument("--wraps", nargs="*", default=["ddp", "fsdp"])
    found.add_argument("--shapes", nargs="*", default=["many", "fat"])
    found.add_argument("--ways", nargs="*", help="names of ways; default: all")
    found.add_argument(
        "--also-megabytes",
        type=int,
        default=768,
        help="of one large state, saved at 1 and 2 ranks, beside dcp.save alone; 0: none",
    )
    found.add_argument("--where", default=None, help="directory for checkpoints")
    found.add_argument("--write-docs", action="store_true", help="put the tables into docs/")
    return found


def read(arguments: Sequence[str], ways: Sequence[str]) -> tuple[list[Setting], list[Setting], bool]:
    """As ``settings``, and whether to write the page. Exits with the reason where little can be measured."""
    options = parser()
    chosen = options.parse_args(arguments)
    if unknown := set(chosen.ways or ()) - set(ways):
        options.error(f"--ways: no {', '.join(sorted(unknown))}; there are: {', '.join(ways)}")
    if chosen.saves < 2:
        options.error("--saves: at least 2, since the first one counts for itself")
    asked, besides = settings(chosen, ways)
    if not asked and not besides:
        options.error("nothing would be measured")
    return asked, besides, chosen.write_docs


def main() -> None:
    _CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "checkpoint_ways"])
    sys.path.insert(0, str(Path(__file__).parent))
    from checkpoint_ways import WAYS

    asked, besides, write_docs = read(sys.argv[1:], [way.name for way in WAYS])
    found: list[list[dict[str, Any]]] = []
    for part in (asked, besides):
        found.append([])
        for setting, ways in part:
            print(checkpoint_table.head(setting), flush=True)
            for way in ways:
                found[-1].append(measure({**setting, "way": way}))
                print(checkpoint_table.line(found[-1][-1]), flush=True)
    results, large = found
    _RESULTS.parent.mkdir(exist_ok=True)
    missed = checkpoint_table.judge([*results, *large])
    _RESULTS.write_text(json.dumps({"results": [*results, *large], "missed": missed}, indent=1) + "\n")
    written = [_RESULTS, *([checkpoint_table.write(results, large)] if write_docs else [])]
    print("\n".join(["", *(missed or ["All aims are met."]), *(f"Written to {path}" for path in written)]))


if __name__ == "__main__":
    main()
