"""The shape of the tree: what must not exist, how long a file may be, and what tests owe their reader."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FILE = 600
SOURCES = sorted([*(ROOT / "operator").rglob("*.py"), *(ROOT / "worker").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _docstring(text: str) -> str | None:
    return ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("folder", ["operator", "worker"])
def test_source_roots_are_not_packages(folder: str) -> None:
    """A package named `operator` would shadow the standard library's."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_tests_are_not_packages() -> None:
    """No __init__.py below tests/: pytest imports each file by its path."""
    assert _names([path for path in TESTS if path.name == "__init__.py"]) == []


def test_files_stay_readable() -> None:
    """No file is longer than 600 lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in (*SOURCES, *TESTS)}
    assert _names([path for path, length in lengths.items() if length > LONGEST_FILE]) == []


def test_modules_say_why_they_exist() -> None:
    """Every module with code in it has a docstring."""
    silent = [
        path
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert _names(silent) == []


def test_tests_say_what_must_hold() -> None:
    """Every test function has a docstring that says what must hold."""
    silent = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_test_is_skipped() -> None:
    """No skips and no expected failures: a test that cannot run here does not belong here."""
    words = {"skip", "skipif", "xfail", "importorskip"}
    marked = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in words
    ]
    assert marked == []


@pytest.mark.parametrize("part", ["contract", "agent"])
def test_contract_and_agent_run_on_python_3_9(part: str) -> None:
    """Syntax and library calls of the code that runs in foreign images exist in Python 3.9."""
    command = [
        Path(sys.executable).parent / "vermin",
        "--quiet",
        "--no-tips",
        "--violations",
        "--target=3.9-",
    ]
    folder = ROOT / "worker" / "resumable_training" / part
    result = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
