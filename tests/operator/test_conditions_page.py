"""docs/conditions.md knows every condition and every reason that the code can show, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import resumable_operator

PACKAGE = Path(resumable_operator.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "conditions.md").read_text()
TELLING = {"tell", "emit_event", "EmitEvent", "_on_event"}
SETTING = {"set_condition", "set_if_known"}
WORD = re.compile(r"^[A-Z][A-Za-z]+$")


def _modules() -> Iterator[tuple[ast.Module, dict[str, str]]]:
    """Each module with its constants that are strings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }
        yield tree, constants


def _calls(names: set[str]) -> Iterator[list[str]]:
    """The strings among the arguments of each call of one of these functions."""
    for tree, constants in _modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in names:
                continue
            yield [found for argument in node.args if (found := _string(argument, constants)) is not None]


def _string(argument: ast.expr, constants: dict[str, str]) -> str | None:
    if isinstance(argument, ast.Name):
        return constants.get(argument.id, "")
    constant = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return argument.value if constant else None  # type: ignore[attr-defined]


def _events() -> set[str]:
    return {
        word
        for strings in _calls(TELLING)
        for word in strings
        if WORD.match(word) and word not in ("Normal", "Warning")
    }


def _conditions() -> set[str]:
    """Types: the argument after the draft. One that is passed on as it came is named where it comes from."""
    firsts = {next((word for word in strings if word), "") for strings in _calls(SETTING)}
    return {word for word in firsts if WORD.match(word) and word not in ("True", "False")}


def _strings() -> set[str]:
    return {
        node.value
        for tree, _ in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _section(title: str) -> str:
    return PAGE.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]


def _first_cells(text: str) -> set[str]:
    """Words in backticks in the first cell of every row."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([A-Za-z]+)`", row)}


def test_every_event_is_described() -> None:
    """The table of Events and the reasons in the code are the same."""
    assert _first_cells(_section("Events")) == _events()


def test_every_condition_is_described() -> None:
    """The table of conditions and the types in the code are the same."""
    assert _first_cells(_section("Conditions")) == _conditions()


def test_every_problem_of_a_spec_is_described() -> None:
    """What a check can find is in the table of the reasons of ``Valid``."""
    found = {
        word for strings in _calls({"Problem"}) for word in strings if WORD.match(word) and "." not in word
    }
    assert found <= _first_cells(_section("Reasons of `Valid`"))
    assert len(found) > 5


def test_every_described_reason_exists() -> None:
    """No table speaks of a reason that no code knows."""
    tables = [_section(f"Reasons of `{name}`") for name in ("Valid", "WorkersReady")]
    described = set().union(*map(_first_cells, tables))
    listed = set(re.findall(r"`([A-Z][A-Za-z]+)`", _section("Reasons of `WorkersCreatable`")))
    assert described | listed <= _strings()


def test_every_refusal_is_described() -> None:
    """What a refused creation can be called is listed."""
    listed = set(re.findall(r"`([A-Z][A-Za-z]+)`", _section("Reasons of `WorkersCreatable`")))
    found = {word for strings in _calls({"ClusterRefused"}) for word in strings if WORD.match(word)}
    assert found <= listed
