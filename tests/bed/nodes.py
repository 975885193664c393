"""Nodes for a control plane: fake kubelets that run pods as processes here, and a client to break them.

One process, `python -m bed.nodes CONFIG`, hosts all kubelets of a cluster; `Nodes` starts it and commands
it over a unix socket. Needs root on Linux: containers are mount and PID namespaces. Pods have addresses
127.x.y.z of their own and share the host's network otherwise: a process must bind to its own pod's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bed import containers_root
from bed.kubelet_api import ApiRefused, ApiUnreachable
from bed.kubelet_host import Host
from bed.kubelet_images import DEFAULT_IMAGES, Image
from bed.kubelet_node import NOTICES, NodeSpec, taint
from bed.processes import Component, wait_until

SOCKET = "nodes.sock"
START_SECONDS = 30.0
COMMAND_SECONDS = 120.0
STOP_SECONDS = 20.0
COMMANDS = frozenset(
    {
        *("add", "die", "evict", "heal", "log_path", "oom"),
        *("partition", "pids", "reboot", "remove", "shutdown", "spot_notice"),
    }
)
TESTS = Path(__file__).parents[1]


class NodesError(RuntimeError):
    """The nodes' process refused a command; the message says why."""


class Plane(Protocol):
    """What the nodes need from a control plane (control_plane.ControlPlane)."""

    @property
    def url(self) -> str: ...

    @property
    def ca_file(self) -> Path: ...

    @property
    def admin_token(self) -> str: ...

    @property
    def serving_cert(self) -> Path: ...

    @property
    def serving_key(self) -> Path: ...


class Nodes:
    """The nodes of one cluster. Start with `Nodes.start`, end with `stop` or as a `with` block."""

    def __init__(self, directory: Path, process: Component | None = None) -> None:
        self.directory = directory
        self._process = process

    @classmethod
    def start(
        cls,
        plane: Plane,
        directory: Path,
        images: Sequence[str | Image] = DEFAULT_IMAGES,
        backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 60.0,
    ) -> Nodes:
        """Start the nodes' process, with no node yet; `directory` gets logs, volumes and claims of the pods.

        `images` can be pulled, patterns in shell style or Image; all others cannot. The first restart of a
        container comes at once, the next after `backoff_seconds` (10 in a real kubelet), then twice that,
        and so on.
        """
        if sys.platform != "linux" or os.geteuid() != 0:
            raise NodesError("nodes need root on Linux: containers are mount and PID namespaces")
        directory.mkdir(parents=True, exist_ok=True)
        known = [image if isinstance(image, Image) else Image(image) for image in images]
        config = {
            "url": plane.url,
            "token": plane.admin_token,
            "ca_file": str(plane.ca_file.absolute()),
            "serving_cert": str(plane.serving_cert.absolute()),
            "serving_key": str(plane.serving_key.absolute()),
            "directory": str(directory.absolute()),
            "images": [image.to_json() for image in known],
            "backoff_seconds": backoff_seconds,
            "longest_backoff_seconds": longest_backoff_seconds,
        }
        file = directory / "config.json"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(config, stream)
        command = [sys.executable, "-m", "bed.nodes", str(file.absolute())]
        env = {**os.environ, "PYTHONPATH": str(TESTS)}
        nodes = cls(directory.absolute(), Component.start(command, directory / "nodes.log", env))
        assert nodes._process is not None
        process = nodes._process

        def answers() -> bool:
            process.require_running()
            return nodes._listening()

        wait_until(answers, START_SECONDS, "the nodes' process")
        return nodes

    @classmethod
    def connect(cls, directory: Path) -> Nodes:
        """Command the nodes that another process has started in `directory`."""
        return cls(directory.absolute())

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(
        self,
        name: str,
        *,
        cpu: float | str = 8,
        memory: str = "32Gi",
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        pods: int = 110,
    ) -> str:
        """A new node; its address, when the scheduler can use it. `taints` as in kubectl.

        Key=value:Effect.
        """
        for text in taints:
            taint(text)
        spec = NodeSpec(name, str(cpu), memory, gpus, dict(labels or {}), list(taints), pods)
        address: str = self._command("add", spec=spec.to_json())["address"]
        return address

    def shutdown(self, name: str, grace: float = 30.0) -> None:
        """Begin a graceful node shutdown.

        Pods end within `grace` seconds as Failed/Terminated, then it is off.
        """
        self._command("shutdown", name=name, grace=grace)

    def die(self, name: str) -> None:
        """Power off without a word: all its processes are killed, the node falls silent."""
        self._command("die", name=name)

    def partition(self, name: str) -> None:
        """Cut the node off the API server: processes run on, nothing is reported, no deletion arrives."""
        self._command("partition", name=name)

    def heal(self, name: str) -> None:
        """End a partition: the node reports everything and hears what it missed."""
        self._command("heal", name=name)

    def reboot(self, name: str, seconds: float = 0.0) -> None:
        """Power off, if it is on, and on again after `seconds`, under its name and a new boot id."""
        self._command("reboot", name=name, seconds=seconds)

    def remove(self, name: str) -> None:
        """Power off, and the Node object is deleted."""
        self._command("remove", name=name)

    def spot_notice(self, name: str, provider: str = "aws", seconds: float | None = None) -> None:
        """Taint as `provider` (aws, gke, aks, karpenter) does to announce an end; power off after `seconds`.

        None: the provider's usual time.
        """
        if provider not in NOTICES:
            raise ValueError(f"provider {provider}: one of {', '.join(NOTICES)}")
        self._command("spot_notice", name=name, provider=provider, seconds=seconds)

    def oom(self, namespace: str, pod: str, container: str | None = None) -> None:
        """Kill a container (the first if not named) as for its memory limit: OOMKilled, 137."""
        self._command("oom", namespace=namespace, pod=pod, container=container)

    def evict(self, namespace: str, pod: str) -> None:
        """End a pod as for memory pressure on its node: Failed, Evicted.

        (The eviction API is another thing.)
        """
        self._command("evict", namespace=namespace, pod=pod)

    def pids(self, namespace: str, pod: str, container: str | None = None) -> list[int]:
        """The host's pids of all processes of a pod or container; for each container its PID 1 first."""
        found: list[int] = self._command("pids", namespace=namespace, pod=pod, container=container)
        return found

    def log_path(self, namespace: str, pod: str, container: str | None = None) -> Path:
        """What a container (the first if not named) printed in its last run; also when the pod is gone."""
        return Path(self._command("log_path", namespace=namespace, pod=pod, container=container))

    def stop(self) -> None:
        """Kill all pods and end the nodes' process. The Node objects stay in the API."""
        if self._process is None:
            raise NodesError("these nodes were started by another process, which ends them")
        self._process.terminate(STOP_SECONDS)

    def _listening(self) -> bool:
        """Its socket is there a moment before anybody can connect."""
        with socket.socket(socket.AF_UNIX) as line, _short(self.directory) as directory:
            return line.connect_ex(f"{directory}/{SOCKET}") == 0

    def _command(self, name: str, /, **arguments: Any) -> Any:
        if self._process is not None:
            self._process.require_running()
        with socket.socket(socket.AF_UNIX) as line, _short(self.directory) as directory:
            line.settimeout(COMMAND_SECONDS)
            line.connect(f"{directory}/{SOCKET}")
            line.sendall(json.dumps({"command": name, **arguments}).encode() + b"\n")
            answer = json.loads(line.makefile("rb").readline() or b'{"error": "no answer"}')
        if "error" in answer:
            raise NodesError(answer["error"])
        return answer["result"]


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """A short name for `directory`: paths of sockets may have 107 characters."""
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


async def _serve(host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One command, one answer."""
    answer: dict[str, Any]
    line = await reader.readline()
    if not line:  # somebody looked whether we listen
        writer.close()
        return
    try:
        request = json.loads(line)
        result = await _method(host, request.pop("command"))(**request)
    except (
        LookupError,
        ValueError,
        ApiRefused,
        ApiUnreachable,
        TimeoutError,
        RuntimeError,
        OSError,
    ) as error:
        kind = (
            "" if type(error) in (LookupError, ValueError) else f"{type(error).__name__}: "
        )  # else our own words
        answer = {"error": f"{kind}{error}"}
    else:
        answer = {"result": result}
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()
    writer.close()


def _method(host: Host, name: str) -> Callable[..., Awaitable[Any]]:
    if name not in COMMANDS:
        raise ValueError(f"no command {name}")
    method: Callable[..., Awaitable[Any]] = getattr(host, name)
    return method


async def _host(config: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    host = Host(config)
    await host.start()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with _short(Path(config["directory"])) as directory:
        path = f"{directory}/{SOCKET}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        server = await asyncio.start_unix_server(lambda *streams: _serve(host, *streams), path)
        await ended.wait()
        server.close()
        os.unlink(path)
    await host.stop()


def main() -> None:
    """The nodes' process. SIGUSR1 makes it write to its log what it is doing."""
    faulthandler.register(signal.SIGUSR1)
    containers_root.own_mount_namespace()
    asyncio.run(_host(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
