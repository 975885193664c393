"""The ledger's phase for a time without reports gives way to ranks that report."""

from __future__ import annotations

from world import STEP_SECONDS, World

from resumable_training.contract import events
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import ProgressReport

STEPS = 100


def forming(world: World) -> World:
    """Until attempt 1 is reserved, and nobody has an assignment but rank 0's agent, which holds no port."""
    world.holds_ports = False
    for _ in range(100):
        world.step()
        if world.job.status.attempt.state == "forming":
            return world
        world.tick()
    raise AssertionError("nothing is reserved")


def wait_for_peers(world: World) -> None:
    """Rank 0 reports that it is up."""
    now = int(world.now * 1000)
    report = ProgressReport(
        0, started_ms=now - 10, settled_ms=now, phase="setup", step=0, samples=0, phase_ms={"setup": 10}
    )
    world._log(world.agents["train-0-1"], events.PROGRESS, to_plain(report))


def test_rank_zero_may_report_before_the_others_are_told() -> None:
    """However long the others take to get their assignments, all that rank 0 does afterwards counts."""
    world = forming(World({"workers": {"replicas": 2}}, steps=STEPS))
    world.cut("train-1-1", "operator")
    for _ in range(10):
        wait_for_peers(world)
        world.step()
        world.tick()
    assert world.job.status.attempt.state == "forming"
    world.heal()
    world.run(10 * STEPS * STEP_SECONDS, until="Succeeded")
    status = world.job.status
    assert (status.phase, status.attempt.number) == ("Succeeded", 1)
    assert status.ledger.phases["productive"] >= 1000 * (STEPS - 1) * STEP_SECONDS
    assert status.ledger.phases.get("unaccounted", 0) <= 1000 * STEP_SECONDS
