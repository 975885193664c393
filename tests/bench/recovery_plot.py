"""The recovery benchmark's results as a picture: every run a dot, quartiles a bar, medians a line (pure).

A self-contained SVG, light or dark as the reader's system is. Time is on a logarithmic axis: some wait a
second, some a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from recovery_cases import BY_NAME, Outcome
from recovery_table import OURS, Results, Spread, seconds

from resumable_training.contract.metrics import RECOVERY_STAGES

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900, 230, 90, 26, 30
ROW, TITLE = 22, 34
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
NEVER = "never"
_OURS, _OTHERS = "#2a78d6", "#7a8794"
_STAGE_COLOURS = ("#d05a5a", "#e07b39", "#c9a227", "#3a9d5d", "#8a6fd1")
_STYLE = """
  svg { background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: #24292f; } .dim { fill: #6b7280; } .title { font-weight: 600; } .grid { stroke: #e5e7eb; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181d; } text { fill: #e6e8ea; } .dim { fill: #9aa3ad; } .grid { stroke: #2c333b; }
  }
"""
Sides = Mapping[str, Sequence[Outcome]]


def draw(results: Results) -> str:
    """An SVG document: a panel for each scenario and number of ranks, and ours by stage."""
    panels = [
        (f"{BY_NAME[name].title}; {ranks} ranks", {side: runs for side, runs in sides.items() if runs})
        for ranks, scenarios in results.items()
        for name, sides in scenarios.items()
        if any(sides.values())
    ]
    if not panels:
        return ""
    scale = _Scale([one.seconds for _, sides in panels for runs in sides.values() for one in runs])
    parts: list[str] = []
    y = TOP
    for title, sides in panels:
        parts += _panel(title, sides, scale, y)
        y += TITLE + ROW * len(sides) + BOTTOM
    stacks = _stacks(results)
    if stacks:
        parts += _stage_panel(stacks, y)
        y += TITLE + ROW * len(stacks) + 2 * BOTTOM
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img"'
        ' aria-label="Time from an interruption to the first new step">'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"


class _Scale:
    """From seconds to pixels, logarithmic; what never came is at the right edge."""

    def __init__(self, values: Iterable[float | None]) -> None:
        known = [value for value in values if value is not None and value > 0] or [1.0]
        self.ticks = _between(min(known), max(known))
        self._low, self._high = math.log(self.ticks[0]), math.log(self.ticks[-1])

    def __call__(self, value: float) -> float:
        if math.isinf(value):
            return WIDTH - RIGHT + 12
        inner = WIDTH - LEFT - RIGHT
        place = (math.log(max(value, self.ticks[0])) - self._low) / max(self._high - self._low, 1e-9)
        return round(LEFT + inner * place, 1)


def _between(low: float, high: float) -> list[float]:
    """The ticks from the last one not above ``low`` to the first one not below ``high``."""
    first = max((i for i, tick in enumerate(TICKS) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(TICKS) if tick >= high), default=len(TICKS) - 1)
    return list(TICKS[first : max(last, first + 1) + 1])


def _panel(title: str, sides: Sides, scale: _Scale, top: float) -> Iterable[str]:
    bottom = top + TITLE + ROW * len(sides)
    yield _text(8, top + 12, title, "start", "title")
    for tick in scale.ticks:
        x = scale(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top + TITLE - 10}" y2="{bottom - 6}"/>'
        yield _text(x, bottom + 8, f"{tick:g} s", "middle", "dim")
    for number, (name, runs) in enumerate(sides.items()):
        yield from _row(name, runs, scale, top + TITLE + ROW * number)


def _row(name: str, runs: Sequence[Outcome], scale: _Scale, y: float) -> Iterable[str]:
    spread, colour = Spread.of(runs), _OURS if name.startswith(OURS) else _OTHERS
    yield _text(LEFT - 12, y + 4, name, "end", "")
    if not math.isinf(spread.p75):
        left, right = scale(spread.p25), scale(spread.p75)
        size = f'width="{max(2.0, right - left):.1f}" height="12"'
        yield f'<rect x="{left}" y="{y - 6}" {size} rx="2" fill="{colour}" fill-opacity="0.3"/>'
    for one in runs:
        x = scale(math.inf if one.seconds is None else one.seconds)
        told = NEVER if one.seconds is None else f"{one.seconds:.2f} s, {one.redone} steps redone"
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{escape(told)}</title></circle>'
    x = scale(spread.median)
    yield f'<line x1="{x}" x2="{x}" y1="{y - 8}" y2="{y + 8}" stroke="{colour}" stroke-width="2.5"/>'
    median = NEVER if math.isinf(spread.median) else f"{seconds(spread.median)} s"
    yield _text(WIDTH - 8, y + 4, median, "end", "dim")


def _stacks(results: Results) -> dict[str, dict[str, float]]:
    """Mean seconds by stage of the ledger, for ours in each scenario that it books."""
    found: dict[str, dict[str, float]] = {}
    for ranks, scenarios in results.items():
        for name, sides in scenarios.items():
            for side, runs in sides.items():
                booked = [one.ledger for one in runs if one.ledger]
                if booked:
                    sums = {stage: sum(one[stage] for one in booked) for stage in RECOVERY_STAGES}
                    label = f"{name} x {ranks}: {side.removeprefix(OURS).strip() or 'preloaded'}"
                    found[label] = {stage: total / len(booked) for stage, total in sums.items()}
    return found


def _stage_panel(stacks: Mapping[str, Mapping[str, float]], top: float) -> Iterable[str]:
    title = "ours, by stage (means of the ledger; steps done again are not in it)"
    yield _text(8, top + 12, title, "start", "title")
    longest = max(sum(stages.values()) for stages in stacks.values()) or 1.0
    for row, (label, stages) in enumerate(stacks.items()):
        x, y = float(LEFT), top + TITLE + ROW * row
        yield _text(LEFT - 12, y + 4, label, "end", "")
        for stage, colour in zip(RECOVERY_STAGES, _STAGE_COLOURS, strict=True):
            width = (WIDTH - LEFT - RIGHT) * stages[stage] / longest
            told = f"<title>{stage} {stages[stage]:.2f} s</title>"
            size = f'width="{width:.1f}" height="14"'
            yield f'<rect x="{x:.1f}" y="{y - 7}" {size} fill="{colour}">{told}</rect>'
            x += width
        yield _text(x + 6, y + 4, f"{seconds(sum(stages.values()))} s", "start", "dim")
    x, y = float(LEFT), top + TITLE + ROW * len(stacks) + 8
    for stage, colour in zip(RECOVERY_STAGES, _STAGE_COLOURS, strict=True):
        yield f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" rx="2" fill="{colour}"/>'
        yield _text(x + 15, y, stage, "start", "dim")
        x += 110


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
