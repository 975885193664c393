"""The place that a writer takes beside the ranks: behind them wherever both want a core. No torch.

What a writer takes from a rank, all ranks wait for at their next collective; and nobody waits for a writer
while training goes on. So it works in the gaps that ranks leave. Where they leave none it still gets a tenth
of a core from each rank that it shares one with, by its weight of 110 beside 1024: later, and never starved,
as under SCHED_IDLE (3 beside 1024). Nor does it go ahead of a rank because it was just woken (SCHED_BATCH):
the rank that has told it to begin goes on first.

Nothing needs to be raised again when somebody does wait (a drain, the last save, a preemption), which without
rights could not be done: the ranks stand still then, and weights count only among the processes of one
container, or of one session.
"""

from __future__ import annotations

import contextlib
import os
import sys

NICE = 10
_LAST = 19


def give_way(pid: int) -> None:
    """From now on, for a process that was just started, before it has threads: Linux goes by threads.

    Where it is not allowed, or the process has ended, all stays as it is.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, pid) + NICE, _LAST))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
