"""Who reads which block, and who gets what: complete, fair, and the same for all."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.share import ALL, NOBODY, Transfer, assign, rows, transfers


def nobody(blocks: int) -> Any:
    return np.full(blocks, NOBODY, dtype=np.int64)


def test_replicated_blocks_are_read_in_long_runs() -> None:
    """What everybody wants is cut into one stretch for each rank."""
    wanted = np.full((4, 12), ALL, dtype=np.uint8)
    sizes = np.full(12, 8, dtype=np.int64)
    assert (
        assign(wanted, sizes, nobody(12), everything=False).tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    )


def test_sharded_blocks_are_read_where_they_go() -> None:
    """Who wants most of a block reads it, though others want a little; nobody's blocks only on demand."""
    wanted = np.array([[ALL, 200, 0, 0], [0, 55, ALL, 0]], dtype=np.uint8)
    sizes = np.full(4, 8, dtype=np.int64)
    assert assign(wanted, sizes, nobody(4), everything=False).tolist() == [0, 0, 1, NOBODY]
    assert assign(wanted, sizes, nobody(4), everything=True)[3] != NOBODY


@given(
    wanted=st.integers(1, 5).flatmap(
        lambda ranks: st.lists(
            st.lists(st.sampled_from([0, 1, 100, ALL]), min_size=ranks, max_size=ranks), max_size=30
        )
    ),
    everything=st.booleans(),
)
def test_each_block_has_one_reader_and_keeps_it(wanted: list[list[int]], everything: bool) -> None:
    """A wanted block is read by one that wants it; a second round changes no reader."""
    if not wanted:
        return
    table = np.array(wanted, dtype=np.uint8).T
    sizes = np.arange(1, len(wanted) + 1, dtype=np.int64)
    owners = assign(table, sizes, nobody(len(wanted)), everything=everything)
    for block, who in enumerate(wanted):
        if any(who):
            assert 2 * who[owners[block]] >= max(who)
        else:
            assert (owners[block] == NOBODY) != everything
    again = assign(np.full_like(table, ALL), sizes, owners, everything=True)
    assert all(a == b for a, b in zip(again, owners, strict=True) if b != NOBODY)


@given(st.integers(1, 8), st.lists(st.integers(1, 8), min_size=8, max_size=60))
def test_shares_of_what_all_want_are_alike(ranks: int, sizes: list[int]) -> None:
    """No rank has more than its fair part and one block."""
    table = np.full((ranks, len(sizes)), ALL, dtype=np.uint8)
    owners = assign(table, np.array(sizes, dtype=np.int64), nobody(len(sizes)), everything=False)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == r) for r in range(ranks)]
    assert max(loads) <= sum(sizes) / ranks + max(sizes)


def test_what_all_others_need_is_broadcast() -> None:
    """One transfer for all, of the hull of what they need; else one for each; one's own is left out."""
    owners = np.array([0, 1, 1], dtype=np.int64)
    needs = [rows([(1, 0, 4)]), rows([(0, 2, 6), (1, 0, 9)]), rows([(0, 5, 9), (2, 1, 3), (2, 3, 4)])]
    assert transfers(owners, needs) == [
        Transfer(0, 0, 2, 9, None),
        Transfer(1, 1, 0, 4, 0),
        Transfer(2, 1, 1, 4, 2),
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_owners_take_turns(ranks: int) -> None:
    """No machine sends all of its blocks in a row."""
    owners = np.repeat(np.arange(ranks), 3)
    needs = [rows([(block, 0, 1) for block in range(len(owners))])] * ranks
    assert [one.owner for one in transfers(owners, needs)] == [*range(ranks)] * 3


def test_what_is_remembered_is_read_where_it_is() -> None:
    """By one that wants much of it if there is one; else by any, who hands it on. The rest as without."""
    wanted = np.array([[ALL, ALL, ALL, 0, ALL], [ALL, ALL, 0, 0, ALL]], dtype=np.uint8)
    near = np.array([[0, 1, 0, 0, 1], [1, 0, 1, 1, 1]], dtype=np.uint8)
    sizes = np.full(5, 8, dtype=np.int64)
    found = assign(wanted, sizes, nobody(5), everything=True, near=near).tolist()
    assert found[:4] == [1, 0, 1, 1]
    assert found[4] in (0, 1)
    nowhere = np.zeros_like(near)
    assert (
        assign(wanted, sizes, nobody(5), everything=True, near=nowhere).tolist()
        == assign(wanted, sizes, nobody(5), everything=True).tolist()
    )
