"""Ranks stand by again after one could not be forked, or was killed: later, and only if that can go well."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from resumable_training.agent import preload
from resumable_training.agent.preload import PreloadStarter
from resumable_training.agent.preload_parent import Parent
from resumable_training.agent.preload_standby import AGAIN_SECONDS, BETWEEN_SECONDS, Standbys


class Later:
    """A loop's timers: how long until what was planned last; None: nothing is planned."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def call_later(self, seconds: float, *_: Any) -> Later:
        self.seconds = seconds
        return self

    def cancel(self) -> None:
        self.seconds = None


class Asked:
    """A starter of two ranks whose parent is the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.later, self.said, self.replaced = Later(), list[str](), list[str]()
        monkeypatch.setattr(preload.asyncio, "get_running_loop", lambda: self.later)
        monkeypatch.setattr(preload, "PATIENCE_SECONDS", 0.01)
        self.parent: Any = Parent.__new__(Parent)
        self.parent._asked = self.parent._answered = 0
        self.parent.ready, self.parent.pid = True, 1
        self.parent.control, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.setblocking(False)
        self.starter: Any = PreloadStarter.__new__(PreloadStarter)
        self.starter._parent, self.starter._usual_count, self.starter._said = self.parent, 2, set()
        self.starter._standbys = Standbys(SimpleNamespace(harbour=id, remove=id))
        self.starter._say, self.starter._replace = self.said.append, self.replaced.append
        self.starter._changed = SimpleNamespace(set=lambda: None)

    def answer(self, number: int, **message: Any) -> None:
        self.theirs.send(json.dumps({"number": number, **message}).encode())

    def requests(self) -> int:
        """How many have come since this was asked."""
        count = 0
        try:
            while True:
                _, received, _, _ = socket.recv_fds(self.theirs, 1000, 9)
                count += 1
                for descriptor in received:
                    os.close(descriptor)
        except BlockingIOError:
            return count


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    made = Asked(monkeypatch)
    with made.parent.control, made.theirs:
        yield made


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ({"kind": "refused", "why": "Out of memory"}, AGAIN_SECONDS),
        ({"kind": "started", "pids": [], "why": "no process"}, AGAIN_SECONDS),
        ({"kind": "refused", "why": "it has 2 threads", "lasting": True}, None),
        ({"kind": "refused", "why": "mine.py has changed", "again": True}, AGAIN_SECONDS),
    ],
)
def test_when_it_is_asked_again(asked: Asked, answer: dict[str, Any], seconds: float | None) -> None:
    """Later, unless it can never be forked any more; the next attempt sees to that."""
    asked.answer(1, **answer)
    asked.starter._stand_by()
    assert asked.later.seconds == seconds
    assert asked.said == [f"no rank stands by: {answer['why']}"]


def test_a_parent_that_has_not_answered_is_not_asked_again(asked: Asked) -> None:
    """A stopped one would fork all of them when it goes on, and each time the agent would stand still."""
    for _ in range(3):
        asked.starter._stand_by()
        assert asked.later.seconds == AGAIN_SECONDS
    assert asked.requests() == 1
    assert asked.said == ["no rank stands by: timed out"]
    asked.answer(1, kind="started", pids=[7])
    asked.starter._on_message(asked.parent)
    assert not asked.starter._standbys
    asked.starter._stand_by()
    assert asked.requests() == 1


def test_what_could_not_be_sent_is_not_waited_for(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """There will be no answer."""

    def fails(*_: Any) -> None:
        raise OSError(109, "Too many references")

    with monkeypatch.context() as context:
        context.setattr(socket, "send_fds", fails)
        asked.starter._stand_by()
    assert asked.later.seconds == AGAIN_SECONDS
    asked.starter._stand_by()
    assert asked.requests() == 1


def test_whoever_kills_each_of_them_does_not_make_us_busy(asked: Asked) -> None:
    """Also where more were about to be forked, at once."""
    one: Any = SimpleNamespace(pid=5, close=lambda: None)
    asked.starter._standbys.add([one])
    asked.starter._plan_standbys(BETWEEN_SECONDS)
    asked.starter.reaped([(7, 0)])
    assert asked.later.seconds == BETWEEN_SECONDS
    asked.starter.reaped([(5, -9)])
    assert asked.later.seconds == AGAIN_SECONDS


@pytest.mark.timeout(30)
@pytest.mark.parametrize("patience", [None, 3600.0])
def test_an_answer_that_was_read_already_is_no_end(asked: Asked, patience: float | None) -> None:
    """By the next request, after the loop had seen it: nor is another waited for, as a request is."""
    asked.parent.control.settimeout(patience)
    asked.starter._on_message(asked.parent)
    assert not asked.replaced
    asked.theirs.close()
    asked.starter._on_message(asked.parent)
    assert asked.replaced
