"""PURE: which checkpoints count, newest first.

Theorem: follow the newest record to its own checkpoints, then to its parent and the parent's record's
checkpoints up to that step, and so on back. A rank that was cut off and commits later adds to a record that
is no longer the newest, beyond the step where the next record branched off: off the chain, ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from resumable_training.contract.manifest import Record, parse_checkpoint_name


@dataclass(frozen=True)
class Chain:
    """Result of ``build_chain``. ``reach``: (record, its last step that counts; None: all), newest first."""

    head: int = 0  # number of the newest record; 0: there is none
    reach: tuple[tuple[int, int | None], ...] = ()
    origin: str | None = None  # checkpoint outside this store where the chain begins
    cut: bool = False  # a damaged or missing record hides what was before

    def contains(self, name: str) -> bool:
        """Whether a checkpoint of that name is on the chain (complete or not)."""
        parsed = parse_checkpoint_name(name)
        if parsed is None:
            return False
        step, record = parsed
        return any(seq == record and (last is None or step <= last) for seq, last in self.reach)

    def newest_first(self, names: Iterable[str]) -> list[str]:
        """The names that are on the chain: newest record first, within it the highest step first."""
        return sorted((name for name in names if self.contains(name)), key=_age, reverse=True)


def _age(name: str) -> tuple[int, int]:
    step, record = parse_checkpoint_name(name) or (0, 0)
    return record, step


def build_chain(records: Mapping[int, Record | None], complete: Collection[str] = ()) -> Chain:
    """Walk back from the newest record.

    ``records``: by number, None for a damaged one. Its writer either died before it was whole (then it never
    trained, and the one before counts), or its checkpoints in ``complete`` show that it did train: they
    count, and what it came from is unknown.
    """
    head = max(records, default=0)
    reach: list[tuple[int, int | None]] = []
    seq, last = _first_real(records, complete), None
    while seq:
        reach.append((seq, last))
        record = records.get(seq)
        if record is None:
            return Chain(head, tuple(reach), cut=True)
        if record.parent is None:
            break
        parsed = parse_checkpoint_name(record.parent)
        if parsed is None:
            return Chain(head, tuple(reach), origin=record.parent)
        if parsed[1] >= seq:  # no writer makes such a record; without this the walk might not end
            return Chain(head, tuple(reach), cut=True)
        last, seq = parsed
    return Chain(head, tuple(reach))


def _first_real(records: Mapping[int, Record | None], complete: Collection[str]) -> int:
    trained = {_age(name)[0] for name in complete}
    return next((seq for seq in sorted(records, reverse=True) if records[seq] or seq in trained), 0)
