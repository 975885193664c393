"""A real Prometheus for tests: scrapes what it is told, evaluates rules, and answers queries.

Used through the fixture `prometheus`; `promtool` checks rules and expositions without a server.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import subprocess
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bed.binaries import binary
from bed.processes import Component, Server, wait_until

PROGRAMS = ("prometheus", "promtool")
HOST = "127.0.0.1"
START_SECONDS = 60.0
TOOL_SECONDS = 60.0

Sample = tuple[dict[str, str], float]  # labels and value


@dataclass
class Prometheus(Server):
    """A running server. As a context it is stopped at the end; its data goes with the directory."""

    port: int
    targets_file: Path

    @classmethod
    def start(cls, directory: Path, rules: Iterable[Path] = (), every: str = "1s") -> Prometheus:
        """Start it, with no targets yet; from the main thread only.

        Args:
            every: between scrapes, and between evaluations of rules that do not say.
        """
        directory.mkdir(parents=True)
        targets = directory / "targets.json"
        targets.write_text("[]")
        config = directory / "prometheus.yaml"
        config.write_text(yaml.safe_dump(_config(targets, [str(path) for path in rules], every)))
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        argv = [binary("prometheus"), *_arguments(directory, config, port)]
        server = cls(Component.start(argv, directory / "prometheus.log"), port, targets)
        try:
            wait_until(server._ready, START_SECONDS, f"Prometheus; see {server.component.log}", interval=0.1)
        except BaseException:
            server.stop()
            raise
        return server

    def scrape(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Scrape these: job -> addresses, each `host:port` or `host:port/path`.

        Returns when it does, which takes it
        some seconds; whether anybody answers there does not matter.
        """
        entries = [_entry(job, address) for job, addresses in targets.items() for address in addresses]
        fresh = self.targets_file.with_suffix(".new")
        fresh.write_text(json.dumps(entries))
        fresh.rename(self.targets_file)  # whole or not at all: it is watched
        wait_until(
            lambda: len(self._api("targets")["activeTargets"]) == len(entries), START_SECONDS, "the targets"
        )

    def query(self, expression: str) -> list[Sample]:
        """An instant query, now; a scalar is one sample without labels. ValueError says why not."""
        data = self._api("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def value(self, expression: str) -> float | None:
        """The one number that it gives; None while there is none, or no number."""
        found = self.query(expression)
        assert len(found) < 2, f"{expression} gives {len(found)} samples"
        return found[0][1] if found and math.isfinite(found[0][1]) else None

    def firing(self) -> set[tuple[str, str]]:
        """(alert, job) of all alerts that fire."""
        found = self._api("alerts")["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("training_job", ""))
            for alert in found
            if alert["state"] == "firing"
        }

    def unhealthy(self) -> list[str]:
        """Targets whose last scrape failed, and rules whose evaluation did, with the reason."""
        targets = self._api("targets")["activeTargets"]
        groups = self._api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [
            *(f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["lastError"]),
            *(f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")),
        ]

    def _ready(self) -> bool:
        self.component.require_running()
        try:
            return self._get("/-/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _api(self, what: str, **parameters: str) -> dict[str, Any]:
        self.component.require_running()
        status, body = self._get(f"/api/v1/{what}?{urllib.parse.urlencode(parameters)}")
        answer: dict[str, Any] = json.loads(body)
        if answer["status"] != "success":
            raise ValueError(f"{what} {parameters}: {status} {answer['error']}")
        data: dict[str, Any] = answer["data"]
        return data

    def _get(self, where: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request("GET", where)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def promtool(
    *arguments: str | Path, cwd: Path | None = None, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run promtool; its exit code is not checked, its errors come after its output."""
    command = [binary("promtool"), *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        input=input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )


def _config(targets: Path, rules: list[str], every: str) -> dict[str, Any]:
    """`honor_labels`, as the chart's monitors say: the job's namespace is not the operator's."""
    job = {
        "job_name": "bed",
        "honor_labels": True,
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
    }
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": rules,
        "scrape_configs": [job],
    }


def _arguments(directory: Path, config: Path, port: int) -> list[str]:
    return [
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]


def _entry(job: str, address: str) -> dict[str, Any]:
    host, _, path = address.partition("/")
    return {"targets": [host], "labels": {"job": job, "__metrics_path__": f"/{path or 'metrics'}"}}
