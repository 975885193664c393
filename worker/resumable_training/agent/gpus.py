"""Who still holds a GPU: what a killed rank left behind keeps its memory until the driver has taken it back.

A process in the driver's clean-up can't be killed and is not gone yet, which may take seconds where hundreds
of gigabytes were pinned. Ranks that are started meanwhile would find the memory taken. Such a process shows
no open files any more: who holds a GPU is asked before it is killed, and then whether it is gone. Nothing
here waits.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterable, List, Set

from resumable_training.agent import procfs, reap

_DEVICES = Path("/dev")
_PROC = Path("/proc")
_GPU = re.compile(r"nvidia\d+")


def present(devices: Path = _DEVICES) -> bool:
    """Does this machine show GPUs whose holders can be found?"""
    try:
        return any(_GPU.fullmatch(name) for name in os.listdir(devices))
    except OSError:
        return False


def holders(sessions: Set[int], keep: Iterable[int], devices: Path = _DEVICES) -> List[int]:
    """Living processes that ranks left behind (``reap.leftovers``) and that have a GPU open."""
    return [pid for pid in reap.leftovers(sessions, keep) if _holds(pid, devices)]


def is_there(pid: int) -> bool:
    """Whether a process still has anything to give back: a zombie does while other threads of it end."""
    process = procfs.read_process(pid)
    if process is None:
        return False
    try:
        return process.state != "Z" or len(os.listdir(_PROC / str(pid) / "task")) > 1
    except OSError:  # gone meanwhile
        return False


def _holds(pid: int, devices: Path) -> bool:
    try:
        descriptors = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:  # gone, or another user's
        return False
    return any(_is_gpu(descriptor, devices) for descriptor in descriptors)


def _is_gpu(descriptor: Path, devices: Path) -> bool:
    try:
        target = Path(os.readlink(descriptor))
    except OSError:  # closed meanwhile
        return False
    return target.parent == devices and _GPU.fullmatch(target.name) is not None
