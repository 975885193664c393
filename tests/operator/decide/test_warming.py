"""Workers that still import what their ranks are forked from: nobody who could train waits for them."""

from __future__ import annotations

from world import World


def training(**workers: int) -> World:
    world = World({"workers": workers, "recovery": {"growCooldownSeconds": 0.0}}, capacity=2, steps=100_000)
    world.run(2.0)
    return world


def test_growth_waits_for_imports() -> None:
    """The attempt trains on until the newcomer's ranks can be forked, says so, and then grows."""
    world = training(replicas=2, min=1)
    world.capacity = 1
    world.kill_worker("train-1-1")
    world.run(3.0)
    assert world.job.status.size == 1
    world.warming.add("train-1-2")
    world.capacity = 2
    world.run(5.0)
    status = world.job.status
    assert (status.attempt.number, status.size) == (2, 1)
    assert "could grow from 1 to 2 workers: 1 worker must first import what ranks need" in status.reason
    world.warming.clear()
    world.run(2.0)
    assert (world.job.status.attempt.number, world.job.status.size) == (3, 2)


def test_since_when_it_could_grow_is_written_at_once() -> None:
    """A checkpoint that is made right after it is one to grow after: were it decided anew in each pass until
    another write, that checkpoint would be older."""
    world = World({"workers": {"replicas": 2, "min": 1}}, capacity=2, steps=100_000, save_every=100_000)
    world.run(2.0)
    world.capacity = 1
    world.kill_worker("train-1-1")
    world.run(3.0)
    assert world.job.status.size == 1
    world.capacity = 2
    world.run(5.0)
    since = world.job.status.attempt.grow_ready_since
    first = next(plan for plan in world.plans if plan.status.attempt.grow_ready_since is not None)
    assert (first.status.attempt.grow_ready_since, first.must_write) == (since, True)


def test_a_larger_size_that_is_warm_is_not_taken_for_the_whole() -> None:
    """One growth in one batch: two newcomers, one of which still imports, are taken together."""
    world = training(replicas=3, min=1)
    world.capacity = 1
    world.kill_worker("train-1-1")
    world.run(3.0)
    assert world.job.status.size == 1
    world.warming.add("train-2-1")
    world.capacity = 3
    world.run(3.0)
    assert world.job.status.size == 1
    world.warming.clear()
    world.run(2.0)
    assert world.job.status.size == 3
    assert world.job.status.resizes == {"shrink": 1, "grow": 1}


def test_a_warm_spare_comes_before_a_cold_newcomer() -> None:
    """Also when the lost worker's place is filled again at once."""
    world = World({"workers": {"replicas": 2, "min": 2, "spares": 1}}, capacity=3, steps=100_000)
    world.run(2.0)
    world.warming.add("train-1-2")
    world.kill_worker("train-1-1")
    world.run(3.0)
    members = [member.worker for member in world.job.status.attempt.members]
    assert members == ["train-0-1", "train-2-1"]


def test_a_start_waits_for_nobodys_imports() -> None:
    """Those that are missing now would wait for them anyway."""
    world = World({"workers": {"replicas": 2, "min": 2}}, capacity=2, steps=100_000)
    world.warming |= {"train-0-1", "train-1-1"}
    world.run(2.0)
    assert world.job.status.phase == "Running"
