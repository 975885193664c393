"""PURE: the charts along the run's time: phases, workers, steps, loss, goodput, and what a script logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from resumable_operator.cli.html.markup import Html, join, tag
from resumable_operator.cli.html.palette import PHASES, css_class
from resumable_operator.cli.html.plot import (
    Chart,
    Key,
    Places,
    area,
    boxes,
    line,
    percent,
    uprights,
)
from resumable_operator.cli.html.scale import (
    Axis,
    nice_axis,
    number_ticks,
    percent_ticks,
    time_ticks,
)
from resumable_operator.cli.report_course import ORDER, Course, Segment
from resumable_operator.cli.report_model import Ending, Report
from resumable_operator.cli.report_points import Point
from resumable_operator.cli.units import duration
from resumable_operator.cli.units import percent as share_text
from resumable_operator.words import counted

CLOSE = 0.03  # of the width: ends that are nearer than this to the first of a group share its mark
MOST_VALUES = 6
GUESSED = 0.002  # of the age: less can't be seen

Place = Callable[[float], float]


def across(course: Course) -> Place:
    """From seconds to the x axis of all charts here."""
    return lambda at: min(1.0, max(0.0, at / course.age)) if course.age > 0 else 0.0


def phase_band(report: Report, course: Course) -> Chart:
    """What the job was doing at each moment, with the ends of attempts marked above."""
    x = across(course)
    shown = [phase for phase in ORDER if any(segment.phase == phase for segment in course.segments)]
    drawing = join(_band(course.segments, phase, x) for phase in shown)
    xs = [x(ending.at_seconds) for ending in report.endings]
    planned = [place for place, ending in zip(xs, report.endings, strict=True) if ending.planned]
    unplanned = [place for place, ending in zip(xs, report.endings, strict=True) if not ending.planned]
    drawing = join([drawing, uprights(planned, "planned"), uprights(unplanned, "unplanned")])
    return Chart(
        title="What the job was doing",
        unit="",
        summary=_band_summary(report),
        drawing=drawing,
        x_ticks=time_ticks(course.age),
        keys=[Key(PHASES[phase].label, css_class(phase), "area") for phase in shown],
        overlay=tag("div", join(_marks(report.endings, x)), class_="marks"),
        height="band",
        time=True,
        grid=False,
        note=_band_note(course),
    )


def _band(segments: Iterable[Segment], phase: str, x: Place) -> Html:
    of_phase = [segment for segment in segments if segment.phase == phase]
    noted = [(x(item.start), x(item.end), 0.0, 1.0) for item in of_phase if not item.guessed]
    guessed = [(x(item.start), x(item.end), 0.0, 1.0) for item in of_phase if item.guessed]
    return join([boxes(noted, css_class(phase)), boxes(guessed, f"{css_class(phase)} guessed")])


def _band_summary(report: Report) -> str:
    shares = ", ".join(f"{PHASES[item.phase].label} {share_text(item.share)}" for item in report.phases[:5])
    ends = counted(sum(not ending.planned for ending in report.endings), "interruption")
    return f"Phases over time. Most of it: {shares}. {ends}."


def _band_note(course: Course) -> str | None:
    notes = []
    if not course.recorded:
        notes.append(
            "Nobody noted steps, so only the ends of attempts are known one by one; the sums below are exact."
        )
    elif sum(item.seconds for item in course.segments if item.guessed) > GUESSED * course.age:
        notes.append(
            "Paler stretches were not noted at the time: they are filled in so that the sums come out right."
        )
    if course.recorded and course.off_seconds > max(1.0, 0.01 * course.age):
        notes.append(
            f"Phases drawn here differ from the exact sums below by up to {duration(course.off_seconds)}."
        )
    return " ".join(notes) or None


def _marks(endings: Sequence[Ending], x: Place) -> Iterable[Html]:
    """Numbers above the ends of attempts, as links into the table; near ones together."""
    groups: list[list[int]] = []
    for number, ending in enumerate(endings):
        near = groups and x(ending.at_seconds) - x(endings[groups[-1][0]].at_seconds) < CLOSE
        if near:
            groups[-1].append(number)
        else:
            groups.append([number])
    for group in groups:
        first, last = group[0], group[-1]
        label = str(first + 1) if first == last else f"{first + 1}–{last + 1}"
        causes = ", ".join(dict.fromkeys(endings[number].cause for number in group))
        place = x(endings[first].at_seconds)
        kind = "planned" if all(endings[number].planned for number in group) else "unplanned"
        yield tag(
            "a",
            label,
            class_=f"mark {kind}",
            href=f"#ending-{first + 1}",
            style=f"left:{percent(place)}",
            data_x=f"{place:.5f}",
            title=causes,
            aria_label=f"Ending {label}: {causes}",
        )


def workers(course: Course) -> Chart | None:
    """How many workers trained."""
    if not course.sizes:
        return None
    x, most = across(course), max(point.size for point in course.sizes)
    axis = Axis(0.0, float(most))
    ends = [*(point.at for point in course.sizes[1:]), course.age]
    spans = [
        (x(point.at), x(end), 0.0, axis.place(point.size))
        for point, end in zip(course.sizes, ends, strict=True)
        if point.size
    ]
    least = min((point.size for point in course.sizes if point.size), default=0)
    return Chart(
        title="Workers that train",
        unit="",
        summary=f"Between {least} and {most} workers trained.",
        drawing=join([boxes(spans, "ink-soft"), *(line(_roof(span), "ink") for span in spans)]),
        y_ticks=[tick for tick in number_ticks(axis, 3) if tick.label.isdigit()],
        x_ticks=time_ticks(course.age),
        height="short",
        time=True,
    )


def _roof(span: tuple[float, float, float, float]) -> Places:
    left, right, _, top = span
    return [(left, top), (right, top)]


def steps(course: Course) -> Chart | None:
    """Steps done, against the most ever done: where they part, work is done again."""
    if not course.points:
        return None
    x = across(course)
    axis = nice_axis([0.0, *(float(point.furthest) for point in course.points)], from_zero=True)
    furthest = [(x(point.at), axis.place(point.furthest)) for point in course.points]
    furthest.append((1.0, furthest[-1][1]))
    parts: list[Html] = [line(furthest, "faint dashed")]
    for group in by_attempt(course.points):
        for again, stretch in _stretches(group):
            places = [(x(point.at), axis.place(point.step)) for point in stretch]
            if again:
                top = [(x(point.at), axis.place(point.furthest)) for point in stretch]
                parts.append(area(top, f"{css_class('rework')} wash", places))
            parts.append(line(places, css_class("rework" if again else "productive")))
    last = course.points[-1]
    return Chart(
        title="Steps",
        unit="",
        summary=f"Steps over time, up to {last.furthest:,}. Those below the furthest are done again.",
        drawing=join(parts),
        y_ticks=number_ticks(axis),
        y_axis=axis,
        x_ticks=time_ticks(course.age),
        keys=[
            Key("new steps", css_class("productive")),
            Key("done again", css_class("rework")),
            Key("furthest ever", "faint", "dashed"),
        ],
        time=True,
    )


def by_attempt(points: Sequence[Point]) -> list[list[Point]]:
    """Points of one attempt after the other: no line joins them."""
    groups: list[list[Point]] = []
    for point in points:
        if groups and groups[-1][-1].attempt == point.attempt:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _stretches(group: Sequence[Point]) -> Iterable[tuple[bool, list[Point]]]:
    """Parts of an attempt that do steps again, and parts that do new ones; they share their border."""
    stretch = [group[0]]
    again = False
    for before, after in pairwise(group):
        redone = after.step < after.furthest or before.step < before.furthest
        if redone != again and len(stretch) > 1:
            yield again, stretch
            stretch = [before]
        again = redone
        stretch.append(after)
    if len(stretch) > 1:
        yield again, stretch


def loss(course: Course) -> Chart | None:
    """The loss that the script logged."""
    known = [point for point in course.points if point.loss is not None]
    if len(known) < 2:
        return None
    values = [point.loss for point in known if point.loss is not None]
    axis = nice_axis(values)
    x = across(course)
    parts = []
    for group in by_attempt(known):
        for again, stretch in _stretches(group):
            places = [(x(point.at), axis.place(point.loss or 0.0)) for point in stretch]
            parts.append(line(places, css_class("rework" if again else "productive")))
    return Chart(
        title="Loss",
        unit="logarithmic" if axis.log else "",
        summary=f"Loss over time, from {values[0]:.4g} to {values[-1]:.4g}.",
        drawing=join(parts),
        y_ticks=number_ticks(axis),
        y_axis=axis,
        x_ticks=time_ticks(course.age),
        time=True,
    )


def goodput(report: Report, course: Course) -> Chart | None:
    """The share of time that made new steps: so far, and in each stretch."""
    if len(course.goodput) < 2 or not course.recorded:
        return None
    x = across(course)
    spans = [
        (x(window.start), x(window.end), 0.0, window.share)
        for window in course.windows
        if window.share is not None
    ]
    so_far: Places = [(x(point.at), point.goodput) for point in course.goodput]
    each = duration(course.age / len(course.windows))
    return Chart(
        title="Goodput",
        unit="share of time that made new steps",
        summary=f"Goodput over time; at the end {share_text(report.goodput.goodput)} of all time.",
        drawing=join([boxes(spans, f"{css_class('productive')} wash"), line(so_far, "ink")]),
        y_ticks=percent_ticks(),
        x_ticks=time_ticks(course.age),
        keys=[Key("since the start", "ink"), Key(f"in each {each}", css_class("productive"), "area")],
        time=True,
    )


def logged(course: Course) -> list[Chart]:
    """What the script logged beside the loss."""
    x = across(course)
    charts = []
    for name, points in list(course.values.items())[:MOST_VALUES]:
        axis = nice_axis([value for _, value in points])
        places = [(x(at), axis.place(value)) for at, value in points]
        charts.append(
            Chart(
                title=name,
                unit="logarithmic" if axis.log else "",
                summary=f"{name} over time, from {points[0][1]:.4g} to {points[-1][1]:.4g}.",
                drawing=line(places, "ink"),
                y_ticks=number_ticks(axis, 4),
                y_axis=axis,
                x_ticks=time_ticks(course.age),
                time=True,
                height="low",
            )
        )
    return charts
