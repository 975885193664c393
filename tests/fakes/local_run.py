"""Drives a real ``rtj run`` as a process, with fake ranks: start it, watch its files, break it, wait.

Every wait is for a condition and bounded; a failed one shows what the run printed. Used by the end-to-end
tests as ``with LocalRun(tmp_path) as run``; leaving ends all processes of the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from resumable_operator.model import JobStatus, LedgerStatus

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
RTJ = [sys.executable, "-m", "resumable_operator.cli.main"]
PATIENCE_SECONDS = 60.0


class LocalRun:
    """One run directory and the ``rtj run`` that works on it.

    ``environment``: more variables for ``rtj run`` and, through it, for the ranks.
    """

    patience_seconds = PATIENCE_SECONDS

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "run"
        self.environment: dict[str, str] = {}
        self.output = directory / "output.txt"
        self.end = directory / "may-end"  # what fake ranks wait for before their last step
        self.process: subprocess.Popen[bytes] | None = None
        self.arguments: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        print(self.endings(), self.text(), sep="\n")  # shown with a failure only
        self.wait(lambda: not self.processes(), "all processes of the run to end")

    def start(self, *arguments: str) -> None:
        """Start ``rtj run --dir RUN ...``."""
        self.end.unlink(missing_ok=True)
        self.arguments = list(arguments)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*RTJ, "run", "--dir", str(self.directory), *arguments],
                stdout=output,
                stderr=output,
                cwd=self.output.parent,
                env={**os.environ, **self.environment},
            )

    def start_fake(self, *options: str, fake: tuple[str, ...] = ()) -> None:
        """Start with ``options`` of ``rtj run`` and options of the fake rank.

        It trains on until ``finish``: what a test does meets a run that lasts, however slow the machine.
        """
        self.start(*options, str(FAKE_RANK), "--", "--hold", str(self.end), *fake)

    def again(self) -> None:
        """Start the same command line once more."""
        self.start(*self.arguments)

    def fault(self, *arguments: str) -> str:
        """``rtj fault RUN ...``; what it printed."""
        done = rtj("fault", str(self.directory), *arguments)
        assert done.returncode == 0, done.stderr + self.text()
        return done.stdout

    def finish(self, code: int = 0) -> JobStatus:
        """Wait for the end of ``rtj run``, check its exit code and its ledger; the last status."""
        assert self.process is not None
        if code == 0:
            self.end.touch()
        try:
            self.process.wait(self.patience_seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"rtj run did not end; {self.text()}") from error
        assert self.process.returncode == code, f"exit code {self.process.returncode}; {self.text()}"
        accounted_for(self.status().ledger)
        return self.status()

    def signal(self, number: signal.Signals) -> None:
        """To ``rtj run`` itself."""
        assert self.process is not None
        self.process.send_signal(number)

    def until(self, condition: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """Wait until the stored status fulfils ``condition``."""

        def fulfilled() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"rtj run ended before {what}; {self.text()}"
            return (self.directory / "status.json").exists() and condition(self.status())

        self.wait(fulfilled, what)
        return self.status()

    def until_step(self, step: int, attempt: int = 1, size: int | None = None) -> JobStatus:
        """Wait until that attempt (or a later one) trains beyond ``step``."""
        return self.until(
            lambda status: (
                status.attempt.number >= attempt
                and status.attempt.state == "running"
                and status.step >= step
                and size in (None, status.size)
            ),
            f"step {step} of attempt {attempt} at size {size}",
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience_seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}; {self.text()}"
            time.sleep(0.02)

    def status(self) -> JobStatus:
        plain = json.loads((self.directory / "status.json").read_text())
        return JobStatus.model_validate(plain["status"])

    def workers_created(self) -> list[str]:
        """Names of all workers that were ever started."""
        return sorted(path.name for path in (self.directory / "workers").iterdir())

    def history(self, kind: str) -> list[dict[str, Any]]:
        """Folded agent events of one kind."""
        lines = (self.directory / "history.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def processes(self) -> list[int]:
        """Living agents, ranks and their children of this run."""
        return list(carriers(str(self.directory.resolve() / "workers")))

    def endings(self) -> str:
        """A line for each interruption, for whoever reads why a test failed."""
        if not (self.directory / "status.json").exists():
            return "no status"
        found = self.status().interruptions
        return "\n".join(f"attempt {item.attempt}: {item.cause}: {item.message}" for item in found)

    def text(self) -> str:
        """All that can explain a failure."""
        parts = [self.output, self.directory / "rtj.log", *sorted(self.directory.glob("workers/*/agent.log"))]
        found = [f"--- {path.name}\n{path.read_text()[-6000:]}" for path in parts if path.exists()]
        status = self.directory / "status.json"
        return "\n".join([*found, status.read_text()[-4000:] if status.exists() else "no status"])


def accounted_for(ledger: LedgerStatus) -> None:
    """Phases sum to the age exactly, and what nobody could explain is less than 1 % of it."""
    age = ledger.settled_at - ledger.started_at
    assert sum(ledger.phases.values()) == age
    assert min(ledger.phases.values(), default=0) >= 0
    assert ledger.phases.get("unaccounted", 0) <= 0.01 * age, ledger.phases


def rtj(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``rtj`` to its end."""
    return subprocess.run(
        [*RTJ, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=cwd
    )


def carriers(mark: str) -> Iterator[int]:
    """Living processes that have ``mark`` in their environment."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue
