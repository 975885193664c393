"""A cluster that stays up for a person: one per directory, held by the process that started it.

`python -m bed up` (__main__.py) calls `hold`; the other commands find the holder by its lock, which the
kernel frees when the holder ends in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bed.binaries import binary, cache_directory
from bed.control_plane import PROGRAMS, ControlPlane
from bed.install import install
from bed.nodes import Nodes, NodesError
from bed.processes import wait_until

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0
LOOK_SECONDS = 1.0

# Command -> method of Nodes.
NODE_ACTS: Mapping[str, str] = {
    "kill": "die",
    "partition": "partition",
    "heal": "heal",
    "shutdown": "shutdown",
    "spot": "spot_notice",
    "reboot": "reboot",
}
# Programs may have to be built first.
READY_SECONDS = 3600.0
READY = "ready"


class StandingError(Exception):
    """The command cannot do what it was asked; the message is for the user."""


class NotRunning(StandingError):
    """There is no cluster in this directory."""


class RunsAlready(StandingError):
    """Another process holds this directory; the message has its process id."""


class NotReady(StandingError):
    """The cluster or the operator did not come up; the message says how far it was."""


@dataclass(frozen=True)
class Standing:
    """Where everything of one standing cluster is."""

    directory: Path

    @property
    def state_file(self) -> Path:
        """Written when the cluster is ready: {pid, kubeconfig, nodes_socket, url}."""
        return self.directory / "state.json"

    @property
    def log(self) -> Path:
        """What the holder says when it runs in the background."""
        return self.directory / "up.log"

    def holder(self) -> int | None:
        """Process id of the holder, ready or not; None when nobody holds it."""
        deadline = time.monotonic() + STOP_SECONDS
        while (pid := self._look()) == 0:
            if time.monotonic() > deadline:
                raise StandingError(f"{self._lock_file} is held by a process that does not say its id")
            time.sleep(0.02)
        return pid

    def _look(self) -> int | None:
        """As `holder`; 0 in the moments in which it has no id: just taken, or about to be free."""
        try:
            with self._lock_file.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return int(self._lock_file.read_text() or 0)

    def state(self) -> dict[str, Any]:
        """Of a ready cluster; NotRunning otherwise."""
        if self.holder() is None:
            raise NotRunning(f"no cluster runs in {self.directory}: `make cluster` starts one")
        try:
            state: dict[str, Any] = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            raise NotRunning(f"the cluster in {self.directory} is still starting: see {self.log}") from None
        return state

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory and empty it; RunsAlready if another process has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("a") as file:
            try:
                # Others hold it for a moment when they look whether somebody has it.
                wait_until(lambda: _locked(file), LOOK_SECONDS, "the lock")
            except TimeoutError:
                raise RunsAlready(self.runs_already()) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._empty()
            try:
                yield
            finally:
                self.state_file.unlink(missing_ok=True)
                file.truncate(0)

    def runs_already(self) -> str:
        """Text for a user who wants to start another."""
        where = f"a cluster runs in {self.directory} already, process {self.holder()}"
        return f"{where}: `make cluster-down` ends it"

    def stop(self) -> bool:
        """End the holder and with it the cluster; False when there was none."""
        pid = self.holder()
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        try:
            wait_until(lambda: self.holder() != pid, STOP_SECONDS, "the cluster to stop", interval=0.1)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.holder() != pid, STOP_SECONDS, "the cluster to end", interval=0.1)
        return True

    @property
    def _lock_file(self) -> Path:
        return self.directory / "lock"

    def _empty(self) -> None:
        self.state_file.unlink(missing_ok=True)
        for name in ("plane", "nodes"):
            shutil.rmtree(self.directory / name, ignore_errors=True)


def default_directory() -> Path:
    """One cluster for a user, whatever checkout it was started from."""
    return cache_directory() / "cluster"


def hold(standing: Standing, node_count: int, operator: bool) -> Iterator[str]:
    """Bring the cluster up step by step, yielding what comes next; when exhausted it is ready.

    Closing the generator takes everything down again.
    """
    with standing.held(), contextlib.ExitStack() as stack:
        for name in (*PROGRAMS, "helm"):
            binary(name)
        yield "starting the control plane"
        plane = stack.enter_context(ControlPlane.start(standing.directory / "plane"))
        yield f"starting {node_count} nodes"
        nodes = stack.enter_context(Nodes.start(plane, standing.directory / "nodes"))
        for number in range(1, node_count + 1):
            nodes.add(f"node-{number}", cpu=8, memory="32Gi")
        if operator:
            yield "installing the operator from charts/resumable-training"
            install(plane)
        standing.state_file.write_text(json.dumps({"pid": os.getpid(), "kubeconfig": str(plane.kubeconfig)}))
        yield READY


def act_on_node(standing: Standing, act: str, name: str) -> None:
    """Do one of NODE_ACTS to a node of a running cluster."""
    nodes = Nodes.connect(standing.directory / "nodes")
    try:
        getattr(nodes, NODE_ACTS[act])(name)
    except NodesError as error:
        raise StandingError(str(error)) from error


def what_next(standing: Standing, operator: bool) -> str:
    """What a person can type now."""
    state = standing.state()
    programs = (*(binary(name).parent for name in ("kubectl", "helm")), Path(sys.prefix) / "bin")
    own = f"export PATH={':'.join(dict.fromkeys(map(str, programs)))}:$PATH"
    begin = [
        "",
        f"The cluster is up. In a shell, in {ROOT}:",
        "",
        f"  export KUBECONFIG={state['kubeconfig']}",
        f"  {own}   # kubectl, helm, rtj",
        "  kubectl get nodes",
    ]
    job = [
        "  kubectl apply -f deploy/examples/gpt-pvc.yaml",
        "  kubectl get rtj gpt -w",
        "  kubectl get pods -o wide",
    ]
    usual = standing.directory == default_directory().absolute()
    where = "" if usual else f" --directory {standing.directory}"
    bed = "PYTHONPATH=tests python -m bed"
    end = [
        f"  {bed} node kill node-2{where}   # or partition, heal, shutdown, spot, reboot",
        f"  {'make cluster-down' if usual else f'{bed} down{where}'}",
        "",
    ]
    return "\n".join([*begin, *(job if operator else []), *end])


def start_in_background(standing: Standing, arguments: list[str]) -> None:
    """Run `python -m bed up ...` on its own, and show what it says until it is ready.

    RunsAlready, or NotReady when it ended before.
    """
    if standing.holder():
        raise RunsAlready(standing.runs_already())
    standing.directory.mkdir(parents=True, exist_ok=True)
    standing.state_file.unlink(missing_ok=True)
    with standing.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bed", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, _import_path()))},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with standing.log.open() as log:
        deadline = time.monotonic() + READY_SECONDS
        while not standing.state_file.exists():
            print(log.read(), end="", file=sys.stderr, flush=True)
            if process.poll() is not None:
                print(log.read(), end="", file=sys.stderr, flush=True)
                raise NotReady("the cluster did not come up")
            if time.monotonic() > deadline:
                process.terminate()
                raise NotReady(f"the cluster did not come up in {READY_SECONDS:g} s")
            time.sleep(0.1)
        print(log.read(), end="", file=sys.stderr, flush=True)


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _import_path() -> list[str]:
    return [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
