"""Read a checkpoint once, by all ranks together, and verify it in the same pass.

Every block that somebody needs is read by exactly one rank, compared with the manifest, and kept until all
ranks have found theirs right. Only then are bytes handed on, and written where they belong: a rank holds its
own share of the checkpoint beside its state, and a few pieces in flight. Ranks of one machine take what they
need from each other's memory (``shelf``); others send it (``exchange``).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from resumable_training.checkpoint import share, verify
from resumable_training.checkpoint.blocks import Blocks, Place, in_parallel
from resumable_training.checkpoint.catalog import Catalog, Item
from resumable_training.checkpoint.errors import NotPlain, StorageUnavailable
from resumable_training.checkpoint.exchange import exchange
from resumable_training.checkpoint.heads import NotPlain as NoHead
from resumable_training.checkpoint.heads import parse_head
from resumable_training.checkpoint.landing import WHOLE, Landing, landings
from resumable_training.checkpoint.memory import Memory
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.share import NOBODY, Numbers
from resumable_training.checkpoint.shelf import Address, Neighbours, Shelf, Shelves
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import DAMAGED, OK, Verdict


class NotWhole(Exception):
    """What was read is not what was written, or nobody can tell; the same verdict on all ranks."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


@dataclass(frozen=True)
class _Wish:
    """What one rank tells the others before reading.

    How much of each block it wants, whether its worker remembers it, and where its shelf is.
    """

    parts: bytes
    near: bytes
    address: Address | None


@dataclass
class _Share:
    """What one rank tells the others after reading."""

    verdict: Verdict = field(default_factory=lambda: Verdict(OK))
    begins: dict[int, int] = field(default_factory=dict)  # item -> where its values begin in it, or WHOLE
    problems: dict[int, str] = field(default_factory=dict)  # item -> why it can't be read
    shelved: dict[int, int] = field(default_factory=dict)  # block -> where in this rank's shelf
    sees_all: bool = False  # it can open the shelves of all others


class Reader:
    """Reads from one checkpoint. All ranks call each method, with templates of their own."""

    def __init__(
        self,
        store: Store,
        name: str,
        catalog: Catalog,
        blocks: Blocks,
        ranks: Ranks,
        memory: Memory | None = None,
    ) -> None:
        """``memory``: what this rank's worker still has of the checkpoint; storage has the rest."""
        self._memory = memory or Memory()
        self.memory_bytes = self.storage_bytes = 0  # that this rank took from there
        self._store = store
        self._name = name
        self._catalog = catalog
        self._blocks = blocks
        self._ranks = ranks
        self._sizes = np.array([place.length for place in blocks.places], dtype=np.int64)
        self._owners: Numbers = np.full(len(blocks), NOBODY, dtype=np.int64)
        self._staged: dict[int, memoryview] = {}  # this rank's blocks, verified
        self._shelves = Shelves()
        self._held = np.zeros(len(blocks), dtype=np.bool_)  # blocks that their owners have staged
        self._begins: dict[int, int] = {}
        self._problems: dict[int, str] = {}
        self._beginning: dict[int, list[int]] = {}  # block -> tensors' pieces that begin in it
        for number, item in enumerate(catalog.items):
            if item.values_bytes:
                block = blocks.numbers(item.file, item.offset, item.offset + 1)[0]
                self._beginning.setdefault(block, []).append(number)

    def read(
        self, template: Mapping[str, torch.Tensor | None], *, last: bool = False, trusted: bool = False
    ) -> dict[str, Any]:
        """Fill tensors in place (a sharded one: this rank's part); None stands for a pickled value.

        Nothing is written before all ranks have all that they need, verified. ``last``: nothing is read
        afterwards, so what nobody needed is verified too, and nothing is kept. ``trusted``: pickled values
        may be objects of any class.

        Raises:
            NotWhole: damaged, or nobody can tell.
            NotPlain: a value can't be read without running what it says.
        """
        try:
            wanted = self._read(template, trusted, last)
        except BaseException:
            self._shelves.close()
            raise
        if last:
            self._shelves.close()
        values: dict[str, Any] = dict(template)
        values.update({one.item.key: one.value for one in wanted if template[one.item.key] is None})
        return values

    def _read(self, template: Mapping[str, torch.Tensor | None], trusted: bool, last: bool) -> list[Landing]:
        wanted: list[Landing] = []

        def wish() -> _Wish:
            wanted.extend(self._landings(template, trusted))
            near = bytes(self._memory.holds(place) for place in self._blocks.places)
            return _Wish(self._parts(wanted), near, self._shelves.address() if self._ranks.group else None)

        wishes = self._ranks.agree(wish)
        self._shelves.meet(self._ranks.rank, [one.address for one in wishes])
        on_one_machine = self._stage(wishes, everything=last)
        moment("load.verified")
        needs = self._ranks.agree(lambda: self._settle(wanted))
        at_hand = on_one_machine and self._are_shelved(needs)
        if at_hand and self._shelves.others is not None:
            self._take(wanted, needs[self._ranks.rank], self._shelves.others, keep=not last)
        else:
            self._deliver(wanted, needs, keep=not last)
        return wanted

    def _are_shelved(self, needs: Sequence[share.Numbers]) -> bool:
        """Not so where an item proved to lie otherwise than it should, so that more of it is needed."""
        places = self._shelves.places
        return all(block in places for rows in needs for block, _, _ in rows.tolist())

    def _landings(self, template: Mapping[str, torch.Tensor | None], trusted: bool) -> list[Landing]:
        return [
            one
            for key, place in template.items()
            for one in landings(self._catalog, key, place, trusted=trusted)
        ]

    # Read and verify --------------------------------------------------------------------------------------

    def _stage(self, wishes: Sequence[_Wish], *, everything: bool) -> bool:
        """Read and verify. Whether all ranks can take from each other's shelves."""
        parts, near = self._rows([one.parts for one in wishes]), self._rows([one.near for one in wishes])
        vouched = any(place.hash for place in self._blocks.places)
        everything = everything and vouched
        owners = share.assign(parts, self._sizes, self._owners, everything=everything, near=near)
        new = np.flatnonzero((owners == self._ranks.rank) & (self._owners == NOBODY)).tolist()
        self._owners = owners
        needed: list[bool] = (parts.max(axis=0) > 0).tolist()
        self._held |= np.array(needed, dtype=np.bool_)
        others = np.delete(parts, self._ranks.rank, 0)
        elsewhere: list[bool] = (others.max(axis=0, initial=0) > 0).tolist()
        shares = self._ranks.agree(lambda: self._read_share(new, needed, elsewhere))
        verdict = self._agreed(verify.worst(one.verdict for one in shares))
        if verdict.outcome != OK:
            raise NotWhole(verdict)
        for one in shares:
            self._begins.update(one.begins)
            self._problems.update(one.problems)
            self._shelves.places.update(one.shelved)
        return all(one.sees_all for one in shares)

    def _rows(self, rows: Sequence[bytes]) -> share.Parts:
        """Ranks x blocks, as ``share.assign`` takes it."""
        table = np.array([np.frombuffer(row, np.uint8) for row in rows], dtype=np.uint8)
        return table.reshape(len(rows), len(self._blocks))

    def _parts(self, wanted: Iterable[Landing]) -> bytes:
        """How much of each block this rank wants."""
        mine = np.zeros(len(self._blocks))
        for one in wanted:
            start, stop = one.rough
            for number in self._blocks.numbers(one.item.file, start, stop):
                place = self._blocks.places[number]
                mine[number] += min(stop, place.at + place.length) - max(start, place.at)
        shares = np.minimum(mine / np.maximum(self._sizes, 1), 1)
        parts: share.Parts = np.ceil(share.ALL * shares).astype(np.uint8)
        return parts.tobytes()

    def _read_share(self, new: list[int], needed: Sequence[bool], elsewhere: Sequence[bool]) -> _Share:
        """Read this rank's blocks; stops at the first that is not right.

        ``needed``, ``elsewhere``: of each block, whether any rank wants it, and whether another one does.
        """
        shelf = self._shelves.own
        if shelf is not None:
            self._make_room(shelf, new, elsewhere)

        def read(number: int) -> tuple[memoryview, Verdict | None]:
            place = self._blocks.places[number]
            shared = shelf is not None and elsewhere[number]
            where = shelf.view(number, place.length) if shelf and shared else _room(place.length)
            if self._memory.holds(place) and self._memory.fill(place, where):
                return where, None
            return where, verify.read_block_into(self._store, self._name, place, where)

        for number, (data, verdict) in in_parallel(read, new, f"{self._store.location}/{self._name}"):
            if verdict is None:
                self.memory_bytes += len(data)
            elif verdict.outcome != OK:
                return _Share(verdict)
            else:
                self.storage_bytes += len(data)
            if needed[number]:
                self._staged[number] = data
        result = _Share(shelved=shelf.places if shelf else {}, sees_all=self._shelves.others is not None)
        for number in new:
            for item in self._beginning.get(number, ()) if needed[number] else ():
                self._look_into(item, result)
        return result

    def _make_room(self, shelf: Shelf, new: list[int], elsewhere: Sequence[bool]) -> None:
        """For what others want, too; what only this rank has wanted so far comes on the shelf with it."""
        late = [number for number in self._staged if elsewhere[number] and number not in shelf.places]
        wanted = [*late, *(number for number in new if elsewhere[number])]
        shelf.make_room({number: int(self._sizes[number]) for number in wanted})
        for number in late:
            place = shelf.view(number, int(self._sizes[number]))
            place[:] = self._staged[number]
            self._staged[number] = place

    def _look_into(self, number: int, result: _Share) -> None:
        item = self._catalog.items[number]
        try:
            head = parse_head(self._begin_of(item))
            head.require_room(item.length)
        except NoHead as error:
            result.problems[number] = str(error)
            return
        assert item.box is not None
        if (head.shape, head.dtype) != (item.box.sizes, item.dtype):
            told = f"{item.dtype} {list(item.box.sizes)}"
            result.problems[number] = f"the marker says {told}, the item {head.dtype} {list(head.shape)}"
        else:
            result.begins[number] = head.at if head.in_rows else WHOLE

    def _begin_of(self, item: Item) -> bytes:
        """The bytes before an item's values, and as many behind; they may reach into another's block."""
        start, stop = item.offset, item.offset + item.around_bytes
        numbers = self._blocks.numbers(item.file, start, stop)
        if all(number in self._staged for number in numbers):
            return b"".join(self._cut(number, start, stop) for number in numbers)
        data = self._store.read(f"{self._name}/{item.file}", start, stop - start)
        if len(data) != stop - start:
            raise StorageUnavailable(f"{item.file}: {len(data)} bytes came from {start} on")
        return data

    def _cut(self, number: int, start: int, stop: int) -> memoryview:
        at = self._blocks.places[number].at
        return self._staged[number][max(0, start - at) : stop - at]

    def _agreed(self, verdict: Verdict) -> Verdict:
        """A mismatch is proof only if every rank reads it: one bad machine must not orphan a checkpoint."""
        if verdict.block is None:
            return verdict
        place = next(place for place in self._blocks.places if (place.file, place.at) == verdict.block)
        again = self._ranks.agree(lambda: verify.read_block(self._store, self._name, place)[1])
        if any(one.outcome != DAMAGED for one in again):
            return verify.cannot_tell(f"two reads of it differ: {verdict.reason}")
        return verdict

    # Hand on and write -----------------------------------------------------------------------------------

    def _settle(self, wanted: Sequence[Landing]) -> share.Numbers:
        """Say of each landing where its bytes begin; what this rank needs of others, for ``share``."""
        problems = []
        for one in wanted:
            if one.number in self._problems:
                problems.append(f"{one.item.describe()}: {self._problems[one.number]}")
            elif one.number in self._begins:
                one.settle(self._begins[one.number])
                numbers = self._blocks.numbers(one.item.file, one.start, one.stop)
                if not self._held[numbers.start : numbers.stop].all():
                    problems.append(
                        f"{one.item.describe()}: its values do not lie row by row, and no rank needs"
                        " all of it"
                    )
        if problems:
            raise NotPlain(f"not stored as ordinary tensors: {'; '.join(problems)}")
        return share.rows([*self._needs(self._by_block(wanted))])

    def _deliver(self, wanted: Sequence[Landing], needs: Sequence[share.Numbers], *, keep: bool) -> None:
        """Through the process group."""
        by_block = self._by_block(wanted)
        plan = share.transfers(self._owners, needs)
        taker = _Taker(self._blocks.places, by_block)
        to_give = Counter(one.block for one in plan if one.owner == self._ranks.rank)

        def done(block: int) -> None:
            to_give[block] -= 1
            if not keep and not to_give[block]:
                self._staged.pop(block, None)

        for block in sorted(self._staged):
            taker.take(block, 0, self._tensor(block))
            if not keep and not to_give[block]:
                del self._staged[block]
        exchange(plan, self._ranks, self._tensor, taker.take, done)
        self._ranks.together(taker.check)

    def _take(
        self, wanted: Sequence[Landing], needs: share.Numbers, others: Neighbours, *, keep: bool
    ) -> None:
        """Each rank for itself, from its own shelf and from the others'."""
        taker = _Taker(self._blocks.places, self._by_block(wanted))
        for block in sorted(self._staged):
            taker.take(block, 0, self._tensor(block))
            if not keep:
                del self._staged[block]
        for block, start, stop in needs.tolist():
            at = self._shelves.places[block] + start
            taker.take(block, start, _tensor(others.view(int(self._owners[block]), at, stop - start)))
        self._ranks.together(taker.check)

    def _by_block(self, wanted: Iterable[Landing]) -> dict[int, list[Landing]]:
        by_block: dict[int, list[Landing]] = {}
        for one in wanted:
            for number in self._blocks.numbers(one.item.file, one.start, one.stop):
                by_block.setdefault(number, []).append(one)
        return by_block

    def _needs(self, by_block: Mapping[int, list[Landing]]) -> Iterable[tuple[int, int, int]]:
        """What this rank needs of blocks that others have: (block, first byte in it, last byte + 1)."""
        for number, here in by_block.items():
            if self._owners[number] == self._ranks.rank:
                continue
            place = self._blocks.places[number]
            start = min(max(one.start - place.at, 0) for one in here)
            stop = max(min(one.stop - place.at, place.length) for one in here)
            yield number, start, stop

    def _tensor(self, block: int) -> torch.Tensor:
        return _tensor(self._staged[block])


def _room(length: int) -> memoryview:
    """Memory for a block. NumPy asks for large pages: to touch small ones first costs more than to read."""
    return np.empty(length, dtype=np.uint8).data


def _tensor(data: memoryview) -> torch.Tensor:
    """Only to be read from."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)


class _Taker:
    """Writes what comes; its error waits until the exchange is over, as others wait for this rank in it."""

    def __init__(self, places: Sequence[Place], by_block: Mapping[int, list[Landing]]) -> None:
        self._places = places
        self._by_block = by_block
        self._error: Exception | None = None

    def take(self, block: int, start: int, data: torch.Tensor) -> None:
        at = self._places[block].at + start
        try:
            for one in self._by_block.get(block, ()) if self._error is None else ():
                one.put(at, data)
        except Exception as error:  # noqa: BLE001  raised in ``check``, on all ranks
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error
