"""Starts ranks of a scenario under a fake agent, or with torchrun's environment, and reads what they left."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resumable_training.contract.progress import Progress, ProgressPage

FAKES = Path(__file__).parent


class Nursery:
    """Client of ``rank_nursery.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FAKES / "rank_nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(FAKES)},
        )
        assert self._read() == {"ready": True}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class FakeAgent:
    """The agent's end of one rank's socket: collects messages, sends requests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(1)
        self._rank: socket.socket | None = None
        self._pending: list[bytes] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            if self._rank is None:
                self._pending.append(line)
            else:
                self._rank.sendall(line)

    def close_rank(self) -> None:
        """The agent dies, as the rank sees it."""
        eventually(lambda: self._rank is not None)
        assert self._rank is not None
        self._rank.shutdown(socket.SHUT_RDWR)

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["kind"] == kind]

    def close(self) -> None:
        """Also wakes an accept that no rank ever came to."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)

    def _serve(self) -> None:
        try:
            rank, _ = self._server.accept()
        except OSError:
            return
        with self._lock:
            self._rank = rank
            for line in self._pending:
                rank.sendall(line)
        with rank, rank.makefile() as lines:
            for line in lines:
                self.messages.append(json.loads(line))


class Ranks:
    """One attempt of ``world_size`` ranks on this machine; those in ``absent`` are never started."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        world_size: int,
        attempt: int,
        scenario: str,
        options: dict[str, Any],
        environment: dict[str, str],
        sockets: Path | None,
        port: int,
        absent: tuple[int, ...] = (),
    ) -> None:
        self.directory = directory / f"attempt-{attempt}"
        self.directory.mkdir()
        self._nursery = nursery
        self.result = str(self.directory / "result")
        self.agents: list[FakeAgent] = []
        self.pages: list[Path] = []
        self.pids = []
        for rank in sorted(set(range(world_size)) - set(absent)):
            rank_environment = {**environment, **torchrun_environment(rank, world_size, attempt, port)}
            if sockets is not None:
                rank_environment |= self._supervised(rank, attempt, sockets)
            answer = nursery.ask(
                do="start",
                scenario=scenario,
                options={"result": self.result, **options},
                environment=rank_environment,
                output=str(self.directory / f"rank-{rank}.log"),
            )
            self.pids.append(answer["pid"])

    def _supervised(self, rank: int, attempt: int, sockets: Path) -> dict[str, str]:
        agent = FakeAgent(sockets / f"{attempt}-{rank}")
        self.agents.append(agent)
        page = self.directory / f"progress-{rank}"
        ProgressPage(page, create=True).close()
        self.pages.append(page)
        return {
            "RESUMABLE_SOCKET": str(agent.path),
            "RESUMABLE_JOB": "local/test",
            "RESUMABLE_JOB_UID": "uid-1",
            "RESUMABLE_ATTEMPT": str(attempt),
            "RESUMABLE_WORKER_ADDRESS": "127.0.0.1",
            "RESUMABLE_PROGRESS": str(page),
            "RESUMABLE_STACKS": str(self.directory / f"stacks-{rank}"),
        }

    def codes(self, seconds: float = 60.0) -> list[int | None]:
        """Exit codes of all ranks; fails with their output when one does not end."""
        deadline = time.monotonic() + seconds
        found = [
            self._nursery.ask(do="wait", pid=pid, seconds=max(0.0, deadline - time.monotonic()))["code"]
            for pid in self.pids
        ]
        for pid, code in zip(self.pids, found, strict=True):
            if code is None:
                self._nursery.ask(do="kill", pid=pid, signal=int(signal.SIGKILL))
        for agent in self.agents:
            agent.close()
        assert None not in found, f"ranks did not end: {found}\n{self.output()}"
        return found

    def kill_all(self) -> None:
        """As an agent does after one rank's death."""
        for pid in self.pids:
            self._nursery.ask(do="kill", pid=pid, signal=int(signal.SIGKILL))

    def wait_one(self, rank: int, seconds: float = 60.0) -> int | None:
        return self._nursery.ask(do="wait", pid=self.pids[rank], seconds=seconds)["code"]

    def output(self) -> str:
        return "".join(
            f"--- rank {rank}\n" + path.read_text()
            for rank in range(len(self.pids))
            if (path := self.directory / f"rank-{rank}.log").exists()
        )

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(Path(f"{self.result}-{rank}.json").read_text()) for rank in range(len(self.pids))]

    def progress(self, rank: int) -> Progress | None:
        page = ProgressPage(self.pages[rank])
        try:
            return page.read()
        finally:
            page.close()


def torchrun_environment(rank: int, world_size: int, attempt: int, port: int) -> dict[str, str]:
    """What torchrun sets, without its agent's store."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "uid-1",
        "TORCHELASTIC_RESTART_COUNT": str(attempt - 1),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value
