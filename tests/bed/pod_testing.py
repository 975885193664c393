"""For tests: short ways to write pods, and a watch that misses nothing of what happens to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bed.api import Api, ApiError, path

Object = dict[str, Any]

IMAGE = "bed/test"
WINDOW_SECONDS = 2.0
EXPIRED = 410


def container(*command: str, name: str = "main", **fields: Any) -> Object:
    """A container that runs `command`."""
    return {"name": name, "image": IMAGE, "command": list(command), **fields}


def shell(script: str, name: str = "main", **fields: Any) -> Object:
    """A container that runs a shell script."""
    return container("bash", "-c", script, name=name, **fields)


def pod(name: str, *containers: Object, node: str | None = None, **spec: Any) -> Object:
    """A pod that is not restarted; on `node`, past the scheduler, if that is given. `spec` overrides."""
    placed = {} if node is None else {"nodeName": node}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": list(containers), **placed, **spec},
    }


def tolerating(seconds: int) -> list[Object]:
    """Tolerations of a pod that leaves a lost node after `seconds`, and minds no other taint."""
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in keys
    ]
    return [*lost, {"operator": "Exists", "effect": "NoSchedule"}]


def condition(found: Object, kind: str) -> Object:
    """A condition of a pod or node; {} if it has none of that kind."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def state(found: Object, name: str = "main") -> Object:
    """State of a container: {"running": ...}, {"waiting": ...}, {"terminated": ...}; {} before the first."""
    status = found.get("status", {})
    known = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((item["state"] for item in known if item["name"] == name), {})


def reason(found: Object, name: str = "main") -> str | None:
    """Why a container waits or has ended."""
    return next(iter(state(found, name).values()), {}).get("reason")


def restarts(found: Object) -> int:
    """How often the containers of a pod were restarted, all together; init containers aside."""
    return sum(item["restartCount"] for item in found.get("status", {}).get("containerStatuses", []))


def phase(*wanted: str) -> Callable[[Object], bool]:
    """Whether a pod is in one of these phases."""
    return lambda found: found.get("status", {}).get("phase") in wanted


class PodWatch:
    """Every event of the pods of one namespace since it was entered, in a thread of its own.

    Where the server has forgotten them, as one that was away does, what is there then counts as an event.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self.namespace = namespace
        self.events: list[tuple[str, Object]] = []
        self._known: dict[str, Object] = {}  # by uid
        self._news = threading.Condition()
        self._ended = False

    def __enter__(self) -> PodWatch:
        listed = self._api.get(path("v1", "pods", self.namespace))
        self._known = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        version = listed["metadata"]["resourceVersion"]
        threading.Thread(target=self._run, args=(version,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True

    def create(self, *pods: Object) -> None:
        """Create pods in the namespace."""
        for item in pods:
            self._api.create(path("v1", "pods", self.namespace), item)

    def delete(self, name: str, **params: Any) -> None:
        """Delete a pod."""
        self._api.delete(path("v1", "pods", self.namespace, name), **params)

    def mark(self) -> int:
        """The present, for `since`."""
        return len(self.events)

    def until(
        self, name: str, holds: Callable[[Object], bool], seconds: float = 20.0, since: int = 0
    ) -> Object:
        """The first version of pod `name`, from `since` on, for which `holds`; it may lie in the past."""
        return self._first(name, lambda kind, item: kind != "DELETED" and holds(item), seconds, since)

    def gone(self, name: str, seconds: float = 20.0) -> Object:
        """The last version of pod `name`, when it is deleted."""
        return self._first(name, lambda kind, item: kind == "DELETED", seconds, 0)

    def _first(self, name: str, holds: Callable[[str, Object], bool], seconds: float, since: int) -> Object:
        deadline = time.monotonic() + seconds
        with self._news:
            while True:
                for kind, item in self.events[since:]:
                    if item["metadata"]["name"] == name and holds(kind, item):
                        return item
                since = len(self.events)
                if not self._news.wait(max(0.0, deadline - time.monotonic())):
                    last = [item for _, item in self.events if item["metadata"]["name"] == name][-1:]
                    raise TimeoutError(f"waited {seconds:g} s for pod {name}; last seen: {last}")

    def _run(self, version: str | None) -> None:
        where = path("v1", "pods", self.namespace)
        while not self._ended:
            try:
                version = version or self._look_anew()
                for event in self._api.watch(where, WINDOW_SECONDS, resourceVersion=version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._tell(event["type"], event["object"])
            except ApiError as error:
                version = None if error.status == EXPIRED else version
                if not self._ended:
                    time.sleep(0.1)

    def _look_anew(self) -> str:
        """Tell what has changed meanwhile, as far as a list shows it; the list's version."""
        listed = self._api.get(path("v1", "pods", self.namespace))
        found = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid in self._known.keys() - found.keys():
            self._tell("DELETED", self._known[uid])
        for pod in found.values():
            self._tell("MODIFIED", pod)
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _tell(self, kind: str, item: Object) -> None:
        with self._news:
            if kind == "DELETED":
                self._known.pop(item["metadata"]["uid"], None)
            else:
                self._known[item["metadata"]["uid"]] = item
            self.events.append((kind, item))
            self._news.notify_all()
