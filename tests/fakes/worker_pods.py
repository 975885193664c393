"""Jobs to make pods of, for the tests of manifests."""

from __future__ import annotations

from typing import Any

from resumable_operator.decide.observation import Job
from resumable_operator.manifests import PodSettings, pod
from resumable_operator.model import JobStatus, parse_spec

SETTINGS = PodSettings(agent_image="operator:1")
KEY_ID = "0123456789abcdef"


def job_of(
    template_spec: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    **spec: Any,
) -> Job:
    """A job with one container; ``worker`` and ``template_spec`` are laid over its template."""
    container = {"name": "worker", "image": "train:1", "command": ["python", "train.py"], **(worker or {})}
    template: dict[str, Any] = {"spec": {"containers": [container], **(template_spec or {})}}
    if metadata is not None:
        template["metadata"] = metadata
    parsed = parse_spec({"workers": {"replicas": 2}, "template": template, **spec})
    return Job("team", "train", "uid-1", 1, parsed, JobStatus())


def pod_of(job: Job, settings: PodSettings = SETTINGS, avoid: tuple[str, ...] = ()) -> dict[str, Any]:
    """The pod of place 1."""
    return pod(job, "train-1-1", 1, 1, KEY_ID, settings, avoid)


def worker_of(made: dict[str, Any]) -> dict[str, Any]:
    """The container that the agent runs in."""
    (found,) = [each for each in made["spec"]["containers"] if each["name"] == "worker"]
    return dict(found)


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Named entries of a list; no name comes twice."""
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names), names
    return dict(zip(names, entries, strict=True))
