"""How the operator's process ends: always, in time, and with an exit code and a line that say why."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

COMMAND = ["--agent-image", "image", "--operator-namespace", "system"]
HARNESS = """
import asyncio, sys
from resumable_operator import __main__ as main
from resumable_operator.errors import FatalError, UserError

async def run(options):
    {body}

main.run = run
sys.argv[0] = "operator"
main.main()
"""


def ended(body: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and log of a process whose work is ``body``."""
    result = subprocess.run(
        [sys.executable, "-c", HARNESS.format(body=body), *COMMAND],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, [json.loads(line) for line in result.stderr.splitlines()]


ENDS = {
    "asked to": ("return", 0, None),
    "broken installation": ("raise FatalError('no kind')", 1, "cannot go on: no kind"),
    "no credentials": ("raise UserError('no login')", 2, "cannot go on: no login"),
    "a bug": ("raise ZeroDivisionError", 1, "cannot go on: unexpected error"),
}


@pytest.mark.parametrize(("body", "code", "message"), ENDS.values(), ids=ENDS.keys())
def test_exit_codes(body: str, code: int, message: str | None) -> None:
    """The exit code tells whether to try again; the last line of the log says why."""
    returned, lines = ended(body)
    assert returned == code
    assert [line["message"] for line in lines] == ([] if message is None else [message])
    assert all((line["level"], line["event"]) == ("error", "fatal") for line in lines)


def test_only_a_bug_has_a_traceback() -> None:
    """What people can mend is one line; what they cannot comes with where it happened."""
    assert "traceback" not in ended(ENDS["broken installation"][0])[1][0]
    assert "ZeroDivisionError" in ended(ENDS["a bug"][0])[1][0]["traceback"]


def test_a_task_that_does_not_end_holds_nothing_up() -> None:
    """A task that swallows its cancellation does not keep the process from ending with its exit code."""
    stubborn = """
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
    main.left = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    raise FatalError('the watch failed')
    """
    assert ended(stubborn.strip())[0] == 1
