"""Machines of a local cluster: places for workers that go away and come back."""

from __future__ import annotations

from resumable_operator.cluster.local_machines import Machines


def test_one_worker_each() -> None:
    """Workers take free machines; when none is free they wait."""
    machines = Machines(2, 2)
    assert [machines.place(name) is not None for name in "abc"] == [True, True, False]
    machines.release("a")
    assert machines.place("c") is not None


def test_machine_that_goes_takes_nobody() -> None:
    """After a notice its capacity is gone at once; the machine itself when its worker has ended."""
    machines = Machines(2, 2)
    machine = machines.place("a")
    assert machine is not None
    machine.leaving = True
    assert (machines.capacity, machine.up) == (1, True)
    machines.release("a")
    assert (machines.capacity, machine.up) == (1, False)
    machines.place("b")
    assert machines.place("c") is None


def test_lost_machine_comes_back_before_new_ones() -> None:
    """add-worker brings back what was lost, then adds, up to the limit."""
    machines = Machines(2, 3)
    lost = machines.of("a") or machines.place("a")
    assert lost is not None
    machines.take_away(lost)
    machines.release("a")
    assert machines.capacity == 1
    assert machines.bring() is lost
    third = machines.bring()
    assert third is not None
    assert (third.number, machines.capacity) == (3, 3)
    assert machines.bring() is None


def test_certain_machine_comes_back_once() -> None:
    """A machine that is there already does not come again."""
    machines = Machines(2, 4)
    lost = machines.all[2]
    machines.take_away(lost)
    assert machines.bring(2) is lost
    assert machines.bring(2) is None
    assert machines.capacity == 2
