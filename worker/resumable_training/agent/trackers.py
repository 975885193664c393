"""Processes that tidy up after a rank: once it is dead they get a moment for that, and nobody waits.

``multiprocessing`` starts one beside a script that makes named semaphores or shared memory, torch another for
its ``file_system`` sharing. Killed with the rank, they would leave all of it in ``/dev/shm`` for ever. They
see the end of a pipe or socket when everybody else of their rank is dead, unlink, and end by themselves.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any, Callable, Coroutine, Iterable, List, Sequence, Set

from resumable_training.agent import guard, procfs, reap

GRACE_SECONDS = 0.5
MANAGER_SECONDS = 3.0  # torch's does it when nobody has spoken with it for 2 s
_LOOK_SECONDS = 0.02


class Trackers:
    """Those that attempts leave behind."""

    def __init__(self, let_go: Callable[[int], None]) -> None:
        """``let_go``: told of a session whose trackers have ended."""
        self._let_go = let_go
        self._tasks: "Set[asyncio.Task[None]]" = set()

    def see_off(self, pids: Sequence[int], sessions: Set[int]) -> Set[int]:
        """Everybody else is dead. Those of ``sessions`` that are let go of later."""
        found = [process for process in map(procfs.read_process, pids) if process is not None]
        mine = {process.session for process in found} & sessions
        slow = [process for process in found if _is_manager(process.pid)]
        quick = [process for process in found if process not in slow]
        self._spawn(self._see_off(quick, GRACE_SECONDS, mine))
        self._spawn(self._see_off(slow, MANAGER_SECONDS, set()))  # sessions of their own
        return mine

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """None is left."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _see_off(self, found: List[procfs.Process], seconds: float, sessions: Set[int]) -> None:
        """Also when the agent ends meanwhile: nobody stays."""
        deadline = time.monotonic() + seconds
        try:
            while _living(found):
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for process in _living(found):
                reap.send(process.pid, signal.SIGKILL)
            for session in sessions:
                self._let_go(session)


def _is_manager(pid: int) -> bool:
    return any(argument.endswith(b"torch_shm_manager") for argument in guard.arguments(pid))


def _living(found: Iterable[procfs.Process]) -> List[procfs.Process]:
    """Those that are still the same processes."""
    now = [(one, procfs.read_process(one.pid)) for one in found]
    return [
        one
        for one, there in now
        if there is not None and there.start_ticks == one.start_ticks and there.state != "Z"
    ]
