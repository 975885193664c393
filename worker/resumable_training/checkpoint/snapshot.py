"""Takes the state of one rank into its arena: the only part of an asynchronous save that the loop waits for.

The first time, and whenever something has another shape than before, the state dict is built and planned.
All other times it is a look at each value's place and one copy of this rank's own bytes. Small values, whose
size may change (texts, generators, hyper-parameters), follow behind the tensors. A copy that is still wanted
while the next one is made stays where it is: then there are two arenas, if there is memory for both.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from resumable_training.checkpoint import accord, replicas
from resumable_training.checkpoint import plan as planning
from resumable_training.checkpoint.accord import Agreed
from resumable_training.checkpoint.arena import (
    Arena,
    NoArena,
    check_room,
    fits,
    free_bytes,
    give_back,
    given_arena,
)
from resumable_training.checkpoint.cargo import Small
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.live import Finder, Kept, Moved, picker
from resumable_training.checkpoint.marking import Path
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.plain import require_tensor
from resumable_training.checkpoint.plan import Copy, Plan
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.shelf import machine
from resumable_training.checkpoint.state import (
    Content,
    TrainingState,
    given_by_rank_0,
    own_entries,
    tracked_entries,
)

_LEAST_SMALL_BYTES = 1 << 20
_IS_CUDA = attrgetter("is_cuda")


@dataclass(frozen=True)
class Values:
    """Everything that one rank gives. ``rank_0_keys``: tensors that no other rank gives."""

    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]  # no tensors: these are pickled, as DCP does
    texts: dict[str, bytes]
    paths: dict[str, Path]
    rank_0_keys: set[str] = field(default_factory=set)


class Built:
    """``Values`` as last built, without the values: those may have been replaced, and must not be held."""

    def __init__(self, values: Values, finder: Finder) -> None:
        at = {key: number for number, key in enumerate(finder.keys)}
        self.tensors = [key for key in values.tensors if key in at]
        self.plain = list(values.plain)
        self.paths, self.rank_0_keys = values.paths, values.rank_0_keys
        self.finder = finder
        self._tensors = picker([at[key] for key in self.tensors])
        self._plain = picker([at[key] for key in self.plain])

    def again(self, state: TrainingState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The live tensors and the plain values. Raises Moved."""
        found = self.finder.find(state)
        tensors, plain = self._tensors(found), self._plain(found)
        if any(isinstance(value, torch.Tensor) for value in plain):
            raise Moved("a value is a tensor now")
        return dict(zip(self.tensors, tensors, strict=True)), dict(zip(self.plain, plain, strict=True))


def collect(content: Content, rank: int) -> tuple[Values, Finder | None, str]:
    """Build the state dict; and how to find its values again, or the key of one that is kept nowhere.

    Raises:
        NotPlain: a value that could only be saved with pickle.
    """
    flat, found = flatten_state_dict(tracked_entries(content.state, rank))
    paths: dict[str, Path] = dict(found)
    texts, more = own_entries(content.state, shared=content.shared, per_rank=content.per_rank, rank=rank)
    tensors = {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}
    plain = {key: value for key, value in flat.items() if key not in tensors}
    own = given_by_rank_0(content.state, paths) | set(more)
    try:
        finder, lost = Finder(content.state, flat, paths), ""
    except Moved as error:
        finder, lost = None, str(error)
    paths |= {key: (key,) for key in (*texts, *more)}
    return Values({**tensors, **more}, plain, texts, paths, own), finder, lost


@dataclass
class _Place:
    """An arena, and where in it the parts go that are copied: whole ones, then those that are cut."""

    arena: Arena
    targets: list[torch.Tensor] = field(default_factory=list)


class Snapshot:
    """One rank's arenas and what lies in them. ``agree`` comes first, on all ranks.

    ``number``: of the arena that the newest copy is in.
    """

    def __init__(self, ranks: Ranks, keeper: RankLink) -> None:
        """``keeper``: has the arenas of the attempt before, which are used again or make room."""
        self._ranks = ranks
        self._keeper = keeper
        self._given: int | None = None  # descriptor of one of them
        self._agreed = Agreed()
        self._built: Built | None = None
        self._kept = Kept(_pickled)
        self._places: list[_Place | None] = [None, None]
        self._may_have_two = False  # arenas: all ranks of this machine may, or none
        self._whole, self._cut = picker([]), list[Copy]()
        self._done: list[Any] = []  # events of GPUs that still copy
        self.plan: Plan | None = None
        self.number = 0
        self.unlike = ""  # what not all ranks had alike when they agreed
        self.apart = ""  # what ranks had other values of then, though it was alike
        self.made_anew = ""  # a tensor that a state_dict() makes each time, if any

    @property
    def arena(self) -> Arena | None:
        """The one that the newest copy is in."""
        place = self._places[self.number]
        return place.arena if place is not None else None

    @property
    def arenas(self) -> dict[int, Arena]:
        """By number."""
        return {number: place.arena for number, place in enumerate(self._places) if place is not None}

    def agree(self, content: Content) -> str:
        """Build the state on all ranks together and tell each other what it is. Why it can't be done, or "".

        What lies in arenas is no copy any more: it was planned otherwise.

        Raises:
            CheckpointError: on all ranks, as ``collect``.
        """
        self._void()
        values = self._ranks.together(lambda: self._build(content))
        self._agreed, self.unlike = self._compare(values)
        self.apart = self._compare_values(values, self._agreed)
        self._agreed = replace(self._agreed, apart=bool(self.apart))
        # One after another on all ranks: room is looked for before any of a machine's ranks takes its part.
        for act in (
            lambda: self._make_plan(values),
            self._take_or_free,
            self._check_room,
            lambda: self._lay_out(values),
        ):
            why = next((why for why in self._ranks.gather(self._why_not(act)) if why), "")
            if why:
                self.drop()
                return why
        self._may_have_two = self._is_room_beside()
        return ""

    def _compare(self, values: Values) -> tuple[Agreed, str]:
        """What follows from what all ranks hold, and what they do not hold alike."""
        ranks = self._ranks
        mine = planning.stock_of(values.tensors, values.rank_0_keys, ranks.world_size)
        told = ranks.gather((mine.digest, self._own_bytes(values, Agreed())))
        loads = [own for _, own in told]
        alike = all(digest == mine.digest for digest, _ in told)
        if alike and not mine.meshes:
            return accord.agree_on([mine], loads, ranks.rank), ""
        stocks = ranks.gather(mine._replace(tensors={}) if alike else mine)
        twins = accord.twins_of(stocks)
        loads = ranks.gather(self._own_bytes(values, Agreed(twins=twins)))
        return accord.agree_on(stocks, loads, ranks.rank), accord.unlike(stocks)

    def _compare_values(self, values: Values, agreed: Agreed) -> str:
        """What ranks hold other values of, among all that each would store a slice of; "": nothing."""
        ranks = self._ranks
        found: list[replicas.Digests] = []

        def look() -> dict[str, str]:
            found.append(replicas.digests(values.tensors, values.rank_0_keys, ranks.world_size, agreed))
            return replicas.short(found[0])

        if not replicas.apart(ranks.agree(look)):
            return ""
        first = ranks.first(lambda: found[0])
        return replicas.said_of(ranks.gather(replicas.other_than(first, found[0])))

    def _own_bytes(self, values: Values, agreed: Agreed) -> int:
        return planning.own_bytes(values.tensors, values.rank_0_keys, self._ranks.rank, agreed)

    def _why_not(self, act: Callable[[], object]) -> str:
        try:
            act()
        except (planning.Unsupported, OSError) as error:
            return f"rank {self._ranks.rank}: {error}"
        return ""

    def _take_or_free(self) -> None:
        """What this worker's arenas hold was loaded, on all ranks, or was not wanted: nobody reads it now."""
        assert self.plan is not None
        if self.arena is None:
            self._given = self._keeper.take(self.plan.bytes + _LEAST_SMALL_BYTES)

    def _more_bytes(self) -> int:
        """That this rank will take beside what it has."""
        assert self.plan is not None
        has = self.arena.bytes if self.arena is not None else 0
        return 0 if self._given is not None else max(0, self.plan.bytes + _LEAST_SMALL_BYTES - has)

    def _check_room(self) -> None:
        """For what all ranks of this machine are about to take; they tell each other."""
        told = self._ranks.gather((machine(), self._more_bytes()))
        here, mine = told[self._ranks.rank]
        wanted = [more for where, more in told if where == here and more]
        if mine:
            check_room(sum(wanted), len(wanted))

    def _is_room_beside(self) -> bool:
        """For another arena of each of this machine's ranks. They have their first ones, and judge alike."""
        arena = self.arena
        assert arena is not None
        told = self._ranks.gather((machine(), arena.bytes, free_bytes()))
        here = [(size, room) for where, size, room in told if where == told[self._ranks.rank][0]]
        rooms = [room for _, room in here if room is not None]
        return fits(sum(size for size, _ in here), min(rooms, default=None))

    def drop(self) -> None:
        """Give all memory back: nothing is copied any more."""
        for number in self.arenas:
            self._free(number)
        if self._given is not None:
            give_back(self._given)
            self._given = None

    def _free(self, number: int) -> None:
        place, self._places[number] = self._places[number], None
        if place is not None:
            self.await_copied()  # GPUs write where it lies
            place.targets.clear()
            place.arena.free()

    def _void(self) -> None:
        """Nothing that lies here was planned as what comes now; for that one arena is enough at first."""
        self._free(1 - self.number)
        if self.arena is not None:
            self.arena.break_seal()

    def take(self, content: Content, keep: int | None = None) -> tuple[list[Small], bool]:
        """Copy everything. The small values, and whether plan or arena are new.

        Args:
            keep: number of the arena whose content is to stay until this copy is whole. It goes all the same
                where there is no room for two, or where all is planned anew.

        Raises:
            NotPlain: as ``collect``.
            Unsupported, Unstorable, NoArena: the state has changed to what can't be taken like this.
        """
        moment("save.copy")
        found = self._find(content)
        values = found or self._build(content)
        before = self.plan, self.arenas
        parts = self.plan.parts_of(values.tensors) if self.plan is not None else None
        if parts is not None and keep is not None:
            self._turn_from(keep)
        if parts is None or self.arena is None:
            values = self._build(content) if found else values  # places may hold things of another kind now
            self._void()
            parts = self._make_plan(values)
            self._lay_out(values)
        blobs = self._blobs(values)
        small_bytes = self._small_bytes(values, blobs)
        plan, place = self._laid_out()
        if plan.bytes + small_bytes > place.arena.bytes:
            self._make_arena(small_bytes)
        self._copy(parts)
        smalls = self._put_smalls(values, blobs)
        moment("save.copied")
        return smalls, self.plan is not before[0] or self.arenas != before[1]

    def _turn_from(self, keep: int) -> None:
        """To the other arena, which is made if there is room for it on this machine, for all of its ranks."""
        kept = self._places[keep]
        if kept is not None and self._places[1 - keep] is None and self._may_have_two:
            try:
                self._places[1 - keep] = place = _Place(Arena(kept.arena.bytes))
                place.targets = self._targets_in(place.arena)
            except NoArena:
                self._may_have_two = False  # until ranks agree again
        self.number = 1 - keep if self._places[1 - keep] is not None else keep

    def copied(self) -> bool:
        """Whether the arena holds everything by now; GPUs copy while the loop goes on."""
        self._done = [event for event in self._done if not event.query()]
        return not self._done

    def await_copied(self) -> None:
        for event in self._done:
            event.synchronize()
        self._done = []

    def _find(self, content: Content) -> Values | None:
        """The live values, where they were when the state dict was built; None: it must be built anew."""
        try:
            return self._refreshed(content, self._built) if self._built is not None else None
        except Moved:
            return None

    def _build(self, content: Content) -> Values:
        values, finder, self.made_anew = collect(content, self._ranks.rank)
        self._built = Built(values, finder) if finder is not None else None
        return values

    def _refreshed(self, content: Content, before: Built) -> Values:
        tensors, plain = before.again(content.state)
        texts, more = own_entries(
            content.state, shared=content.shared, per_rank=content.per_rank, rank=self._ranks.rank
        )
        paths = before.paths
        if not texts.keys() | more.keys() <= paths.keys():
            paths = paths | {key: (key,) for key in (*texts, *more)}
        return Values({**tensors, **more}, plain, texts, paths, before.rank_0_keys | set(more))

    def _small_bytes(self, values: Values, blobs: Sequence[bytes]) -> int:
        return sum(map(len, values.texts.values())) + sum(map(len, blobs))

    def _blobs(self, values: Values) -> list[bytes]:
        return self._kept.bytes_of(values.plain)

    def _make_plan(self, values: Values) -> list[torch.Tensor]:
        """And this rank's parts of what it is for."""
        ranks, tensors = self._ranks, values.tensors
        self.plan = planning.make_plan(
            tensors, values.paths, values.rank_0_keys, ranks.rank, ranks.world_size, self._agreed
        )
        return self.plan.split.parts(list(tensors.values()))[0]

    def _lay_out(self, values: Values) -> None:
        """Places for what is planned, in the arena that there is or in a larger one."""
        assert self.plan is not None
        small = self._small_bytes(values, self._blobs(values))
        if self.arena is None or self.plan.bytes + small > self.arena.bytes:
            self._make_arena(small)
        else:
            self._aim()

    def _make_arena(self, small_bytes: int) -> None:
        assert self.plan is not None
        self._free(self.number)  # first: there is no room for it beside the new one
        size, given = self.plan.bytes + max(_LEAST_SMALL_BYTES, 2 * small_bytes), self._given
        self._given = None
        needed = self.plan.bytes + small_bytes
        arena = Arena(size) if given is None else given_arena(given, needed) or Arena(size)
        self._places[self.number] = _Place(arena)
        self._aim()

    def _aim(self) -> None:
        plan, place = self._laid_out()
        self._whole = picker([copy.source for copy in plan.copies if copy.box is None])
        self._cut = [copy for copy in plan.copies if copy.box is not None]
        place.targets = self._targets_in(place.arena)

    def _targets_in(self, arena: Arena) -> list[torch.Tensor]:
        assert self.plan is not None
        whole = [copy for copy in self.plan.copies if copy.box is None]
        return [_target(arena.tensor, self.plan, copy) for copy in (*whole, *self._cut)]

    def _laid_out(self) -> tuple[Plan, _Place]:
        place = self._places[self.number]
        assert self.plan is not None
        assert place is not None
        return self.plan, place

    def _copy(self, parts: Sequence[torch.Tensor]) -> None:
        arena = self._laid_out()[1].arena
        arena.break_seal()
        sources = [*self._whole(parts), *(_part(parts[copy.source], copy) for copy in self._cut)]
        on_gpus = filter(_IS_CUDA, sources) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        devices = {source.device for source in on_gpus}
        if sources:
            self._copy_all(sources, non_blocking=bool(devices) and arena.pinned)
        for device in devices:
            # The copies are in the stream of the training: what it does next comes after them.
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._done.append(event)

    def _copy_all(self, sources: list[torch.Tensor], *, non_blocking: bool) -> None:
        """Raises Unstorable when one of them has become of a kind that has no values to copy."""
        try:
            with torch.no_grad():
                torch._foreach_copy_(self._laid_out()[1].targets, sources, non_blocking=non_blocking)
        except RuntimeError:
            whole = [copy for copy in self._laid_out()[0].copies if copy.box is None]
            for copy, source in zip((*whole, *self._cut), sources, strict=True):
                require_tensor(source, copy.item.key)
            raise

    def _put_smalls(self, values: Values, blobs: Sequence[bytes]) -> list[Small]:
        plan, place = self._laid_out()
        keys, texts = [*values.texts, *values.plain], len(values.texts)
        data = [*values.texts.values(), *blobs]
        place.arena.put(plan.bytes, b"".join(data))
        sizes = list(map(len, data))
        places = accumulate(sizes, initial=plan.bytes)
        return [
            Small(key, values.paths[key], number >= texts, at, size)
            for number, (key, at, size) in enumerate(zip(keys, places, sizes, strict=False))
        ]


def _pickled(value: Any) -> bytes:
    """As DCP stores what is no tensor."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _target(arena: torch.Tensor, plan: Plan, copy: Copy) -> torch.Tensor:
    item, dtype = copy.item, plan.looks.dtypes[copy.source]
    return arena[item.at : item.at + item.bytes].view(dtype).view(item.sizes)


def _part(tensor: torch.Tensor, copy: Copy) -> torch.Tensor:
    assert copy.box is not None
    for dimension, (start, size) in enumerate(zip(copy.box.offsets, copy.box.sizes, strict=True)):
        if size != tensor.shape[dimension]:
            tensor = tensor.narrow(dimension, start, size)
    return tensor
