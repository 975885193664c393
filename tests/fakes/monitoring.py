"""What tests need to know of deploy/monitoring: rules, alerts, dashboards as data; what is in a query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from resumable_training.contract import metrics as names

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
IN_CHART = ROOT / "charts" / "resumable-training" / "files" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES, ALERTS = MONITORING / "rules.yaml", MONITORING / "alerts.yaml"
DASHBOARDS = ("job.json", "fleet.json")
HISTOGRAMS = {
    names.STEP_SECONDS,
    names.CHECKPOINT_BLOCKING_SECONDS,
    names.CHECKPOINT_DURABLE_SECONDS,
    names.OPERATOR_PASS_SECONDS,
    names.OPERATOR_EVENT_TO_ASSIGNMENT_SECONDS,
}
OVER_TIME = {"rate", "increase", "last_over_time"}  # what may be done to a counter

# Panels that tell of the operator itself: `rtj run` has no API server, queue or passes; a cluster has.
OF_OPERATOR = {
    "Passes",
    "Length of a pass",
    "From an ending to the next assignment",
    "Queue and agents",
    "Requests to the API server",
    "Age of the last comparison",
    "Comparisons that failed",
}
AGENT_METRICS = (
    names.STEP_SECONDS,
    names.DATA_WAIT_SECONDS_TOTAL,
    names.CHECKPOINT_BLOCKING_SECONDS,
    names.CHECKPOINT_DURABLE_SECONDS,
    names.CHECKPOINT_BYTES,
    names.SAMPLES_TOTAL,
    names.AGENT_STEP,
)

Rule = dict[str, Any]


def rules(path: Path = RULES) -> list[Rule]:
    """All rules of a file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def hurried(directory: Path, *, seconds: int = 600) -> list[Path]:
    """The rules, evaluated all the time, and with an alarm after ``seconds`` without progress."""
    made = []
    for path in (RULES, ALERTS):
        groups = yaml.safe_load(path.read_text())
        for group in groups["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                if rule.get("alert") == "NoProgress":
                    assert "> 600" in rule["expr"]
                    rule["expr"] = rule["expr"].replace("> 600", f"> {seconds}")
                    rule["for"] = "1s"
        made.append(directory / path.name)
        made[-1].write_text(yaml.safe_dump(groups))
    return made


def exported() -> set[str]:
    """Every series' name that operator and agents can show."""
    plain = {str(value) for name, value in vars(names).items() if name.isupper() and name != "PREFIX"}
    found = {name for name in plain if name.startswith(names.PREFIX)}
    parts = {name + part for name in HISTOGRAMS for part in ("_bucket", "_sum", "_count")}
    return (found - HISTOGRAMS) | parts


def recorded() -> set[str]:
    """Names that the recording rules make."""
    return {rule["record"] for rule in rules()}


def is_counter(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_sum", "_count"))


@dataclass(frozen=True)
class PanelQuery:
    """One query of a dashboard; ``panel`` is its title, or the annotation's name."""

    dashboard: str
    panel: str
    expr: str

    def filled(self, namespace: str, job: str, window: str = "5m") -> str:
        """As Grafana would send it, with this for its intervals."""
        replaced = self.expr.replace("$__rate_interval", window).replace("$__range", window)
        return replaced.replace("$namespace", namespace).replace("$training_job", job)

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expr}"


def dashboard(name: str) -> dict[str, Any]:
    """As committed."""
    made: dict[str, Any] = json.loads((MONITORING / name).read_text())
    return made


def panels(name: str) -> list[dict[str, Any]]:
    """All panels but the headings of rows."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def queries() -> list[PanelQuery]:
    """Every query of both dashboards, annotations too."""
    found = []
    for name in DASHBOARDS:
        for panel in panels(name):
            found += [PanelQuery(name, panel["title"], target["expr"]) for target in panel["targets"]]
        notes = dashboard(name).get("annotations", {}).get("list", [])
        found += [PanelQuery(name, note["name"], note["expr"]) for note in notes]
    return found


@dataclass(frozen=True)
class Selected:
    """A selector in a query: its metric, and the functions around it, innermost first."""

    name: str
    labels: dict[str, str]
    inside: tuple[str, ...]


def selected(expr: str) -> list[Selected]:
    """All selectors of a query. ValueError when it does not parse."""
    return list(_walk(promql.parse(expr), ()))


def _walk(node: Any, inside: tuple[str, ...]) -> Iterator[Selected]:
    match node:
        case promql.VectorSelector():
            labels = {matcher.name: matcher.value for matcher in node.matchers.matchers}
            yield Selected(node.name or labels.get("__name__", ""), labels, inside)
        case promql.MatrixSelector():
            yield from _walk(node.vector_selector, inside)
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, (node.func.name, *inside))
        case promql.BinaryExpr():
            yield from _walk(node.lhs, inside)
            yield from _walk(node.rhs, inside)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _walk(node.expr, inside)
