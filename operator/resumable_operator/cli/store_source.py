"""What ``rtj checkpoints`` does with a store that this machine can open: a directory or a bucket. No torch.

``directory_store`` and ``bucket_store`` find the store; all that follows is the same for both, and is here.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from resumable_operator.cli.exitcodes import DamagedFound, UsageProblem
from resumable_operator.cli.lines import listed
from resumable_operator.cli.progress import bytes_bar
from resumable_operator.cli.source import Checked, CheckpointSource, Held, Listing, Pruned
from resumable_operator.errors import RetryableError
from resumable_training.checkpoint import pins, prune
from resumable_training.checkpoint.audit import Target, audit
from resumable_training.checkpoint.content import Content, read_content
from resumable_training.checkpoint.documents import Pin
from resumable_training.checkpoint.errors import CheckpointError, CheckpointUserError, DamagedCheckpoint
from resumable_training.checkpoint.history import AttemptHistory, read_histories
from resumable_training.checkpoint.listing import Survey, list_checkpoints, survey
from resumable_training.checkpoint.rollback import RolledBack, roll_back
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK, Verdict, verify_checkpoint
from resumable_training.checkpoint.wanted import choices, find, is_own, without_serial
from resumable_training.contract.manifest import parse_checkpoint_name

DEFAULT_KEEP = 3  # as spec.checkpoint.keep


@dataclass(frozen=True)
class Opened:
    """A store. ``only``: one checkpoint in it was meant. ``foreign``: finds those of other programs."""

    store: Store
    foreign: Callable[[], list[str]]
    only: str | None = None


@dataclass(frozen=True)
class Keeping:
    """What the job that owns the store keeps, as far as it is known. ``protected``: wanted by its spec."""

    keep_last: int = DEFAULT_KEEP
    keep_every_steps: int | None = None
    protected: tuple[str, ...] = ()


class StoreSource(ABC):
    """``source.CheckpointSource`` of a store at hand."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What people know it by."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Opened]:
        """The store, for the length of a block; its errors come out in the words of this package."""

    def keeping(self) -> Keeping:
        """What is known of the job's retention."""
        return Keeping()

    def listing(self) -> Listing:
        with self.opened() as found:
            if found.only is not None:
                raise UsageProblem(
                    f"{self.title} is one checkpoint: give what holds it, {found.store.location}"
                )
            return _listing_of(found.store, found.foreign)

    def histories(self) -> tuple[AttemptHistory, ...]:
        with self.opened() as found:
            return read_histories(found.store)

    def verify(
        self, step: int | None, tell: Callable[[Checked], None], jobs: int | None = None
    ) -> list[Checked]:
        results: list[Checked] = []

        def checked(target: Target, verdict: Verdict) -> None:
            results.append(Checked(target.name, target.step, target.foreign, verdict))
            tell(results[-1])

        with self.opened() as found:
            targets, total = _targets(found, step)
            with bytes_bar("verifying", total) as advance:
                audit(targets, checked, threads=jobs, advance=advance)
        return results

    def show(self, which: str | None) -> Content:
        with self.opened() as found:
            store, name = chosen(found, which)
            with naming_next_older(found, "--step"):
                return read_content(store, name, foreign=parse_checkpoint_name(name) is None)

    def prune(
        self, keep: int | None, act: bool, every: int | None = None, protect: Sequence[str] = ()
    ) -> Pruned:
        keeping, now = self.keeping(), time.time()
        strange = [text for text in protect if not is_own(without_serial(text))]
        if strange:
            raise UsageProblem(f"--protect {strange[0]}: give a step or the full name of a checkpoint")
        with self.whole() as store:
            now = prune.earlier_clock(store, now) if act else now
            planned = prune.plan(
                store,
                now,
                keep_last=keep or keeping.keep_last,
                keep_every_steps=every or keeping.keep_every_steps,
                protected=(*keeping.protected, *protect),
            )
            planned = replace(planned, missing=tuple(one for one in planned.missing if one in protect))
            failed: dict[str, str] = {}
            gone = (
                prune.carry_out(store, planned, now, lambda one, why: failed.update({one.name: str(why)}))
                if act
                else ()
            )
            return Pruned(planned, tuple(one.name for one in gone), act, failed)

    def pin(self, which: str, holder: str, until: float) -> str:
        with self.whole() as store:
            name = find(survey(store), which)
            pins.give(store, Pin(name, holder, until))
            return name

    def pins(self) -> list[Held]:
        now = time.time()
        with self.whole() as store:
            return [_held(one, now) for one in pins.read_pin_files(store)]

    def unpin(self, which: str | None, holder: str | None) -> list[Held]:
        now = time.time()
        with self.whole() as store:
            found = pins.read_pin_files(store)
            name = _pinned_name(found, which) or find(survey(store), which) if which is not None else None
            meant = [one for one in found if _is_meant(one, name, holder)]
            pins.take_back(store, meant)
            return [_held(one, now) for one in meant]

    def roll_back(self, which: str) -> RolledBack:
        with self.whole() as store, naming_next_older(Opened(store, list), "--to"):
            return roll_back(store, which, now=time.time(), nonce=uuid.uuid4().hex)

    @contextmanager
    def whole(self) -> Iterator[Store]:
        """For what concerns a store and not a checkpoint in it."""
        with self.opened() as found:
            if found.only is not None:
                raise UsageProblem(
                    f"{self.title} is one checkpoint: give what holds it, {found.store.location}"
                )
            yield found.store


def require_store(source: CheckpointSource) -> None:
    """Raises UsageProblem where there is none, before anybody is told that something is done to it."""
    if isinstance(source, StoreSource):
        with source.whole():
            return


def _pinned_name(found: Sequence[pins.PinFile], which: str) -> str | None:
    """A pin may outlive its checkpoint, which then nothing but the pin knows."""
    names = {one.pin.checkpoint for one in found if one.pin is not None}
    return which if which in names else None


def _is_meant(one: pins.PinFile, name: str | None, holder: str | None) -> bool:
    """``name`` None: the ones that can't be read."""
    if one.pin is None or name is None:
        return one.pin is None and name is None
    return one.pin.checkpoint == name and holder in (None, one.pin.holder)


def _held(one: pins.PinFile, now: float) -> Held:
    if one.pin is None:
        return Held(one.file, None, None, None, counts=True)
    return Held(one.file, one.pin.checkpoint, one.pin.holder, one.pin.until - now, one.counts(now))


class _Choice:
    """``wanted.Names`` of a store. Without records, as copies are kept, every complete one can be meant."""

    def __init__(self, seen: Survey) -> None:
        self.complete, self.incomplete = seen.complete, seen.incomplete
        by_step = sorted(seen.complete, key=lambda name: parse_checkpoint_name(name) or (0, 0), reverse=True)
        self.resume_points = seen.resume_points if seen.records else by_step


def chosen(found: Opened, which: str | None) -> tuple[Store, str]:
    """The checkpoint that is meant: the one that was named as a whole, by step or name, or the newest.

    Raises:
        NoResumePoint: there is none; says which there are.
        UsageProblem: a choice within one checkpoint.
    """
    if found.only is not None:
        if which is not None:
            raise UsageProblem(f"{found.only} is one checkpoint already: leave out --step")
        return found.store, found.only
    if which is not None and which in found.foreign():
        return found.store, which
    seen = _Choice(survey(found.store))
    if which is not None:
        return found.store, find(seen, which)
    if seen.resume_points:
        return found.store, seen.resume_points[0]
    newest = next(iter(found.foreign()), None)
    if newest is None:
        raise UsageProblem(f"{found.store.location} holds no complete checkpoint. {choices(seen)}")
    return found.store, newest


@contextmanager
def naming_next_older(found: Opened, option: str) -> Iterator[None]:
    """Damage comes out with what can be asked for instead, by ``option``.

    Raises:
        DamagedFound: the block has met a damaged checkpoint.
    """
    try:
        yield
    except DamagedCheckpoint as error:
        raise DamagedFound(f"{error}{_next_older(found, error.name, option)}") from error


def _next_older(found: Opened, name: str, option: str) -> str:
    if found.only is not None:
        return ""
    try:
        names = [*_Choice(survey(found.store)).resume_points, *found.foreign()]
    except CheckpointError:  # what is known already is worth more than this
        return ""
    after = names[names.index(name) + 1 :] if name in names else []
    if not after:
        return ""
    parsed = parse_checkpoint_name(after[0])
    if parsed is None:
        return f"; the next older is {after[0]}: {option} {after[0]}"
    return f"; the next older is step {parsed[0]}: {option} {parsed[0]}"


def _listing_of(store: Store, foreign: Callable[[], Iterable[str]]) -> Listing:
    """What a store holds, and which of other programs' checkpoints a job would be offered."""
    ours, others = tuple(list_checkpoints(store, time.time())), tuple(foreign())
    if any(info.resumable for info in ours):
        return Listing(ours, others)
    whole = (name for name in others if verify_checkpoint(store, name, foreign=True).outcome == OK)
    return Listing(ours, others, next(whole, None))


def _targets(found: Opened, step: int | None) -> tuple[list[Target], int]:
    """The complete checkpoints that are meant, newest first, and their bytes together.

    Raises:
        UsageProblem: there is none; names the steps that there are.
    """
    if found.only is not None:
        parsed = parse_checkpoint_name(found.only)
        target = Target(found.store, found.only, parsed[0] if parsed else None, foreign=parsed is None)
        sizes = {found.only: sum(entry.bytes for entry in found.store.entries(found.only))}
        targets = [target]
    else:
        ours = [info for info in list_checkpoints(found.store, time.time()) if info.complete]
        sizes = {info.name: info.bytes for info in ours}
        targets = [Target(found.store, info.name, info.step, foreign=False) for info in ours]
        targets += [Target(found.store, name, None, foreign=True) for name in found.foreign()]
    where = found.store.location if found.only is None else f"{found.store.location}/{found.only}"
    if not targets:
        raise UsageProblem(f"{where} holds no complete checkpoint")
    those = [target for target in targets if step is None or target.step == step]
    if not those:
        steps = listed(sorted({target.step for target in targets if target.step is not None}, reverse=True))
        raise UsageProblem(f"{where} holds no complete checkpoint of step {step}; it has steps {steps}")
    return those, sum(sizes.get(target.name, 0) for target in those)


@contextmanager
def store_errors() -> Iterator[None]:
    """The store's errors in the words of this package.

    Raises:
        DamagedFound: a checkpoint is not what was written.
        UsageProblem: it can't be used as it was named, or not with what is installed here.
        RetryableError: it can't tell now.
    """
    try:
        yield
    except DamagedCheckpoint as error:
        raise DamagedFound(str(error)) from error
    except CheckpointUserError as error:
        raise UsageProblem(str(error)) from error
    except CheckpointError as error:
        raise RetryableError(str(error)) from error
