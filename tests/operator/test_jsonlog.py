"""Log lines: parseable, with job and attempt, and no more of the framework than is needed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from resumable_operator import jsonlog

ours = logging.getLogger("resumable_operator.some")
kopfs = logging.getLogger("kopf.some.reactor")


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """Where lines go; logging is put back afterwards."""
    names = ("", "kopf", "asyncio", "aiohttp", "urllib3", "kubernetes")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.level) for logger in loggers], list(logging.getLogger().handlers)
    yield io.StringIO()
    for logger, level in before[0]:
        logger.setLevel(level)
    logging.getLogger().handlers[:] = before[1]


def entries(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_json_line(output: io.StringIO) -> None:
    """A line is one JSON object with time in UTC, level, logger, message and what is known of the job."""
    jsonlog.configure("json", "info", output)
    ours.warning("%d workers\nare late", 2, extra={"job": "ns/train", "attempt": 3, "event": "pass"})
    (entry,) = entries(output)
    assert entry.pop("ts").endswith("Z")
    assert entry == {
        "level": "warning",
        "logger": "resumable_operator.some",
        "message": "2 workers\nare late",
        "job": "ns/train",
        "attempt": 3,
        "event": "pass",
    }


def test_what_is_not_known_is_left_out(output: io.StringIO) -> None:
    """A line about no job has no such field."""
    jsonlog.configure("json", "info", output)
    ours.info("started")
    assert set(entries(output)[0]) == {"ts", "level", "logger", "message"}


async def test_lines_know_their_job(output: io.StringIO) -> None:
    """What is logged inside ``about`` names the job, also in a task begun there, and not in one beside it."""
    jsonlog.configure("json", "info", output)

    async def speak(words: str) -> None:
        ours.info(words)

    beside = asyncio.create_task(speak("beside"))
    with jsonlog.about("ns/train"):
        inside = asyncio.create_task(speak("task"))
        ours.info("inside")
    await asyncio.gather(beside, inside)
    ours.info("after")
    jobs = {entry["message"]: entry.get("job") for entry in entries(output)}
    assert jobs == {"inside": "ns/train", "task": "ns/train", "beside": None, "after": None}


def test_text_line(output: io.StringIO) -> None:
    """For people the job is in the line, once."""
    jsonlog.configure("text", "info", output)
    ours.info("on its way", extra={"job": "ns/train", "attempt": 3})
    ours.info("ns/train: on its way", extra={"job": "ns/train"})
    first, second = output.getvalue().splitlines()
    assert first.endswith("INFO    resumable_operator.some: ns/train#3: on its way")
    assert second.endswith("INFO    resumable_operator.some: ns/train: on its way")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_our_errors_have_tracebacks(output: io.StringIO, log_format: jsonlog.LogFormat) -> None:
    """A bug of ours is told with where it happened."""
    jsonlog.configure(log_format, "info", output)
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        ours.exception("unexpected")
    assert "test_jsonlog.py" in output.getvalue()
    if log_format == "json":
        assert "ZeroDivisionError: a bug" in entries(output)[0]["traceback"]


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_framework_is_calm(output: io.StringIO, level: str, shown: bool) -> None:
    """The framework's chatter is not logged, its errors without tracebacks unless one debugs."""
    jsonlog.configure("json", level, output)
    kopfs.info("Handler 'x' succeeded")
    kopfs.error("Request attempt #1/9 failed; will retry: GET /")
    try:
        raise ZeroDivisionError("theirs")
    except ZeroDivisionError:
        kopfs.exception("Watcher has failed")
    retried, failed = entries(output)
    assert "will retry" in retried["message"]
    assert retried["level"] == ("error" if shown else "warning")
    assert ("traceback" in failed) is shown


def test_retries_of_the_framework_grow_rare(output: io.StringIO) -> None:
    """An API server that is away for long does not fill the log; each line is short."""
    jsonlog.configure("json", "info", output)
    answer = "APIForbiddenError('pods is forbidden', {'kind': 'Status', 'message': 'pods is forbidden'})"
    for number in range(1, 101):
        kopfs.error(f"Request attempt #{number}/153 failed; will retry: GET /pods -> {answer}")
    told = entries(output)
    assert [entry["message"].split()[2] for entry in told] == [f"#{2**n}/153" for n in range(7)]
    assert told[0]["message"].endswith("-> APIForbiddenError('pods is forbidden'")


def test_levels(output: io.StringIO) -> None:
    """Less than the level is not logged."""
    jsonlog.configure("json", "error", output)
    ours.warning("no")
    ours.error("yes")
    assert [entry["message"] for entry in entries(output)] == ["yes"]
