"""PURE: what saves cost and how often to make them; what recoveries are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from resumable_operator.cli.html.markup import Html, join, tag
from resumable_operator.cli.html.palette import STAGES, css_class
from resumable_operator.cli.html.plot import Chart, Key, Places, dots, line, percent, uprights
from resumable_operator.cli.html.scale import (
    Axis,
    Tick,
    byte_ticks,
    duration_ticks,
    log_time_ticks,
    nice_axis,
    number_ticks,
    time_ticks,
)
from resumable_operator.cli.html.time_charts import across
from resumable_operator.cli.report_course import Course
from resumable_operator.cli.report_model import IntervalAdvice
from resumable_operator.cli.units import byte_size, duration
from resumable_operator.cli.units import percent as share_text
from resumable_operator.decide.goodput import exact_goodput
from resumable_operator.words import counted

MANY = 60
MOST_DOTS = 1500  # more than a screen has pixels
_CURVE_POINTS = 121


def save_seconds(course: Course) -> Chart | None:
    """Of each save: how long training stood still, and when it was durable."""
    known = [save for save in course.saves if save.blocking_seconds is not None]
    failed = [save for save in course.saves if save.message]
    if not known and not failed:
        return None
    x = across(course)
    slowest = max(
        (max(save.blocking_seconds or 0.0, save.durable_seconds or 0.0) for save in known), default=1.0
    )
    axis = Axis(0.0, slowest * 1.1 or 1.0)
    blocking = [(x(save.at), axis.place(save.blocking_seconds or 0.0)) for save in known]
    durable = [(x(save.at), axis.place(save.durable_seconds or 0.0)) for save in known]
    parts = [
        _dotted(durable, "ink"),
        _dotted(blocking, css_class("checkpointing")),
        uprights(sorted({round(x(save.at), 3) for save in failed}), "unplanned"),
    ]
    keys = [
        Key("training stood still", css_class("checkpointing"), "dot"),
        Key("until durable", "ink", "dot"),
        *([Key(f"failed ({len(failed)})", "unplanned", "line")] if failed else []),
    ]
    return Chart(
        title="Time of a save",
        unit="",
        summary=f"{counted(len(known), 'save')}; the slowest took {duration(slowest)}, {len(failed)} failed.",
        drawing=join(parts),
        y_ticks=duration_ticks(axis),
        x_ticks=time_ticks(course.age),
        keys=keys,
        time=True,
        height="low",
    )


def save_sizes(course: Course) -> Chart | None:
    """Bytes of each save."""
    known = [save for save in course.saves if save.bytes]
    if not known:
        return None
    x = across(course)
    largest = max(save.bytes or 0 for save in known)
    axis = Axis(0.0, largest * 1.15)
    places = [(x(save.at), axis.place(save.bytes or 0)) for save in known]
    return Chart(
        title="Size of a checkpoint",
        unit="",
        summary=f"Checkpoints of up to {byte_size(largest)}.",
        drawing=_dotted(places, css_class("checkpointing")),
        y_ticks=byte_ticks(axis),
        x_ticks=time_ticks(course.age),
        time=True,
        height="low",
    )


def _dotted(places: Places, css: str) -> Html:
    """Dots with a thin line through them; of many only the dots, smaller, and of very many the highest."""
    if len(places) > MANY:
        return dots(_highest(places), f"{css} many")
    return join([line(places, f"{css} thin"), dots(places, css)])


def _highest(places: Places) -> Places:
    """One of each group of neighbours, so that no more are left than a screen has room for."""
    group = -(-len(places) // MOST_DOTS)
    return [max(places[at : at + group], key=lambda place: place[1]) for at in range(0, len(places), group)]


def interval_curve(advice: IntervalAdvice) -> Chart:
    """Goodput that is to be expected at each interval, with the one that was used and the best one."""
    marked = [advice.recommended_seconds, *([advice.used_seconds] if advice.used_seconds else [])]
    axis = _interval_axis(marked)
    ratio = math.log(axis.high / axis.low) / (_CURVE_POINTS - 1)
    xs = [axis.low * math.exp(number * ratio) for number in range(_CURVE_POINTS)]
    ys = [_expected(seconds, advice) for seconds in xs]
    scale = _round_shares(Axis(max(0.0, min(ys) - 0.02), max(ys) + 0.18 * (max(ys) - min(ys)) + 0.01))
    curve = [(axis.place(seconds), scale.place(share)) for seconds, share in zip(xs, ys, strict=True)]
    spots = [(axis.place(seconds), scale.place(_expected(seconds, advice))) for seconds in marked]
    best, used = spots[0], spots[1:]
    return Chart(
        title="Expected goodput by save interval",
        unit="",
        x_unit="seconds of training between two saves, logarithmic",
        summary=_interval_summary(advice),
        drawing=join([line(curve, "ink"), dots([best], "best big"), dots(used, "used big")]),
        y_ticks=_share_ticks(scale),
        x_ticks=log_time_ticks(axis),
        overlay=_spot_labels(best, used),
    )


def _interval_axis(marked: Sequence[float]) -> Axis:
    """A decade around what is marked, at round ends."""
    return nice_axis([max(1e-3, min(marked) / 8), max(marked) * 8], spread=1.0)


def _expected(seconds: float, advice: IntervalAdvice) -> float:
    return exact_goodput(seconds, advice.mtbf_seconds, advice.blocking_seconds, advice.restart_seconds)


def _round_shares(axis: Axis) -> Axis:
    return Axis(math.floor(axis.low * 50) / 50, math.ceil(axis.high * 50) / 50)


def _share_ticks(axis: Axis) -> list[Tick]:
    """In percent."""
    ticks = number_ticks(Axis(axis.low * 100, axis.high * 100), 5)
    return [Tick(tick.place, f"{float(tick.label):g} %") for tick in ticks if float(tick.label) <= 100]


def _interval_summary(advice: IntervalAdvice) -> str:
    used = (
        f" {duration(advice.used_seconds)} was used: {share_text(advice.expected_goodput_used)}."
        if advice.used_seconds
        else ""
    )
    return (
        f"Best at {duration(advice.recommended_seconds)}:"
        f" {share_text(advice.expected_goodput_recommended)} expected.{used}"
    )


def _spot_labels(best: tuple[float, float], used: Sequence[tuple[float, float]]) -> Html:
    """Names beside the two spots; on the side that has room, and one below the other where they are near."""
    labels = [_spot(best, "recommended", "best", below=False)]
    near = bool(used) and abs(used[0][0] - best[0]) < 0.3
    labels += [_spot(place, "used", "used", below=near) for place in used]
    return join(labels)


def _spot(place: tuple[float, float], label: str, css: str, *, below: bool) -> Html:
    side = "left" if place[0] < 0.6 else "right"
    offset = place[0] if side == "left" else 1 - place[0]
    where = f"{side}:calc({percent(offset)} + 10px);bottom:{percent(place[1])}"
    return tag("span", label, class_=f"spot {css} {'below' if below else 'above'}", style=where)


# ---- recoveries ------------------------------------------------------------------------------------------


def stage_bar(stages: Mapping[str, float], longest: float) -> Html:
    """One recovery as a bar whose length says how long it was, and whose parts say why."""
    total = sum(stages.values())
    parts = join(_stage(stage, stages.get(stage, 0.0)) for stage in STAGES)
    width = percent(total / longest if longest > 0 else 0.0)
    told = ", ".join(f"{STAGES[stage][0]} {duration(stages.get(stage, 0.0))}" for stage in STAGES)
    return tag(
        "div",
        tag("div", parts, class_="bar", style=f"width:{width}", role="img", aria_label=told),
        class_="bar-track",
    )


def _stage(stage: str, seconds: float) -> Html | None:
    if seconds <= 0:
        return None
    label, phase = STAGES[stage]
    title = f"{label}: {duration(seconds)}"
    return tag("i", class_=css_class(phase), style=f"flex-grow:{seconds:.3f}", title=title)


def stage_legend() -> Html:
    """Names of the parts."""
    items: Iterable[Html] = (
        tag("li", tag("i", class_=f"key area {css_class(phase)}"), label) for label, phase in STAGES.values()
    )
    return tag("ul", join(items), class_="legend")
