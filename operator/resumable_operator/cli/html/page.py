"""PURE but for its own two assets: the whole report as one file that needs nothing else.

The page forbids itself every request (its Content-Security-Policy allows no source but its own script, by
hash), so what it shows is what was known when it was written.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources

from resumable_operator.cli.html import sections
from resumable_operator.cli.html.bounded import bounded
from resumable_operator.cli.html.markup import Html, join, tag
from resumable_operator.cli.html.palette import PHASES, css_rules
from resumable_operator.cli.html.plot import figure
from resumable_operator.cli.html.time_charts import goodput, logged, loss, phase_band, steps, workers
from resumable_operator.cli.html.verdict import verdict
from resumable_operator.cli.report_course import ORDER, Course
from resumable_operator.cli.report_model import Report

HELP = "Drag over a chart to look closer. Keys: arrows move, + and − zoom, 0 shows all."


def page(report: Report, course: Course, written: str, notes: tuple[str, ...] = ()) -> str:
    """The report as HTML.

    Args:
        written: when and from what it was made, for people.
        notes: what a reader must know, such as that a history could not be read.
    """
    course = bounded(course)
    script, style = _asset("page.js"), css_rules() + _asset("page.css")
    told = (tag("p", note, class_="warning", role="note") for note in notes)
    body = tag(
        "body",
        tag("a", "Skip to the charts", href="#course", class_="skip"),
        tag(
            "main",
            sections.header(report, written),
            join(told),
            _course(report, course),
            sections.phases(report),
            sections.endings(report),
            sections.checkpoints(report, course),
            sections.interval(report.interval),
            _footer(),
        ),
        _data(course),
        tag("script", Html(script)),
    )
    title = f"{report.namespace}/{report.name}: {verdict(report)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _course(report: Report, course: Course) -> Html:
    charts = [phase_band(report, course), workers(course), steps(course), loss(course)]
    drawn = [figure(chart) for chart in (*charts, goodput(report, course)) if chart is not None]
    extra = logged(course)
    more = (
        tag("details", tag("summary", "What else the script logged"), join(map(figure, extra)), class_="more")
        if extra
        else None
    )
    readout = tag("output", id="readout", aria_live="polite")
    buttons = tag(
        "div",
        tag("button", "−", type="button", id="zoom-out", aria_label="Zoom out"),
        tag("button", "+", type="button", id="zoom-in", aria_label="Zoom in"),
        tag("button", "All", type="button", id="zoom-all", aria_label="Show the whole run"),
        class_="buttons",
    )
    tools = tag("div", readout, buttons, class_="tools", hidden=True)
    group = tag(
        "div",
        tools,
        join(drawn),
        more,
        id="group",
        tabindex="0",
        role="group",
        aria_label=f"Charts over time. {HELP}",
    )
    return sections.section(
        "course", "How it went", group, tag("p", HELP, class_="note help", hidden=True, id="help")
    )


def _footer() -> Html:
    words = (
        "Goodput: productive time by the job's age without what was suspended; scheduling × runtime: waiting"
        " for room is the cluster's part, the rest the job's. Phases exclude each other and sum to the age."
    )
    return tag("footer", tag("p", words), tag("p", "Written by ", tag("code", "rtj report --html"), "."))


def _data(course: Course) -> Html:
    """What the script needs to tell what is below the pointer."""
    data = {
        "age": round(course.age, 3),
        "labels": [PHASES[phase].label for phase in ORDER],
        "segments": [[_s(item.start), _s(item.end), ORDER.index(item.phase)] for item in course.segments],
        "points": [[_s(p.at), p.step, p.furthest, _g(p.loss), p.attempt] for p in course.points],
        "goodput": [[_s(item.at), round(item.goodput, 4)] for item in course.goodput],
        "sizes": [[_s(item.at), item.size] for item in course.sizes],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return tag("script", Html(text), type="application/json", id="data")


def _s(seconds: float) -> float:
    return round(seconds, 3)


def _g(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
