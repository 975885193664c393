"""Rules and alerts: Prometheus accepts them, their values are right, each alert helps who is on call."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import monitoring
import pytest
import yaml
from monitoring import ALERTS, MONITORING, ROOT, RULES, RUNBOOKS, Rule

Promtool = Callable[..., subprocess.CompletedProcess[str]]
ALERT_RULES = monitoring.rules(ALERTS)
ALL = [*monitoring.rules(), *ALERT_RULES]
TESTS = sorted((MONITORING / "tests").glob("*.yaml"))
SECTIONS = ("What it means", "How to confirm", "What to do", "How to roll back")
SPECIFIED = {  # recorded series that others rely on
    "namespace_training_job_phase:resumable_phase_seconds:rate1h",
    "namespace_training_job:resumable_goodput:ratio_rate1h",
    "namespace_training_job:resumable_scheduling_goodput:ratio_rate1h",
    "namespace_training_job:resumable_runtime_goodput:ratio_rate1h",
    "namespace_training_job:resumable_goodput:ratio",
    "cluster:resumable_gpu_goodput:ratio_rate1d",
    "namespace_training_job:resumable_mtbf_seconds:increase1d",
}
NAMES = {
    "NoProgress",
    "CheckpointStale",
    "CrashLoop",
    "GoodputLow",
    "TimeUnaccounted",
    "ReworkHigh",
    "CheckpointingHigh",
    "DataStall",
    "WorkersShort",
    "OperatorDown",
}


def _name(rule: Rule) -> str:
    return str(rule.get("record") or rule["alert"])


def test_prometheus_accepts_them(promtool: Promtool) -> None:
    """`promtool check rules` has nothing to say."""
    checked = promtool("check", "rules", RULES, ALERTS)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_values(promtool: Promtool, path: Path) -> None:
    """The rules' own tests hold: values of recorded series, and what fires when."""
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout


def test_every_alert_is_tested_both_ways() -> None:
    """For each alert there is a moment at which it fires and one at which it does not."""
    tests = [case for path in TESTS for test in yaml.safe_load(path.read_text())["tests"]
             for case in test.get("alert_rule_test", [])]  # fmt: skip
    assert {case["alertname"] for case in tests if case["exp_alerts"]} == NAMES
    also_silent = {case["alertname"] for case in tests if not case["exp_alerts"]}
    beside = {case["alertname"] for case in tests if len(case["exp_alerts"]) == 1}  # another job in that test
    assert also_silent | beside == NAMES


@pytest.mark.parametrize("rule", ALL, ids=_name)
def test_names_are_known(rule: Rule) -> None:
    """Every metric in it is one that is exported or recorded, and counters are summed over time."""
    for selector in monitoring.selected(rule["expr"]):
        assert selector.name in monitoring.exported() | monitoring.recorded()
        lifetime = _name(rule).endswith(":ratio")  # of counters as they are, since the job began
        if monitoring.is_counter(selector.name) and not lifetime:
            assert set(selector.inside) & monitoring.OVER_TIME, selector.name


@pytest.mark.parametrize("rule", monitoring.rules(), ids=_name)
def test_recorded_names_say_what_they_are(rule: Rule) -> None:
    """level:metric:operations, and the level is what the series have as labels."""
    level, metric, operations = rule["record"].split(":")
    assert metric.startswith("resumable_")
    assert re.fullmatch(r"(ratio|rate1[hd]|increase1d|ratio_rate1[hd])", operations)
    if level == "cluster":
        return
    by = re.findall(r"by \(([\w, ]+)\)", rule["expr"])
    grouped = {"_".join(labels.split(", ")) for labels in by}
    assert level in grouped or "group_left" in rule["expr"]


@pytest.mark.parametrize("rule", monitoring.rules(), ids=_name)
def test_ratios_are_of_sums(rule: Rule) -> None:
    """No mean of ratios anywhere."""
    assert "avg" not in rule["expr"]
    if "ratio" in rule["record"]:
        assert rule["expr"].count("sum") >= 1
        assert "/" in rule["expr"]


def test_what_is_specified_is_recorded() -> None:
    """Names that dashboards of others may use do not change."""
    assert monitoring.recorded() >= SPECIFIED


def test_the_ten_alerts() -> None:
    """These and no others."""
    assert {rule["alert"] for rule in ALERT_RULES} == NAMES
    assert len(ALERT_RULES) == 10


@pytest.mark.parametrize("rule", ALERT_RULES, ids=_name)
def test_alert_tells_what_to_do(rule: Rule) -> None:
    """A severity, a summary that names the job, a description, and a page with its four parts."""
    notes = rule["annotations"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(notes) == {"summary", "description", "runbook_url"}
    of_operator = rule["alert"] == "OperatorDown"
    assert of_operator or "{{ $labels.namespace }}/{{ $labels.training_job }}" in notes["summary"]
    page = (ROOT / notes["runbook_url"]).read_text()
    assert page.startswith(f"# {rule['alert']}\n")
    assert [section for section in SECTIONS if f"\n## {section}\n" not in page] == []
    assert "```" in page


def test_every_page_is_of_an_alert() -> None:
    """No page for an alert that is gone."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == NAMES


def test_documented() -> None:
    """docs/monitoring.md has every alert, with the name and the condition, and every recorded series."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert [name for name in NAMES | monitoring.recorded() if f"`{name}`" not in page] == []
