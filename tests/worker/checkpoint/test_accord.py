"""What ranks conclude from what all of them hold: the same on each, and as much balance as can be had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.accord import Agreed, Look, Mesh, Stock, agree_on, twins_of, unlike


def stock(meshes: dict[Mesh, str] | None = None, /, **elements: int) -> Stock:
    """One-dimensional tensors of so many elements."""
    looks = {key: Look("f", (count,), 4 * count) for key, count in elements.items()}
    return Stock(looks, meshes or {})


def test_alike_ranks_need_no_holders() -> None:
    """Whoever it is asked for."""
    assert agree_on([stock(a=3)] * 3, [7, 0, 0], 1) == Agreed((7, 0, 0))
    assert agree_on([stock(a=3)], [7, 0, 0], 2) == Agreed((7, 0, 0))


@pytest.mark.parametrize(
    ("told", "loads", "holders", "full"),
    [
        ([stock(a=3), stock(a=3, b=2)], [0, 0], {"b": 1}, (0, 8)),
        ([stock(a=3), stock(a=4)], [0, 0], {"a": 0}, (12, 0)),
        ([stock(b=2), stock(b=2), stock()], [10, 0, 0], {"b": 1}, (10, 8, 0)),
        ([stock(b=9, c=9, d=1)] * 2 + [stock()], [0, 0, 0], {"b": 0, "c": 1, "d": 0}, (40, 36, 0)),
        ([stock(b=2), stock(b=5), stock(b=2)], [99, 0, 0], {"b": 2}, (99, 0, 8)),
    ],
    ids=["one has it", "the first one's look", "least to store", "in turn", "none of another look"],
)
def test_who_stores_what_not_all_have(
    told: list[Stock], loads: list[int], holders: dict[str, int], full: tuple[int, ...]
) -> None:
    """Of those that have it as the first has it, the one with least to store; it counts as its load."""
    for rank in range(len(told)):
        assert agree_on(told, loads, rank) == Agreed(full, holders, told[rank])


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6), min_size=1, max_size=5
    )
)
def test_everything_is_stored_once_or_shared_out(ranks: list[dict[str, int]]) -> None:
    """A key that not all have alike has one holder, which has it; all ranks conclude the same."""
    told = [stock(**one) for one in ranks]
    found = [agree_on(told, [0] * len(told), rank) for rank in range(len(told))]
    assert len({(one.loads, repr(one.holders)) for one in found}) == 1
    holders = found[0].holders or {}
    for key in {key for one in ranks for key in one}:
        if key in holders:
            assert key in ranks[holders[key]]
        else:
            assert len({one.get(key) for one in ranks}) == 1


def test_a_change_on_all_ranks_alike_keeps_them_together() -> None:
    """Of unlike ranks, each must have what it had when they agreed."""
    alike = agree_on([stock(a=3)] * 2, [0, 0], 0)
    assert alike.view(stock(a=3, b=1)) == alike.view(stock(b=1, a=3)) != alike.view(stock(a=3))
    told = [stock(a=3), stock(b=3)]
    first, second = (agree_on(told, [0, 0], rank) for rank in (0, 1))
    assert first.view(told[0]) == second.view(told[1])
    assert first.view(told[1]) != second.view(told[1])


def test_meshes_that_hold_the_same_are_twins() -> None:
    """Of the same shape, with all of their ranks of one mind; whatever else a rank has."""
    a, b, c, d = (Mesh((2,), (first, first + 1)) for first in (0, 2, 4, 6))
    across = Mesh((4,), (0, 2, 4, 6))
    told = [stock({mesh: "same"}) for mesh in (a, a, b, b)]
    told += [stock({c: "same"}), stock({c: "other"}), stock({d: "other"}), stock({d: "other"})]
    told[0] = stock({a: "same", across: "same"})
    assert twins_of(told) == {a: (a, b), b: (a, b)}
    square = Mesh((2, 1), (2, 3))
    assert twins_of([stock({a: "same"})] * 2 + [stock({square: "same"})] * 2) == {}


def test_ranks_of_twins_hold_alike() -> None:
    """Their digest does not tell which of the meshes it is."""
    a, b = Mesh((2,), (0, 1)), Mesh((2,), (2, 3))
    assert stock({a: "x"}).digest == stock({b: "x"}).digest != stock({b: "y"}).digest
    told = [stock({mesh: "x"}, w=3) for mesh in (a, a, b, b)]
    assert agree_on(told, [5] * 4, 3) == Agreed((5,) * 4, twins={a: (a, b), b: (a, b)})


def test_who_has_what_is_named() -> None:
    """By key, look and rank; a few of each, and how many more."""
    assert unlike([stock(a=3)] * 3) == ""
    said = unlike([stock(a=3), stock(a=4), stock()])
    assert said == "a is f[3] on rank 0, f[4] on rank 1, nothing on rank 2"
    many = unlike([stock()] * 5 + [stock(**{f"k{key}": 1 for key in range(5)})])
    assert many.startswith("k0 is nothing on rank 0, 1, 2 and 2 more, f[1] on rank 5; k1 is")
    assert many.endswith("; and 2 more")
    meshes = [stock({Mesh((1,), (rank,)): str(rank)}) for rank in (0, 1)]
    assert unlike(meshes) == "they hold other DTensors on parts of the mesh"
