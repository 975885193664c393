"""Processes in containers: PID 1 of new namespaces, or one more process in those of a running container.

Everything here runs in the one thread of the kubelets' process. A container dies with that process,
whatever ends it: its PID 1 asks the kernel for SIGKILL when its parent ends, and the kernel kills the rest
of the PID namespace with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bed import containers_root
from bed.containers_root import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS, Identity, Root

DRAIN_SECONDS = 1.0  # to read what an ended process left in its pipe
CHUNK = 1 << 16

_Output = tuple[int | None, Callable[[bytes], None]]  # a pipe's end to read from, and where that goes

_nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
_own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


class StartFailed(Exception):
    """The command could not be executed; the message is what a container runtime would say."""


@dataclass(frozen=True)
class Program:
    """What to execute: `argv` is looked up in the PATH of `env`.

    Nothing else of the environment is passed on.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: str
    identity: Identity


class Process:
    """One started process. `ended` gives its exit code as Kubernetes shows it: 128 + n for signal n."""

    def __init__(self, pid: int, report: int, output: int | None, write: Callable[[bytes], None]) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._drained = asyncio.Event()
        self._reported: asyncio.Future[bytes] = self._loop.create_future()
        self._pidfd = os.pidfd_open(pid)
        self._write = write
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(report, self._on_report, report)
        if output is None:
            self._drained.set()
        else:
            os.set_blocking(output, False)
            self._loop.add_reader(output, self._on_output, output)

    async def started(self) -> None:
        """Return when the command is being executed, or cannot be: `failure` says why, `ended` gives 128."""
        await asyncio.shield(self._reported)

    @property
    def failure(self) -> str:
        """Why the command could not be executed, in a container runtime's words; empty if it was."""
        return json.loads(self._reported.result() or '""') if self._reported.done() else ""

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> int:
        """The exit code."""
        return await asyncio.shield(self.ended)

    def _on_report(self, report: int) -> None:
        message = os.read(report, CHUNK)
        self._loop.remove_reader(report)
        os.close(report)
        self._reported.set_result(message)

    def _on_output(self, output: int) -> None:
        try:
            data = os.read(output, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._write(data)
            return
        self._loop.remove_reader(output)
        os.close(output)
        self._drained.set()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._pidfd = -1
        code = os.waitstatus_to_exitcode(status)
        drain = self._loop.create_task(self._finish(code if code >= 0 else 128 - code))
        self.ended.add_done_callback(lambda _: drain.done())  # keeps the task referenced until it is done

    async def _finish(self, code: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_SECONDS)
        await self._reported
        self.ended.set_result(code)


def start(program: Program, root: Root, write: Callable[[bytes], None]) -> Process:
    """Start PID 1 of a new container; what it prints goes to `write` in order, stdout and stderr alike."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    containers_root.unshare(CLONE_NEWPID)
    try:
        return _fork(
            program,
            lambda: containers_root.build(root, program.identity),
            (_nothing, writing, writing),
            (reading, write),
        )
    finally:
        containers_root.setns(_own_pid_namespace, CLONE_NEWPID)
        os.close(writing)


def join(container: int, program: Program, streams: tuple[int, int, int]) -> Process:
    """Start one more process in the container whose PID 1 is `container`, with these stdin, stdout and
    stderr.
    """
    return _join(container, program, streams, (None, _ignore))


def join_captured(container: int, program: Program, write: Callable[[bytes], None]) -> Process:
    """As `join`; what it prints goes to `write`."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        return _join(container, program, (_nothing, writing, writing), (reading, write))
    finally:
        os.close(writing)


def host_pids(container: int) -> list[int]:
    """Pids, as the host sees them, of all processes in the PID namespace of `container`; that one first."""
    namespace = _pid_namespace(container)
    if namespace is None:
        return []
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    others = [pid for pid in pids if pid != container and _pid_namespace(pid) == namespace]
    return [container, *sorted(others)]


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _join(container: int, program: Program, streams: tuple[int, int, int], output: _Output) -> Process:
    target = os.pidfd_open(container)
    try:
        containers_root.setns(target, CLONE_NEWPID)
        flags = CLONE_NEWNS | CLONE_NEWUTS
        return _fork(program, lambda: containers_root.setns(target, flags), streams, output)
    finally:
        containers_root.setns(_own_pid_namespace, CLONE_NEWPID)
        os.close(target)


def _ignore(data: bytes) -> None:
    """Of a process with no output of its own to read."""


def _fork(
    program: Program,
    enter: Callable[[], None],
    streams: tuple[int, int, int],
    output: _Output,
) -> Process:
    """A signal for the child must not come before its own handlers: until then it has the event loop's, which
    tells of it through a pipe that both processes hold, and the kubelets would take it for theirs.
    """
    report, reporting = os.pipe2(os.O_CLOEXEC)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _child(program, enter, streams, reporting)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(reporting)
    return Process(pid, report, *output)


def _child(
    program: Program, enter: Callable[[], None], streams: tuple[int, int, int], reporting: int
) -> NoReturn:
    """The new process up to exec; whatever goes wrong is written to `reporting`."""
    try:
        _ordinary_signals()
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        enter()
        containers_root.become(program.identity, program.directory)
        containers_root.die_with_parent(signal.SIGKILL)
        _refuse_orphanhood(reporting)
        os.umask(0o022)
        _execute(program)
    except BaseException as error:  # must not return into a copy of the kubelets' event loop
        os.write(reporting, json.dumps(_complaint(error)).encode())
    finally:
        os._exit(128)


def _ordinary_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _refuse_orphanhood(reporting: int) -> None:
    """End if the parent ended before the death signal was asked for.

    Nobody holds the pipe's other end then.
    """
    poll = select.poll()
    poll.register(reporting, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        os._exit(137)


def _execute(program: Program) -> NoReturn:
    name = program.argv[0]
    try:
        os.execvpe(name, list(program.argv), dict(program.env))
    except FileNotFoundError as error:
        where = "no such file or directory" if "/" in name else "executable file not found in $PATH"
        raise StartFailed(f'exec: "{name}": {where}') from error
    except OSError as error:
        raise StartFailed(f'exec: "{name}": {os.strerror(error.errno or 0).lower()}') from error


def _complaint(error: BaseException) -> str:
    return str(error) if isinstance(error, StartFailed) else f"failed to create the container: {error}"


def log_folder(directory: Path, namespace: str, pod: str, uid: str, container: str) -> Path:
    """Where a container's logs are: one file for each time it was started, `0.log` the first."""
    return directory / "logs" / f"{namespace}_{pod}_{uid}" / container
