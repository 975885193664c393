"""The command line is an interface: its commands, arguments and options change only on purpose."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from resumable_operator.cli.main import COMMANDS, cli

CLUSTER = ("--context", "--kubeconfig", "--namespace/-n")
READER = ("--image", "--time-limit")
FROZEN: dict[str, list[str]] = {
    "checkpoints list": [*CLUSTER, *READER, "--json", "DIR|URL|JOB"],
    "checkpoints copy": [
        *(*CLUSTER, *READER, "--all", "--jobs", "--json", "--memory", "--source-env", "--step"),
        *("--target-endpoint", "--target-env", "--target-secret", "DIR|URL|JOB", "TARGET"),
    ],
    "checkpoints export": [
        *(*CLUSTER, *READER, "--drop", "--dtype", "--format", "--json", "--max-shard-size", "--memory"),
        *("--module", "--parents", "--prefix", "--step", "--strip-prefix", "--with-optimizer"),
        *("DIR|URL|JOB", "OUT"),
    ],
    "checkpoints history": [*CLUSTER, *READER, "--json", "DIR|URL|JOB"],
    "checkpoints pin": [*CLUSTER, *READER, "--holder", "--json", "--until", "DIR|URL|JOB", "STEP|NAME"],
    "checkpoints pins": [*CLUSTER, *READER, "--json", "DIR|URL|JOB"],
    "checkpoints prune": [
        *(*CLUSTER, *READER, "--json", "--keep", "--keep-every-steps", "--protect", "--yes", "DIR|URL|JOB")
    ],
    "checkpoints rollback": [*CLUSTER, *READER, "--json", "--suspend", "--to", "--yes", "DIR|URL|JOB"],
    "checkpoints serve": ["DIR|URL"],
    "checkpoints show": [*CLUSTER, *READER, "--all", "--json", "--step", "DIR|URL|JOB"],
    "checkpoints unpin": [
        *(*CLUSTER, *READER, "--all", "--damaged", "--holder", "--json", "DIR|URL|JOB", "STEP|NAME")
    ],
    "checkpoints verify": [*CLUSTER, *READER, "--jobs", "--json", "--step", "DIR|URL|JOB"],
    "demo": ["--dir", "--steps", "--time-limit"],
    "fault": ["--back-after", "--grace", "--rank", "--scope", "--seconds", "--worker", "FAULT", "RUN"],
    "list": [*CLUSTER, "--all-namespaces/-A"],
    "logs": [*CLUSTER, "--attempt", "--follow/-f", "--rank", "RUN|JOB"],
    "report": [*CLUSTER, "--html", "--image", "--json", "RUN|JOB"],
    "resume": [*CLUSTER, "JOB"],
    "suspend": [*CLUSTER, "--wait", "JOB"],
    "simulate": [
        *CLUSTER,
        *(
            "--workers",
            "--spares",
            "--interval",
            "--mtbf",
            "--machine-mtbf",
            "--restart",
            "--replace",
            "--notice",
        ),
        *("--step", "--blocking", "--durable", "--copy", "--reschedule", "--memory-every"),
        *("--detect", "--setup", "--rendezvous", "--restore", "--warmup"),
        *("--min", "--gpus", "--weibull", "--in-place", "--racks", "--spot", "--trace"),
        *("--days", "--seeds", "--seed", "--processes", "--from-run", "--json", "--csv", "--plot", "JOB"),
    ],
    "run": [
        "--checkpoint-dir",
        "--dir",
        "--drain-seconds",
        "--fresh",
        "--grow-cooldown",
        "--hang-seconds",
        "--keep",
        "--memory-every",
        "--metrics-port",
        "--module/-m",
        "--name",
        "--no-preload",
        "--preload",
        "--processes-per-worker",
        "--quiet",
        "--resume-from",
        "--replicas",
        "--save-every-seconds",
        "--save-every-steps",
        "--shrink-after",
        "--spares",
        "--trace-samples",
        "--workers",
        "ARGUMENTS",
        "SCRIPT",
    ],
    "status": [*CLUSTER, "--json", "--watch", "RUN|JOB"],
}


def _commands(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= _commands(command, f"{prefix}{name} ")
        elif command is not None:
            found[prefix + name] = command
    return found


def _parameters(command: click.Command) -> list[str]:
    names = []
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names.append("/".join(sorted([*parameter.opts, *parameter.secondary_opts])))
        else:
            names.append(parameter.human_readable_name)
    return sorted(names)


def test_the_commands_are_frozen() -> None:
    """A command that appears, vanishes or is renamed is a change of the interface."""
    assert list(COMMANDS) == [
        *("run", "list", "status", "logs", "report", "checkpoints", "suspend", "resume"),
        *("simulate", "fault", "demo"),
    ]


def test_arguments_and_options_are_frozen() -> None:
    """So is an option."""
    assert {name: _parameters(command) for name, command in _commands(cli).items()} == {
        name: sorted(parameters) for name, parameters in FROZEN.items()
    }


@pytest.mark.parametrize("name", FROZEN)
def test_every_command_explains_itself(name: str) -> None:
    """A newcomer can work from `--help`: what it does, and what each option means."""
    command = _commands(cli)[name]
    assert command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
    for flag in ("--help", "-h"):
        result = CliRunner().invoke(cli, [*name.split(), flag])
        assert result.exit_code == 0
        first_sentence = command.help.split(".")[0].split()
        assert " ".join(first_sentence) in " ".join(result.output.split())


def test_the_list_of_commands_says_one_line_about_each() -> None:
    """Nothing is cut off in 80 columns."""
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    for name, entry in COMMANDS.items():
        assert any(line.split() == [name, *entry.summary.split()] for line in lines)


def test_help_and_version_import_no_command() -> None:
    """`rtj --help` answers at once: no pydantic, rich, aiohttp or torch is loaded for it."""
    heavy = ("pydantic", "rich", "aiohttp", "torch", "yaml", "kubernetes")
    for flag in ("--help", "--version"):
        code = (
            "import sys\n"
            "from resumable_operator.cli.main import cli\n"
            f"cli.main(['{flag}'], standalone_mode=False)\n"
            f"print('loaded:', [name for name in {heavy} if name in sys.modules])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "loaded: []" in result.stdout, result.stderr


def test_the_version_is_the_distributions() -> None:
    """One number, kept in one place."""
    from importlib.metadata import version

    assert CliRunner().invoke(cli, ["--version"]).output == f"rtj, version {version('resumable-training')}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["statu"], "No such command 'statu'. Did you mean 'status'?"),
        (["repot"], "No such command 'repot'. Did you mean 'report'?"),
        (["quux"], "No such command 'quux'."),
    ],
)
def test_a_mistyped_command_is_told_with_the_nearest(rtj, words: list[str], told: str) -> None:
    """As options and directories are."""
    result = rtj(*words)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == f"Error: {told}"
