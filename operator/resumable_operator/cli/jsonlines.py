"""Files of JSON lines, read whatever they hold: half a line, garbage, numbers that are none, a gigabyte.

A line that can't be understood is counted and passed over. What was read has finite numbers only, and none so
large that arithmetic fails: reports calculate with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_training.contract.codec import plain_from_json

T = TypeVar("T")
LONGEST_LINE = 4 << 20  # bytes; what is longer was written by nobody here


def understood(line: bytes | str, build: Callable[[Any], T]) -> T | None:
    """What ``build`` makes of one line; None: it can't be understood.

    Args:
        build: raises ValueError, KeyError or TypeError on what it does not know.
    """
    try:
        return build(plain_from_json(line))
    except (ValueError, KeyError, TypeError):
        return None


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines that are not blank; none without the file. One that is too long is cut, so no JSON any more.

    Raises:
        UsageProblem: the file can't be read.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    _skip_rest(file)
                if line.strip():
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror}") from error


def _skip_rest(file: Any) -> None:
    while (more := file.readline(LONGEST_LINE)) and not more.endswith(b"\n"):
        pass
