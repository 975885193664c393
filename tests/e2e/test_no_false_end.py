"""No attempt ends without a true cause: a run under load whose workers stand still for 2 s, whose operator is
cut off, stalled and started anew, and whose steps are slow now and then, in an order that a seed gives.

Now and then a rank is killed: that must end the attempt, and be called what it is. ``make soak`` does it for
``RESUMABLE_SOAK_MINUTES`` (30), the seed is ``RESUMABLE_SOAK_SEED``; the default run for some seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from troubled_run import TroubledRun

SEED = os.environ.get("RESUMABLE_SOAK_SEED", "0")
MINUTES = float(os.environ.get("RESUMABLE_SOAK_MINUTES", "30"))
SHORT_SECONDS = 45.0
HOGS = 2 * (os.cpu_count() or 1)


async def endure(directory: Path, seed: str, seconds: float) -> None:
    """Trouble for so long; after each the endings are those that had a cause, and training goes on."""
    expected: list[str] = []
    end = time.monotonic() + seconds
    async with TroubledRun(directory, seed, HOGS) as run:
        while time.monotonic() < end:
            cause = await run.trouble()
            expected += [cause] if cause else []
            await run.calm()
            kept = run.causes()  # the newest ones
            assert kept == (expected[-len(kept) :] if kept else []), run.text()
            assert run.status.attempt.number == 1 + len(expected), run.text()
        print(f"{len(run.told)} troubles: {dict(run.done)}")


@pytest.mark.flaky(reruns=0)  # one false end is one too many
async def test_no_false_end_for_a_while(tmp_path: Path) -> None:
    """Some troubles of each kind, at random."""
    await endure(tmp_path, SEED, SHORT_SECONDS)


@pytest.mark.soak
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(60 * MINUTES + 300)
async def test_no_false_end(tmp_path: Path) -> None:
    """The same for a long time."""
    await endure(tmp_path, f"long {SEED}", 60 * MINUTES)
