"""The operator, killing itself (SIGKILL) at one of its effects: ``mortal_operator.py DIRECTORY DEATH ...``.

An effect is a request that changes something, at the API server or at an agent, by name: ``PUT status``,
``POST pods``, ``PUT assignment`` and so on. Counting begins when the file ``armed`` is in the directory; what
was counted is in the file ``effects``. A death is ``before <effect> <nth>`` or ``after <effect> <nth>``, with
``any`` for an effect of any name: the request was not sent, or it was done and nobody heard the answer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANY = "any"
HARMLESS = ("GET", "HEAD")


@dataclass(frozen=True)
class Death:
    """When to die."""

    when: str  # before or after
    effect: str
    nth: int

    def program(self, directory: Path) -> tuple[str, ...]:
        """What Python is to run."""
        directory.mkdir(parents=True, exist_ok=True)
        return (__file__, str(directory), f"{self.when} {self.effect} {self.nth}")


def parse(text: str) -> Death:
    when, rest = text.split(" ", 1)
    effect, nth = rest.rsplit(" ", 1)
    return Death(when, effect, int(nth))


def arm(directory: Path) -> None:
    """Effects count from now on."""
    (directory / "armed").touch()


def effects(directory: Path) -> list[str]:
    """Those that were begun, in order."""
    file = directory / "effects"
    return file.read_text().splitlines() if file.exists() else []


def name_of(method: str, path: str) -> str:
    """``PUT status`` of ``/apis/.../train/status``, ``DELETE pods`` of ``/api/v1/.../pods/train-0-1``."""
    parts = path.split("?")[0].strip("/").split("/")
    if "namespaces" in parts:
        parts = parts[parts.index("namespaces") + 2 :]  # resource, name, subresource
        return f"{method} {parts[2] if len(parts) > 2 else parts[0]}"
    return f"{method} {parts[-1]}"


class Mortality:
    """Counts effects, and ends the process at the wished one."""

    def __init__(self, directory: Path, death: Death) -> None:
        self._directory, self._death = directory, death
        self._counts: Counter[str] = Counter()

    def wrap(self, send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """``send(self, method, path, ...)`` of a client."""

        async def sending(client: Any, method: str, path: str, *rest: Any) -> Any:
            effect = name_of(method, path)
            if method in HARMLESS or "dryRun=" in path or not (self._directory / "armed").exists():
                return await send(client, method, path, *rest)
            due = self._count(effect)
            if due and self._death.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await send(client, method, path, *rest)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return sending

    def _count(self, effect: str) -> bool:
        with (self._directory / "effects").open("a") as file:
            file.write(f"{effect}\n")
        self._counts.update([effect, ANY])
        death = self._death
        return death.effect in (effect, ANY) and self._counts[death.effect] == death.nth


def main() -> None:
    from resumable_operator import __main__ as operator
    from resumable_operator.agent_client import AgentClient
    from resumable_operator.cluster.kube_api import KubeApi

    mortality = Mortality(Path(sys.argv[1]), parse(sys.argv[2]))
    KubeApi._send = mortality.wrap(KubeApi._send)  # type: ignore[method-assign]
    AgentClient._call = mortality.wrap(AgentClient._call)  # type: ignore[method-assign]
    operator.main(sys.argv[3:])


if __name__ == "__main__":
    main()
