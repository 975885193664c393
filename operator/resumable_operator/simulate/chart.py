"""The table as a picture: an SVG of two panels, goodput above, what was lost to what below.

Self-contained, light or dark as the reader's system is. The first thing varied is the x axis; each
combination of the others is a line of its own. What is drawn is the mean over seeds, whiskers are one
standard deviation, and a ring is what the exact formula says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from resumable_operator.simulate.account import LOSSES
from resumable_operator.simulate.grid import Summary

WIDTH, LEFT, RIGHT = 860, 64, 190
TOP, PANEL, GAP, BOTTOM = 54, 250, 74, 62
_COLOURS = ("#2a78d6", "#e07b39", "#3a9d5d", "#b0518f", "#8a6fd1", "#c9a227", "#4aa3a2", "#d05a5a", "#7a8794")
_STYLE = """
  svg { background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: #24292f; } .dim { fill: #6b7280; } .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #e5e7eb; } .ring { fill: none; stroke: #24292f; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181d; } text { fill: #e6e8ea; } .dim { fill: #9aa3ad; }
    .grid { stroke: #2c333b; } .ring { stroke: #e6e8ea; }
  }
"""


@dataclass(frozen=True)
class _Scale:
    """From a value to pixels: ``low`` at ``bottom``, ``high`` at ``top``."""

    low: float
    high: float
    top: float
    bottom: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.bottom - share * (self.bottom - self.top), 1)

    def ticks(self) -> list[float]:
        step = _round_step((self.high - self.low) / 5)
        first = int(self.low / step + 0.999999)
        return [step * number for number in range(first, int(self.high / step + 1e-9) + 1)]


def draw(summaries: Sequence[Summary]) -> str:
    """An SVG document."""
    axes = list(summaries[0].cell.axes)
    labels = list(dict.fromkeys(_label(summary, axes[:1]) for summary in summaries))
    series: dict[str, list[Summary]] = {}
    for summary in summaries:
        series.setdefault(_label(summary, axes[1:]), []).append(summary)
    height = TOP + PANEL + GAP + PANEL + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="Simulated goodput">',
        f"<style>{_STYLE}</style>",
        *_goodput_panel(series, labels),
        *_loss_panel(series, labels, TOP + PANEL + GAP),
        _text(
            LEFT + _inner() / 2,
            height - 14,
            ", ".join(axes[:1]).replace("_", " ") or "one job",
            "middle",
            "dim",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _goodput_panel(series: dict[str, list[Summary]], labels: Sequence[str]) -> Iterable[str]:
    every = [summary for row in series.values() for summary in row]
    low = min(summary.goodput.mean - summary.goodput.deviation for summary in every)
    scale = _Scale(max(0.0, 0.05 * int((low - 0.02) / 0.05)), 1.0, TOP, TOP + PANEL)
    yield _text(LEFT, TOP - 24, "Goodput", "start", "title")
    yield from _grid(scale, lambda value: f"{100 * value:.0f} %")
    yield from _categories(labels, TOP + PANEL)
    for number, (name, row) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(_x(labels.index(_first(summary)), labels), summary) for summary in row]
        path = " ".join(f"{x},{scale(summary.goodput.mean)}" for x, summary in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, summary in points:
            yield from _point(x, summary, scale, colour)
        if name:
            yield from _key(number, colour, name, TOP)


def _point(x: float, summary: Summary, scale: _Scale, colour: str) -> Iterable[str]:
    mean, deviation = summary.goodput.mean, summary.goodput.deviation
    if deviation:
        top, bottom = scale(min(1.0, mean + deviation)), scale(max(scale.low, mean - deviation))
        yield f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="{colour}"/>'
    title = f"<title>{escape(_label(summary, list(summary.cell.axes)))} {100 * mean:.1f} %</title>"
    yield f'<circle cx="{x}" cy="{scale(mean)}" r="4" fill="{colour}">{title}</circle>'
    formula = summary.cell.formula()
    if formula is not None and formula >= scale.low:
        yield f'<circle class="ring" cx="{x}" cy="{scale(formula)}" r="7"><title>formula</title></circle>'


def _loss_panel(series: dict[str, list[Summary]], labels: Sequence[str], top: float) -> Iterable[str]:
    every = [summary for row in series.values() for summary in row]
    causes = [cause for cause in LOSSES if any(s.lost_gpu_hours_a_day.get(cause, 0) for s in every)]
    most = max(sum(summary.lost_gpu_hours_a_day.values()) for summary in every)
    scale = _Scale(0.0, most * 1.05 or 1.0, top, top + PANEL)
    yield _text(
        LEFT, top - 24, f"{every[0].cell.parameters.hours_of}-hours lost a day, by cause", "start", "title"
    )
    yield from _grid(scale, lambda value: f"{value:g}")
    yield from _categories(labels, top + PANEL)
    room = _inner() / len(labels)
    width = min(60.0, 0.8 * room / len(series))
    for number, row in enumerate(series.values()):
        for summary in row:
            middle = _x(labels.index(_first(summary)), labels)
            x = round(middle + (number - len(series) / 2) * width + 1, 1)
            yield from _bar(x, max(1.0, width - 2), summary, causes, scale)
    for number, cause in enumerate(causes):
        yield from _key(number, _COLOURS[number % len(_COLOURS)], cause, top)


def _bar(x: float, width: float, summary: Summary, causes: Sequence[str], scale: _Scale) -> Iterable[str]:
    below = 0.0
    for number, cause in enumerate(causes):
        amount = summary.lost_gpu_hours_a_day.get(cause, 0.0)
        if amount:
            y, bottom = scale(below + amount), scale(below)
            title = f"<title>{escape(_label(summary, list(summary.cell.axes)))} {cause} {amount:.1f}</title>"
            colour = _COLOURS[number % len(_COLOURS)]
            size = f'width="{width:.1f}" height="{bottom - y:.1f}"'
            yield f'<rect x="{x}" y="{y}" {size} fill="{colour}">{title}</rect>'
        below += amount


def _grid(scale: _Scale, write: Callable[[float], str]) -> Iterable[str]:
    for value in scale.ticks():
        y = scale(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield _text(LEFT - 8, y + 4, write(value), "end", "dim")


def _categories(labels: Sequence[str], bottom: float) -> Iterable[str]:
    for number, label in enumerate(labels):
        yield _text(_x(number, labels), bottom + 20, label, "middle", "dim")


def _key(number: int, colour: str, name: str, top: float) -> Iterable[str]:
    x, y = WIDTH - RIGHT + 18, top + 12 + 20 * number
    yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" rx="2" fill="{colour}"/>'
    yield _text(x + 16, y, name, "start", "")


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _inner() -> float:
    return WIDTH - LEFT - RIGHT


def _x(number: int, labels: Sequence[str]) -> float:
    return round(LEFT + (number + 0.5) * _inner() / len(labels), 1)


def _first(summary: Summary) -> str:
    return _label(summary, list(summary.cell.axes)[:1])


def _label(summary: Summary, axes: Sequence[str]) -> str:
    """``10m``, or ``spares 1, restart 5m`` where there are several or it is not the x axis."""
    values = summary.cell.axes
    if axes == list(values)[:1]:
        return str(values[axes[0]]) if axes else ""
    return ", ".join(f"{name.replace('_', ' ')} {values[name]}" for name in axes)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below ``rough``."""
    power = 1.0
    while power * 10 <= rough:
        power *= 10
    while power > rough:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
