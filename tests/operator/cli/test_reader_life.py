"""The life of a pod that reads: deleted however it ends, waited for with reasons, listened to meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_session import FakeSession

from resumable_operator.cli import reader_life
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.progress import LINES, bytes_bar, read_progress
from resumable_operator.cli.reader_life import ReaderLife
from resumable_operator.errors import ClusterRefused, RetryableError

Raw = dict[str, Any]
BODY = {"metadata": {"name": "p", "namespace": "team"}}
RUNS: Raw = {"running": {}}
DONE: Raw = {"terminated": {"exitCode": 0, "reason": "Completed"}}
WAITS: Raw = {"waiting": {"reason": "ContainerCreating"}}


class Pods:
    """An API with one pod, which is in the next of these states at each look, in the last for ever."""

    def __init__(self, *states: Raw | Exception | Callable[[], None] | None, log: str = "") -> None:
        self.states, self.log = list(states), log
        self.there = False
        self.deleted = 0

    async def create(self, resource: object, body: Raw, namespace: str) -> Raw:
        self.there = True
        return body

    async def get(self, resource: object, name: str, namespace: str) -> Raw | None:
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        if callable(state):
            state()
            state = RUNS
        return state and {"status": {"containerStatuses": [{"name": "reader", "state": state}]}}

    async def delete(self, resource: object, name: str, namespace: str) -> None:
        self.there, self.deleted = False, self.deleted + 1

    async def list(self, resource: object, namespace: str, fields: str) -> Any:
        raise ClusterRefused("Forbidden", "no")

    @asynccontextmanager
    async def stream(self, call: object, path: str) -> AsyncIterator[Pods]:
        yield self

    async def read(self) -> bytes:
        return self.log.encode()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again without a pause."""
    for name in ("POLL_SECONDS", "PROGRESS_SECONDS", "EVENTS_AFTER_SECONDS", "PASSING_SECONDS"):
        monkeypatch.setattr(reader_life, name, 0.0)


def life(api: Pods) -> ReaderLife:
    session = FakeSession((None, []))
    session.api = api  # type: ignore[attr-defined]
    return ReaderLife(session, 60)  # type: ignore[arg-type]


def run(api: Pods) -> tuple[Any, list[str]]:
    """What it printed, and what was shown meanwhile."""
    shown: list[str] = []
    return asyncio.run(life(api).run(BODY, shown.append)), shown


def test_it_is_waited_for_and_listened_to() -> None:
    """Why it waits, then how far it is; its log at the end."""
    api = Pods(WAITS, RUNS, DONE, log="progress 2500 10000 copying step-1")
    output, shown = run(api)
    assert (output.code, output.text) == (0, "progress 2500 10000 copying step-1")
    assert shown == [
        "waiting for pod p",
        "waiting for pod p: ContainerCreating",
        "pod p: copying step-1, 2.5 kB of 10.0 kB",
    ]
    assert (api.there, api.deleted) == (False, 1)


def test_trouble_is_shown_while_it_lasts() -> None:
    """A server that is waited for, say; other words are not."""
    assert run(Pods(RUNS, DONE, log="warning: slow"))[1][-1] == "pod p: warning: slow"
    assert run(Pods(RUNS, DONE, log="hello"))[1][-1] == "pod p reads"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "deleted by somebody else"),
        ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "OOMKilled; it needs more memory"),
        (
            {"terminated": {"reason": "StartError", "message": "no python"}},
            "no python; --image names another",
        ),
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "k" not found'}},
            "the Secret must be in the job's namespace",
        ),
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "x"}},
            "can't start: .*; --image names another",
        ),
    ],
)
def test_what_ends_it_is_told_and_it_is_deleted(state: Raw | None, words: str) -> None:
    """With what to do about it."""
    api = Pods(RUNS, state)
    kind = UsageProblem if "Secret" in words else RetryableError  # the only one that names something wrong
    with pytest.raises(kind, match=words):
        run(api)
    assert not api.there


def test_a_server_that_is_away_for_a_moment_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stays away does."""
    away = RetryableError("no answer")
    output, shown = run(Pods(RUNS, away, away, DONE))
    assert (output.code, "no answer; asking again" in shown) == (0, True)
    monkeypatch.setattr(reader_life, "SILENCE_SECONDS", -1.0)
    with pytest.raises(RetryableError, match="no answer"):
        run(Pods(RUNS, away))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_the_pod_along(number: int) -> None:
    """Ctrl-C, and what a supervisor sends; afterwards the signal means what it meant before."""
    before = signal.getsignal(signal.SIGTERM)
    api = Pods(RUNS, lambda: os.kill(os.getpid(), number), RUNS)
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        run(api)
    assert not api.there
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_that_serves_is_there_for_the_block() -> None:
    """And not after it, however that ends."""
    api = Pods(WAITS, RUNS)
    with life(api).running(BODY) as name:
        assert (name, api.there) == ("p", True)
    assert not api.there
    with pytest.raises(KeyboardInterrupt), life(api).running(BODY):
        raise KeyboardInterrupt
    assert (api.there, api.deleted) == (False, 2)
    with pytest.raises(RetryableError, match="ended at once"), life(Pods(DONE)).running(BODY):
        raise AssertionError("it runs")


def test_a_pod_that_was_refused_is_not_deleted() -> None:
    """There is none."""

    class Refusing(Pods):
        async def create(self, resource: object, body: Raw, namespace: str) -> Raw:
            raise ClusterRefused("QuotaExceeded", "exceeded quota")

    api = Refusing(RUNS)
    with pytest.raises(ClusterRefused, match="exceeded quota"):
        run(api)
    assert api.deleted == 0


def test_progress_in_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pod: on standard error, not more often than was asked for, and understood by who reads them."""
    monkeypatch.setenv(LINES, "0")
    with bytes_bar("copying x", 4000) as advance:
        for _ in range(2):
            advance(1500)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["progress 1500 4000 copying x", "progress 3000 4000 copying x"]
    assert read_progress(lines[1]) == "copying x, 3.0 kB of 4.0 kB"
    monkeypatch.setenv(LINES, "3600")
    with bytes_bar("copying x", 4000) as advance:
        for _ in range(3):
            advance(1)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (read_progress("Error: x"), read_progress("")) == ("", "")
