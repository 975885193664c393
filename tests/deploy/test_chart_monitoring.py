"""Monitoring in the chart: monitors find what is there; rules and dashboards are those of the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml
from monitoring import ALERTS, DASHBOARDS, MONITORING, RULES

from resumable_training.contract import labels

Object = dict[str, Any]
Render = Callable[..., list[Object]]
PREFIX = "https://git.example/repo/blob/main/"


def _all(objects: list[Object], kind: str) -> dict[str, Object]:
    """By name, without the release's."""
    return {
        o["metadata"]["name"].removeprefix("rt-resumable-training").removeprefix("-"): o
        for o in objects
        if o["kind"] == kind
    }


def test_nothing_of_it_by_default(render: Render) -> None:
    """A cluster without the Prometheus operator takes the chart as it is."""
    kinds = {o["kind"] for o in render()}
    assert kinds & {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap", "Service"} == set()


def test_rules_are_the_files(render: Render) -> None:
    """The PrometheusRules have what deploy/monitoring has, the pages with their address in front."""
    objects = render("metrics.prometheusRule.enabled=true", f"metrics.prometheusRule.runbookPrefix={PREFIX}")
    made = _all(objects, "PrometheusRule")
    assert made["rules"]["spec"] == yaml.safe_load(RULES.read_text())
    alerts = yaml.safe_load(ALERTS.read_text().replace("docs/runbooks", f"{PREFIX}docs/runbooks"))
    assert made["alerts"]["spec"] == alerts


def test_dashboards_are_the_files(render: Render) -> None:
    """One ConfigMap each, with the label that Grafana's sidecar looks for, and the JSON as it was."""
    objects = render("metrics.dashboards.enabled=true", "metrics.dashboards.folder=Training")
    made = _all(objects, "ConfigMap")
    assert set(made) == {"dashboard-job", "dashboard-fleet"}
    for name in DASHBOARDS:
        config = made[f"dashboard-{name.removesuffix('.json')}"]
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["metadata"]["annotations"] == {"grafana_folder": "Training"}
        (text,) = config["data"].values()
        assert json.loads(text) == json.loads((MONITORING / name).read_text())


def test_labels_are_everywhere(render: Render) -> None:
    """metrics.labels are on all of it, and a part's own labels win over them."""
    objects = render(
        "metrics.podMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
        "metrics.dashboards.enabled=true",
        "metrics.labels.release=prometheus",
        "metrics.prometheusRule.labels.release=other",
    )
    found = {
        o["kind"]: o["metadata"]["labels"]["release"]
        for o in objects
        if o["kind"] in ("PodMonitor", "PrometheusRule", "ConfigMap")
    }
    assert found == {"PodMonitor": "prometheus", "PrometheusRule": "other", "ConfigMap": "prometheus"}


def test_a_jobs_namespace_is_kept(render: Render) -> None:
    """What a monitor adds must not replace labels of metrics: the job is not where the operator is."""
    for kind in ("podMonitor", "serviceMonitor"):
        objects = render(f"metrics.{kind}.enabled=true")
        monitors = [o["spec"] for o in objects if o["kind"] in ("PodMonitor", "ServiceMonitor")]
        endpoints = [
            endpoint
            for spec in monitors
            for endpoint in spec.get("podMetricsEndpoints", []) + spec.get("endpoints", [])
        ]
        assert len(endpoints) == 2
        assert all(endpoint["honorLabels"] and endpoint["path"] == "/metrics" for endpoint in endpoints)


def test_service_monitor_finds_the_service(render: Render) -> None:
    """The Service selects the operator's pod, the monitor the Service; workers stay with a PodMonitor."""
    objects = render("metrics.serviceMonitor.enabled=true", "port=8081")
    service, monitor = _all(objects, "Service")["metrics"], _all(objects, "ServiceMonitor")[""]
    (deployment,) = _all(objects, "Deployment").values()
    pod = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pod.items()
    assert service["spec"]["ports"] == [{"name": "http", "port": 8081, "targetPort": "http"}]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == "http"
    workers = _all(objects, "PodMonitor")["workers"]["spec"]
    assert workers["podMetricsEndpoints"][0]["port"] == labels.AGENT_PORT_NAME
