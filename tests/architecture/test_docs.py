"""The documents speak only of what exists: targets, commands, options, files, variables, exit codes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from resumable_operator.cli import exitcodes as shell_codes
from resumable_operator.cli.main import cli
from resumable_operator.model import JobSpec
from resumable_training.contract import exitcodes, metrics

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
EVERY_DOCUMENT = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def _code_lines(path: Path) -> Iterator[str]:
    """The lines of a document's code blocks, and its code in running text."""
    for match in CODE.finditer(path.read_text()):
        yield from match[0].strip("`").splitlines()


def _commands() -> dict[str, click.Command]:
    """All commands of `rtj` by their path, e.g. "checkpoints list"; "" is `rtj` itself."""
    found: dict[str, click.Command] = {}

    def visit(command: click.Command, path: tuple[str, ...], above: click.Context | None) -> None:
        found[" ".join(path)] = command
        if isinstance(command, click.Group):
            context = click.Context(command, above)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                visit(child, (*path, name), context)

    visit(cli, (), None)
    return found


def _options(command: click.Command) -> set[str]:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {*names, "--help", "-h"}


@EVERY_DOCUMENT
def test_make_targets_exist(path: Path) -> None:
    """Every `make target` in a document is one of the Makefile's."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for line in _code_lines(path) for name in re.findall(r"^(?:\$ )?make ([a-z-]+)", line)}
    assert named - targets == set()


@EVERY_DOCUMENT
def test_commands_and_options_exist(path: Path) -> None:
    """Every `rtj command --option` in a document is known to the command line."""
    commands, unknown = _commands(), []
    for line in _code_lines(path):
        ours = re.sub(r"kubectl (?!rtj)[^|;&]*", "", line.split(" #")[0])  # there rtj is a kind of objects
        for words in re.findall(r"(?:^|[ $])rtj((?: +[^ |;&]+)*)", ours):
            before_script = re.split(r" -- |\.py\b|: ", words)[0].replace(",", " ").split()
            name = max((n for n in commands if before_script[: len(n.split())] == n.split()), key=len)
            if not name and before_script and re.fullmatch("[a-z-]+", before_script[0]):
                unknown.append(line)
            given = {word.split("=")[0] for word in before_script if word.startswith("-") and word != "--"}
            if given - _options(commands[name]):
                unknown.append(line)
    assert unknown == []


def test_every_command_is_documented() -> None:
    """docs/cli.md has each command of `rtj`."""
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in _commands() if name and f"rtj {name}" not in text] == []


@EVERY_DOCUMENT
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links point to files in the repository."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert broken == []


@EVERY_DOCUMENT
def test_files_named_in_code_exist(path: Path) -> None:
    """A path into our sources that a document names exists."""
    names = re.findall(r"`((?:operator|worker|tests|docs|deploy|charts)/[\w/.-]+)`", path.read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []


@EVERY_DOCUMENT
def test_variables_exist(path: Path) -> None:
    """Every RESUMABLE_ variable in a document is read somewhere in the code or the tests."""
    code = [
        *(ROOT / "worker").rglob("*.py"),
        *(ROOT / "operator").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
    ]
    known = {name for source in code for name in re.findall(r"RESUMABLE_[A-Z_]+", source.read_text())}
    assert set(re.findall(r"RESUMABLE_[A-Z_]+", path.read_text())) - known == set()


def test_on_call_page_is_complete() -> None:
    """docs/on-call.md explains every exit code and every cause of an ending."""
    text = (ROOT / "docs" / "on-call.md").read_text()
    words = [*map(str, exitcodes.MEANING), *metrics.INTERRUPTION_CAUSES, *metrics.PLANNED_CAUSES]
    assert [word for word in words if not re.search(rf"^\| `{word}` ", text, re.MULTILINE)] == []


def _texts_in_code() -> str:
    """Every string of the code, with "..." where a value is put in."""
    texts = []
    for path in [*(ROOT / "operator").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(str(getattr(part, "value", "...")) for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_messages_in_the_on_call_page_exist() -> None:
    """Each message that docs/on-call.md explains is one that the code can write."""
    section = (ROOT / "docs" / "on-call.md").read_text().split("## By message")[1].split("\n## ")[0]
    known = _texts_in_code()
    messages = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    budgets = "(?<=budgets.)(userError|infrastructure|preemption)"
    general = [re.sub(budgets, " ... ", message) for message in messages]
    pieces = [piece.strip(" :") for message in general for piece in message.split("...")]
    assert messages
    assert [piece for piece in pieces if len(piece) > 5 and piece not in known] == []


def test_conditions_are_documented() -> None:
    """docs/on-call.md explains every condition that a status can have."""
    decide = ROOT / "operator" / "resumable_operator" / "decide"
    code = "".join(path.read_text() for path in decide.glob("*.py"))
    conditions = set(re.findall(r'set_(?:condition|if_known)\(\s*draft,\s*"(\w+)"', code))
    table = (ROOT / "docs" / "on-call.md").read_text().split("## Conditions")[1].split("\n## ")[0]
    assert conditions
    assert [
        name for name in conditions if not re.search(rf"^\| .*\b{name}\b.* \|", table, re.MULTILINE)
    ] == []


def test_shell_exit_codes_are_documented() -> None:
    """docs/cli.md explains every exit code of `rtj` itself."""
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [
        code for code in shell_codes.MEANING if not re.search(rf"^\| `{code}` ", text, re.MULTILINE)
    ] == []


def _leaves(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, object]]:
    """Every field of a spec that holds a value, by its YAML path, with its default."""
    for field in model.model_fields.values():
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner or isinstance(field.default, str):
            yield f"{path}{field.alias}", field.default
        else:
            yield from _leaves(inner[0], f"{path}{field.alias}.")


def test_every_field_of_the_spec_is_documented() -> None:
    """docs/job.md has each field of the spec, with its default where that is a plain value."""
    table = (ROOT / "docs" / "job.md").read_text().split("| changed while it runs")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
    documented: dict[str, str] = {}
    for names, default in rows:
        first, *others = re.findall(r"`([^`]+)`", names)
        documented[first] = default
        documented |= {first.rpartition(".")[0] + other: default for other in others if other[0] == "."}
    fields = dict(_leaves(JobSpec))
    assert sorted(set(fields) - set(documented)) == []
    wrong = {
        name: default
        for name, default in fields.items()
        if isinstance(default, bool | int | float) and f"`{_yaml(default)}`" not in documented[name]
    }
    assert wrong == {}


def test_what_a_cool_down_counts_from_is_said_alike() -> None:
    """In the CRD, in docs/job.md and in the help of `rtj run`: any start of the ranks, not only a growth."""
    recovery = JobSpec.model_fields["recovery"].default
    field = type(recovery).model_fields["grow_cooldown_seconds"]
    (option,) = [one for one in _commands()["run"].params if one.name == "grow_cooldown"]
    assert isinstance(option, click.Option)
    lines = (ROOT / "docs" / "job.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| `recovery.growCooldownSeconds` ")]
    for text in (field.description, option.help, row):
        assert "from the last start or restart of the ranks" in str(text)


def _yaml(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
