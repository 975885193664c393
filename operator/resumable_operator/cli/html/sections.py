"""PURE: the page's words and tables: header, where the time went, endings, checkpoints, save interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from resumable_operator.cli.html.cost_charts import (
    interval_curve,
    save_seconds,
    save_sizes,
    stage_bar,
    stage_legend,
)
from resumable_operator.cli.html.markup import Content, Html, join, tag
from resumable_operator.cli.html.palette import NOT_REPORTED, PHASES, STAGES, css_class
from resumable_operator.cli.html.plot import figure, percent
from resumable_operator.cli.html.verdict import interruptions, verdict
from resumable_operator.cli.report import NO_HISTORY, seen_told
from resumable_operator.cli.report_checkpoints import Fallback
from resumable_operator.cli.report_course import Course
from resumable_operator.cli.report_model import (
    Ending,
    IntervalAdvice,
    Report,
    in_steps_too,
    not_reported_seconds,
    sighting,
    steps_told,
    waits_told,
)
from resumable_operator.cli.report_resumed import resumed_told
from resumable_operator.cli.standing import standing
from resumable_operator.cli.units import byte_size, duration
from resumable_operator.cli.units import percent as share_text
from resumable_operator.words import counted

_ENDING_NUMBERS = ("at", "attempt", "detected after", "recovered after", "done again", "workers")
MOST_RECOVERIES = 12
_TONES = {"Succeeded": "good", "Running": "live", "Failed": "bad"}


def section(identity: str, title: str, *content: Content) -> Html:
    """A part of the page with its heading."""
    heading = tag("h2", title, id=f"{identity}-title")
    return tag("section", heading, join(content), id=identity, aria_labelledby=f"{identity}-title")


# ---- header ----------------------------------------------------------------------------------------------


def header(report: Report, written: str) -> Html:
    """Who, how it stands, the verdict, and the few numbers that everybody asks for."""
    stands, reason = standing(report.phase, report.reason, report.cut_off)
    tone = _TONES.get(stands, "busy")
    name = tag("p", tag("span", report.namespace, " /", class_="soft"), " ", report.name, class_="name")
    state = tag("p", tag("span", stands, class_=f"state {tone}"), " ", reason, class_="standing")
    return tag(
        "header",
        tag("div", name, tag("p", written, class_="written"), class_="line"),
        tag("h1", verdict(report)),
        state,
        tag("dl", join(tag("div", tag("dt", n), tag("dd", *v)) for n, v in _tiles(report)), class_="tiles"),
    )


def _tiles(report: Report) -> Iterable[tuple[str, tuple[Content, ...]]]:
    numbers, saves = report.goodput, report.checkpoints
    yield (
        "Goodput",
        _tile(
            share_text(numbers.goodput),
            f"scheduling {share_text(numbers.scheduling)} × runtime {share_text(numbers.runtime)}",
        ),
    )
    settled = f"{duration(numbers.unsettled_seconds)} not yet explained" if numbers.unsettled_seconds else ""
    yield "Age", _tile(duration(numbers.age_seconds), settled or f"{counted(report.attempts, 'attempt')}")
    again = [f"{report.rework_steps:,} done again"] if report.rework_steps else []
    again += [f"{report.steps_to_redo:,} to redo"] if report.steps_to_redo else []
    yield "Steps", _tile(f"{report.high_water_step:,}", ", ".join(again) or "none done twice")
    planned = sum(ending.planned for ending in report.endings)
    yield "Interruptions", _tile(str(interruptions(report)), f"and {counted(planned, 'planned ending')}")
    made = "-" if saves.made is None else f"{saves.made:,}"
    cost = "none measured" if saves.blocking_seconds is None else f"{duration(saves.blocking_seconds)} each"
    yield "Saves", _tile(made if saves.made is not None else saves.newest or "none", cost)
    if numbers.lost_seconds:
        yield "Lost for good", _tile(duration(numbers.lost_seconds), "in no checkpoint")


def _tile(value: str, below: str) -> tuple[Content, ...]:
    return tag("b", value), tag("span", below)


# ---- where the time went -----------------------------------------------------------------------------


def phases(report: Report) -> Html:
    """Every phase that took time, and what is not reported yet; to the millisecond the ledger's numbers."""
    age, waits = report.goodput.age_seconds, not_reported_seconds(report)
    longest = max((waits, *(item.seconds for item in report.phases)))
    rows = [_phase_row(item.phase, item.seconds, item.share, longest) for item in report.phases]
    if waits:
        rows.append(_phase_row("", waits, waits / age, longest))
    heads = tag(
        "tr",
        tag("th", "phase", scope="col"),
        tag("td", class_="wide", aria_hidden="true"),
        tag("th", "seconds", scope="col", class_="num"),
        tag("th", "share", scope="col", class_="num"),
    )
    foot = tag(
        "tr",
        tag("th", "age of the job", scope="row"),
        tag("td", class_="wide", aria_hidden="true"),
        *_time_cells(age, 1.0 if age else None),
    )
    table = tag("table", tag("thead", heads), tag("tbody", join(rows)), tag("tfoot", foot), class_="phases")
    return section("time", "Where the time went", tag("div", table, class_="scroll"))


def _phase_row(phase: str, seconds: float, share: float, longest: float) -> Html:
    """``phase`` empty: what no rank has reported yet."""
    look, color = PHASES.get(phase, NOT_REPORTED), css_class(phase) if phase else "unsettled"
    meter = tag("div", class_=f"meter {color}", style=f"width:{percent(seconds / longest)}")
    name = (tag("i", class_=f"key area {color}"), look.label, tag("small", look.meaning))
    return tag(
        "tr",
        tag("th", *name, scope="row"),
        tag("td", meter, class_="wide", aria_hidden="true"),
        *_time_cells(seconds, share),
    )


def _time_cells(seconds: float, share: float | None) -> tuple[Html, Html]:
    return tag("td", f"{seconds:,.3f}", class_="num"), tag("td", share_text(share), class_="num")


# ---- interruptions ---------------------------------------------------------------------------------------


def endings(report: Report) -> Html:
    """What each recovery was made of, and what was seen of every ending."""
    if not report.endings:
        return section(
            "endings", "Interruptions", tag("p", "None: no attempt ended before its work was done.")
        )
    older = report.endings_not_shown
    return section(
        "endings",
        "Interruptions and planned endings",
        tag("p", _by_cause(report)),
        _recoveries(report),
        tag("div", _ending_table(report.endings), class_="scroll"),
        tag("p", f"And {counted(older, 'older one')}, counted but no longer kept one by one.", class_="note")
        if older
        else None,
    )


def _by_cause(report: Report) -> str:
    """How many of which, the most frequent first."""
    causes = Counter(ending.cause for ending in report.endings if not ending.planned)
    counts = ", ".join(f"{cause} {count}" for cause, count in causes.most_common())
    text = f"{counted(interruptions(report), 'interruption')}{': ' + counts if counts else ''}"
    numbers, count = report.goodput, interruptions(report)
    if count:
        could = numbers.age_seconds - numbers.suspended_seconds - numbers.queued_seconds
        text += f"; one every {duration(could / count)} of the time that it could train"
    return f"{text}."


def _recoveries(report: Report) -> Html | None:
    split = [(number, item) for number, item in enumerate(report.endings, 1) if item.stages]
    if not split:
        return None
    longest = max(sum((item.stages or {}).values()) for _, item in split)
    count = len(split)
    over = [item.stages or {} for _, item in split if item.recover_seconds is not None]
    rows = [
        _recovery_row(f"#{number} {item.cause}", item.stages or {}, longest)
        for number, item in split[-MOST_RECOVERIES:]
    ]
    if len(over) > 1:
        means = {stage: fmean(stages.get(stage, 0.0) for stages in over) for stage in STAGES}
        rows.append(_recovery_row(f"mean of {len(over)}", means, longest, "mean"))
    heads = (
        tag("th", "after", scope="col"),
        tag("td", class_="wide", aria_hidden="true"),
        tag("th", "took", scope="col", class_="num"),
        *(tag("th", label.lower(), scope="col", class_="num stage") for label, _ in STAGES.values()),
    )
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", join(rows)), class_="recoveries")
    shown = min(count, MOST_RECOVERIES)
    unit = f" the newest {shown} of {count}" if shown < count else None
    title = tag("h3", "What recoveries were made of", tag("span", unit, class_="unit"))
    failed = None if over else tag("p", "No recovery yet: none of these led to a step.", class_="note")
    caption = tag("figcaption", title, failed, stage_legend())
    return tag("figure", caption, tag("div", table, class_="scroll"), class_="chart")


def _recovery_row(name: str, stages: dict[str, float], longest: float, css: str | None = None) -> Html:
    cells = (tag("td", duration(stages.get(stage, 0.0)), class_="num stage") for stage in STAGES)
    return tag(
        "tr",
        tag("th", name, scope="row"),
        tag("td", stage_bar(stages, longest), class_="wide"),
        tag("td", duration(sum(stages.values())), class_="num"),
        join(cells),
        class_=css,
    )


def _ending_table(items: Sequence[Ending]) -> Html:
    heads = (
        tag("th", "#", scope="col", class_="num"),
        tag("th", "cause and what was seen", scope="col"),
        *(tag("th", name, scope="col", class_="num") for name in _ENDING_NUMBERS),
    )
    rows = (_ending_row(number, item) for number, item in enumerate(items, 1))
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", join(rows)), class_="endings")


def _ending_row(number: int, item: Ending) -> Html:
    kind = "planned" if item.planned else "unplanned"
    after = "–" if item.size_after is None else str(item.size_after)
    cells = (
        duration(item.at_seconds),
        str(item.attempt),
        duration(item.detect_seconds) if not item.planned else "–",
        duration(item.recover_seconds) if item.recover_seconds is not None else "–",
        steps_told(item, short=True),
        f"{item.size_before} → {after}",
    )
    return tag(
        "tr",
        tag("td", number, class_="num number"),
        tag(
            "td",
            tag("span", item.cause, class_=f"cause {kind}", data_number=f"#{number}"),
            _seen(item),
            class_="seen",
        ),
        *(
            tag("td", cell, class_="num", data_label=name)
            for name, cell in zip(_ENDING_NUMBERS, cells, strict=True)
        ),
        id=f"ending-{number}",
        tabindex="-1",
    )


def _seen(item: Ending) -> Html:
    resumed = resumed_told(item.resumed)
    told = tag(
        "span", "planned: " if item.planned else None, sighting(item), f"; {resumed}" if resumed else None
    )
    if not item.tail:
        return told
    last = tag("details", tag("summary", "last lines of its log"), tag("pre", "\n".join(item.tail)))
    return join([told, last])


# ---- checkpoints -----------------------------------------------------------------------------------------


def checkpoints(report: Report, course: Course) -> Html:
    """What saves cost; which checkpoints were passed over."""
    charts = [figure(chart) for chart in (save_seconds(course), save_sizes(course)) if chart is not None]
    return section(
        "checkpoints",
        "Checkpoints",
        tag("p", _saves_told(report)),
        tag("div", join(charts), class_="pair") if charts else None,
        _fallbacks(report.checkpoints.fallbacks or ()),
    )


def _saves_told(report: Report) -> str:
    numbers = report.checkpoints
    size = byte_size(numbers.newest_bytes)
    if numbers.made is None:
        newest = f"Newest: {numbers.newest}, {size}." if numbers.newest else "None yet."
        return f"{newest} Of the others, {NO_HISTORY}."
    failed = f", {numbers.failed} failed" if numbers.failed else ""
    text = f"{counted(numbers.made, 'save') if numbers.made else 'No save was'} made{failed}"
    text += f"; the newest is {numbers.newest}, {size}." if numbers.newest else "."
    if numbers.blocking_seconds is not None:
        text += (
            f" One stops training for {duration(numbers.blocking_seconds)} and is durable after"
            f" {duration(numbers.durable_seconds)}"
        )
        total = numbers.blocking_total_seconds
        text += f"; together they stopped it for {duration(total)}" if total is not None else ""
        text += f"; {waits_told(report)}." if waits_told(report) else "."
    return text


def _fallbacks(items: Sequence[Fallback]) -> Html | None:
    if not items:
        return None
    lines = (
        tag("li", tag("b", item.checkpoint), f", by attempt {item.attempt}: {item.why}") for item in items
    )
    return join(
        [tag("h3", "Passed over, because they were proved damaged"), tag("ul", join(lines), class_="plain")]
    )


# ---- save interval ---------------------------------------------------------------------------------------


def interval(advice: IntervalAdvice | None) -> Html:
    """How often it saved, how often it should have, and the numbers that say so."""
    if advice is None:
        text = tag("p", "No save was measured, so nothing can be recommended.")
        return section("interval", "Save interval", text)
    return section(
        "interval",
        "Save interval",
        tag("p", _advice(advice)),
        _inputs(advice),
        figure(interval_curve(advice)),
    )


def _advice(advice: IntervalAdvice) -> Html:
    best = in_steps_too(advice.recommended_seconds, advice.recommended_steps)
    told: list[Content] = [
        "Recommended: a save every ",
        tag("b", best),
        f", with an expected runtime goodput of {share_text(advice.expected_goodput_recommended)}",
    ]
    if advice.used:
        told.append(f". It saved {advice.used}")
    if advice.expected_goodput_used is not None:
        told.append(f", with {share_text(advice.expected_goodput_used)}")
    return join([*told, "."])


def _inputs(advice: IntervalAdvice) -> Html:
    facts = (
        ("d", "one save stops training for", duration(advice.blocking_seconds), ""),
        ("M", "time between interruptions", duration(advice.mtbf_seconds), seen_told(advice)),
        ("R", "a restart takes", duration(advice.restart_seconds), ""),
        ("", "a save is durable after", duration(advice.durable_seconds), "the interval's lower bound"),
    )
    cells = (
        tag(
            "div",
            tag("dt", tag("i", letter, class_="letter") if letter else None, what),
            tag("dd", tag("b", value), tag("span", more) if more else None),
        )
        for letter, what, value, more in facts
    )
    note = tag(
        "p",
        "Daly's optimum: √(2dM) · [1 + √(d/2M)/3 + (d/2M)/9] − d. Expected goodput at interval T, exact for"
        " failures that come at random: T / ((M + R)(e^((T+d)/M) − 1)).",
        class_="note",
    )
    return join([tag("dl", join(cells), class_="tiles small"), note])
