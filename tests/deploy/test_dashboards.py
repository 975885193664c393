"""Dashboards: what is committed is what the generator writes, and every panel is fit to be looked at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import monitoring
import pytest
import yaml
from fleet_dashboard import fleet_dashboard
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from job_dashboard import job_dashboard
from monitoring import DASHBOARDS, IN_CHART, MONITORING, PanelQuery

Promtool = Callable[..., subprocess.CompletedProcess[str]]
MADE = {"job.json": job_dashboard, "fleet.json": fleet_dashboard}
QUERIES = monitoring.queries()
WINDOWS = ("$__rate_interval", "$__range")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_committed_is_generated(name: str) -> None:
    """The JSON is what the generator writes; `make deploy` writes it."""
    assert (MONITORING / name).read_text() == MADE[name]()


@pytest.mark.parametrize("name", ["rules.yaml", "alerts.yaml", *DASHBOARDS])
def test_the_chart_has_the_same(name: str) -> None:
    """The chart's copies are the files of deploy/monitoring."""
    assert (IN_CHART / name).read_bytes() == (MONITORING / name).read_bytes()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_nothing_is_unknown_to_grafanas_own_types(name: str) -> None:
    """Read into the types that are generated from Grafana's schema, and written again, all of it is there: no
    field is misspelt or in the wrong place. Only defaults may be added."""
    made = monitoring.dashboard(name)
    plugins.register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(made), cls=JSONEncoder))
    assert list(_missing(made, again)) == []


def _missing(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Places of ``one`` that ``other`` lacks, or has another value at."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key, value in one.items():
            yield from _missing(value, other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _missing(mine, its, f"{where}[{number}]")
    elif one != other:
        yield where


def test_rows_of_the_job() -> None:
    """Six rows, from the question to the trust in the answer."""
    titles = [
        panel["title"] for panel in monitoring.dashboard("job.json")["panels"] if panel["type"] == "row"
    ]
    assert titles == [
        "Is it productive?",
        "Where did the time go?",
        "Interruptions and recovery",
        "Checkpoints",
        "Progress and size",
        "Can we trust this?",
    ]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_can_be_imported_anywhere(name: str) -> None:
    """Read-only, with a data source of its own choice, and with annotations of what happened to the job."""
    made = monitoring.dashboard(name)
    assert made["editable"] is False
    variables = [variable["name"] for variable in made["templating"]["list"]]
    assert variables == ["datasource", "namespace", "training_job"][: len(variables)]
    assert len(variables) == (3 if name == "job.json" else 2)
    notes = [note["name"] for note in made.get("annotations", {}).get("list", [])]
    assert notes == (["Interruptions", "Resizes"] if name == "job.json" else [])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_explain_themselves(name: str) -> None:
    """Each has a title of its own, a description, a unit, and the templated data source everywhere."""
    found = monitoring.panels(name)
    assert len({panel["title"] for panel in found}) == len(found)
    for panel in found:
        title = panel["title"]
        assert len(panel["description"].split()) > 4, title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), title
        assert panel["targets"], title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_places_of_their_own(name: str) -> None:
    """Ids are unique, nothing overlaps, nothing sticks out, and references of targets are unique."""
    placed = monitoring.dashboard(name)["panels"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    assert [panel["title"] for panel in placed if not _fits(panel["gridPos"])] == []
    pairs = combinations(placed, 2)
    assert [
        (one["title"], other["title"]) for one, other in pairs if _overlap(one["gridPos"], other["gridPos"])
    ] == []
    for panel in monitoring.panels(name):
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]


def _fits(place: dict[str, int]) -> bool:
    return place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_all_of_a_panel_has_its_unit(name: str) -> None:
    """What is drawn in seconds or bytes comes from metrics of seconds or bytes, every query of it."""
    words = {"s": "seconds", "h": "seconds", "bytes": "bytes"}
    wrong = [
        (panel["title"], query.expr)
        for panel in monitoring.panels(name)
        for query in (PanelQuery(name, panel["title"], target["expr"]) for target in panel["targets"])
        if (word := words.get(panel["fieldConfig"]["defaults"]["unit"]))
        and not any(word in selector.name for selector in monitoring.selected(query.filled("ns", "job")))
    ]
    assert wrong == []


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_queries_are_sound(query: PanelQuery) -> None:
    """Each parses, and names known metrics; counters are in a rate or increase over Grafana's own window."""
    for selector in monitoring.selected(query.filled("ns", "job")):
        if selector.name == "resumable_.+":  # the count of series
            continue
        assert selector.name in monitoring.exported() | monitoring.recorded() | {"up"}
        if monitoring.is_counter(selector.name):
            assert set(selector.inside) & monitoring.OVER_TIME, selector.name
    windows = [part.split("]")[0] for part in query.expr.split("[")[1:]]
    assert [window for window in windows if window not in WINDOWS] == []


@pytest.mark.parametrize("query", [query for query in QUERIES if query.dashboard == "job.json"], ids=str)
def test_queries_of_a_job_are_of_that_job(query: PanelQuery) -> None:
    """No other job's series get in; what is for comparison or of the target itself is the exception."""
    for selector in monitoring.selected(
        query.expr.replace("$__rate_interval", "5m").replace("$__range", "5m")
    ):
        if selector.name in ("up", "cluster:resumable_gpu_goodput:ratio_rate1d"):
            continue
        wanted = {"namespace": "$namespace", "training_job": "$training_job"}
        assert wanted.items() <= selector.labels.items()


def test_prometheus_accepts_every_query(promtool: Promtool, tmp_path: Path) -> None:
    """As a rule file all of them pass Prometheus' own check."""
    rules: list[dict[str, Any]] = [
        {"record": f"q{number}", "expr": query.filled("ns", "job")} for number, query in enumerate(QUERIES)
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = promtool("check", "rules", path)
    assert checked.returncode == 0, checked.stdout
    assert f"{len(QUERIES)} rules found" in checked.stdout


def test_dashboards_fit_into_a_config_map() -> None:
    """The API server takes a megabyte; stay far below it."""
    assert [name for name in DASHBOARDS if (MONITORING / name).stat().st_size > 200_000] == []
