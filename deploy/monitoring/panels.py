"""What both dashboards are made of: a few kinds of panels, laid out in rows from left to right.

A dashboard is a list of rows of ``Panel``; ``build`` gives every panel an id and a place. Nobody edits the
JSON: `make deploy` writes it, and a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
GOOD, POOR, BAD = "green", "orange", "red"

# One colour for a phase, whatever panel it is in; what is new steps is green, what is lost is not.
COLOURS = {
    "productive": "green",
    "running_opaque": "super-light-green",
    "evaluating": "light-green",
    "checkpointing": "blue",
    "data_stall": "purple",
    "rework": "orange",
    "warmup": "super-light-yellow",
    "restoring": "light-yellow",
    "rendezvous": "yellow",
    "starting": "light-blue",
    "resizing": "super-light-blue",
    "recovering": "light-orange",
    "detecting": "red",
    "queued": "dark-purple",
    "suspended": "super-light-purple",
    "unaccounted": "dark-red",
    # stages of a recovery
    "detect": "red",
    "reschedule": "light-orange",
    "restore": "light-yellow",
}

Kind = Literal["stat", "lines", "bars", "shares", "gauge", "table"]
Step = tuple[float | None, str]  # from this value on, this colour


@dataclass(frozen=True)
class Query:
    """``legend`` as Grafana's: labels in braces."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel; ``wide`` of 24.

    ``kind``: stat (one number), lines, bars (stacked over time), shares (stacked to 100 %), gauge (a bar for
    each series, now), table (a row for each series, now).
    """

    title: str
    description: str
    kind: Kind
    unit: str
    queries: tuple[Query, ...]
    wide: int = 8
    high: int = 8
    steps: tuple[Step, ...] = ()
    most: float | None = None  # upper end of the scale
    columns: dict[str, str] = field(
        default_factory=dict
    )  # of a table: field -> its header, the others are left out
    named: bool = False  # a stat that shows the series' name, not its number
    empty: str = "-"  # what is shown when there is no data


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def build(made: dashboard.Dashboard, rows: Sequence[Row]) -> str:
    """The dashboard with these rows, as JSON with sorted keys."""
    numbers = iter(range(1, 1000))
    top = 0
    for row in rows:
        heading = dashboard.Row(row.title).id(next(numbers)).grid_pos(_place(0, top, WIDTH, 1))
        made.with_row(heading)
        top += 1
        for panel, x, y in _laid_out(row.panels):
            place = _place(x, top + y, panel.wide, panel.high)
            made.with_panel(_builder(panel).id(next(numbers)).grid_pos(place))
        top += max(y + panel.high for panel, _x, y in _laid_out(row.panels))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _laid_out(panels: Sequence[Panel]) -> Iterator[tuple[Panel, int, int]]:
    """Panels with their x and y, line after line; lines are as high as their highest panel."""
    x = y = high = 0
    for panel in panels:
        if x + panel.wide > WIDTH:
            x, y, high = 0, y + high, 0
        yield panel, x, y
        x, high = x + panel.wide, max(high, panel.high)


def _place(x: int, y: int, w: int, h: int) -> models.GridPos:
    return models.GridPos(x=x, y=y, w=w, h=h)


def variables(made: dashboard.Dashboard, *, of_job: bool) -> dashboard.Dashboard:
    """``datasource`` and ``namespace``; with ``of_job`` one namespace and one job in it."""
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    namespace = _labels("namespace", "Namespace", "label_values(resumable_info, namespace)")
    made.with_variable(source)
    if not of_job:
        return made.with_variable(namespace.multi(True).include_all(True).all_value(".*"))
    job = _labels("training_job", "Job", 'label_values(resumable_info{namespace="$namespace"}, training_job)')
    return made.with_variable(namespace).with_variable(job)


def _labels(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def annotation(name: str, expr: str, colour: str) -> dashboard.AnnotationQuery:
    """Lines over all graphs where ``expr`` has a value."""
    return (
        dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expr)
    )


# ---- panels -----------------------------------------------------------------------------------------------


def _builder(panel: Panel) -> timeseries.Panel:
    """Every builder has the same methods for what they share; the first one's type stands for them."""
    made = _KINDS[panel.kind](panel)
    made.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit)
    made.no_value(panel.empty)
    if panel.most is not None:
        made.min(0).max(panel.most)
    for letter, query in zip("ABCDEFG", panel.queries, strict=False):
        made.with_target(_target(panel, query, letter))
    return made


def _target(panel: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(SOURCE)
    if query.legend:
        target.legend_format(query.legend)
    if panel.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    return target.instant() if panel.kind in ("stat", "gauge") else target.range()


def _stat(panel: Panel) -> stat.Panel:
    text = shapes.BigValueTextMode.NAME if panel.named else shapes.BigValueTextMode.VALUE
    many = len(panel.queries) > 1
    made = stat.Panel().graph_mode(shapes.BigValueGraphMode.NONE).reduce_options(_last())
    made.text_mode(shapes.BigValueTextMode.VALUE_AND_NAME if many else text)
    return _with_steps(made, panel)


def _gauge(panel: Panel) -> bargauge.Panel:
    made = bargauge.Panel().orientation(shapes.VizOrientation.HORIZONTAL).reduce_options(_last())
    made.display_mode(shapes.BarGaugeDisplayMode.BASIC).min(0)
    return _with_steps(_coloured(made, panel), panel)


def _table(panel: Panel) -> table.Panel:
    made = table.Panel()
    made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    order = {name: index for index, name in enumerate(panel.columns)}
    options = {"includeByName": dict.fromkeys(panel.columns, True), "indexByName": order}
    shown = {**options, "renameByName": panel.columns}
    made.with_transformation(models.DataTransformerConfig(id_val="organize", options=shown))
    return _with_steps(made, panel)


def _lines(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().line_width(1).fill_opacity(5).legend(_legend())
    return _with_steps(_coloured(made, panel), panel)


def _bars(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().draw_style(shapes.GraphDrawStyle.BARS).fill_opacity(80).line_width(0)
    made.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    return _coloured(made.legend(_legend()), panel)


def _shares(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().line_width(0).fill_opacity(80).legend(_legend())
    made.stacking(common.StackingConfig().mode(shapes.StackingMode.PERCENT))
    return _coloured(made, panel)


_KINDS = {
    "stat": _stat,
    "gauge": _gauge,
    "table": _table,
    "lines": _lines,
    "bars": _bars,
    "shares": _shares,
}


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _legend() -> common.VizLegendOptions:
    made = common.VizLegendOptions().show_legend(True).placement(shapes.LegendPlacement.BOTTOM)
    return made.display_mode(shapes.LegendDisplayMode.LIST)


def _coloured(made: timeseries.Panel, panel: Panel) -> timeseries.Panel:
    """Phases and stages have a colour of their own; other series get Grafana's."""
    if not {query.legend for query in panel.queries} & {"{{phase}}", "{{stage}}"}:
        return made
    for name, colour in COLOURS.items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        made.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])
    return made


def _with_steps(made: timeseries.Panel, panel: Panel) -> timeseries.Panel:
    if panel.steps:
        steps = [models.Threshold(value=value, color=colour) for value, colour in panel.steps]
        made.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        made.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    return made
