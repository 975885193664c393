"""What a rank puts where: everything once, aligned, and nothing of a kind that we could not store."""

from typing import Any

import pytest
import torch

from resumable_training.checkpoint import marking
from resumable_training.checkpoint.accord import Agreed, agree_on
from resumable_training.checkpoint.errors import Unstorable
from resumable_training.checkpoint.plan import ALIGNMENT, Plan, make_plan, own_bytes, stock_of


def tensors() -> dict[str, torch.Tensor]:
    return {
        "m.fat": torch.zeros(1009, 331),
        "m.half": torch.zeros(5000, dtype=torch.bfloat16),
        "m.tiny": torch.zeros(3),
        "m.scalar": torch.tensor(1.0),
        "m.empty": torch.zeros(0, 7),
        "m.buffer": torch.zeros(2000, dtype=torch.int64),
    }


def plan_of(given: dict[str, Any], rank: int = 0, world_size: int = 1, agreed: Agreed | None = None) -> Plan:
    paths: dict[str, marking.Path] = {key: (key,) for key in given}
    return make_plan(
        given, paths, {"m.buffer"}, rank, world_size, agreed or Agreed((16_000,) + (0,) * (world_size - 1))
    )


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_plans_together_hold_everything_once(world_size: int) -> None:
    """Boxes of a tensor have as many elements as it has; what is rank 0's is nobody else's."""
    plans = [plan_of(tensors(), rank, world_size) for rank in range(world_size)]
    for key, tensor in tensors().items():
        items = [item for plan in plans for item in plan.items if item.key == key]
        assert sum(item.bytes for item in items) == tensor.nbytes
        assert {item.shape for item in items} == {tuple(tensor.shape)}
        assert len({item.offsets for item in items}) == len(items)
    assert not [plan for plan in plans[1:] if "m.buffer" in {item.key for item in plan.items}]


def test_places_in_the_arena_do_not_overlap() -> None:
    """Each begins at a multiple of the alignment, after the end of the one before."""
    plan = plan_of(tensors(), 1, 3)
    end = 0
    for item in plan.items:
        assert item.at % ALIGNMENT == 0
        assert item.at >= end
        end = item.at + item.bytes
    assert end <= plan.bytes


def test_a_plan_holds_as_long_as_nothing_changes_its_shape() -> None:
    """Other values of the same shapes fit; another key, order, shape or type does not."""
    plan = plan_of(tensors())
    assert plan.parts_of(tensors()) is not None
    for key, other in (
        ("m.tiny", torch.zeros(4)),
        ("m.tiny", torch.zeros(3, dtype=torch.float64)),
        ("m.new", torch.zeros(3)),
    ):
        assert plan.parts_of({**tensors(), key: other}) is None
    assert plan.parts_of(dict(reversed(tensors().items()))) is None


class Special(torch.Tensor):
    """A subclass may keep its values anywhere."""


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(3, 3).to_sparse(), "sparse"),
        (torch.zeros(3).as_subclass(Special), "Special"),
        (torch.zeros(3, device="meta"), "meta"),
        (torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8), "quantized"),
    ],
    ids=["sparse", "subclass", "meta", "quantized"],
)
def test_kinds_that_no_resume_could_bring_back_are_named(tensor: torch.Tensor, said: str) -> None:
    """Never stored as something that they are not; and ranks can compare them before they find out."""
    assert stock_of({"k": tensor}, set(), 1).tensors.keys() == {"k"}
    assert own_bytes({"k": tensor}, {"k"}, 0, Agreed()) > 0
    with pytest.raises(Unstorable, match=f"k is .*{said}"):
        plan_of({"k": tensor})


def agreed_on(given: list[dict[str, torch.Tensor]]) -> list[Agreed]:
    """Of ranks that give these, each one's."""
    told = [stock_of(one, {"m.buffer"}, len(given)) for one in given]
    return [agree_on(told, [0] * len(given), rank) for rank in range(len(given))]


def test_what_not_all_ranks_have_alike_is_stored_whole_by_one() -> None:
    """Slices need the same tensor everywhere; who stores a whole one gets less of what is shared out."""
    given = {"a": torch.zeros(5000), "b": torch.zeros(3000)}
    agreed = agreed_on([{"a": given["a"]}, given])
    first, second = plan_of({"a": given["a"]}, 0, 2, agreed[0]), plan_of(given, 1, 2, agreed[1])
    assert [(item.key, item.bytes) for item in first.items] == [("a", 16_000)]
    assert [(item.key, item.bytes) for item in second.items] == [("a", 4_000), ("b", 12_000)]


def test_what_all_ranks_have_alike_is_shared_out_whatever_else_one_has() -> None:
    """A small tensor of one rank's own makes no other rank store all of the rest."""
    common = {str(key): torch.zeros(100_000) for key in range(8)}
    given = [{**common, "lazy": torch.zeros(7)} if rank == 1 else common for rank in range(4)]
    agreed = agreed_on(given)
    plans = [plan_of(given[rank], rank, 4, agreed[rank]) for rank in range(4)]
    assert {plan.view for plan in plans} == {"as agreed"}
    for key, tensor in given[1].items():
        stored = sum(item.bytes for plan in plans for item in plan.items if item.key == key)
        assert stored == tensor.nbytes
    assert all(abs(plan.bytes - 800_000) < 8_000 for plan in plans)


def test_ranks_store_alike_whatever_some_of_them_have() -> None:
    """Large tensors of two ranks, of one, and rank 0's own count as what these have to store."""
    common = {f"c{key}": torch.zeros(100_000) for key in range(8)}
    pair = {f"p{key}": torch.zeros(50_000) for key in range(4)}
    given = [common, {**common, **pair}, {**common, **pair, "own": torch.zeros(60_000)}, common]
    given[0] = {**common, "m.buffer": torch.zeros(150_000)}
    told = [stock_of(one, {"m.buffer"}, 4) for one in given]
    plans = [plan_of(given[rank], rank, 4, agree_on(told, [600_000, 0, 0, 0], rank)) for rank in range(4)]
    everything: dict[str, torch.Tensor] = {key: tensor for one in given for key, tensor in one.items()}
    total = sum(tensor.nbytes for tensor in everything.values())
    assert sum(item.bytes for plan in plans for item in plan.items) == total
    assert max(plan.bytes for plan in plans) < 1.02 * total / 4


def test_plans_that_make_a_whole_have_the_same_view() -> None:
    """Alike ranks stay together when all change alike; of unlike ones each must have what it had."""
    given, grown = tensors(), {**tensors(), "m.new": torch.zeros(3)}
    assert plan_of(given, 0, 2).view == plan_of(given, 1, 2).view
    assert plan_of(grown, 0, 2).view == plan_of(grown, 1, 2).view != plan_of(given, 0, 2).view
    first, second = agreed_on([given, grown])
    assert plan_of(given, 0, 2, first).view == plan_of(grown, 1, 2, second).view
    more = {**grown, "m.more": torch.zeros(5)}  # nobody would store it
    assert plan_of(given, 0, 2, first).view != plan_of(more, 1, 2, second).view
    assert plan_of(grown, 0, 2, first).view != plan_of(grown, 1, 2, second).view


def test_a_part_that_nobody_stored_is_named() -> None:
    """With those who have stored the rest."""
    piece = marking.Piece((0,), (2,), "__1_0.distcp", 0, 100)
    part = marking.Written({"m.w": marking.Tensor("float32", (6,), ("m", "w"), (piece,))})
    with pytest.raises(marking.Unlike, match=r"m\.w: 2 of its 6 elements were stored, by rank 1"):
        marking.join([part])


def stored_by(rank: int, *boxes: tuple[int, int]) -> marking.Written:
    """Elements ``begin`` to ``end`` of six."""
    file = f"__{rank}_0.distcp"
    pieces = tuple(marking.Piece((begin,), (end - begin,), file, 0, 100) for begin, end in boxes)
    return marking.Written({"m.w": marking.Tensor("float32", (6,), ("m", "w"), pieces)})


def test_what_several_have_stored_alike_counts_once() -> None:
    """The first one's; a part that is only nearly another's is not that, and fills no gap."""
    halves = [stored_by(rank, (0, 3) if rank % 2 == 0 else (3, 6)) for rank in range(4)]
    pieces = marking.join(halves).tensors["m.w"].pieces
    assert [(piece.offsets, piece.file) for piece in pieces] == [
        ((0,), "__0_0.distcp"),
        ((3,), "__1_0.distcp"),
    ]
    for others in ([stored_by(1, (0, 3))], [stored_by(1, (2, 6))]):
        with pytest.raises(marking.Unlike):
            marking.join([stored_by(0, (0, 3)), *others])
