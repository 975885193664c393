"""PURE: the frame that all charts share, and the few shapes that they are drawn with.

A drawing is an SVG without text, stretched to whatever place there is (``preserveAspectRatio="none"``; lines
keep their width). Words beside it are HTML at percentages, so they have the page's size and fonts at any
width, and zooming only changes a ``viewBox``. Coordinates: x from 0 to ``WIDTH``, y from 0 (top) to
``HEIGHT``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resumable_operator.cli.html.markup import Content, Html, join, tag
from resumable_operator.cli.html.scale import Axis, Tick

WIDTH, HEIGHT = 10_000, 1_000
Places = Sequence[tuple[float, float]]  # (x, y), each from 0 to 1, y upwards


@dataclass(frozen=True)
class Key:
    """One entry of a chart's legend. ``mark``: how it is drawn: area, line, dashed, dot."""

    label: str
    css: str
    mark: str = "line"


@dataclass(frozen=True)
class Chart:
    """A chart, ready but for its frame.

    Attributes:
        summary: what it shows in a sentence, for those who do not see it.
        overlay: HTML above the drawing, placed by percentages.
        time: its x axis is that of the run: it zooms with the others.
        y_axis: given, the y axis follows what is seen when it is zoomed.
    """

    title: str
    unit: str
    summary: str
    drawing: Html
    y_ticks: Sequence[Tick] = ()
    x_ticks: Sequence[Tick] = ()
    keys: Sequence[Key] = ()
    overlay: Content = None
    note: Content = None
    height: str = "medium"
    time: bool = False
    y_axis: Axis | None = None
    x_unit: str = ""
    grid: bool = True


def figure(chart: Chart) -> Html:
    """The chart in its frame."""
    lines, axis = chart.y_ticks if chart.grid else (), chart.y_axis
    grid = join(tag("path", class_="grid", d=f"M0 {_y(tick.place)}h{WIDTH}") for tick in lines)
    drawing = tag(
        "svg",
        grid,
        chart.drawing,
        class_="layer",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=chart.summary,
    )
    gutter = tag("div", join(map(_y_label, chart.y_ticks)), class_="gutter", aria_hidden="true")
    plot = tag("div", drawing, chart.overlay, class_="plot")
    ticks = tag("div", join(map(_x_label, chart.x_ticks)), class_="ticks", aria_hidden="true")
    frame = tag("div", gutter, plot, ticks, class_=f"frame {chart.height}")
    return tag(
        "figure",
        tag("figcaption", _title(chart), _legend(chart.keys)),
        frame,
        tag("p", chart.note, class_="note") if chart.note else None,
        class_="chart time" if chart.time else "chart",
        data_low=axis.low if axis else None,
        data_high=axis.high if axis else None,
        data_log=axis.log if axis else None,
    )


def _title(chart: Chart) -> Html:
    unit = ", ".join(part for part in (chart.unit, chart.x_unit) if part)
    return tag("h3", chart.title, tag("span", " ", unit, class_="unit") if unit else None)


def _legend(keys: Sequence[Key]) -> Html | None:
    if len(keys) < 2:
        return None
    items = (tag("li", tag("i", class_=f"key {key.mark} {key.css}"), key.label) for key in keys)
    return tag("ul", join(items), class_="legend")


def _y_label(tick: Tick) -> Html:
    return tag("span", tick.label, style=f"bottom:{percent(tick.place)}")


def _x_label(tick: Tick) -> Html:
    edge = "first" if tick.place < 0.02 else "last" if tick.place > 0.97 else None
    return tag("span", tick.label, class_=edge, style=f"left:{percent(tick.place)}")


# ---- shapes ----------------------------------------------------------------------------------------------


def line(places: Places, css: str) -> Html:
    """Through all points, one after the other."""
    return tag("path", class_=f"line {css}", d=polyline(places)) if places else Html("")


def dots(places: Places, css: str) -> Html:
    """Round at any stretch of the drawing: lines of no length with round ends."""
    d = "".join(f"M{_x(x)} {_y(y)}h.01" for x, y in places)
    return tag("path", class_=f"dots {css}", d=d) if d else Html("")


def area(places: Places, css: str, floor: Places | None = None) -> Html:
    """Between the points and the ground, or another line."""
    if not places:
        return Html("")
    back = floor if floor is not None else [(places[0][0], 0.0), (places[-1][0], 0.0)]
    d = polyline(places) + "L" + "L".join(f"{_x(x)} {_y(y)}" for x, y in reversed(back)) + "z"
    return tag("path", class_=f"area {css}", d=d)


def boxes(spans: Iterable[tuple[float, float, float, float]], css: str) -> Html:
    """Rectangles (left, right, bottom, top) in one path."""
    d = "".join(
        f"M{_x(left)} {_y(top)}H{_x(right)}V{_y(bottom)}H{_x(left)}z" for left, right, bottom, top in spans
    )
    return tag("path", class_=f"box {css}", d=d) if d else Html("")


def uprights(xs: Iterable[float], css: str) -> Html:
    """Lines from the bottom to the top."""
    d = "".join(f"M{_x(x)} 0V{HEIGHT}" for x in xs)
    return tag("path", class_=f"upright {css}", d=d) if d else Html("")


def polyline(places: Places) -> str:
    """The ``d`` of a path through the points."""
    return "M" + "L".join(f"{_x(x)} {_y(y)}" for x, y in places)


def percent(place: float) -> str:
    """``12.34%``."""
    return f"{place * 100:.2f}".rstrip("0").rstrip(".") + "%"


def _x(place: float) -> str:
    return _short(place * WIDTH)


def _y(place: float) -> str:
    return _short((1 - place) * HEIGHT)


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
