"""A run with real agents and fake ranks whose operator, network and machine are in trouble all the time.

It is what ``rtj run`` runs, put together here so that the operator can be started anew over the same workers,
as on a cluster. Ranks are forked from a preloaded parent, most of them before they are wanted; there is no
torch in it. Every trouble but those of ``TRUE_CAUSES`` leaves the ranks in perfect health: whatever ends
the attempt then is a false alarm. Used by ``test_no_false_end.py``.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from preload_agents import MODULE, make_bare_python, read

import resumable_training
from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.cluster.local_processes import ProcessId, start_ticks
from resumable_operator.cluster.local_worker import LocalWorker
from resumable_operator.errors import ResumableError
from resumable_operator.model import JobStatus, parse_spec
from resumable_operator.reconcile import Reconciler, Settings
from resumable_training.contract.assignment import REQUEST_CUT_NETWORK, Request
from resumable_training.contract.progress import ProgressPage

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
LIBRARY = str(Path(resumable_training.__file__).parents[1])
PRELOADED, STANDBY = "rtj-", "rtj-standby"  # names of a parent and of what it has forked; of the latter alone
WORKERS = 3
PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
HOG = "while True: pass"
PLENTY = {"limit": 10_000}  # of what a run may end by
RANK = (
    *("--steps", "100000000", "--step-seconds", "0.05", "--checkpoint-every", "10"),
    *("--slow-every", "150", "--slow-seconds", "3"),
)


class TroubledRun:
    """Use as ``async with``; then ``trouble()`` again and again, ``calm()`` after each."""

    def __init__(self, directory: Path, seed: str, hogs: int) -> None:
        self.told: list[str] = []  # what was done, for a failure's message
        self.done = Counter[str]()
        self._draw = random.Random(seed)
        self._hogs = hogs
        self._clock = SystemClock()
        self._directory = directory / "run"
        self._cluster = LocalCluster(self._directory, self._clock, Machines(WORKERS, WORKERS))
        self._stack = AsyncExitStack()
        self._agents = AgentPool(self._clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        for _ in range(self._hogs):
            hog = self._stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", HOG]))
            self._stack.callback(hog.kill)
        await self._stack.enter_async_context(self._cluster)
        store = self._directory / "checkpoints"
        store.mkdir()
        python = make_bare_python(self._directory.with_name("python"))
        container = {
            "name": "worker",
            "command": [python, str(FAKE_RANK), *RANK],
            "env": [{"name": "PYTHONPATH", "value": LIBRARY}],
        }
        budgets = {"userError": PLENTY, "infrastructure": PLENTY, "withoutProgress": PLENTY["limit"]}
        spec = {
            "workers": {"replicas": WORKERS, "preload": {"modules": [*MODULE]}},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"directory": {"path": str(store)}},
            "recovery": {"budgets": budgets},
        }
        self._job = self._cluster.submit("troubled", parse_spec(spec))
        self._start_operator()
        await self.calm()
        assert all(_children(worker, PRELOADED) for worker in self._cluster.running_workers()), "cold ranks"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_operator()
        await self._stack.aclose()

    @property
    def status(self) -> JobStatus:
        job = self._cluster.store.job()
        assert job is not None
        return job.status

    async def calm(self) -> None:
        """Until all agents are heard and each rank has done a step since."""
        before = self._steps()
        await self._until(lambda: self._is_heard() and self._got_on(before), "calm")

    def causes(self) -> list[str]:
        """Of all endings so far."""
        return [ending.cause for ending in self.status.interruptions]

    def text(self) -> str:
        """All that can explain a failure."""
        endings = "\n".join(f"{e.attempt}: {e.cause}: {e.message}" for e in self.status.interruptions)
        return "\n".join([*self.told[-20:], endings, self.status.reason])

    # ---- troubles ------------------------------------------------------------------------------------

    async def trouble(self) -> str | None:
        """One, by chance. Returns the cause of the ending that it must lead to; None: to none."""
        name = self._draw.choice(sorted({*HARMLESS, *TRUE_CAUSES}))
        at = time.monotonic()
        what = await {**HARMLESS, **{name: do for name, (do, _) in TRUE_CAUSES.items()}}[name](self)
        self.told.append(f"{at:.1f} {name}: {what}")
        self.done[name] += 1
        return TRUE_CAUSES[name][1] if name in TRUE_CAUSES else None

    async def pause_worker(self) -> str:
        """All of it stands still."""
        worker = self._one()
        return await self._pause(_processes(worker), worker.name)

    async def pause_agent(self) -> str:
        """The agent alone."""
        worker = self._one()
        assert worker.identity is not None
        return await self._pause([worker.identity], worker.name)

    async def pause_ranks(self) -> str:
        """Ranks alone, under the eyes of their agent."""
        worker = self._one()
        return await self._pause([p for p in worker.ranks().values() if p.alive()], worker.name)

    async def pause_standbys(self) -> str:
        """What the next ranks are forked from, and those that are."""
        worker = self._one()
        return await self._pause(_children(worker, PRELOADED), worker.name)

    async def pause_all_workers(self) -> str:
        """The machine that they share stands still."""
        workers = self._cluster.running_workers()
        return await self._pause([p for worker in workers for p in _processes(worker)], "all")

    async def cut_one(self) -> str:
        """The operator does not reach one agent."""
        return await self._cut([self._one()])

    async def cut_all(self) -> str:
        """The operator reaches none."""
        return await self._cut(self._cluster.running_workers())

    async def cut_and_pause(self) -> str:
        """The operator does not reach one agent, which stands still, too."""
        worker = self._one()
        cut = await self._cut([worker])
        return f"{cut}; {await self._pause(_processes(worker), worker.name)}"

    async def restart_operator(self) -> str:
        """A fresh one, that knows what is in status."""
        await self._end_operator()
        away = self._draw.choice([0.0, 0.5, 4.0])
        await asyncio.sleep(away)
        self._start_operator()
        return f"away for {away} s"

    async def stall_operator(self) -> str:
        """Its process gets no CPU."""
        seconds = self._draw.choice([1.0, 2.0, 5.0])
        time.sleep(seconds)
        return f"{seconds} s"

    async def leave_alone(self) -> str:
        """Slow steps come by themselves."""
        await asyncio.sleep(PAUSE_SECONDS)
        return ""

    async def kill_standby(self) -> str:
        """One that nobody has wanted yet."""
        waiting = self._standbys()
        if not waiting:
            return "none stands by"
        victim = self._draw.choice(waiting)
        return f"process {victim.pid}: {victim.signal(signal.SIGKILL)}"

    async def kill_rank(self) -> str:
        """A true cause."""
        victim, number = self._draw.choice(self._ranks()), self.status.attempt.number
        waiting = self._standbys()
        assert victim.signal(signal.SIGKILL)
        await self._until(lambda: self.status.attempt.number > number, "the next attempt")
        await self.calm()
        self.done["ranks that stood by"] += len(set(waiting) & set(self._ranks()))
        return f"process {victim.pid}"

    async def _pause(self, processes: Iterable[ProcessId], what: str) -> str:
        """In a thread, for a busy loop would make it longer."""
        return f"{what} for {await asyncio.to_thread(_hold, list(processes)):.2f} s"

    async def _cut(self, workers: list[LocalWorker]) -> str:
        seconds = self._draw.choice([0.5, 2.0, 6.0])
        wish = Request(REQUEST_CUT_NETWORK, seconds=seconds, scope="operator")
        for worker in workers:
            try:
                await self._agents.request(self._job.key, worker.name, wish)
            except ResumableError as error:
                return f"not possible now: {error}"
        await asyncio.sleep(seconds / 2)
        return f"{[worker.name for worker in workers]} for {seconds} s"

    def _one(self) -> LocalWorker:
        return self._draw.choice(self._cluster.running_workers())

    def _ranks(self) -> list[ProcessId]:
        ranks = [p for worker in self._cluster.running_workers() for p in worker.ranks().values()]
        return [rank for rank in ranks if rank.alive()]

    def _standbys(self) -> list[ProcessId]:
        return [p for worker in self._cluster.running_workers() for p in _children(worker, STANDBY)]

    # ---- operator and waiting ------------------------------------------------------------------------

    def _start_operator(self) -> None:
        self._agents = AgentPool(self._clock)
        reconciler = Reconciler(
            self._cluster, self._agents, self._clock, Settings(status_seconds=0.5, isolate_jobs=False)
        )
        self._task = asyncio.create_task(reconciler.run())

    async def _end_operator(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._agents.close()

    def _is_heard(self) -> bool:
        seen = self._agents.agents(self._job.key).values()
        attempt = self.status.attempt
        return attempt.state == "running" and sum(agent.connected for agent in seen) == WORKERS

    def _steps(self) -> dict[Path, int]:
        """Of each rank of the newest attempt, by its page."""
        pattern = f"progress-{self.status.attempt.number}-*"
        pages = [path for w in self._cluster.running_workers() for path in w.directory.glob(pattern)]
        return {path: _step(path) for path in pages}

    def _got_on(self, before: dict[Path, int]) -> bool:
        now = self._steps()
        return len(now) == WORKERS and all(step > before.get(path, 0) for path, step in now.items())

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._task is not None
            if self._task.done():
                self._task.result()
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.text()}"
            await asyncio.sleep(0.05)


def _processes(worker: LocalWorker) -> list[ProcessId]:
    """Its agent and what that has started."""
    return [*([worker.identity] if worker.identity else []), *_children(worker)]


def _children(worker: LocalWorker, name: str = "") -> list[ProcessId]:
    """What its agent has started, as far as it has that in its name."""
    agent = str(worker.process.pid) if worker.process else ""
    pids = [pid for pid in read(agent, f"task/{agent}/children").split() if name in read(pid, "comm")]
    found = [ProcessId(int(pid), start_ticks(int(pid)) or 0) for pid in pids]
    return [process for process in found if process.alive()]


def _hold(processes: list[ProcessId]) -> float:
    """Stop them for a while; for how long it was."""
    began = time.monotonic()
    stopped = [process for process in processes if process.signal(signal.SIGSTOP)]
    try:
        time.sleep(PAUSE_SECONDS)
    finally:
        for process in stopped:
            process.signal(signal.SIGCONT)
    return time.monotonic() - began


def _step(path: Path) -> int:
    """0 also while its agent is making the page."""
    try:
        page = ProgressPage(path)
    except ValueError:
        return 0
    try:
        progress = page.read()
    finally:
        page.close()
    return progress.step if progress else 0


Trouble = Callable[[TroubledRun], Awaitable[str]]

HARMLESS: dict[str, Trouble] = {
    "pause worker": TroubledRun.pause_worker,
    "pause agent": TroubledRun.pause_agent,
    "pause ranks": TroubledRun.pause_ranks,
    "pause standbys": TroubledRun.pause_standbys,
    "pause all workers": TroubledRun.pause_all_workers,
    "cut one": TroubledRun.cut_one,
    "cut all": TroubledRun.cut_all,
    "cut and pause": TroubledRun.cut_and_pause,
    "restart operator": TroubledRun.restart_operator,
    "stall operator": TroubledRun.stall_operator,
    "kill standby": TroubledRun.kill_standby,
    "leave alone": TroubledRun.leave_alone,
}
TRUE_CAUSES: dict[str, tuple[Trouble, str]] = {"kill rank": (TroubledRun.kill_rank, "crash")}
