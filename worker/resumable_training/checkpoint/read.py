"""Read a checkpoint once, by all ranks together, and verify it in the same pass.

Every block that somebody needs is read by exactly one rank, compared with the manifest, and kept until all
ranks have found theirs right. Only then are bytes handed on, and written where they belong: a rank holds its
own share of the checkpoint beside its state, and a few pieces in flight. Ranks of one machine take what they
need from each other's memory (``shelf``); others send it (``exchange``). A block that the worker still has in
memory (``memory``) is verified where it lies, and taken from there by all that see the same memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from resumable_training.checkpoint import share, shelf, verify
from resumable_training.checkpoint.blocks import Blocks, in_parallel
from resumable_training.checkpoint.catalog import Catalog, Item
from resumable_training.checkpoint.errors import NotPlain, StorageUnavailable
from resumable_training.checkpoint.exchange import exchange
from resumable_training.checkpoint.heads import NotPlain as NoHead
from resumable_training.checkpoint.heads import parse_head
from resumable_training.checkpoint.landing import WHOLE, Landing, landings
from resumable_training.checkpoint.memory import Memory, NotUsable
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.share import NOBODY, Numbers
from resumable_training.checkpoint.shelf import Address, Neighbours, Shelf, Shelves
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.taking import Taker, tensor_over
from resumable_training.checkpoint.verify import DAMAGED, OK, Verdict


class NotWhole(Exception):
    """What was read is not what was written, or nobody can tell; the same verdict on all ranks."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


Identity = tuple[str, int, int]  # of memory: the machine, and which of its memory files


@dataclass(frozen=True)
class _Wish:
    """What one rank tells the others before reading.

    How much of each block it wants, whether its worker remembers it and where, and where its shelf is.
    """

    parts: bytes
    near: bytes
    memory: dict[str, Identity]  # by file, of what its worker remembers
    address: Address | None


@dataclass
class _Share:
    """What one rank tells the others after reading."""

    verdict: Verdict = field(default_factory=lambda: Verdict(OK))
    begins: dict[int, int] = field(default_factory=dict)  # item -> where its values begin in it, or WHOLE
    problems: dict[int, str] = field(default_factory=dict)  # item -> why it can't be read
    shelved: dict[int, int] = field(default_factory=dict)  # block -> where in this rank's shelf
    in_memory: list[int] = field(default_factory=list)  # blocks that are right where they are remembered
    sees_all: bool = False  # it can open the shelves of all others


Origins = tuple[int, int]  # bytes that one rank took from its worker's memory, and from storage


@dataclass(frozen=True)
class Peek:
    """What one rank has read before the others: the bytes of some items, by number."""

    items: dict[int, bytes] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)  # blocks that it need not read again
    verdict: Verdict = field(default_factory=lambda: Verdict(OK))


class Reader:
    """Reads one checkpoint, once: ``peek`` by rank 0, ``told`` and ``read`` by all ranks."""

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
        self._memory_bytes = self._storage_bytes = 0  # that this rank took from there
        self._store = store
        self._name = name
        self._catalog = catalog
        self._blocks = blocks
        self._ranks = ranks
        self._sizes = np.array([place.length for place in blocks.places], dtype=np.int64)
        self._owners: Numbers = np.full(len(blocks), NOBODY, dtype=np.int64)
        self._staged: dict[int, memoryview] = {}  # this rank's blocks, verified
        self._in_memory: set[int] = set()  # blocks that were verified where this rank, too, can take them
        self._shelves = Shelves()
        self._held = np.zeros(len(blocks), dtype=np.bool_)  # blocks that their owners have staged
        self._begins: dict[int, int] = {}
        self._problems: dict[int, str] = {}
        self._beginning: dict[int, list[int]] = {}  # block -> tensors' pieces that begin in it
        for number, item in enumerate(catalog.items):
            if item.values_bytes:
                block = blocks.numbers(item.file, item.offset, item.offset + 1)[0]
                self._beginning.setdefault(block, []).append(number)

    def peek(self, numbers: Sequence[int]) -> Peek:
        """Items whose values say how to read the rest. This rank keeps their blocks, as those read later."""
        places = self._blocks.places
        wanted = self._blocks_of(numbers)
        self._in_memory.update(block for block in wanted if self._memory.is_right(places[block]))
        far = [block for block in wanted if block not in self._in_memory]
        for block, (data, verdict) in self._fetch(far, _room_of(self._sizes)):
            if verdict.outcome != OK:
                return Peek(verdict=verdict)
            self._staged[block] = data
        items = {number: self._verified_bytes(self._catalog.items[number]) for number in numbers}
        self._in_memory.clear()  # they are read as all others, and perhaps by another rank
        return Peek(items, far)

    def _blocks_of(self, numbers: Iterable[int]) -> list[int]:
        items = [self._catalog.items[number] for number in numbers]
        found = (self._blocks.numbers(item.file, item.offset, item.offset + item.length) for item in items)
        return sorted({block for blocks in found for block in blocks})

    def _verified_bytes(self, item: Item) -> bytes:
        start, stop = item.offset, item.offset + item.length
        return b"".join(
            self._cut(block, start, stop) for block in self._blocks.numbers(item.file, start, stop)
        )

    def told(self, peek: Peek) -> None:
        """What rank 0 has seen. Raises NotWhole when that was not right."""
        verdict = self._agreed(peek.verdict)
        if verdict.outcome != OK:
            raise NotWhole(verdict)
        self._owners[peek.kept] = 0

    def read(
        self,
        prepare: Callable[[], Mapping[str, torch.Tensor | None]],
        finish: Callable[[dict[str, Any]], None],
        *,
        trusted: bool = False,
    ) -> list[Origins]:
        """Fill tensors in place (a sharded one: this rank's part); None stands for a pickled value.

        Nothing is written before all ranks have all that they need, verified; what nobody needs is verified
        too. An error of one rank, also in one of the two calls, is raised on all.

        Args:
            prepare: the tensors.
            finish: gets the values, when this rank has all of its own.
            trusted: pickled values may be objects of any class.

        Returns:
            of every rank, where its bytes came from.

        Raises:
            NotWhole: damaged, or nobody can tell.
            NotPlain: a value can't be read without running what it says.
        """
        try:
            return self._read(prepare, finish, trusted)
        finally:
            self._shelves.close()

    def _read(
        self,
        prepare: Callable[[], Mapping[str, torch.Tensor | None]],
        finish: Callable[[dict[str, Any]], None],
        trusted: bool,
    ) -> list[Origins]:
        values: dict[str, Any] = {}
        wanted: list[Landing] = []

        def wish() -> _Wish:
            values.update(prepare())
            wanted.extend(self._landings(values, trusted))
            near = bytes(self._memory.holds(place) for place in self._blocks.places)
            address = self._shelves.address() if self._ranks.group else None
            return _Wish(self._parts(wanted), near, self._identities(), address)

        wishes = self._ranks.agree(wish)
        self._shelves.meet(self._ranks.rank, [one.address for one in wishes])
        on_one_machine = self._stage(wishes)
        moment("load.verified")
        take = self._hand_on(wanted, on_one_machine)

        def end() -> Origins:
            self._taken(take)
            values.update({one.item.key: one.value for one in wanted if values[one.item.key] is None})
            moment("load.apply")
            finish(values)
            return self._memory_bytes, self._storage_bytes

        return self._ranks.agree(end)

    def _taken(self, take: Callable[[], None]) -> None:
        """Raises StorageUnavailable if memory that it was taken from is no longer what it was: read again."""
        try:
            take()
        except NotUsable as error:
            raise self._gone(error) from error
        if broken := self._memory.broken():  # what was taken may be anything
            raise StorageUnavailable(f"{broken}: its memory was used for something else meanwhile")

    def _gone(self, error: NotUsable) -> StorageUnavailable:
        """Memory that was right is in use for something else: another try finds it so, and reads storage."""
        return StorageUnavailable(f"memory of {self._name}: {error}")

    def _hand_on(self, wanted: Sequence[Landing], on_one_machine: bool) -> Callable[[], None]:
        """Each rank gets what it needs; what is left for it to do alone, and may fail."""
        others = self._shelves.others
        if on_one_machine and others is not None and self._all_as_told:
            return lambda: self._take(wanted, self._settle(wanted), others)
        needs = self._ranks.agree(lambda: self._settle(wanted))
        if on_one_machine and others is not None and self._are_shelved(needs):
            return lambda: self._take(wanted, needs[self._ranks.rank], others)
        return self._deliver(wanted, needs)

    @property
    def _all_as_told(self) -> bool:
        """Every item that begins in a needed block is what the marker says, and lies row by row.

        Then no rank can find that it needs more than it has asked for, or something that can't be read; all
        know this of each other.
        """
        return not self._problems and WHOLE not in self._begins.values()

    def _are_shelved(self, needs: Sequence[share.Numbers]) -> bool:
        """Not so where an item proved to lie otherwise than it should, so that more of it is needed."""
        places = self._shelves.places
        return all(block in places for rows in needs for block, _, _ in rows.tolist())

    def _landings(self, template: Mapping[str, Any], trusted: bool) -> list[Landing]:
        return [
            one
            for key, place in template.items()
            for one in landings(self._catalog, key, place, trusted=trusted)
        ]

    def _identities(self) -> dict[str, Identity]:
        machine = shelf.machine()
        return {file: (machine, *one) for file, one in self._memory.identities().items()} if machine else {}

    # Read and verify --------------------------------------------------------------------------------------

    def _stage(self, wishes: Sequence[_Wish]) -> bool:
        """Read and verify. Whether all ranks can take from each other's shelves."""
        parts, near = self._rows([one.parts for one in wishes]), self._rows([one.near for one in wishes])
        everything = any(place.hash for place in self._blocks.places)  # else nothing can be verified
        owners = share.assign(parts, self._sizes, self._owners, everything=everything, near=near)
        new = np.flatnonzero((owners == self._ranks.rank) & (self._owners == NOBODY)).tolist()
        self._owners = owners
        needed: list[bool] = (parts.max(axis=0) > 0).tolist()
        self._held = np.array(needed, dtype=np.bool_)
        others = np.delete(parts, self._ranks.rank, 0)
        elsewhere: list[bool] = (others.max(axis=0, initial=0) > 0).tolist()
        common = [block for block in new if self._is_common(block, parts, wishes)]
        shares = self._ranks.agree(lambda: self._read_share(new, common, needed, elsewhere))
        verdict = self._agreed(verify.worst(one.verdict for one in shares))
        if verdict.outcome != OK:
            raise NotWhole(verdict)
        for one in shares:
            self._begins.update(one.begins)
            self._problems.update(one.problems)
            self._shelves.places.update(one.shelved)
            self._in_memory.update(block for block in one.in_memory if self._is_mine_too(block, wishes))
        return all(one.sees_all for one in shares)

    def _is_common(self, block: int, parts: share.Parts, wishes: Sequence[_Wish]) -> bool:
        """Whether all that want it have it in the same memory as this rank."""
        file = self._blocks.places[block].file
        mine = wishes[self._ranks.rank].memory.get(file)
        wanting = np.flatnonzero(parts[:, block]).tolist()
        return mine is not None and all(wishes[rank].memory.get(file) == mine for rank in wanting)

    def _is_mine_too(self, block: int, wishes: Sequence[_Wish]) -> bool:
        """Whether this rank has it in the same memory as the one that has verified it."""
        file = self._blocks.places[block].file
        owner, rank = int(self._owners[block]), self._ranks.rank
        return wishes[rank].memory.get(file) == wishes[owner].memory[file]

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

    def _read_share(
        self, new: list[int], common: list[int], needed: Sequence[bool], elsewhere: Sequence[bool]
    ) -> _Share:
        """Read this rank's blocks; stops at the first that is not right.

        ``common``: those that need not be read, if they are right where they are remembered. ``needed``,
        ``elsewhere``: of each block, whether any rank wants it, and whether another one does.
        """
        right = self._right_in_memory(common)
        new = [block for block in new if block not in right]
        shelf = self._shelves.own
        if shelf is not None:
            self._make_room(shelf, new, elsewhere)

        def room(number: int) -> memoryview:
            length = int(self._sizes[number])
            return shelf.view(number, length) if shelf and elsewhere[number] else _room(length)

        for number, (data, verdict) in self._fetch(new, room):
            if verdict.outcome != OK:
                return _Share(verdict)
            if needed[number]:
                self._staged[number] = data
        result = _Share(
            shelved=shelf.places if shelf else {},
            in_memory=sorted(right),
            sees_all=self._shelves.others is not None,
        )
        self._in_memory |= right
        for number in (*self._staged, *result.in_memory):
            for item in self._beginning.get(number, ()) if needed[number] else ():
                self._look_into(item, result)
        return result

    def _right_in_memory(self, common: Sequence[int]) -> set[int]:
        def look(block: int) -> bool:
            return self._memory.is_right(self._blocks.places[block])

        found = {block for block, is_right in in_parallel(look, common, self._name) if is_right}
        self._memory_bytes += int(self._sizes[sorted(found)].sum())
        return found

    def _fetch(
        self, numbers: Sequence[int], room: Callable[[int], memoryview]
    ) -> Iterator[tuple[int, tuple[memoryview, Verdict]]]:
        """Blocks, each in the room for it, as they come; and whether they are right."""

        def read(number: int) -> tuple[memoryview, Verdict, bool]:
            place, where = self._blocks.places[number], room(number)
            if self._memory.fill(place, where):
                return where, Verdict(OK), True
            return where, verify.read_block_into(self._store, self._name, place, where), False

        for number, (data, verdict, remembered) in in_parallel(
            read, numbers, f"{self._store.location}/{self._name}"
        ):
            if remembered:
                self._memory_bytes += len(data)
            elif verdict.outcome == OK:
                self._storage_bytes += len(data)
            yield number, (data, verdict)

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
        if all(number in self._staged or number in self._in_memory for number in numbers):
            return b"".join(self._cut(number, start, stop) for number in numbers)
        data = self._store.read(f"{self._name}/{item.file}", start, stop - start)
        if len(data) != stop - start:
            raise StorageUnavailable(f"{item.file}: {len(data)} bytes came from {start} on")
        return data

    def _cut(self, number: int, start: int, stop: int) -> bytes | memoryview:
        """What a verified block has of these bytes of its file."""
        place = self._blocks.places[number]
        if number in self._staged:
            return self._staged[number][max(0, start - place.at) : stop - place.at]
        low, high = max(start, place.at), min(stop, place.at + place.length)
        try:
            return b"".join(part for _, part in self._memory.parts(place.file, low, high))
        except NotUsable as error:
            raise self._gone(error) from error

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

    def _deliver(self, wanted: Sequence[Landing], needs: Sequence[share.Numbers]) -> Callable[[], None]:
        """Through the process group; what is left is to look whether all could be written."""
        plan = share.transfers(self._owners, needs)
        taker = Taker(self._blocks.places, self._by_block(wanted))
        to_give = Counter(one.block for one in plan if one.owner == self._ranks.rank)

        def done(block: int) -> None:
            to_give[block] -= 1
            if not to_give[block]:
                self._staged.pop(block, None)

        self._take_from_memory(taker)
        for block in sorted(self._staged):
            taker.take(block, 0, self._tensor(block))
            if not to_give[block]:
                del self._staged[block]
        exchange(plan, self._ranks, self._tensor, taker.take, done)
        return taker.check

    def _take(self, wanted: Sequence[Landing], needs: share.Numbers, others: Neighbours) -> None:
        """Each rank for itself, from its own shelf and from the others'."""
        taker = Taker(self._blocks.places, self._by_block(wanted))
        self._take_from_memory(taker)
        for block in sorted(self._staged):
            taker.take(block, 0, self._tensor(block))
            del self._staged[block]
        for block, start, stop in needs.tolist():
            at = self._shelves.places[block] + start
            taker.take(block, start, tensor_over(others.view(int(self._owners[block]), at, stop - start)))
        taker.check()

    def _take_from_memory(self, taker: Taker) -> None:
        """What was verified where it lies."""
        for block in sorted(self._in_memory):
            taker.take_parts(block, self._memory)

    def _by_block(self, wanted: Iterable[Landing]) -> dict[int, list[Landing]]:
        by_block: dict[int, list[Landing]] = {}
        for one in wanted:
            for number in self._blocks.numbers(one.item.file, one.start, one.stop):
                by_block.setdefault(number, []).append(one)
        return by_block

    def _needs(self, by_block: Mapping[int, list[Landing]]) -> Iterable[tuple[int, int, int]]:
        """What this rank needs of blocks that others have: (block, first byte in it, last byte + 1)."""
        for number, here in by_block.items():
            if self._owners[number] == self._ranks.rank or number in self._in_memory:
                continue
            place = self._blocks.places[number]
            start = min(max(one.start - place.at, 0) for one in here)
            stop = max(min(one.stop - place.at, place.length) for one in here)
            yield number, start, stop

    def _tensor(self, block: int) -> torch.Tensor:
        """Of a block that this rank has verified."""
        place = self._blocks.places[block]
        return tensor_over(memoryview(self._cut(block, place.at, place.at + place.length)))


def _room(length: int) -> memoryview:
    """Memory for a block. NumPy asks for large pages: to touch small ones first costs more than to read."""
    return np.empty(length, dtype=np.uint8).data


def _room_of(sizes: Numbers) -> Callable[[int], memoryview]:
    return lambda block: _room(int(sizes[block]))
