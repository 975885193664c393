"""A training rank without torch: speaks the contract as the library does, and fails on command.

Started by a real agent as ``python fake_rank.py [options]``. It connects to the agent, writes the progress
page, reports checkpoints, obeys a drain request, and resumes from a JSON file below the checkpoint
directory when it is given one. Ranks don't talk to each other, but for ``--meet``. ``--help`` lists the
knobs; the options ``--only-rank`` and ``--only-attempt`` say where the faults happen.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from resumable_training.contract import CONTRACT_VERSION, env, exitcodes, rankwire
from resumable_training.contract.progress import Progress, ProgressPage

CHECKPOINT_FILE = "fake-checkpoint.json"


def options() -> argparse.Namespace:
    """Command line of the fake; every option has a default that trains 20 quick steps and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="total steps of the job")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--slow-every", type=int, default=0, help="steps; each such step is a slow one")
    parser.add_argument("--slow-seconds", type=float, default=3.0, help="that a slow step takes longer")
    parser.add_argument("--setup-seconds", type=float, default=0.0, help="before it connects")
    parser.add_argument("--global-batch", type=int, default=64, help="samples per step, over all ranks")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: only when drained")
    parser.add_argument("--meet", action="store_true", help="begin and drain together, as a group does")
    parser.add_argument("--no-connect", action="store_true", help="a script that does not use the library")
    parser.add_argument("--ignore-drain", action="store_true")
    parser.add_argument("--exit-code", type=int, default=1, help="used by --exit-at")
    parser.add_argument("--exit-at", type=int, default=None, help="step after which to exit (0: before any)")
    parser.add_argument("--stop-at", type=int, default=None, help="step after which it SIGSTOPs itself")
    parser.add_argument("--hang-at", type=int, default=None, help="step after which it sleeps for ever")
    parser.add_argument("--wait-at", type=int, default=None, help="step after which it waits to be drained")
    parser.add_argument("--hold", default="", help="file without which the last step is not taken")
    parser.add_argument("--only-rank", type=int, default=None, help="faults happen on this rank only")
    parser.add_argument("--only-attempt", type=int, default=None, help="faults happen in this attempt only")
    parser.add_argument("--grandchild", action="store_true", help="start a sleeping child and print its pid")
    parser.add_argument("--flood", type=int, default=0, help="lines of output per step")
    parser.add_argument("--message", default="", help="printed before the exit of --exit-at")
    return parser.parse_args()


class FakeRank:
    """State of one rank; phases are accounted as the library does, by finished stretches."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.rank = int(os.environ["RANK"])
        self.attempt = int(os.environ[env.ATTEMPT])
        self.high_water = int(os.environ.get(env.HIGH_WATER_SAMPLES, "0"))
        self.directory = os.environ.get(env.CHECKPOINT_DIR, "")
        now = time.monotonic_ns()
        self.progress = Progress(pid=os.getpid(), started_ns=now, beat_ns=now, phase_since_ns=now)
        self.page: ProgressPage | None = None
        self.link: socket.socket | None = None
        self.received = b""
        self.draining = False

    def faulty(self) -> bool:
        chosen = self.chosen
        return (chosen.only_rank is None or chosen.only_rank == self.rank) and (
            chosen.only_attempt is None or chosen.only_attempt == self.attempt
        )

    def connect(self) -> None:
        """Map the page, connect, say hello."""
        if self.chosen.no_connect:
            return
        stacks = Path(os.environ[env.STACKS]).open("a")  # noqa: SIM115 - lives as long as the process
        faulthandler.register(signal.SIGUSR1, file=stacks)
        self.page = ProgressPage(os.environ[env.PROGRESS])
        self.page.write(self.progress)
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(os.environ[env.SOCKET])
        self.send(rankwire.HELLO, rank=self.rank, pid=os.getpid(), version=CONTRACT_VERSION)

    def send(self, kind: str, **fields: object) -> None:
        if self.link is not None:
            self.link.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def enter(self, phase: str, settled: str | None = None) -> None:
        """Finish the open stretch (credited to ``settled``, else its own phase), then open ``phase``."""
        now = time.monotonic_ns()
        progress = self.progress
        credited = settled or progress.phase
        progress.phase_ns[credited] = progress.phase_ns.get(credited, 0) + now - progress.phase_since_ns
        progress.phase, progress.phase_since_ns, progress.beat_ns = phase, now, now
        if self.page is not None:
            self.page.write(progress)

    def poll(self) -> None:
        """Read what the agent said; note a drain request."""
        while self.link is not None and select.select([self.link], [], [], 0)[0]:
            data = self.link.recv(65536)
            if not data:
                return
            self.received += data
            while b"\n" in self.received:
                line, self.received = self.received.split(b"\n", 1)
                self.draining = self.draining or json.loads(line)["kind"] == rankwire.DRAIN
        if self.chosen.meet:
            self.share_drain()

    def share_drain(self) -> None:
        """Who is to drain tells the others, for whom nobody else may be there to ask."""
        note = Path(self.directory, f"drain-{self.attempt}")
        if self.draining:
            note.touch()
        self.draining = note.exists()

    def meet(self) -> None:
        """Wait for the other ranks of the attempt, as a process group does."""
        place = Path(self.directory, f"met-{self.attempt}")
        place.mkdir(parents=True, exist_ok=True)
        (place / str(self.rank)).touch()
        self.enter("rendezvous")
        obeys = not self.chosen.ignore_drain
        while not (self.draining and obeys) and len(list(place.iterdir())) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
            self.poll()

    def restore(self) -> None:
        """Continue from the JSON file of the last checkpoint, if there is one."""
        path = Path(self.directory, CHECKPOINT_FILE)
        self.enter("restoring")
        if self.directory and path.exists():
            saved = json.loads(path.read_text())
            self.progress.step, self.progress.samples = saved["step"], saved["samples"]
            if self.rank == 0:
                self.send(
                    rankwire.RESTORED,
                    step=saved["step"],
                    samples=saved["samples"],
                    checkpoint=saved["checkpoint"],
                    record=self.attempt,
                    seconds=0.001,
                    fallback=[],
                )
        self.enter("warmup")

    def save(self) -> None:
        """Rank 0 writes where training is and reports a checkpoint."""
        self.enter("checkpointing")
        step, samples = self.progress.step, self.progress.samples
        if self.rank == 0:
            name = f"step-{step:08d}.{self.attempt}"
            if self.directory:
                self.store({"step": step, "samples": samples, "checkpoint": name})
            self.send(
                rankwire.CHECKPOINT,
                step=step,
                samples=samples,
                checkpoint=name,
                bytes=1000,
                blocking_ms=1,
                durable_ms=1,
                interval_seconds=None,
                interval_steps=self.chosen.checkpoint_every or None,
            )
        self.enter(self.work())

    def store(self, content: dict[str, object]) -> None:
        root = Path(self.directory)
        root.mkdir(parents=True, exist_ok=True)
        partial = root / (CHECKPOINT_FILE + ".tmp")
        partial.write_text(json.dumps(content))
        partial.replace(root / CHECKPOINT_FILE)

    def work(self) -> str:
        """Phase of the next step."""
        return "rework" if self.progress.samples < self.high_water else "productive"

    def step(self) -> None:
        """One step: sleep, count, publish."""
        began, kind = time.monotonic_ns(), self.work()
        time.sleep(self.chosen.step_seconds)
        progress = self.progress
        if self.chosen.slow_every and (progress.step + 1) % self.chosen.slow_every == 0:
            time.sleep(self.chosen.slow_seconds)
        progress.step += 1
        progress.samples += self.chosen.global_batch
        progress.rework_steps += kind == "rework"
        progress.step_seconds = (time.monotonic_ns() - began) / 1e9
        progress.loss = 1.0 / progress.step
        self.enter(self.work(), "warmup" if progress.phase == "warmup" else kind)
        for _ in range(self.chosen.flood):
            print(f"rank {self.rank} step {progress.step} " + "x" * 100, flush=False)

    def may_step(self) -> bool:
        """Wait before the last step while that is held back; False: it is to drain instead."""
        hold = self.chosen.hold
        while hold and self.progress.step == self.chosen.steps - 1 and not os.path.exists(hold):
            time.sleep(0.01)
            self.enter(self.progress.phase)
            self.poll()
            if self.draining and not self.chosen.ignore_drain:
                return False
        return True

    def fail(self) -> None:
        """The faults that were asked for, at the step that was asked for."""
        chosen, step = self.chosen, self.progress.step
        if not self.faulty():
            return
        if chosen.exit_at == step:
            if chosen.message:
                print(chosen.message, flush=True)
            raise SystemExit(chosen.exit_code)
        if chosen.stop_at == step:
            os.kill(os.getpid(), signal.SIGSTOP)
        while chosen.hang_at == step:
            time.sleep(0.5)
        if chosen.wait_at == step:
            self.enter("evaluating")
            while not self.draining:
                time.sleep(0.01)
                self.poll()
            self.enter(self.work())

    def train(self) -> int:
        """The whole life of the rank; returns its exit code."""
        if self.chosen.grandchild:
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
            print(f"grandchild {child.pid}", flush=True)
        time.sleep(self.chosen.setup_seconds)
        self.connect()
        if self.chosen.meet:
            self.meet()
        self.restore()
        self.fail()
        while self.progress.step < self.chosen.steps:
            if self.may_step():
                self.step()
                self.fail()
            self.poll()
            drained = self.draining and not self.chosen.ignore_drain
            every = self.chosen.checkpoint_every
            if drained or (every and self.progress.step % every == 0):
                self.save()
            if drained:
                return exitcodes.DRAINED
        self.enter("closing")
        return exitcodes.SUCCESS


if __name__ == "__main__":
    sys.exit(FakeRank(options()).train())
