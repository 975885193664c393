"""Starts a worker's agent and makes it lie, as ``LIAR`` says: ``<worker> <how> <file>``.

Only that worker's, and only while the file is there. How: ``unsigned`` (nothing is signed by the job's key),
``garbage`` (bytes that are no HTTP), ``old`` (signed, but of an attempt before). It stands for an image that
is not what it should be: see ``python3`` beside it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """``liar.py -I -S AGENT -- COMMAND...``"""
    agent = next(number for number, word in enumerate(sys.argv) if word.endswith(".pyz"))
    sys.argv = sys.argv[agent:]
    sys.path.insert(0, sys.argv[0])
    who, how, file = os.environ["LIAR"].split()
    if json.loads(os.environ["RESUMABLE_AGENT_SPEC"])["worker"] == who:
        _LIES[how](Path(file))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _replace(owner: Any, name: str, lie: Any, file: Path) -> None:
    truth = getattr(owner, name)

    def speak(*arguments: Any, **options: Any) -> Any:
        said = truth(*arguments, **options)
        return lie(said) if file.exists() else said

    setattr(owner, name, speak)


def _unsigned(file: Path) -> None:
    from resumable_training.contract import signing

    for name in ("sign_line", "sign_reply"):
        _replace(signing, name, lambda said: "0" * len(said), file)


def _garbage(file: Path) -> None:
    from resumable_training.agent import http
    from resumable_training.contract import signing

    for name in ("reply", "stream_head"):
        _replace(http, name, lambda _: os.urandom(500) + b"\r\n\r\n", file)
    _replace(signing, "sign_line", lambda _: "", file)  # what is open breaks


def _old(file: Path) -> None:
    from resumable_training.agent.core import Agent

    _replace(Agent, "state", lambda said: dataclasses.replace(said, attempt=max(0, said.attempt - 1)), file)


_LIES = {"unsigned": _unsigned, "garbage": _garbage, "old": _old}


if __name__ == "__main__":
    main()
