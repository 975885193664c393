"""Silent agents: which machines are to blame, and when it is the operator that hears nobody."""

from __future__ import annotations

import pytest
from world import World

from resumable_operator.decide.avoid import MOST_NODES, avoided
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.silence import most_are_silent, silent_for, silent_nodes
from resumable_training.contract.events import SILENT_SECONDS


def running(replicas: int) -> World:
    world = World({"workers": {"replicas": replicas, "min": 1}}, steps=100_000)
    world.run(2.0)
    assert world.job.status.size == replicas
    return world


def draft_of(world: World) -> Draft:
    return Draft(world.observation(), world.now, world.job.status)


def test_seconds_since_the_last_word() -> None:
    """Of one that was never heard by this operator: none, for it is starting."""
    world = running(3)
    world.cut("train-1-1", "operator")
    world.tick(5.0)
    draft = draft_of(world)
    seconds = {worker.name: silent_for(draft, worker) for worker in draft.observation.workers}
    assert seconds == {"train-0-1": 0.0, "train-1-1": pytest.approx(5.0), "train-2-1": 0.0}
    world.restart_operator()
    world.tick(5.0)
    draft = draft_of(world)
    assert all(silent_for(draft, worker) == 0.0 for worker in draft.observation.workers)


@pytest.mark.parametrize(
    ("scopes", "most", "nodes"),
    [
        ((), False, set()),
        (("all",), False, {"node-0"}),
        (("operator", "operator"), True, set()),
        (("all", "all", "all"), True, set()),
        (("dead", "dead"), False, set()),
        (("all", "dead"), False, {"node-0"}),
    ],
)
def test_whose_silence_it_is(scopes: tuple[str, ...], most: bool, nodes: set[str]) -> None:
    """Of three workers. Where a machine answers that nobody listens, it is the agent that is gone."""
    world = running(3)
    for place, scope in enumerate(scopes):
        world.cut(f"train-{place}-1", scope)
    world.tick(SILENT_SECONDS + 1.0)
    draft = draft_of(world)
    assert most_are_silent(draft) is most
    assert silent_nodes(draft) == nodes


def test_a_network_of_our_own_is_not_many_silent_machines() -> None:
    """Most workers say nothing to the operator: no node is to blame, and new pods avoid none."""
    world = running(3)
    for name in ("train-0-1", "train-1-1"):
        world.cut(name, "operator")
    world.run(10.0)
    draft = draft_of(world)
    assert silent_nodes(draft) == frozenset()
    assert avoided(draft) == ()


def test_a_pod_avoids_so_many_silent_machines() -> None:
    """What is sent to the API server for each pod stays small, however many are silent."""
    world = running(200)
    for place in range(90):
        world.cut(f"train-{place}-1", "operator")
    world.tick(10.0)
    draft = draft_of(world)
    assert len(silent_nodes(draft)) == 90
    assert len(avoided(draft)) == MOST_NODES
