"""A script sees no difference between a rank that was started cold and one that was forked."""

from __future__ import annotations

import re
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_process import AgentProcess, wait_until

from resumable_training.contract import events

MAIN = """
import sys
main = sys.modules["__main__"]
print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__)
print(main.__dict__ is globals())
print(sorted(name for name in globals() if name.startswith("__")))
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable)
print([type(finder).__name__ for finder in sys.meta_path], sys.getrecursionlimit())
print("sitecustomize" in sys.modules, "resumable_preload_rank" in sys.modules, sys.dont_write_bytecode)
"""
FRAMES = """
import inspect, sys, traceback
print(sys._getframe().f_back, len(inspect.stack()))
traceback.print_stack()
"""
SURROUNDINGS = """
import ctypes, locale, os, pathlib, resource, signal, threading, time
mine = {name: value for name, value in os.environ.items() if "ATTEMPT" not in name}
volatile = ("RESUMABLE_SOCKET", "RESUMABLE_PROGRESS", "RESUMABLE_STACKS", "RESUMABLE_KEEPER", "MASTER_PORT",
            "RESUMABLE_WANTED_NS", "TORCHELASTIC_RESTART_COUNT")
print(sorted((name, "" if name in volatile else value) for name, value in mine.items()))
shown = pathlib.Path("/proc/self/environ").read_bytes().rstrip(bytes(1)).split(bytes(1))
print(sorted(os.fsdecode(entry.partition(b"=")[0]) for entry in shown) == sorted(os.environ))
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"RANK"), libc.getenv(b"PYTHONPATH"), libc.getenv(b"OMP_NUM_THREADS"))
print(os.getcwd(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getpriority(0, 0))
print(pathlib.Path("/proc/self/cmdline").read_bytes(), pathlib.Path("/proc/self/comm").read_text())
print(threading.active_count(), threading.current_thread().name, threading.current_thread().is_alive())
print(threading.get_native_id() == os.getpid(), os.umask(0o22), locale.setlocale(locale.LC_ALL), time.tzname)
print([resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)])
print([(number, signal.getsignal(number)) for number in signal.valid_signals()])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
agent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
print(b"resumable_training.agent" in agent and b"-c" not in agent.split(bytes(1)))
status = pathlib.Path("/proc/self/status").read_text()
kinds = ("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Shd", "Threads", "NoNewPrivs")  # SigQ is of all the user's
print([line for line in status.splitlines() if line.startswith(kinds)])
print(sorted(os.listdir("/proc/self/fd")))
"""
STREAMS = """
import os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.isatty(), stream.seekable())
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.newlines, sys.stderr.line_buffering)
print(type(sys.stdout.buffer).__name__, repr(sys.stdin.read()), os.path.realpath("/proc/self/fd/0"))
os.write(1, b"by descriptor\\n")
sys.stderr.write("error: \\N{SNOWMAN}\\n")
print("\\udcff" if False else "end", end="")
"""
AT_EXIT = """
import atexit, sys, threading, weakref
atexit.register(print, "first registered")
atexit.register(print, "last registered")
class Thing:
    pass
thing = Thing()
weakref.finalize(thing, print, "finalized")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
sys.stdout.write("not flushed by hand")
"""
HOOK = """
import sys
sys.excepthook = lambda kind, error, traceback: print("hook", kind.__name__, error, traceback.tb_lineno)
raise KeyError("x")
"""
CHAIN = """
def inner():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise RuntimeError("outer") from error
inner()
"""
SOURCE = """
import inspect
def function():
    return 1  # with a comment
class Kind:
    pass
print(inspect.getsource(function), inspect.getsourcefile(Kind), inspect.getmodule(function).__name__)
import pickle
print(pickle.loads(pickle.dumps(Kind)) is Kind)
"""
FAULT = """
import faulthandler, sys
print(faulthandler.is_enabled())
faulthandler.dump_traceback(file=sys.stdout)
"""
PROCESSES = """
import multiprocessing, os, sys
from multiprocessing import process
def work(number):
    return number * 2, multiprocessing.current_process().name, __name__, sys.argv
if __name__ == "__main__":
    print(multiprocessing.current_process(), multiprocessing.parent_process(), process.ORIGINAL_DIR)
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, pool.map(work, [1, 2]))
"""
SETTINGS = """
import gc, logging, os, random, sys, tempfile, warnings
print(warnings.filters, gc.isenabled(), gc.get_threshold(), gc.callbacks, logging.root.handlers)
print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
print(sys.stdout is sys.__stdout__, sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook)
warnings.warn("shown once")
print(tempfile.gettempdir(), random.random() != random.random(), os.path.basename(sys.prefix))
"""


@dataclass(frozen=True)
class Case:
    """A script, and the code with which it must end; as ``subprocess`` reports it."""

    text: str
    code: int = 0


CASES = {
    "main": Case(MAIN),
    "frames": Case(FRAMES),
    "surroundings": Case(SURROUNDINGS),
    "streams": Case(STREAMS),
    "settings": Case(SETTINGS),
    "source": Case(SOURCE),
    "faulthandler": Case(FAULT),
    "processes": Case(PROCESSES),
    "at exit": Case(AT_EXIT),
    "nothing": Case(""),
    "exit with a number": Case("import sys; sys.exit(3)", 3),
    "exit with words": Case("import sys; sys.exit('words')", 1),
    "exit with None": Case("import sys; sys.exit(None)"),
    "exit with too much": Case("import sys; sys.exit(259)", 3),
    "exit at once": Case("import os; print('lost', end=''); os._exit(7)", 7),
    "exception": Case(CHAIN, 1),
    "exception with notes": Case("raise ExceptionGroup('g', [ValueError(1)])", 1),
    "excepthook": Case(HOOK, 1),
    "excepthook that fails": Case("import sys\nsys.excepthook = lambda *_: 1 / 0\nraise KeyError(1)", 1),
    "syntax": Case("x = 1\nprint('a' 'b'\n", 1),
    "encoding": Case("# coding: no-such-coding\n", 1),
    "import": Case("import no_such_module", 1),
    "interrupt": Case("import os, signal; os.kill(os.getpid(), signal.SIGINT)\nprint('no')", -2),
    "terminated": Case("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    "killed": Case("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    "aborted": Case("import os, faulthandler; faulthandler.enable(); os.abort()", -6),
    "pipe": Case("import os, signal\nsignal.signal(13, signal.SIG_DFL)\nos.kill(os.getpid(), 13)", -13),
}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of its own, with nothing but the standard library: it starts in no time."""
    root = tmp_path_factory.mktemp("bare")
    venv.create(root, with_pip=False, symlinks=True)
    return str(root / "bin" / "python")


class Pair:
    """Two agents with the same command, of which one preloads; each attempt runs what is in the file then."""

    def __init__(self, root: Path, command: tuple[str, ...]) -> None:
        self.script = root / "work" / "script.py"
        self.script.parent.mkdir()
        self.script.write_text("")
        shared = {"working_directory": str(self.script.parent), "preload_modules": ("json", "random")}
        self.cold = AgentProcess(root / "cold", command, preload=False, **shared)
        self.preloaded = AgentProcess(root / "warm", command, **shared)
        self.attempts = 0

    def __enter__(self) -> Pair:
        self.cold.start()
        self.preloaded.start()
        wait_until(lambda: "preloaded" in self.preloaded.own_log(), "the parent")
        return self

    def __exit__(self, *_: object) -> None:
        self.cold.__exit__()
        self.preloaded.__exit__()

    def run(self, text: str) -> list[tuple[int, str]]:
        """Exit code and output, cold and preloaded."""
        self.script.write_text(text)
        self.attempts += 1
        seen = []
        for agent in (self.cold, self.preloaded):
            agent.begin(self.attempts, ranks=1)
            agent.ended(self.attempts)
            exits = [event for event in agent.events() if event.kind == events.RANK_EXITED]
            exited = next(event for event in exits if event.attempt == self.attempts)
            text = agent.rank_log(self.attempts).replace(str(agent.directory), "DIRECTORY")
            seen.append((exited.data["code"], re.sub(r"0x[0-9a-f]{8,}", "ADDRESS", text)))
        assert "[preload]" not in (self.preloaded.directory / "stdout.log").read_text()
        assert not [e for e in self.preloaded.events() if e.kind == events.WARNING]
        return seen


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, bare_python: str) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair"), (bare_python, "script.py", "--lr", "3e-4")) as pair:
        yield pair


@pytest.mark.parametrize("name", CASES)
def test_a_script(pair: Pair, name: str) -> None:
    """Whatever it looks at and however it ends, output and exit code are those of a cold rank."""
    case = CASES[name]
    cold, preloaded = pair.run(case.text)
    assert preloaded == cold
    assert cold[0] == case.code, cold[1]


COMMANDS = {
    "module": ("-m", "script", "x"),
    "options": ("-OB", "-W", "error", "-X", "utf8", "script.py"),
    "buffered and dev": ("-X", "dev", "script.py"),
    "path": ("./../work/script.py",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_ways_to_start_it(tmp_path: Path, bare_python: str, name: str) -> None:
    """A module, and with options of the interpreter, too."""
    with Pair(tmp_path, (bare_python, *COMMANDS[name])) as pair:
        for text in (MAIN + FRAMES + SETTINGS.replace("warnings.warn", "str"), CHAIN, "sys.exit(", STREAMS):
            cold, preloaded = pair.run(text)
            assert preloaded == cold


def test_a_script_that_names_its_interpreter(tmp_path: Path, bare_python: str) -> None:
    """As console scripts of packages do."""
    program = tmp_path / "train"
    program.write_text(f"#!{bare_python}\nimport runpy\nrunpy.run_path('script.py', run_name='__main__')\n")
    program.chmod(0o755)
    with Pair(tmp_path, (str(program), "x")) as pair:
        for text in ("import sys; print(sys.argv, sys.orig_argv, sys.path)", SURROUNDINGS, CHAIN):
            cold, preloaded = pair.run(text)
            assert preloaded == cold


def test_ranks_of_an_attempt_draw_differently(tmp_path: Path, bare_python: str) -> None:
    """What a process seeds from the system differs in ranks that come from one parent, and each time."""
    text = (
        "import json, os, random, secrets, tempfile, uuid, multiprocessing\n"
        "key = bytes(multiprocessing.current_process().authkey).hex()\n"
        "print(random.random(), key, uuid.uuid4(), secrets.token_hex(4), tempfile.mktemp(), sep='\\n')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(text)
    modules = ("random", "multiprocessing", "tempfile", "uuid")
    with AgentProcess(tmp_path / "a", (bare_python, str(script)), preload_modules=modules) as agent:
        lines = []
        for attempt in (1, 2):
            agent.begin(attempt, ranks=2)
            assert agent.ended(attempt) == events.SUCCEEDED
            lines += [agent.rank_log(attempt, rank).splitlines() for rank in (0, 1)]
        assert "preloaded" in agent.own_log()
    assert [len(set(column)) for column in zip(*lines, strict=True)] == [4, 4, 4, 4, 4]
