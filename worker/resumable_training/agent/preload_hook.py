"""What makes a preloaded parent of the user's own command: a ``sitecustomize`` that returns in ranks only.

The agent starts the very command of a rank, with this file as the first ``sitecustomize`` on PYTHONPATH, so
that it runs before the script. In the parent it imports what ranks will need, and forks one each time the
agent asks. In a rank it takes away its traces and returns, and the interpreter goes on to the script as it
would have anyway: ``__main__``, arguments, tracebacks, exit codes and the bottom of the stack are Python's.

Stand-alone: runs in the user's interpreter, of any version from 3.9, without this package. What it says to
the agent, and hears, is one JSON object a message: see ``preload``.
"""

import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from typing import Any, ClassVar, Dict, List, NoReturn, Optional, Tuple

# preload_rank and preload_native, beside this in an archive
ranks: Any = importlib.import_module("resumable_preload_rank")
native: Any = importlib.import_module("resumable_preload_native")

VARIABLE = "RESUMABLE_PRELOAD"  # JSON: what the agent wants
# Different in each rank or attempt, as is RESUMABLE_*: what an import reads of them would hold for one only.
PER_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
PER_ATTEMPT = ("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What a process can hold that a copy of it must not: devices with contexts, and connections.
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci")
CONNECTIONS = ("socket:", "anon_inode:[io_uring]", "anon_inode:[eventpoll]")
MESSAGE_BYTES = 1 << 17
MOST_DESCRIPTORS = 250  # the kernel's limit for one packet is 253

_myself = sys.modules[__name__]


class Unfit(Exception):
    """This process can be nobody's parent; the text says why."""


def run() -> None:
    """``main``, from which nothing but a rank may return: what comes next is the user's script."""
    settings = json.loads(os.environ[VARIABLE])
    restore_environment(settings)
    if os.getsid(0) != os.getpid():
        return  # a helper of what was started, such as a wrapper's
    try:
        main(settings)
    except BaseException:  # noqa: BLE001 - whatever it is, the script must not run in the parent
        try:
            sys.__excepthook__(*sys.exc_info())
            flush()
        finally:
            os._exit(ranks.GONE)


def main(settings: Dict[str, Any]) -> None:
    """Answer the agent's first question, or be the parent; returns in ranks."""
    began = time.monotonic()
    control = socket.socket(fileno=settings["control"])
    if settings["probe"]:
        is_wanted = bool(settings["named"]) or importlib.util.find_spec("torch") is not None
        tell(control, kind="probed", wanted=is_wanted)
        if is_wanted:
            become_parent(settings)
        os._exit(0)
    control.set_inheritable(False)
    with open("/proc/self/comm", "rb") as comm:
        settings["comm"] = comm.read().strip()
    ranks.prctl(ranks.PR_SET_NAME, b"rtj-preload")
    ranks.show(arguments=os.fsencode("rtj-preload: " + " ".join(settings["command"])) + b"\0")
    try:
        if sys.version_info < (3, 9):
            raise Unfit("Python is %s here; 3.9 or newer is needed" % sys.version.split()[0])
        run_hidden_sitecustomize()
        loaded = preload(settings)
        if why := unsafe(control.fileno(), []):
            raise Unfit("after its imports, " + why)
    except Unfit as error:
        tell(control, kind="unfit", why=str(error)[:1000])
        os._exit(0)
    gc.collect()
    known = sources()
    seconds = round(time.monotonic() - began, 3)
    tell(control, kind="ready", seconds=seconds, modules=loaded, compiled=compiled_in_vain())
    serve(control, settings, known)


def become_parent(settings: Dict[str, Any]) -> NoReturn:
    """Run the rank's command in this process: its interpreter has just shown that it runs this file first.

    Raises:
        OSError: it can't be run.
    """
    with open("/proc/self/environ", "rb") as file:  # as it was before anything here could change it
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    environment = {name: value for name, _, value in entries}
    environment[os.fsencode(VARIABLE)] = json.dumps(dict(settings, probe=False)).encode()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as in the trampoline
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(settings["command"][0], settings["command"], environment)  # noqa: S606 - the user's argv


def restore_environment(settings: Dict[str, Any]) -> None:
    """That of a rank, here and in what is started from here; ``sys.path``, too."""
    del os.environ[VARIABLE]
    if settings["pythonpath"] is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = settings["pythonpath"]
    sys.path[:] = [entry for entry in sys.path if entry != settings["hook"]]
    sys.path_importer_cache.pop(settings["hook"], None)
    del sys.modules["resumable_preload_rank"], sys.modules["resumable_preload_native"]


# importing ----------------------------------------------------------------------------------------------


def run_hidden_sitecustomize() -> None:
    """Run the one that this file stands before, as the interpreter would have.

    Raises:
        Unfit: there is one that would come after it, and is not known to be harmless before it.
    """
    import site

    if site.ENABLE_USER_SITE and importlib.util.find_spec("usercustomize"):
        raise Unfit("the user's own packages hold a usercustomize")
    del sys.modules["sitecustomize"]
    site.execsitecustomize()


def preload(settings: Dict[str, Any]) -> List[str]:
    """Import what is installed of the usual, and all that the job names; what was imported.

    Raises:
        Unfit: one can't be imported, or one that the job names can't be imported once for all ranks.
    """
    first = first_path(settings)
    if first is not None:
        sys.path.insert(0, first)
    try:
        usual = load_all_usual(settings)
        for name in settings["named"]:
            load_named(name)
    finally:
        if first in sys.path:
            sys.path.remove(first)
    return usual + list(settings["named"])


def first_path(settings: Dict[str, Any]) -> Optional[str]:
    """What the interpreter will put in front of ``sys.path``; None: nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if settings["way"] != "script":
        return os.getcwd()
    target: str = os.path.realpath(settings["target"])
    return target if os.path.isdir(target) else os.path.dirname(target)


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False  # its package is missing, or another one of that name


def load(name: str) -> None:
    """Import it.

    Raises:
        Unfit: it raised, be it SystemExit.
    """
    try:
        importlib.import_module(name)
    except BaseException as error:
        raise Unfit("importing %s raised %s: %s" % (name, type(error).__name__, error)) from error


def load_all_usual(settings: Dict[str, Any]) -> List[str]:
    """Import those of the usual that are installed and work; which they were.

    Nearly all that they make stays: to look for garbage in it meanwhile takes a quarter of the time.

    Raises:
        Unfit: as ``load_usual``.
    """
    finder = native.Beside(settings["native"], [*filter(is_installed, settings["beside"])], load_usual)
    sys.meta_path.insert(0, finder)
    collects = gc.isenabled()
    gc.disable()
    try:
        return [name for name in settings["usual"] if is_installed(name) and load_usual(name)]
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        gc.freeze()  # the next collection is not to begin with all of it
        if collects:
            gc.enable()


def load_usual(name: str) -> bool:
    """Import it, if it works here: what does not need not be a rank's concern.

    Raises:
        Unfit: torch itself does not.
    """
    try:
        load(name)
    except Unfit:
        if name == "torch":
            raise
        return False
    return True


def load_named(name: str) -> None:
    """Import one of the user's own modules, which may do what can't be done once for all ranks.

    Raises:
        Unfit: it raised, or did so.
    """
    states, plain = generators(), type(os.environ)
    os.environ.__class__ = WatchedEnvironment
    try:
        load(name)
    finally:
        os.environ.__class__ = plain
    if WatchedEnvironment.missed:
        raise Unfit("%s reads %s when it is imported" % (name, WatchedEnvironment.missed[0]))
    after = generators()
    if any(after[which] != state for which, state in states.items()):
        raise Unfit("%s seeds a random generator, or draws from it, when it is imported" % name)


class WatchedEnvironment(type(os.environ)):  # type: ignore[misc]
    """``os.environ`` that notes which variables of a rank it was asked for in vain."""

    missed: ClassVar[List[str]] = []

    def __getitem__(self, key: str) -> str:
        try:
            value: str = super().__getitem__(key)
        except KeyError:
            if key in PER_RANK + PER_ATTEMPT or str(key).startswith("RESUMABLE_"):
                self.missed.append(key)
            raise
        return value


def generators() -> Dict[str, Any]:
    """States of the global random generators, of the libraries that are there."""
    import random  # only where modules are named

    states: Dict[str, Any] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        _, keys, *rest = sys.modules["numpy.random"].get_state()
        states["numpy"] = (keys.tobytes(), *rest)
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().tolist()
    return states


# forking ------------------------------------------------------------------------------------------------


def serve(control: socket.socket, settings: Dict[str, Any], known: Dict[str, Any]) -> None:
    """Fork ranks whenever the agent asks for some; returns in each of them. Ends with the agent."""
    while True:
        gc.freeze()  # what is there is no garbage, and looking for some would copy its pages in each rank
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not data:
            os._exit(0)
        request = json.loads(data.decode())
        answer = fork(control.fileno(), descriptors, request["ranks"], known, settings["directory"])
        mine = answer.get("mine")
        for place, descriptor in enumerate(descriptors):
            if mine is None or place // 2 != mine:
                os.close(descriptor)
        if mine is not None:
            control.close()
            ranks.become_rank(settings, *descriptors[2 * mine : 2 * mine + 2])
            return
        tell(control, number=request["number"], **answer)


def fork(control: int, given: List[int], count: int, known: Dict[str, Any], directory: str) -> Dict[str, Any]:
    """Some ranks, if that is safe: what to tell the agent; in a rank, which of them is ``mine``."""
    why = unsafe(control, given)
    if why:
        return {"kind": "refused", "why": why, "lasting": True}
    why = outdated(known)
    if why:
        return {"kind": "refused", "why": why, "again": True}
    try:
        mine, pids = fork_ranks(count, directory)
    except OSError as error:
        return {"kind": "refused", "why": error.strerror}
    if mine is not None:
        return {"mine": mine}
    return {"kind": "started", "pids": pids, "why": "the process of a rank could not be made"}


def tell(control: socket.socket, **message: Any) -> None:
    control.sendall(json.dumps(message).encode())


def fork_ranks(count: int, directory: str) -> Tuple[Optional[int], List[int]]:
    """Pids of new ranks, in the parent, fewer if there can be no more; which one this is, in a rank.

    A process in between makes them and ends at once, so that they become children of the agent, who adopts
    orphans. One for all of them: to make it and to wait for its end costs as much as two ranks.

    Raises:
        OSError: no process could be made, or the working directory is gone.
    """
    if directory:
        os.chdir(directory)  # anew: another one may have its name by now
    if not count:
        return None, []  # that it could is all that was asked
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if between == 0:
        try:
            os.setsid()  # ranks are out of the parent's group before anybody is told of them
            os.close(read)
            for number in range(count):
                pid = os.fork()
                if pid == 0:
                    os.close(write)
                    return number, []
                os.write(write, b"%d\n" % pid)
        except BaseException:  # noqa: BLE001 - whatever it is, this must not go on as another parent
            os._exit(1)
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    with open(read, "rb") as file:
        return None, [int(line) for line in file]


def unsafe(control: int, given: List[int]) -> str:
    """Why a copy of this process would not be safe now; empty when it is."""
    flush()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return "it has %d threads" % threads
    if has_children():
        return "an import has left a process behind"
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # of the listing itself
        if target.startswith(DEVICES + CONNECTIONS) and int(name) not in (control, *given):
            return "it holds %s open" % target
    return unsafe_torch()


def unsafe_torch() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    if torch.cuda.is_initialized():
        return "it has a CUDA context"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "it has a process group"
    return ""


def has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def sources() -> Dict[str, Any]:
    """Files of modules outside the interpreter's installation, with what tells a change."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    installed = (sys.prefix + os.sep, sys.base_prefix + os.sep)
    return {path: stamp(path) for path in paths if isinstance(path, str) and not path.startswith(installed)}


def outdated(known: Dict[str, Any]) -> str:
    """Whether a source that was imported is another one now."""
    changed = [path for path, before in known.items() if stamp(path) != before]
    return "%s has changed since it was imported" % changed[0] if changed else ""


def compiled_in_vain() -> int:
    """Modules that were compiled now, and will be at the next start: their bytecode can't be kept."""
    kept = [getattr(module, "__dict__", {}).get("__cached__") for module in list(sys.modules.values())]
    return sum(isinstance(path, str) and not os.path.exists(path) for path in kept)


def stamp(path: str) -> Optional[Tuple[int, int]]:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    run()
    if sys.modules.get("sitecustomize") in (None, _myself):
        sys.modules["sitecustomize"] = _myself
        raise ImportError("no sitecustomize", name="sitecustomize")  # as if this one had never been
