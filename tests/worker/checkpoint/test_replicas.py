"""Ranks that hold other values of what they are taken to have alike: never a mixture of them."""

from pathlib import Path
from typing import Any

import async_programs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_programs import run_ranks

from resumable_training.checkpoint.accord import Agreed
from resumable_training.checkpoint.plan import Plan, make_plan
from resumable_training.checkpoint.replicas import apart, digests, other_than, said_of, short

NAMES = ("plain", "small", "placed")


def told(given: dict[str, torch.Tensor], agreed: Agreed | None = None) -> dict[str, str]:
    return short(digests(given, {"m.own"}, 2, agreed or Agreed()))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5000.0),
        torch.tensor(1.5),
        torch.arange(6).reshape(2, 3),
        torch.arange(4).bfloat16(),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.arange(24.0).reshape(1, 4, 2, 3).contiguous(memory_format=torch.channels_last),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_one_element_makes_a_digest_another(tensor: torch.Tensor) -> None:
    """Of any type and layout; where the same values lie in memory, and how, does not matter."""
    other = tensor.clone()
    last = tuple(size - 1 for size in tensor.shape)
    other[last] = 0 if bool(tensor[last]) else 1
    same = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    assert not apart([told({"m.w": tensor}), told({"m.w": same})])
    assert apart([told({"m.w": tensor}), told({"m.w": other})])


def test_what_one_rank_stores_anyway_may_differ() -> None:
    """Rank 0's own, and what not all ranks have alike; kinds that no plan takes have no values here."""
    one, other = torch.zeros(3), torch.ones(3)
    assert not apart([told({"m.own": one}), told({"m.own": other})])
    agreed = Agreed(holders={"m.w": 1})
    assert not apart([told({"m.w": one}, agreed), told({"m.w": other}, agreed)])
    assert not apart([told({"m.w": one.to_sparse()}), told({"m.w": other.to_sparse()})])
    assert not apart([told({"m.w": torch.zeros(0, 5)}), told({"m.w": torch.zeros(0, 5)})])
    assert digests({"m.w": one}, set(), 1, Agreed()) == {}


def test_what_differs_is_named() -> None:
    """By key; a few of them, and how many more."""
    first, mine = ({f"k{key}": torch.full((2,), value) for key in range(5)} for value in (1, 2))
    found = [digests(one | {"same": torch.ones(1)}, set(), 2, Agreed()) for one in (first, mine)]
    keys = other_than(*found)
    assert keys == [f"k{key}" for key in range(5)]
    assert said_of([[], keys]) == "k0, k1, k2 and 2 more"
    assert said_of([[], []]) == "some DTensors"


def test_of_ranks_that_differ_the_first_stores_all_they_share() -> None:
    """Also what comes later, and what happened to be the same when they were compared."""
    given = {"a": torch.zeros(5000), "b": torch.zeros(3), "lazy": torch.zeros(4000)}
    agreed = Agreed((0, 0), holders={"lazy": 1}, apart=True)

    def plan(rank: int) -> Plan:
        return make_plan(given, {key: (key,) for key in given}, set(), rank, 2, agreed)

    plans = [plan(rank) for rank in (0, 1)]
    assert [[item.key for item in one.items] for one in plans] == [["a", "b"], ["lazy"]]
    assert plans[0].view == plans[1].view


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_of_ranks_that_differ_is_of_one_rank(asynchronous: bool, tmp_path: Path) -> None:
    """Rank 0's values whole, of parameters and of replicated DTensors; said once, by rank 0.

    Buffers and extra state are rank 0's in any case, and nothing is said of them.
    """
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.apart_run, tmp_path, str(root), True, asynchronous)
    assert [ok for ok, _ in found] == [[True, True]] * 2
    said = [line for line in found[0][1] if "same values" in line]
    assert len(said) == 1
    assert "model.placed, model.plain, model.small" in said[0]
    assert not [line for line in found[1][1] if "same values" in line]
    for step in (1, 2):
        for name, value in stored(root / f"step-{step:08}.1").items():
            assert value.eq(10 * step if name in NAMES else 0).all(), (step, name)


def test_ranks_that_are_alike_share_out_what_they_store(tmp_path: Path) -> None:
    """Nothing is said, also where buffers differ, as running statistics do after each step of DDP."""
    root = tmp_path / "store"
    found = run_ranks(2, async_programs.apart_run, tmp_path, str(root), False, True)
    assert [ok for ok, _ in found] == [[True, True]] * 2
    assert not [line for _, said in found for line in said if "same values" in line]
    sizes = [path.stat().st_size for path in (root / "step-00000002.1").glob("*.distcp")]
    assert max(sizes) < 1.1 * sum(sizes) / 2


def stored(directory: Path) -> dict[str, Any]:
    read = {name: torch.full(async_programs.APART[name], -1.0) for name in NAMES}
    read |= {"seen": torch.full((5000,), -1.0), "_extra_state": torch.full((4000,), -1.0)}
    dcp.load({"model": read}, checkpoint_id=directory, no_dist=True)
    return read
