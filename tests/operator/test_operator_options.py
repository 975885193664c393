"""Options of the operator's process: from arguments and variables, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from resumable_operator import operator_options
from resumable_operator.errors import UserError
from resumable_operator.operator_options import Options

REQUIRED = ["--agent-image", "image:1"]


def parse(arguments: list[str], file: Path, **variables: str) -> Options:
    """The options that a command line gives."""
    found: list[Options] = []

    @click.command
    @operator_options.with_options
    def command(**given: Any) -> None:
        found.append(operator_options.read(given, file))

    result = CliRunner(env=variables).invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The namespace file of a pod's service account."""
    file = tmp_path / "namespace"
    file.write_text("system\n")
    return file


def test_defaults(account: Path) -> None:
    """One image is all that must be given in a pod: the rest has defaults, the namespace is the pod's."""
    options = parse(REQUIRED, account)
    assert options == Options(namespaces=(), operator_namespace="system", agent_image="image:1")
    assert options.scope == "the whole cluster"


def test_image_must_be_given(account: Path) -> None:
    """There is no image that could be the default."""
    with pytest.raises(click.MissingParameter, match="agent_image"):
        parse([], account)


def test_namespaces(account: Path) -> None:
    """Several namespaces, each once, from arguments or from the variable."""
    given = parse([*REQUIRED, "--namespace", "a", "--namespace", "b", "--namespace", "a"], account)
    assert given.namespaces == ("a", "b")
    assert given.scope == "a, b"
    assert parse(REQUIRED, account, RESUMABLE_OPERATOR_NAMESPACES="a b").namespaces == ("a", "b")


def test_own_namespace(account: Path) -> None:
    """The option wins over the variable, that over the service account."""
    assert parse(REQUIRED, account, POD_NAMESPACE="pod").operator_namespace == "pod"
    both = [*REQUIRED, "--operator-namespace", "given"]
    assert parse(both, account, POD_NAMESPACE="pod").operator_namespace == "given"


def test_own_namespace_is_not_known(tmp_path: Path) -> None:
    """Outside of a pod the namespace must be given, and the message says how."""
    with pytest.raises(UserError, match="--operator-namespace"):
        parse(REQUIRED, tmp_path / "missing")


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a" * 64])
def test_no_namespace(account: Path, name: str) -> None:
    """What cannot be a namespace is refused, since it would end up in paths of requests."""
    with pytest.raises(UserError, match="not the name of a namespace"):
        parse([*REQUIRED, "--namespace", name], account)


VARIABLES = {
    "AGENT_IMAGE": ("agent_image", "image:2", "image:2"),
    "AGENT_IMAGE_PULL_POLICY": ("agent_image_pull_policy", "Never", "Never"),
    "LOG_FORMAT": ("log_format", "text", "text"),
    "LOG_LEVEL": ("log_level", "debug", "debug"),
    "BIND_ADDRESS": ("bind_address", "127.0.0.1", "127.0.0.1"),
    "PORT": ("port", "9000", 9000),
    "JOBS_AT_ONCE": ("jobs_at_once", "3", 3),
    "RELIST_SECONDS": ("relist_seconds", "5", 5.0),
    "STATUS_SECONDS": ("status_seconds", "6", 6.0),
    "UNREACHABLE_SECONDS": ("unreachable_seconds", "7", 7.0),
}


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables(account: Path, variable: str) -> None:
    """Everything can be set by a variable."""
    name, text, value = VARIABLES[variable]
    variables = {"RESUMABLE_OPERATOR_AGENT_IMAGE": "image:1", f"RESUMABLE_OPERATOR_{variable}": text}
    assert getattr(parse([], account, **variables), name) == value


@pytest.mark.parametrize(
    "wrong",
    [
        ("--port", "70000"),
        ("--log-level", "loud"),
        ("--jobs-at-once", "0"),
        ("--relist-seconds", "0"),
        ("--agent-image-pull-policy", "Sometimes"),
        ("--status-seconds", "nan"),
    ],
)
def test_values_out_of_range(account: Path, wrong: tuple[str, str]) -> None:
    """A value that makes no sense is refused at once."""
    with pytest.raises(click.BadParameter):
        parse([*REQUIRED, *wrong], account)


@pytest.mark.parametrize(("word", "user"), [("2000", 2000), ("none", None)])
def test_user_of_workers(account: Path, word: str, user: int | None) -> None:
    """A number, or the word that leaves it to the cluster; from the variable, too."""
    assert parse([*REQUIRED, "--worker-user", word], account).worker_user == user
    assert parse(REQUIRED, account, RESUMABLE_OPERATOR_WORKER_USER=word).worker_user == user


@pytest.mark.parametrize("word", ["0", "-1", "root", "", "1.5"])
def test_user_that_can_not_be(account: Path, word: str) -> None:
    """Root, and what is no number, is refused."""
    with pytest.raises(click.BadParameter):
        parse([*REQUIRED, "--worker-user", word], account)


def test_pull_secrets_of_workers(account: Path) -> None:
    """Several names, in their order."""
    options = parse([*REQUIRED, "--worker-pull-secret", "a", "--worker-pull-secret", "b"], account)
    assert options.worker_pull_secrets == ("a", "b")
    variable = parse(REQUIRED, account, RESUMABLE_OPERATOR_WORKER_PULL_SECRETS="a b")
    assert variable.worker_pull_secrets == ("a", "b")
