"""PURE: from values to places on an axis, and which values to write beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resumable_operator.cli.units import byte_size, duration

_TIME_STEPS = (
    *(base * factor for factor in (0.001, 0.01, 0.1) for base in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600),
)


@dataclass(frozen=True)
class Tick:
    """A place on an axis, from 0 (its beginning) to 1, and what is written there."""

    place: float
    label: str


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``; by the logarithm of the values where ``log``."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the beginning, 1 at the end; clipped to them."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.log(max(value, self.low))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0


def nice_axis(values: Sequence[float], *, from_zero: bool = False, spread: float = 30.0) -> Axis:
    """An axis that holds all values and begins and ends at round ones.

    Args:
        from_zero: begin at 0; else logarithmic when the largest is ``spread`` times the smallest.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if not from_zero and low > 0 and high > spread * low:
        return Axis(_round_down_log(low), _round_up_log(high), log=True)
    if from_zero:
        low = min(0.0, low)
    if high <= low:
        low, high = (0.0, high) if high > 0 and from_zero else (low - 0.5, high + 0.5)
    step = _step((high - low) / 4)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def number_ticks(axis: Axis, most: int = 5) -> list[Tick]:
    """About ``most`` round values."""
    if axis.log:
        return _log_ticks(axis, most)
    step = _step((axis.high - axis.low) / max(1, most - 1))
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    return [Tick(axis.place(value), number(value, step)) for value in values]


def percent_ticks() -> list[Tick]:
    """Of an axis from 0 to 1."""
    return [Tick(part / 4, f"{part * 25} %") for part in range(5)]


def time_step(span: float, most: int = 6) -> float:
    """Seconds between two marks of a time axis."""
    return next((step for step in _TIME_STEPS if span / step <= most), _TIME_STEPS[-1])


def time_ticks(span: float, most: int = 6) -> list[Tick]:
    """Of an axis of seconds from 0 to ``span``."""
    if span <= 0:
        return [Tick(0.0, "0")]
    step = time_step(span, most)
    count = int(span / step + 1e-9)
    return [Tick(number * step / span, clock(number * step)) for number in range(count + 1)]


def duration_ticks(axis: Axis, most: int = 4) -> list[Tick]:
    """Of an axis of seconds that begins at 0."""
    step = time_step(axis.high, most)
    return [Tick(axis.place(part * step), duration(part * step)) for part in range(int(axis.high / step) + 1)]


def byte_ticks(axis: Axis, most: int = 4) -> list[Tick]:
    """Of an axis of bytes."""
    step = _step(axis.high / most)
    return [
        Tick(axis.place(part * step), byte_size(part * step)) for part in range(int(axis.high / step) + 1)
    ]


def log_time_ticks(axis: Axis, most: int = 6) -> list[Tick]:
    """Of a logarithmic axis of seconds: the lengths that people think in."""
    found = [
        (axis.place(step), step)
        for step in (*_TIME_STEPS, 2592000.0, 31536000.0)
        if axis.low <= step <= axis.high
    ]
    kept: list[Tick] = []
    for place, step in found:
        if not kept or place - kept[-1].place >= 1 / most:
            kept.append(Tick(place, short_duration(step)))
    return kept


def clock(seconds: float) -> str:
    """A moment of the run: ``0``, ``45 s``, ``12 min``, ``3 h 30``, ``2 d 06 h``."""
    if seconds == 0:
        return "0"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d}" if rest else f"{minutes} min"
    if seconds < 86400:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest:02d}" if rest else f"{hours} h"
    days, rest = divmod(round(seconds / 3600), 24)
    return f"{days} d {rest:02d} h" if rest else f"{days} d"


def short_duration(seconds: float) -> str:
    """A length in one unit, for an axis."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds * 1000:g} ms"


def number(value: float, step: float = 0.0) -> str:
    """With as many digits as the step between two of them needs, and commas in large ones."""
    if value and abs(value) < 1e-3:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if 0 < step < 1 else 0
    return f"{value:,.{digits}f}"


def _step(raw: float) -> float:
    """The round step (1, 2 or 5 times a power of ten) that is not below ``raw``."""
    if raw <= 0 or not math.isfinite(raw):
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))


def _round_down_log(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value * (1 + 1e-9))


def _round_up_log(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _log_ticks(axis: Axis, most: int) -> list[Tick]:
    powers = range(math.floor(math.log10(axis.low) + 1e-9), math.ceil(math.log10(axis.high) - 1e-9) + 1)
    factors = (1, 2, 5) if len(powers) <= most else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    inside = [value for value in values if axis.low * (1 - 1e-9) <= value <= axis.high * (1 + 1e-9)]
    every = max(1, -(-len(inside) // (most + 1)))
    return [Tick(axis.place(value), f"{value:g}") for value in inside[::every]]
