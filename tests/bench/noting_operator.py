"""The operator, writing down what it hears and how long its writes take: ``noting_operator.py DIRECTORY``.

Options of the operator follow. Into DIRECTORY: ``history.jsonl``, agents' events as `rtj run` keeps them, and
``api.jsonl``, every request that changes something at the API server, with the wall-clock times (seconds) of
its beginning and end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from mortal_operator import HARMLESS, name_of

HISTORY, API = "history.jsonl", "api.jsonl"


def program(directory: Path) -> tuple[str, ...]:
    """What Python is to run instead of the operator."""
    directory.mkdir(parents=True, exist_ok=True)
    return (__file__, str(directory))


def append(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    with path.open("a") as file:
        file.write(text)


def timed(path: Path, send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``send(self, method, path, ...)`` of the client, its writes noted."""

    async def sending(client: Any, method: str, target: str, *rest: Any) -> Any:
        began = time.time()
        answer = await send(client, method, target, *rest)
        if method not in HARMLESS and "dryRun=" not in target:
            append(path, [{"what": name_of(method, target), "began": began, "ended": time.time()}])
        return answer

    return sending


def main() -> None:
    from resumable_operator import __main__ as operator
    from resumable_operator import process
    from resumable_operator.cluster.kube_api import KubeApi
    from resumable_operator.decide.observation import Job, TimedEvent

    directory = Path(sys.argv[1])

    def folded(_job: Job, events: list[TimedEvent]) -> None:
        append(directory / HISTORY, map(_plain, events))

    def _plain(event: TimedEvent) -> dict[str, Any]:
        told = event.event
        return {
            "at": event.at,
            "worker": event.worker,
            "kind": told.kind,
            "attempt": told.attempt,
            "data": told.data,
        }

    process.Settings = partial(process.Settings, on_folded=folded)  # type: ignore[misc, assignment]
    KubeApi._send = timed(directory / API, KubeApi._send)  # type: ignore[method-assign]
    operator.main(sys.argv[2:])


if __name__ == "__main__":
    main()
