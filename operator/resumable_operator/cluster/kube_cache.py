"""What the operator knows of the cluster: jobs, pods and nodes as last told, by watch, list or own write.

Synchronous and for one event loop. Older versions of a known object are ignored, and an object that was
deleted never comes back, in whatever order watch events, lists and answers to own writes arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from resumable_operator.clock import Clock
from resumable_operator.cluster.port import Change

Kind = Literal["job", "pod", "node"]
Raw = dict[str, Any]
Listener = Callable[[Change], None]


class KubeCache:
    """Filled by ``apply`` and ``replace``, read by ``KubernetesCluster``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()

    def apply(self, kind: Kind, event_type: str | None, obj: Raw) -> None:
        """Take in one object: a watch event (``ADDED``, ``MODIFIED``, ``DELETED``, None of a first list) or
        the answer to an own write (None). ``obj`` is not kept and not changed."""
        raise NotImplementedError

    def replace(
        self, kind: Kind, objects: Iterable[Raw], resource_version: str, namespace: str | None = None
    ) -> None:
        """Take in a full list, of one namespace or of all; what it lacks is gone, unless it is newer."""
        raise NotImplementedError

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` at every change; the answer unsubscribes."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)
