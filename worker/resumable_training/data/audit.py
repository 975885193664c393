"""Checks after the fact which samples made the final weights: none skipped, none twice, all in order.

Called by ``rtj demo``, by the end-to-end tests, and by hand::

    python -m resumable_training.data.audit --traces RUN/traces --store RUN/checkpoints

Every rank of a traced run (``rtj run --trace-samples``) wrote, step by step, the global positions and the
sample ids that it consumed. The chain of records says which stretch of which attempt survives in the final
weights: record ``k`` contributes the samples from its parent's position up to the position of the checkpoint
that the next record on the chain resumed from. Those stretches, put together, must hold every position from
0 to N-1 exactly once, in order of steps, each with the id that the seeded order gives it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from resumable_training.contract.codec import from_json
from resumable_training.contract.manifest import (
    MANIFEST_FILE,
    MARKER_FILE,
    RECORDS_DIRECTORY,
    Record,
    parse_checkpoint_name,
    parse_record_name,
)
from resumable_training.data.order import Stream


@dataclass(frozen=True)
class Stretch:
    """Samples ``[first, end)`` of the final weights came from this attempt. ``end`` None: up to its last."""

    attempt: int
    first: int
    end: int | None


@dataclass(frozen=True)
class Consumed:
    """One rank's part in one step."""

    attempt: int
    step: int
    positions: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """Outcome of an audit; ``problems`` is empty exactly when everything held."""

    samples: int
    attempts: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def lineage(records: Iterable[Record]) -> list[Stretch]:
    """The stretches of the final weights, oldest first, by walking the chain back from the newest record."""
    by_seq = {record.seq: record for record in records}
    stretches: list[Stretch] = []
    end: int | None = None
    seq = max(by_seq, default=None)
    while seq is not None:
        record = by_seq[seq]
        stretches.append(Stretch(record.attempt, record.parent_samples, end))
        end = record.parent_samples
        parent = parse_checkpoint_name(record.parent) if record.parent else None
        seq = parent[1] if parent else None
    return stretches[::-1]


def audit(
    stretches: Sequence[Stretch],
    consumed: Iterable[Consumed],
    id_at: Callable[[int], int],
    total: int | None = None,
) -> Verdict:
    """Compare what was consumed on the chain with what should have been.

    Args:
        stretches: from ``lineage``.
        consumed: every rank's trace.
        id_at: the sample id that the seeded order puts at a global position.
        total: how many samples the run should have consumed; None: as many as it did.
    """
    by_attempt = {stretch.attempt: stretch for stretch in stretches}
    seen: dict[int, int] = {}
    problems: list[str] = []
    for part in consumed:
        stretch = by_attempt.get(part.attempt)
        if stretch is None:
            continue
        for position, sample in zip(part.positions, part.ids, strict=True):
            if position < stretch.first or (stretch.end is not None and position >= stretch.end):
                continue
            if position in seen:
                problems.append(
                    f"position {position} was consumed twice (attempt {part.attempt}, step {part.step})"
                )
            if sample != id_at(position):
                problems.append(f"position {position} gave sample {sample}, the order says {id_at(position)}")
            seen[position] = sample
    expected = total if total is not None else max(seen, default=-1) + 1
    missing = [position for position in range(expected) if position not in seen]
    if missing:
        problems.append(f"{_positions(len(missing), 'was', 'were')} skipped, the first is {missing[0]}")
    surplus = [position for position in seen if position >= expected]
    if surplus:
        problems.append(
            f"{_positions(len(surplus), 'lies', 'lie')} beyond the last expected sample {expected - 1}"
        )
    return Verdict(len(seen), tuple(stretch.attempt for stretch in stretches), tuple(problems[:20]))


def _positions(count: int, one: str, many: str) -> str:
    return f"1 position {one}" if count == 1 else f"{count} positions {many}"


def read_records(store: Path) -> list[Record]:
    """All records of a directory store.

    Raises:
        FileNotFoundError: the store has none.
    """
    directory = store / RECORDS_DIRECTORY
    names = [path for path in sorted(directory.iterdir()) if parse_record_name(path.name) is not None]
    return [from_json(Record, path.read_bytes()) for path in names]


def read_traces(directory: Path) -> list[Consumed]:
    """All complete lines of all ranks' traces; a line cut off by a kill is left out."""
    consumed: list[Consumed] = []
    for path in sorted(directory.glob("attempt-*-rank-*.jsonl")):
        attempt = int(path.name.split("-")[1])
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            consumed.append(Consumed(attempt, entry["step"], tuple(entry["positions"]), tuple(entry["ids"])))
    return consumed


def newest_fingerprint(store: Path) -> dict[str, object]:
    """The data fingerprint in the newest checkpoint's manifest.

    Raises:
        FileNotFoundError: there is no complete checkpoint.
        ValueError: it was not made over a map-style dataset that this audit can recompute.
    """
    found = [
        (parsed[1], parsed[0], path)
        for path in store.iterdir()
        if (parsed := parse_checkpoint_name(path.name)) and (path / MARKER_FILE).exists()
    ]
    if not found:
        raise FileNotFoundError(f"no complete checkpoint below {store}")
    manifest = json.loads((max(found)[2] / MANIFEST_FILE).read_bytes())
    fingerprints: dict[str, dict[str, object]] = manifest.get("data_fingerprint") or {}
    if len(fingerprints) != 1:
        raise ValueError(
            f"the run must have exactly one data stream, it has {', '.join(sorted(fingerprints)) or 'none'}"
        )
    (fingerprint,) = fingerprints.values()
    if fingerprint.get("kind") != "map" or fingerprint.get("drop_last"):
        raise ValueError("only map-style data without drop_last has an order that can be recomputed")
    return fingerprint


def run_audit(traces: Path, store: Path, total: int | None) -> Verdict:
    """Audit a directory store against traces; the order comes from the checkpoint's own fingerprint."""
    fingerprint = newest_fingerprint(store)
    stream = Stream(
        int(str(fingerprint["length"])), int(str(fingerprint["seed"])), bool(fingerprint["shuffle"])
    )
    consumed = read_traces(traces)
    top = max((position for part in consumed for position in part.positions), default=-1) + 1
    ids = stream.ids(0, top)
    return audit(lineage(read_records(store)), consumed, lambda position: int(ids[position]), total)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code 0 only if every check held."""
    parser = argparse.ArgumentParser(prog="python -m resumable_training.data.audit", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="directory that the ranks traced into")
    parser.add_argument("--store", type=Path, required=True, help="root of the checkpoint store")
    parser.add_argument("--total", type=int, help="samples the run should have consumed")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    options = parser.parse_args(arguments)
    try:
        verdict = run_audit(options.traces, options.store, options.total)
    except (OSError, ValueError) as error:
        verdict = Verdict(0, (), (str(error),))
    if options.json:
        print(json.dumps({**asdict(verdict), "ok": verdict.ok}))
    else:
        print("\n".join(verdict.problems) or f"{verdict.samples} samples, each once and in order")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
