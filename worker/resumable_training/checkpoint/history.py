"""What an attempt leaves beside its checkpoints for a report: ``history/<record>.jsonl``. No torch.

Pods go and take their logs along; checkpoints stay, and so does this. Rank 0 collects lines in memory and
gives them along with each save; whoever commits the checkpoint writes them after the marker. A history that
can't be written costs a warning, never a checkpoint.

The file of a record is replaced whole at each commit, on every kind of store: object storage can't append, a
replaced file is never torn, and it is small. It stays small because ``Journal`` thins it: steps are noted
five times a second at first, and whenever there are too many every other one goes and the pace is halved. So
an attempt of a day has the same few hundred points as one of ten minutes. Saves are thinned in the same way
and carry running totals, so that counts and sums stay exact.

Lines are JSON objects with a ``kind``: one ``Begin``, then ``Restored``, ``Step``, ``Save`` and ``Stop`` in
order of time, and a ``Committing`` at the end: as the file comes after the marker, that save was committed;
what it cost is told by the next file. ``at`` is the wall clock of rank 0's machine in seconds, ``ms`` its
monotonic clock in milliseconds since the process began: lengths come from ``ms``, places on a time line from
``at``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from resumable_training.checkpoint.errors import CheckpointError, StoreNotFound
from resumable_training.checkpoint.store import Store
from resumable_training.contract.codec import ContractError, from_plain, plain_from_json

HISTORY_DIRECTORY = "history"
VERSION = 1
FIRST_PACE_MS = 200  # between two steps that are noted
MOST_STEPS = 600
MOST_SAVES = 300
MOST_VALUES = 8  # of those that a script logs with a step
LONGEST_NAME = 40
MOST_FALLBACKS = 8
LONGEST_TEXT = 400
KEPT_RECORDS = 200

_FILE = re.compile(r"(\d{8,})\.jsonl")
T = TypeVar("T")


@dataclass(frozen=True)
class Begin:
    """The attempt. ``version`` grows when a reader of an older one would misunderstand."""

    at: float
    ms: int
    attempt: int
    world_size: int
    job: str = ""  # "namespace/name"
    job_uid: str = ""
    version: int = VERSION


@dataclass(frozen=True)
class Restored:
    """Where it began; ``checkpoint`` empty: at nothing. ``fallback``: what was passed over, and why.

    ``memory_bytes`` were still on the job's workers, ``storage_bytes`` had to be read.
    """

    at: float
    ms: int
    step: int
    samples: int
    checkpoint: str = ""
    seconds: float = 0.0
    fallback: tuple[dict[str, Any], ...] = ()
    memory_bytes: int = 0
    storage_bytes: int = 0


@dataclass(frozen=True)
class Step:
    """A step that was done; ``step``, ``samples`` are the job's totals, ``phase_ms`` those of the process."""

    at: float
    ms: int
    step: int
    samples: int
    loss: float | None = None
    step_seconds: float = 0.0  # recent mean
    rework_steps: int = 0
    phase_ms: dict[str, int] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # what the script logged beside the loss


@dataclass(frozen=True)
class Save:
    """A save that ended. ``message``: why it failed; empty: it is committed. Totals are of this attempt."""

    at: float
    ms: int
    step: int
    checkpoint: str = ""
    bytes: int = 0
    blocking_ms: int = 0
    durable_ms: int = 0
    interval_seconds: float | None = None  # the wanted time to the next one
    message: str = ""
    made: int = 0
    failed: int = 0
    total_bytes: int = 0
    total_blocking_ms: int = 0
    total_durable_ms: int = 0


@dataclass(frozen=True)
class Stop:
    """All ranks stop after this step, as they were asked to."""

    at: float
    ms: int
    step: int
    reason: str = ""


@dataclass(frozen=True)
class Committing:
    """The save that these lines came along with."""

    at: float
    ms: int
    step: int


@dataclass(frozen=True)
class AttemptHistory:
    """One file, as read. ``damaged``: lines that could not be understood."""

    record: int
    begin: Begin
    restored: Restored | None = None
    steps: tuple[Step, ...] = ()
    saves: tuple[Save, ...] = ()
    stop: Stop | None = None
    committing: Committing | None = None
    damaged: int = 0


class Journal:
    """Lines of one attempt, bounded. Times come with each call; nothing here reads a clock."""

    def __init__(self, begin: Begin) -> None:
        self._begin = _line(begin)
        self._restored: str | None = None
        self._steps: list[tuple[int, str]] = []  # (ms, line)
        self._saves: list[tuple[int, str]] = []
        self._stop: str | None = None
        self._totals = Save(0.0, 0, 0)
        self.pace_ms = FIRST_PACE_MS
        self.last_ms = -1  # of the newest step noted

    def restored(self, line: Restored) -> None:
        told = tuple(_clipped(each) for each in line.fallback[:MOST_FALLBACKS])
        self._restored = _line(replace(line, fallback=told))

    def step(self, line: Step) -> None:
        """Note a step. The caller asks no more often than ``pace_ms``, which grows."""
        self._steps.append((line.ms, _line(line)))
        self.last_ms = line.ms
        if len(self._steps) > MOST_STEPS:
            self._steps = thinned(self._steps)
            self.pace_ms *= 2

    def save(self, line: Save) -> None:
        """Note a save; its totals are filled in here."""
        before = self._totals
        done = not line.message
        self._totals = replace(
            line,
            message=line.message[:LONGEST_TEXT],
            made=before.made + done,
            failed=before.failed + (not done),
            total_bytes=before.total_bytes + line.bytes * done,
            total_blocking_ms=before.total_blocking_ms + line.blocking_ms * done,
            total_durable_ms=before.total_durable_ms + line.durable_ms * done,
        )
        self._saves.append((line.ms, _line(self._totals)))
        if len(self._saves) > MOST_SAVES:
            self._saves = thinned(self._saves)

    def stop(self, line: Stop) -> None:
        self._stop = _line(replace(line, reason=line.reason[:LONGEST_TEXT]))

    def lines(self, committing: Committing) -> tuple[str, ...]:
        """All of them, in order of time, to go along with that save."""
        timed = sorted((*self._steps, *self._saves), key=lambda item: item[0])
        return (
            self._begin,
            *([self._restored] if self._restored else []),
            *(line for _, line in timed),
            *([self._stop] if self._stop else []),
            _line(committing),
        )


def thinned(items: list[T]) -> list[T]:
    """Without every other one; the first and the last stay."""
    return items[:-1:2] + items[-1:]


def bounded_values(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The first few, under names of a bearable length; what JSON can't carry is left out."""
    finite = {str(name)[:LONGEST_NAME]: value for name, value in values if abs(value) < float("inf")}
    return {name: float(f"{value:.6g}") for name, value in list(finite.items())[:MOST_VALUES]}


def _clipped(fallback: dict[str, Any]) -> dict[str, Any]:
    return {str(name): str(text)[:LONGEST_TEXT] for name, text in fallback.items()}


def _line(value: Any) -> str:
    plain = {name: item for name, item in asdict(value).items() if item not in ("", None, (), {})}
    return json.dumps({"kind": type(value).__name__.lower(), **plain}, separators=(",", ":"))


# ---- in a store ----------------------------------------------------------------------------------------


def history_name(record: int) -> str:
    """``history/00000007.jsonl``."""
    return f"{HISTORY_DIRECTORY}/{record:08d}.jsonl"


def write_history(store: Store, record: int, lines: Sequence[str]) -> str:
    """Replace the record's history. Returns why that failed; empty: it did not.

    Only the attempt that owns the record writes its file, so a zombie harms nobody else's. With the first
    write of a record those of very old ones go.
    """
    if not lines:
        return ""
    name = history_name(record)
    try:
        is_new = store.size(name) is None
        _put(store, name, "".join(f"{line}\n" for line in lines).encode())
        if is_new:
            _forget_oldest(store)
    except CheckpointError as error:
        return f"the history {name} for reports could not be written: {error}"
    return ""


def _put(store: Store, name: str, data: bytes) -> None:
    try:
        store.put(name, data)
    except StoreNotFound:  # the first history in this store
        store.make_directory(HISTORY_DIRECTORY)
        store.put(name, data)


def _forget_oldest(store: Store) -> None:
    for record in _records(store)[:-KEPT_RECORDS]:
        store.delete(history_name(record))


def _records(store: Store) -> list[int]:
    found = (_FILE.fullmatch(entry.name) for entry in store.entries(HISTORY_DIRECTORY))
    return sorted(int(match[1]) for match in found if match)


def read_histories(store: Store) -> tuple[AttemptHistory, ...]:
    """All that a store holds, by record. Files without a beginning that can be read are left out.

    Raises:
        StorageUnavailable: the store can't tell.
    """
    found = []
    for record in _records(store):
        try:
            history = parse_history(record, store.read(history_name(record)))
        except StoreNotFound:  # gone since the listing
            continue
        if history is not None:
            found.append(history)
    return tuple(found)


def parse_history(record: int, data: bytes) -> AttemptHistory | None:
    """One file; None when its beginning can't be read. Lines of later kinds are passed over."""
    begin: Begin | None = None
    restored: Restored | None = None
    stop: Stop | None = None
    committing: Committing | None = None
    steps: list[Step] = []
    saves: list[Save] = []
    damaged = 0
    for raw in data.splitlines():
        line = _parsed(raw)
        if line is None:
            damaged += 1
        elif isinstance(line, Begin):
            begin = line
        elif isinstance(line, Restored):
            restored = line
        elif isinstance(line, Step):
            steps.append(line)
        elif isinstance(line, Save):
            saves.append(line)
        elif isinstance(line, Stop):
            stop = line
        elif isinstance(line, Committing):
            committing = line
    if begin is None or begin.version > VERSION:
        return None
    return AttemptHistory(record, begin, restored, tuple(steps), tuple(saves), stop, committing, damaged)


_KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Begin, Restored, Step, Save, Stop, Committing)
}


def _parsed(raw: bytes) -> Any:
    """A line's dataclass; an empty string for a kind of later versions; None: not understood."""
    try:
        plain = plain_from_json(raw)
        kind = _KINDS.get(plain["kind"])
        return "" if kind is None else from_plain(kind, plain)
    except (ContractError, KeyError, TypeError):
        return None


def shortened(history: AttemptHistory, most: int) -> AttemptHistory:
    """With at most about ``most`` steps and as many saves, for a reader far away."""
    steps, saves = list(history.steps), list(history.saves)
    while len(steps) > most:
        steps = thinned(steps)
    while len(saves) > most:
        saves = thinned(saves)
    return replace(history, steps=tuple(steps), saves=tuple(saves))
