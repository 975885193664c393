"""The progress page: a small file that a rank maps and writes, and its agent maps and reads.

Writing costs about a microsecond and no system call, so a rank can do it at every step; the page outlives
the rank, so that nothing a dying rank had done is lost. A sequence number (odd while writing) lets the
reader detect a torn read. Times are CLOCK_MONOTONIC in nanoseconds, the same clock for both on one machine.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass, field
from typing import Dict, Optional, Union

PHASES = (
    "setup",  # process start, imports, user code before the loop
    "rendezvous",  # process group
    "restoring",
    "warmup",  # restored until the first step is done
    "productive",  # steps beyond the high-water mark
    "rework",  # steps done again
    "checkpointing",
    "data_stall",  # waiting for the loader
    "evaluating",
    "closing",  # last barrier
)
_INDEX = {name: index for index, name in enumerate(PHASES)}

SIZE = 512
_MAGIC = b"RTPROG01"
_HEAD = struct.Struct("<8sQ")  # magic, sequence
_BODY = struct.Struct("<qqqqqqqqdd%dqq" % len(PHASES))
# pid, started_ns, beat_ns, phase index, phase_since_ns, step, samples, rework_steps, step_seconds, loss,
# then phase_ns of every phase, and whether it is in its loop: 0 also of a library that does not tell


@dataclass
class Progress:
    """Content of a page. ``step`` and ``samples`` are totals of the job, not of this attempt."""

    pid: int = 0
    started_ns: int = 0
    beat_ns: int = 0  # last sign of life
    phase: str = "setup"
    phase_since_ns: int = 0
    step: int = 0
    samples: int = 0
    rework_steps: int = 0
    step_seconds: float = 0.0  # recent step time (exponential mean); 0 when unknown
    loss: Optional[float] = None
    phase_ns: Dict[str, int] = field(default_factory=dict)  # finished stretches only
    in_loop: bool = False  # a loop has begun and not come to its end; so, too, when it was left early


class ProgressPage:
    """A mapped page. One writer (the rank), any number of readers.

    Raises:
        OSError: the file can't be made or mapped.
        ValueError: the file is not a progress page.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], create: bool = False) -> None:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.pwrite(descriptor, bytes(SIZE), 0)  # no hole: a full disk fails here, not as SIGBUS later
            elif os.fstat(descriptor).st_size < SIZE:
                raise ValueError("%s is not a progress page" % path)
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._sequence = 0
        if create:
            _HEAD.pack_into(self._map, 0, _MAGIC, 0)
        else:
            magic, self._sequence = _HEAD.unpack_from(self._map, 0)
            if magic != _MAGIC:
                self._map.close()
                raise ValueError("%s is not a progress page" % path)
            self._sequence += self._sequence % 2

    def write(self, value: Progress) -> None:
        """Publish ``value``; readers see the old one or the new one, never a mixture."""
        self._sequence += 1
        _HEAD.pack_into(self._map, 0, _MAGIC, self._sequence)
        _BODY.pack_into(
            self._map,
            _HEAD.size,
            value.pid,
            value.started_ns,
            value.beat_ns,
            _INDEX[value.phase],
            value.phase_since_ns,
            value.step,
            value.samples,
            value.rework_steps,
            value.step_seconds,
            float("nan") if value.loss is None else value.loss,
            *[value.phase_ns.get(name, 0) for name in PHASES],
            int(value.in_loop),
        )
        self._sequence += 1
        _HEAD.pack_into(self._map, 0, _MAGIC, self._sequence)

    def read(self) -> Optional[Progress]:
        """The current content; None before the first write, or when a writer died in the middle of one."""
        for _ in range(100):
            before = _HEAD.unpack_from(self._map, 0)[1]
            body = _BODY.unpack_from(self._map, _HEAD.size)
            if before % 2 == 0 and before == _HEAD.unpack_from(self._map, 0)[1]:
                return _decode(body) if before else None
            time.sleep(0.0001)
        return None

    def close(self) -> None:
        self._map.close()


def _decode(body: "tuple[float, ...]") -> Progress:
    integers = [int(value) for value in body[:8]]
    loss = body[9]
    return Progress(
        pid=integers[0],
        started_ns=integers[1],
        beat_ns=integers[2],
        phase=PHASES[integers[3]],
        phase_since_ns=integers[4],
        step=integers[5],
        samples=integers[6],
        rework_steps=integers[7],
        step_seconds=body[8],
        loss=None if loss != loss else loss,
        phase_ns={name: int(value) for name, value in zip(PHASES, body[10:])},
        in_loop=bool(body[10 + len(PHASES)]),
    )
