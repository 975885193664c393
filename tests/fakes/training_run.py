"""Drives ``rtj run`` with the tiny real training, and checks what must hold after every run of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import moments
from local_run import LocalRun, rtj
from moments import Wish

from resumable_operator.model import Interruption, JobStatus
from resumable_training.data.audit import read_records, run_audit

TINY = Path(__file__).with_name("train_tiny.py")
BATCH = 12


class TrainingRun(LocalRun):
    """One run directory. Leaving it as a context checks that no process is left."""

    patience_seconds = 240.0  # several cold starts of torch on a loaded machine

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.result_path = directory / "result.json"
        self.moments = directory / "moments"
        self.store = self.directory / "checkpoints"

    def start_tiny(
        self,
        *options: str,
        steps: int = 40,
        save_every: int = 10,
        tiny: tuple[str, ...] = (),
        script: Path = TINY,
    ) -> None:
        """Start it traced; ``options`` are of ``rtj run``, ``tiny`` of the script."""
        run = ("--save-every-steps", str(save_every), "--trace-samples", *options)
        training = ("--steps", str(steps), "--batch", str(BATCH), "--result", str(self.result_path), *tiny)
        self.start(*run, str(script), "--", *training)

    def wish(self, *wishes: Wish) -> None:
        """What the next start's ranks do to themselves."""
        self.environment |= moments.environment_for(self.moments, *wishes)

    def await_moment(self, wish: Wish) -> None:
        """Until the rank is there and waits."""
        self.until(lambda _: wish.note(self.moments).exists(), f"{wish}")

    def let_go(self, wish: Wish) -> None:
        """The rank that waits there goes on."""
        moments.let_go(self.moments, wish)

    def worker_of(self, rank: int) -> str:
        """Name of the worker that runs ``rank`` now."""
        members = self.status().attempt.members
        return next(m.worker for m in members if m.first_rank <= rank < m.first_rank + m.ranks)

    def result(self) -> dict[str, Any]:
        return json.loads(self.result_path.read_text())

    def saved(self) -> list[int]:
        """Steps of the checkpoints that rank 0 has told of; of some its agent has told before."""
        return [event["data"]["step"] for event in self.history("checkpoint") if "rank" in event["data"]]

    def log(self, attempt: int, rank: int = 0) -> str:
        """All that the rank printed."""
        return (self.directory / f"logs/attempt-{attempt:05d}/rank-{rank:05d}.log").read_text()

    def shown(self) -> str:
        """All that ``rtj run`` showed its user so far."""
        return self.output.read_text()

    def check(self, steps: int = 40) -> None:
        """What holds after every finished run, whatever happened: exact samples, whole checkpoints."""
        verdict = run_audit(self.directory / "traces", self.store, steps * BATCH)
        assert verdict.ok, f"{verdict}; {self.text()}"
        self.check_no_half_checkpoint()
        assert self.processes() == []
        found = self.result()
        assert (found["step"], found["extras"]) == (steps, {"steps": steps})

    def check_no_half_checkpoint(self) -> None:
        """No attempt resumed from what had no marker when it was broken, and what is there is whole."""
        half = moments.half_checkpoints(self.moments)
        assert not half & {record.parent for record in read_records(self.store)}
        verified = rtj("checkpoints", "verify", str(self.store))
        assert [line for line in verified.stdout.splitlines() if not line.endswith("  ok")] == [], verified
        assert verified.returncode == 0


def unplanned(status: JobStatus) -> list[Interruption]:
    return [ending for ending in status.interruptions if not ending.planned]


def causes(status: JobStatus) -> list[str]:
    return [ending.cause for ending in unplanned(status)]


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Bit for bit: weights, and the next numbers of all generators."""
    assert found["world_size"] == wanted["world_size"]
    assert found["digest"] == wanted["digest"], furthest(found, wanted)
    assert found["draws"] == wanted["draws"]


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal up to the order of summation of float32."""
    for name, values in wanted["weights"].items():
        for one, other in zip(found["weights"][name], values, strict=True):
            assert math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-5), furthest(found, wanted)


def furthest(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Where and how much two results differ most."""
    distance, name = max(
        (abs(one - other), name)
        for name, values in wanted["weights"].items()
        for one, other in zip(found["weights"][name], values, strict=True)
    )
    return f"largest difference {distance} in {name}"
