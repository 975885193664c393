"""One container of a pod: waiting, running, terminated, waiting again; its probes, hooks and log."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from bed import containers, pod_probes
from bed.containers import Process, Program
from bed.containers_log import ContainerLog
from bed.containers_root import Root
from bed.pod_env import ConfigError, Object
from bed.pod_status import is_sidecar, restartable

CONFIG_RETRY_SECONDS = 1.0
PULL_RETRY_SECONDS = (0.3, 5.0)  # from ErrImagePull to ImagePullBackOff, and back
MINIMUM_GRACE_SECONDS = 2.0  # what the kubelet leaves to every container
BACKOFF_RESET_SECONDS = 600.0
MESSAGE_BYTES = 4096
FALLBACK_BYTES = 2048
RUNTIME = "process"


class Deadline:
    """A moment that may be brought forward, never put off. Seconds of the loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._moved = asyncio.Event()

    @property
    def seconds_left(self) -> float:
        """Not below 0."""
        return max(0.0, self._at - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """At the latest in `seconds` from now."""
        at = time.monotonic() + seconds
        if at < self._at:
            self._at = at
            self._moved.set()

    async def passed(self) -> None:
        """Return when it has come."""
        while self.seconds_left > 0:
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), self.seconds_left)


class Surroundings(Protocol):
    """What a container needs from its pod."""

    address: str
    spec: Object
    backoff_seconds: tuple[float, float]  # first and longest wait before a restart

    def has_image(self, image: str) -> bool: ...

    async def prepare(self, container: Object) -> tuple[Program, Root, Path]:
        """Program, root and the host's path of the termination message.

        ConfigError if something is missing.
        """

    def log_path(self, container: str, run: int) -> Path: ...

    def changed(self) -> None: ...

    def warn(self, reason: str, message: str) -> None: ...


class PodContainer:
    """State of one container, in the API's form in `status`. `init`: one of the init containers."""

    def __init__(self, pod: Surroundings, spec: Object, init: bool) -> None:
        self.spec = spec
        self.init = init
        self.process: Process | None = None
        self.program: Program | None = None
        self.logs: list[ContainerLog] = []
        self.begun = asyncio.Event()  # started, and past its start-up probe
        self._pod = pod
        self._state: Object = {
            "waiting": {
                "reason": "PodInitializing" if pod.spec.get("initContainers") else "ContainerCreating"
            }
        }
        self._last_state: Object = {}
        self._restarts = 0
        self._ready = False
        self._oom_killed = False
        self._message_path: Path | None = None
        self._began_at = 0.0
        self._delay = 0.0
        self._probes: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Its name in the pod."""
        name: str = self.spec["name"]
        return name

    @property
    def status(self) -> Object:
        """A containerStatus."""
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": f"{RUNTIME}://{self.spec['image']}" if self.logs else "",
            "state": self._state,
            "lastState": self._last_state,
            "ready": self._ready,
            "started": self.begun.is_set() and "running" in self._state,
            "restartCount": self._restarts,
            **({"containerID": self._id} if self.logs else {}),
        }

    @property
    def exit_code(self) -> int | None:
        """Of a container that has ended and was not started again."""
        ended = self._state.get("terminated")
        return None if ended is None else ended["exitCode"]

    @property
    def running(self) -> bool:
        """Whether it has a process."""
        return self.process is not None and not self.process.ended.done()

    def adopt(self, status: Object) -> None:
        """Take over what the API knows from before the node was restarted: its processes are gone."""
        self._restarts = status.get("restartCount", 0)
        self._last_state = status.get("lastState") or {}
        state = status.get("state") or {}
        if "running" in state:
            began = state["running"].get("startedAt")
            state = {
                "terminated": {"exitCode": 255, "reason": "Unknown", "startedAt": began, "finishedAt": now()}
            }
        if "terminated" in state:
            self._state = state
            self._ready = self.init and state["terminated"]["exitCode"] == 0

    async def run(self) -> int:
        """Run it, again where the restart policy says so; the exit code of the last run."""
        while True:
            code = self.exit_code
            if code is not None:
                if not restartable(self._pod.spec, self.spec, code, self.init):
                    return code
                await self._back_off()
            await self._begin()
            assert self.process is not None
            await self.process.wait()

    async def stop(self, deadline: Deadline) -> None:
        """preStop hook, SIGTERM, and SIGKILL at the deadline; returns when it has ended."""
        process = self.process
        if process is None or process.ended.done():
            return
        await self._first(self._pre_stop(deadline), deadline, process)
        process.signal(signal.SIGTERM)
        if deadline.seconds_left < MINIMUM_GRACE_SECONDS:
            deadline = Deadline(MINIMUM_GRACE_SECONDS)
        await self._first(deadline.passed(), deadline, process)
        process.signal(signal.SIGKILL)
        await process.wait()

    def give_up(self) -> None:
        """The pod, initialised as it is, ends before this container ever ran."""
        if "waiting" in self._state and not self._last_state:
            message = "The container could not be located when the pod was terminated"
            ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}
            self._state = {"terminated": ended}

    def kill(self, oom: bool = False) -> None:
        """SIGKILL, now; `oom`: by the memory limit."""
        if self.process is not None:
            self._oom_killed = oom and self.running
            self.process.signal(signal.SIGKILL)

    async def execute(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        """Run `command` inside; exit code and output. It is killed after `seconds`."""
        program = self.program_for(command)
        assert self.process is not None
        output = bytearray()
        process = containers.join_captured(self.process.pid, program, output.extend)
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        finally:
            process.signal(signal.SIGKILL)
        return code, process.failure or output.decode(errors="replace")

    def program_for(self, command: Sequence[str]) -> Program:
        """`command` with the environment and the user of this container; ConfigError if it is not running."""
        if not self.running or self.program is None:
            raise ConfigError(f"container {self.name} is not running")
        program = self.program
        return Program(tuple(command), program.env, program.directory, program.identity)

    async def _begin(self) -> None:
        await self._pull()
        while True:
            try:
                program, root, self._message_path = await self._pod.prepare(self.spec)
            except (ConfigError, OSError) as error:
                self._wait(getattr(error, "reason", "CreateContainerError"), str(error))
                self._pod.warn("Failed", f"Error: {error}")
                await asyncio.sleep(CONFIG_RETRY_SECONDS)
            else:
                break
        if "terminated" in self._state:
            self._last_state = self._state
            self._restarts += 1
        log = ContainerLog(self._pod.log_path(self.name, self._restarts))
        self.logs.append(log)
        self.program, self._began_at, self._oom_killed = program, time.time(), False
        self.process = containers.start(program, root, log.write)
        self.process.ended.add_done_callback(lambda _: self._ended())
        await self.process.started()
        if not self.process.failure and not self.process.ended.done():
            self._running()

    async def _pull(self) -> None:
        image = self.spec["image"]
        while not self._pod.has_image(image):
            for seconds, reason, message in zip(
                PULL_RETRY_SECONDS,
                ("ErrImagePull", "ImagePullBackOff"),
                (f'failed to pull image "{image}": not found', f'Back-off pulling image "{image}"'),
                strict=True,
            ):
                self._wait(reason, message)
                self._pod.warn("Failed", f"Error: {reason}: {message}")
                await asyncio.sleep(seconds)

    def _wait(self, reason: str, message: str) -> None:
        if "terminated" in self._state:  # it ran before: that end is the last state while this one waits
            self._last_state = self._state
            self._restarts += 1
        self._state = {"waiting": {"reason": reason, "message": message}}
        self._pod.changed()

    async def _back_off(self) -> None:
        """The first restart comes at once, later ones after twice the delay each time."""
        delay, (first, longest) = self._delay, self._pod.backoff_seconds
        if time.time() - self._began_at > BACKOFF_RESET_SECONDS:
            delay = 0.0
        self._delay = min(longest, delay * 2 or first)
        if delay:
            name = self.name
            self._wait("CrashLoopBackOff", f"back-off {delay:g}s restarting failed container={name}")
            self._pod.warn("BackOff", f"Back-off restarting failed container {name}")
            await asyncio.sleep(delay)

    def _running(self) -> None:
        self._state = {"running": {"startedAt": now(self._began_at)}}
        if any(key in self.spec for key in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")):
            self._probes.append(asyncio.create_task(self._probe()))
        else:
            self._ready = not self.init or is_sidecar(self.spec)
            self.begun.set()
        self._pod.changed()

    async def _probe(self) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook and (message := await pod_probes.check(hook, self._target, self._grace)):
            self._pod.warn("FailedPostStartHook", message)
            self._restart(self._grace)
            return
        startup = self.spec.get("startupProbe")
        if startup:
            passed = asyncio.Event()

            def on_startup(good: bool, message: str) -> None:
                passed.set() if good else self._unhealthy("Startup", startup, message)

            task = asyncio.create_task(pod_probes.watch(startup, self._target, on_startup, False))
            self._probes.append(task)
            await passed.wait()
            task.cancel()
        self.begun.set()
        self._begin_readiness(start_now=bool(startup))
        if liveness := self.spec.get("livenessProbe"):

            def on_liveness(good: bool, message: str) -> None:
                if not good:
                    self._unhealthy("Liveness", liveness, message)

            await pod_probes.watch(liveness, self._target, on_liveness, bool(startup))

    def _begin_readiness(self, start_now: bool) -> None:
        readiness = self.spec.get("readinessProbe")
        if readiness is None:
            self._set_ready(True)
            return

        def on_readiness(good: bool, message: str) -> None:
            if not good:
                self._pod.warn("Unhealthy", f"Readiness probe failed: {message}")
            self._set_ready(good)

        self._pod.changed()
        watch = pod_probes.watch(readiness, self._target, on_readiness, start_now)
        self._probes.append(asyncio.create_task(watch))

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._pod.changed()

    def _unhealthy(self, kind: str, probe: Object, message: str) -> None:
        self._pod.warn("Unhealthy", f"{kind} probe failed: {message}")
        self._restart(probe.get("terminationGracePeriodSeconds") or self._grace)

    def _restart(self, grace: float) -> None:
        """End this run; `run` starts the next by the restart policy."""
        if self._stopping is None or self._stopping.done():
            self._pod.warn("Killing", f"Container {self.name} failed its probe or hook, will be ended")
            self._stopping = asyncio.create_task(self.stop(Deadline(grace)))

    def _ended(self) -> None:
        assert self.process is not None
        for task in self._probes:
            task.cancel()
        self._probes.clear()
        self.logs[-1].close()
        code = self.process.ended.result()
        reason = "Completed" if code == 0 else "Error"
        if self._oom_killed:
            reason = "OOMKilled"
        elif self.process.failure:
            reason = "StartError"
        message = self.process.failure or self._message(code)
        self._state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": now(self._began_at),
                "finishedAt": now(),
                "containerID": self._id,
                **({"message": message} if message else {}),
            }
        }
        self._ready = self.init and code == 0 and not is_sidecar(self.spec)
        self.begun.clear()
        self._pod.changed()

    def _message(self, code: int) -> str:
        assert self._message_path is not None
        with contextlib.suppress(FileNotFoundError):
            if text := self._message_path.read_bytes()[:MESSAGE_BYTES].decode(errors="replace"):
                return text
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return self.logs[-1].path.read_bytes()[-FALLBACK_BYTES:].decode(errors="replace")
        return ""

    async def _pre_stop(self, deadline: Deadline) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook and (message := await pod_probes.check(hook, self._target, deadline.seconds_left)):
            self._pod.warn("FailedPreStopHook", message)

    async def _first(self, action: Awaitable[None], deadline: Deadline, process: Process) -> None:
        """Until `action` is done, the deadline has passed, or the process has ended."""
        awaited: list[Awaitable[Any]] = [action, deadline.passed(), process.wait()]
        tasks = [asyncio.ensure_future(item) for item in awaited]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _grace(self) -> float:
        return float(self._pod.spec.get("terminationGracePeriodSeconds") or 0)

    @property
    def _id(self) -> str:
        return f"{RUNTIME}://{self.process.pid if self.process else 0}-{len(self.logs)}"

    @property
    def _target(self) -> pod_probes.Target:
        ports = {
            port["name"]: port["containerPort"] for port in self.spec.get("ports") or [] if "name" in port
        }
        return pod_probes.Target(self._pod.address, ports, self.execute)


def now(seconds: float | None = None) -> str:
    """A time in the API's form."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
