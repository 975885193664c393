"""What a copy in memory costs (``memoryEverySteps``), beside one memcpy of the same bytes and beside a save.

For each world size, DDP: how long the loop stands still, as a ratio to the memcpy that the same rank measured
right before, and the processor time of a rank and of its writer, which is exact on a busy machine, too.
Medians over ranks and rounds. ``python tests/bench/bench_copies.py --help``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_checkpoint import make_state, step

_CONTEXT = multiprocessing.get_context("forkserver")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
Round = dict[str, float]  # seconds


def rank_main(rank: int, options: dict[str, Any], results: Any) -> None:
    import torch
    import torch.distributed as dist
    from checkpoint_ways import Floor

    from resumable_training.contract import env

    torch.set_num_threads(1)
    world_size = options["world_size"]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options["port"]), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    os.environ |= {"LOCAL_RANK": str(rank), env.KEEPER: options["keeper"], env.ATTEMPT: "1"}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    state = make_state(options)
    step(state)
    engine = _engine(options["directory"], rank, world_size, dist.new_group(backend="gloo"))
    engine.restore(state)
    floor = Floor(state, world_size, sharded=False)
    found = {"copy": _copies(engine, state, floor, options["rounds"])}
    found["save"] = _saves(engine, state, options["rounds"])
    engine.close()
    results.put((found, floor._source.nbytes))
    results.close()
    results.join_thread()
    dist.barrier()
    os._exit(0)


def _engine(directory: str, rank: int, world_size: int, group: Any) -> Any:
    from resumable_training.checkpoint import CheckpointEngine
    from resumable_training.contract.assignment import CheckpointConfig

    config = CheckpointConfig(directory=f"{directory}/store")
    group, host = (group if world_size > 1 else None), "127.0.0.1"
    engine = CheckpointEngine(config, "bench/bench", "uid", 1, group, rank, world_size, print, host=host)
    engine.preflight()
    return engine


def _copies(engine: Any, state: Any, floor: Any, rounds: int) -> list[Round]:
    def copy(number: int) -> bool:
        return bool(engine.copy(state, _reached(number)))

    while not copy(1):  # until the writer stands by
        time.sleep(0.01)
    return [_round(engine, floor.seconds, lambda number=number: copy(number)) for number in range(2, rounds)]


def _saves(engine: Any, state: Any, rounds: int) -> list[Round]:
    def save(number: int) -> None:
        engine.save(state, _reached(number))

    def durable() -> float:
        while engine.busy:
            engine.poll()
            time.sleep(0.005)
        return 0.0

    found = []
    for number in range(rounds, rounds + max(3, rounds // 10)):
        before = _cpu_seconds(_writer(engine))
        one = _round(engine, durable, lambda number=number: save(number))
        durable()
        found.append({**one, "writer": _cpu_seconds(_writer(engine)) - before})
    return found[1:]


def _reached(number: int) -> Any:
    from resumable_training.checkpoint import Reached

    return Reached(number, number, {}, {"rng": b"r" * 5000})


def _round(engine: Any, before: Callable[[], float], act: Callable[[], Any]) -> Round:
    import torch.distributed as dist

    dist.barrier()
    floor = before()
    cpu, writer, began = time.process_time(), _cpu_seconds(_writer(engine)), time.perf_counter()
    assert act() is not False
    took = time.perf_counter() - began
    spent = time.process_time() - cpu
    return {"floor": floor, "took": took, "rank": spent, "writer": _cpu_seconds(_writer(engine)) - writer}


def _writer(engine: Any) -> int:
    return int(engine._saver._process.pid)


def _cpu_seconds(pid: int) -> float:
    """User and system time; to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


def keep(path: str, world_size: int) -> None:
    """What an agent keeps beyond a rank's death, on a thread of this process."""
    from resumable_training.agent.keeper import Keeper

    loop = asyncio.new_event_loop()
    keeper = Keeper(path, lambda session: None, lambda text: None)
    leaders = dict.fromkeys(range(world_size), os.getsid(0))
    loop.call_soon(keeper.begin, 1, lambda: leaders)
    threading.Thread(target=loop.run_forever, daemon=True).start()


def measure(options: dict[str, Any]) -> str:
    import socket

    results = _CONTEXT.Queue()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port, keeper = probe.getsockname()[1], f"{directory}/keeper"
        probe.close()
        keep(keeper, options["world_size"])
        options = {**options, "directory": directory, "port": port, "keeper": keeper}
        ranks = [
            _CONTEXT.Process(target=rank_main, args=(rank, options, results))
            for rank in range(options["world_size"])
        ]
        for process in ranks:
            process.start()
        try:
            found = [results.get(timeout=300) for _ in ranks]
        finally:
            for process in ranks:
                process.join(20)
                process.kill()
    return _line(options, found)


def _line(options: dict[str, Any], found: list[tuple[dict[str, list[Round]], int]]) -> str:
    copies = [one for rounds, _ in found for one in rounds["copy"]]
    saves = [one for rounds, _ in found for one in rounds["save"]]

    def ms(rounds: list[Round], what: str) -> float:
        return statistics.median(one[what] for one in rounds) * 1000

    ratio = statistics.median(one["took"] / one["floor"] for one in copies)
    writers = sum(one["writer"] for one in copies) / len(copies) * 1000
    stored = sum(one["writer"] for one in saves) / len(saves) * 1000
    what = f"{options['world_size']} ranks, {options['shape']}, {found[0][1] / 1e6:.0f} MB each"
    copying = f"memcpy {ms(copies, 'floor'):.1f} ms, copy {ms(copies, 'took'):.1f} ms ({ratio:.2f} x)"
    busy = f"{ms(copies, 'rank'):.1f} ms of a processor in the rank and {writers:.1f} ms in its writer"
    saving = f"for a save {ms(saves, 'rank'):.1f} and {stored:.1f} ms"
    return f"{what}: {copying}; {busy}, {saving}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="[1 2]")
    parser.add_argument("--megabytes", type=int, default=100, help="of state, of all ranks [100]")
    parser.add_argument(
        "--shape", choices=["many", "fat"], default="many", help="tensors of the state [many]"
    )
    parser.add_argument("--rounds", type=int, default=50, help="[50]")
    options = vars(parser.parse_args())
    for world_size in options.pop("ranks"):
        print(measure({**options, "world_size": world_size, "wrap": "ddp"}), flush=True)


if __name__ == "__main__":
    main()
