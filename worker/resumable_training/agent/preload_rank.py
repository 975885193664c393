"""From a fork of a preloaded parent to what a fresh interpreter would be: used by ``preload_hook`` only.

Stand-alone like that: runs in the user's interpreter, of any version from 3.9, without this package.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, Dict, List, Optional

GONE = 137  # the agent died, or gave this rank up, while it was being started
OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 1, 15, 35, 14
STAT_ADDRESSES = (26, 27, 45, 46, 47, 28, 48, 49, 50, 51)  # fields of /proc/self/stat, in the map's order
_first_arguments: List[int] = []


def become_rank(settings: Dict[str, Any], output: int, gate: int) -> None:
    """Session, death with the agent, output, directory, environment, chance and threads of a rank.

    Args:
        settings: of the parent: ``agent`` (pid), ``comm``, ``forced``, ``directory``.
        output: pipe for standard output and error.
        gate: on which the agent, whose child this process is by then, says which rank it is to be, when it
            wants one: ``set`` and ``unset``, variables of the environment.
    """
    os.setsid()
    prctl(PR_SET_NAME, b"rtj-standby")
    request = wait_at(gate)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))  # not before: it would be lost with the one in between
    if os.getppid() != settings["agent"]:
        os._exit(GONE)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if settings["directory"]:
        os.chdir(settings["directory"])  # anew: another one may have its name by now
    take_environment(request, settings["forced"])
    prctl(PR_SET_NAME, settings["comm"])
    show(environment=b"".join(os.fsencode("%s=%s" % pair) + b"\0" for pair in os.environ.items()))
    renew_chance()
    set_threads()


def wait_at(gate: int) -> Dict[str, Any]:
    """What is told there, to its end; less than that, or nothing, is the end of this process."""
    told = b""
    while data := os.read(gate, 1 << 16):
        told += data
    os.close(gate)
    try:
        request: Dict[str, Any] = json.loads(told)
    except ValueError:
        os._exit(GONE)
    return request


def take_environment(request: Dict[str, Any], forced: Dict[str, str]) -> None:
    """The rank's own variables; what imports have set stays, as it would had they been done here."""
    changed = {name for name, value in forced.items() if os.environ.get(name) != value}
    for name in request["unset"]:
        if name not in changed:
            os.environ.pop(name, None)
    os.environ.update({name: value for name, value in request["set"].items() if name not in changed})


def renew_chance() -> None:
    """What a fresh process draws from the system. ``random`` sees to itself; seeds for CUDA are fixed."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()  # of the processor only: torch.seed() sets all
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def set_threads() -> None:
    """As many as the rank's variables say; the parent was allowed one."""
    wanted = os.environ.get("OMP_NUM_THREADS") or "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        by_mkl = os.environ.get("MKL_NUM_THREADS") if torch.backends.mkl.is_available() else None
        if (by_mkl or wanted) != "1":
            torch.set_num_threads(int(by_mkl or wanted))
    by_blas = os.environ.get("OPENBLAS_NUM_THREADS") or wanted
    if by_blas != "1":
        set_openblas_threads(int(by_blas))


def set_openblas_threads(count: int) -> None:
    """Of NumPy's library, which has read its variable already."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[-1].strip() for line in maps if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))
                break


# how it looks from outside ------------------------------------------------------------------------------


class MemoryMap(ctypes.Structure):
    """``struct prctl_mm_map`` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start", "arg_end")),
        *((name, ctypes.c_uint64) for name in ("env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show(arguments: Optional[bytes] = None, environment: Optional[bytes] = None) -> None:
    """What ``ps`` and ``/proc/<pid>/environ`` are to show; without ``arguments``, the first ones again.

    It is only for looks: where the kernel refuses, all else works.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    numbers = [int(fields[field - 3]) for field in STAT_ADDRESSES]
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    numbers.insert(5, libc.sbrk(0))
    if arguments is not None:
        _first_arguments[:] = numbers[7:9]
        numbers[7:9] = lasting(arguments)
    elif _first_arguments:
        numbers[7:9] = _first_arguments
    if environment:
        numbers[9:11] = lasting(environment)
    memory_map = MemoryMap(*numbers, 0, 0, 0xFFFFFFFF)
    prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory_map), ctypes.sizeof(memory_map))


def lasting(text: bytes) -> List[int]:
    """Begin and end of memory that holds a text and is never freed, for the kernel goes on showing it."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    address = libc.malloc(ctypes.c_size_t(len(text)))
    ctypes.memmove(address, text, len(text))
    return [address, address + len(text)]


def prctl(number: int, *values: Any) -> None:
    """One that may fail: nothing but looks depends on it, or it is checked otherwise."""
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    ctypes.CDLL(None).prctl(number, *wide, *[ctypes.c_ulong(0)] * (4 - len(wide)))
