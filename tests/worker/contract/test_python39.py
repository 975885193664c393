"""Contract and agent run on Python 3.9 with nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import resumable_training

PACKAGE = Path(resumable_training.__file__).parent
VERMIN = "from vermin import main; main()"
PARTS = ("contract", "agent")


def test_nothing_newer_than_python_3_9() -> None:
    """Syntax and library calls, annotations of the contract too: the codec evaluates them."""
    for part, options in (("contract", ["--eval-annotations"]), ("agent", ["--no-eval-annotations"])):
        command = [
            sys.executable,
            "-c",
            "from vermin import main; main()",
            "-t=3.9-",
            "--violations",
            "--no-tips",
            *options,
        ]
        done = subprocess.run([*command, str(PACKAGE / part)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_standard_library_only(part: str) -> None:
    """No import from outside the standard library and these two packages, wherever in the file."""
    allowed = sys.stdlib_module_names | {"resumable_training"}
    for path in (PACKAGE / part).glob("*.py"):
        for name in _imported(path):
            assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
            if name.startswith("resumable_training."):
                assert name.split(".")[1] in PARTS, f"{path.name} imports {name}"
                assert part == "agent" or name.split(".")[1] == "contract", f"{path.name} imports {name}"


def _imported(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
