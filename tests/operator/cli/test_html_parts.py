"""The pieces that pages are made of: markup that is always escaped, axes with round marks, shapes."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.cli.html import palette
from resumable_operator.cli.html.markup import Html, join, tag, text
from resumable_operator.cli.html.plot import Chart, Key, area, boxes, dots, figure, line
from resumable_operator.cli.html.scale import (
    Axis,
    Tick,
    byte_ticks,
    clock,
    duration_ticks,
    log_time_ticks,
    nice_axis,
    number_ticks,
    time_ticks,
)
from resumable_training.contract.metrics import LEDGER_PHASES, RECOVERY_STAGES

FINITE = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


@given(st.text())
def test_any_text_becomes_harmless(said: str) -> None:
    """In an element and in an attribute: what comes out parses, and says the same."""
    found = ET.fromstring(tag("p", said, title=said))
    kept = "".join(char if char in "\n\t" or char.isprintable() else "\ufffd" for char in said)
    assert "".join(found.itertext()) == kept
    assert len(found) == 0


def test_markup_is_not_escaped_twice() -> None:
    """What is markup already stays as it is."""
    assert tag("b", tag("i", "<&>")) == "<b><i>&lt;&amp;&gt;</i></b>"
    assert join(["<", Html("<br/>"), None, 3]) == "&lt;<br/>3"


def test_attributes_by_python_names() -> None:
    """Underscores for hyphens; None and False leave one out, True has no value."""
    made = tag("td", 1, class_="num", data_x=0.5, hidden=True, id=None, title=False)
    assert made == '<td class="num" data-x="0.5" hidden>1</td>'
    assert tag("meta", name="viewport", content="x") == '<meta name="viewport" content="x"/>'


def test_what_has_no_text_is_refused() -> None:
    """A bug of ours, and no page with an address in memory on it."""
    with pytest.raises(TypeError):
        text(object())


@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans())
def test_an_axis_holds_all_its_values_and_has_marks(values: list[float], from_zero: bool) -> None:
    """Every value has a place on it, and two to twelve marks lie on it, in order."""
    axis = nice_axis(values, from_zero=from_zero)
    invisible = 1e-6 * (axis.high - axis.low)
    assert axis.low - invisible <= min(values)
    assert max(values) <= axis.high + invisible
    places = [tick.place for tick in number_ticks(axis)]
    assert 1 <= len(places) <= 12
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)


@pytest.mark.parametrize(
    ("values", "low", "high", "log"),
    [
        ([0.0, 240.0], 0.0, 300.0, False),
        ([2.1, 5.4], 2.0, 6.0, False),
        ([0.003, 2.0], 0.002, 2.0, True),
        ([7.0, 7.0], 6.5, 7.5, False),
        ([float("nan")], 0.0, 1.0, False),
    ],
)
def test_axes_begin_and_end_at_round_values(values: list[float], low: float, high: float, log: bool) -> None:
    """Logarithmic where the values differ by more than a factor of thirty."""
    axis = nice_axis(values)
    assert (axis.low, axis.high, axis.log) == (pytest.approx(low), pytest.approx(high), log)


@given(st.floats(min_value=0.001, max_value=1e8))
def test_any_span_of_time_has_a_few_marks(span: float) -> None:
    """From milliseconds to years: the beginning, and at most a handful more."""
    ticks = time_ticks(span)
    assert ticks[0] == Tick(0.0, "0")
    assert len(ticks) <= 100 if span > 7e6 else len(ticks) <= 8


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0"),
        (0.5, "0.5 s"),
        (45, "45 s"),
        (90, "1 min 30"),
        (600, "10 min"),
        (5400, "1 h 30"),
        (7200, "2 h"),
        (200_000, "2 d 08 h"),
        (172_800, "2 d"),
    ],
)
def test_moments_are_written_as_people_say_them(seconds: float, told: str) -> None:
    """Short enough for an axis."""
    assert clock(seconds) == told


def test_marks_of_other_units() -> None:
    """Seconds, bytes, and lengths of time on a logarithmic axis."""
    assert [tick.label for tick in duration_ticks(Axis(0.0, 0.4))] == [
        "0 s",
        "100 ms",
        "200 ms",
        "300 ms",
        "400 ms",
    ]
    assert [tick.label for tick in byte_ticks(Axis(0.0, 20e6))] == [
        "0 B",
        "5.0 MB",
        "10.0 MB",
        "15.0 MB",
        "20.0 MB",
    ]
    labels = [tick.label for tick in log_time_ticks(Axis(1.0, 3600.0, log=True))]
    assert (labels[0], labels[-1]) == ("1 s", "1 h") or len(labels) >= 4


def test_a_figure_has_a_title_a_unit_marks_and_words_for_those_who_do_not_see_it() -> None:
    """The drawing is an image with a name; the numbers beside it are decoration to a screen reader."""
    made = figure(
        Chart(
            title="Loss <b>",
            unit="nats",
            summary="Loss fell.",
            drawing=line([(0.0, 0.0), (1.0, 0.5)], "ink"),
            y_ticks=[Tick(0.5, "1")],
            x_ticks=[Tick(0.0, "0"), Tick(1.0, "5 s")],
            keys=[Key("a", "ink"), Key("b", "faint", "dashed")],
            note="told",
            time=True,
        )
    )
    root = ET.fromstring(made)
    drawing = root.find(".//svg")
    assert drawing is not None
    assert (drawing.get("role"), drawing.get("aria-label")) == ("img", "Loss fell.")
    assert drawing.get("preserveAspectRatio") == "none"
    assert [path.get("d") for path in drawing] == ["M0 500h10000", "M0 1000L10000 500"]
    assert "".join(root.find(".//h3").itertext()) == "Loss <b> nats"
    assert [each.get("aria-hidden") for each in root.findall(".//div[@aria-hidden]")] == ["true", "true"]
    assert root.get("class") == "chart time"


def test_shapes_without_points_are_nothing() -> None:
    """An empty path would be an error in a browser's console."""
    assert line([], "a") == dots([], "a") == area([], "a") == boxes([], "a") == ""


def _linear(colour: str) -> list[float]:
    """Of `#rrggbb`, as light."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def _luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2, from 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_phase_and_stage_has_a_look() -> None:
    """A new one would be drawn in no colour."""
    assert set(palette.PHASES) == set(LEDGER_PHASES)
    assert tuple(palette.STAGES) == RECOVERY_STAGES
    assert all(phase in palette.PHASES for _, phase in palette.STAGES.values())


@pytest.mark.parametrize("page", ["#fbfbf9", "#0f1317"])
def test_phases_stand_out_from_the_page(page: str) -> None:
    """At least as much as a hairline needs; those that cost something clearly more."""
    dark = _luminance(page) < 0.5
    for name, look in palette.PHASES.items():
        colour = look.dark if dark else look.light
        quiet = name in ("suspended", "queued", "warmup", "data_stall")
        assert contrast(colour, page) >= (1.5 if quiet else 2.5), name


def test_phases_that_are_neighbours_differ_in_lightness() -> None:
    """Who sees no hues still sees where one ends and the next begins."""
    neighbours = [
        ("productive", "rework"),
        ("productive", "data_stall"),
        ("detecting", "recovering"),
        ("recovering", "rendezvous"),
        ("rendezvous", "restoring"),
        ("restoring", "warmup"),
        ("warmup", "productive"),
        ("starting", "rendezvous"),
    ]
    for one, other in neighbours:
        for scheme in ("light", "dark"):
            first, second = (getattr(palette.PHASES[name], scheme) for name in (one, other))
            assert contrast(first, second) >= 1.15, (one, other, scheme)


# Machado, Oliveira, Fernandes 2009, severity 1: what who lacks one kind of cones sees, in linear RGB.
BLINDNESS = {
    "red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _lab(rgb: list[float]) -> tuple[float, float, float]:
    """CIE L*a*b* of linear RGB."""
    red, green, blue = (min(1.0, max(0.0, part)) for part in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", BLINDNESS)
def test_no_two_phases_look_the_same_to_the_colour_blind(kind: str, scheme: str) -> None:
    """Any two are further apart than what a trained eye can just tell (about 2.3)."""
    seen = {}
    for name, look in palette.PHASES.items():
        linear = _linear(getattr(look, scheme))
        seen[name] = _lab(
            [sum(m * part for m, part in zip(row, linear, strict=True)) for row in BLINDNESS[kind]]
        )
    for one, other in combinations(seen, 2):
        assert math.dist(seen[one], seen[other]) > 3.0, (one, other)
