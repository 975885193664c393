"""A container's first process, in the moment before it is one."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from bed import containers
from bed.containers import Program
from bed.containers_root import Identity


async def test_a_signal_before_its_first_act_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is deleted while it starts: the signal ends the child, and the kubelets hear nothing."""
    heard: list[str] = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, "SIGTERM")
    first_act = containers._ordinary_signals

    def late() -> None:
        for _ in range(500):
            if signal.SIGTERM in signal.sigpending():
                break
            time.sleep(0.01)
        first_act()

    monkeypatch.setattr(containers, "_ordinary_signals", late)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        program = Program(("sleep", "30"), dict(os.environ), "/", Identity())
        process = containers._fork(program, lambda: None, (null, null, null), (None, lambda data: None))
        process.signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
    finally:
        os.close(null)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert heard == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
