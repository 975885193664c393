"""Log lines of the operator's process: JSON for machines or text for people, each with its job and attempt.

``about`` names the job for everything that is logged inside it, in tasks that are started there too, so that
code which knows nothing of jobs (the agent pool, the API client) needs no extra arguments.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["json", "text"]
LEVELS = ("debug", "info", "warning", "error")
FRAMEWORK = "kopf"
LONGEST_FOREIGN = 500  # characters of a message of the framework
_RETRY = re.compile(r"Request attempt #(\d+)\S* failed; will retry")

_job: ContextVar[str] = ContextVar("job", default="")


@contextmanager
def about(job_key: str) -> Iterator[None]:
    """Everything logged inside is about this job."""
    token = _job.set(job_key)
    try:
        yield
    finally:
        _job.reset(token)


def configure(log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Send all logging of this process to ``stream`` (standard error). Call once.

    The framework that watches is heard from warnings on, and without its tracebacks unless ``level`` is
    debug: whoever runs it says in one line why it ended.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_name_job)
    if level != "debug":
        handler.addFilter(_calm_framework)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger(FRAMEWORK).setLevel(logging.WARNING)
    for noisy in ("asyncio", "aiohttp", "urllib3", "kubernetes"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object per record; fields that are not known are left out."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = {name: _value(record, name) for name in ("job", "attempt", "event")}
        entry |= {name: value for name, value in known.items() if value not in (None, "")}
        trace = _trace(self, record)
        return json.dumps(entry | ({"traceback": trace} if trace else {}), ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: job#attempt: message``."""

    def format(self, record: logging.LogRecord) -> str:
        message, job = record.getMessage(), _value(record, "job")
        if job and not message.startswith(str(job)):
            attempt = _value(record, "attempt")
            message = f"{job}#{attempt}: {message}" if attempt else f"{job}: {message}"
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {message}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


def _timestamp(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(record: logging.LogRecord, name: str) -> Any:
    return getattr(record, name, None)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = formatter.formatException(record.exc_info) if record.exc_info else ""
    return "\n".join(part for part in (trace, record.stack_info or "") if part)


def _name_job(record: logging.LogRecord) -> bool:
    if not _value(record, "job"):
        record.job = _job.get()
    return True


def _calm_framework(record: logging.LogRecord) -> bool:
    """It logs each try of a request that it will repeat as an error, and each failure with its traceback.

    Of such tries the first, second, fourth, eighth and so on are told.
    """
    if record.name.split(".")[0] != FRAMEWORK:
        return True
    record.exc_info = record.exc_text = None
    record.msg, record.args = _short(record.getMessage()), None
    retry = _RETRY.match(record.msg)
    if retry:
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return int(retry[1]).bit_count() == 1
    return True


def _short(message: str) -> str:
    """Without the whole answer of the API server behind its message."""
    text = message.split(", {'kind': 'Status'")[0]
    return text if len(text) <= LONGEST_FOREIGN else f"{text[:LONGEST_FOREIGN]}..."
