"""Which world a command means, and the ways into a cluster that there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from resumable_operator.cli.cluster_session import find_config
from resumable_operator.cli.cluster_source import job_name
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.main import COMMANDS, OF_THIS_MACHINE, cli
from resumable_operator.cli.place import PLUGIN, Place

COMMANDS_OF_A_JOB = (("status",), ("logs",), ("report",), ("checkpoints", "list"), ("checkpoints", "verify"))


@pytest.mark.parametrize(
    ("place", "in_cluster"),
    [
        (Place(), False),
        (Place(namespace="team"), True),
        (Place(context="prod"), True),
        (Place(kubeconfig=Path("k")), True),
        (Place(plugin=True), True),
    ],
)
def test_a_cluster_is_meant_by_its_options_and_by_kubectl(place: Place, in_cluster: bool) -> None:
    """Otherwise a directory of this machine."""
    assert place.in_cluster is in_cluster


@pytest.mark.parametrize("command", COMMANDS_OF_A_JOB)
def test_a_name_without_options_suggests_them(
    command: tuple[str, ...], rtj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with a job in a cluster in mind is told in one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    result = rtj(*command, "gpt")
    assert result.exit_code == 2
    assert result.output.startswith("Error: gpt: no such directory; give ")
    assert result.output.endswith("or -n NAMESPACE for a job in a cluster\n")
    config = tmp_path / "config"
    config.touch()
    monkeypatch.setenv("KUBECONFIG", str(config))
    words = " ".join(command)
    assert f"`kubectl rtj {words} gpt`, or `rtj {words} gpt -n NAMESPACE`" in rtj(*command, "gpt").output


@pytest.mark.parametrize("command", [*COMMANDS_OF_A_JOB, ("checkpoints",), ("list",), ()])
def test_help_by_kubectl_speaks_of_clusters_alone(command: tuple[str, ...]) -> None:
    """Nobody there has a run directory; the same command by its own name tells of both."""
    by_kubectl = CliRunner().invoke(cli, [*command, "--help"], prog_name=PLUGIN)
    assert by_kubectl.exit_code == 0
    assert by_kubectl.output.startswith(f"Usage: {' '.join([PLUGIN, *command])} [OPTIONS]")
    for word in ("RUN", "DIR", "directory", "rtj run", "this machine"):
        assert word not in by_kubectl.output
    itself = CliRunner().invoke(cli, [*command, "--help"], prog_name="rtj").output
    assert any(word in itself for word in ("RUN", "DIR", "run directory", "this machine"))


@pytest.mark.parametrize("command", COMMANDS_OF_A_JOB)
def test_kubectl_always_means_a_cluster(
    command: tuple[str, ...], run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a directory of that name is."""
    monkeypatch.chdir(run.path.parent)
    env = {"KUBECONFIG": str(tmp_path / "none"), "KUBERNETES_SERVICE_HOST": ""}
    result = CliRunner().invoke(cli, [*command, "run"], prog_name=PLUGIN, env=env)
    assert result.exit_code == 2
    assert "no way into a cluster" in result.output


def test_kubectl_has_only_what_makes_sense_there() -> None:
    """Training on this machine is no matter of kubectl's."""
    result = CliRunner().invoke(cli, ["--help"], prog_name=PLUGIN)
    words = [line.split()[0] for line in result.output.splitlines() if line.strip()]
    assert [name for name in words if name in COMMANDS] == [
        name for name in COMMANDS if name not in OF_THIS_MACHINE
    ]
    assert CliRunner().invoke(cli, ["run", "x.py"], prog_name=PLUGIN).exit_code == 2


def test_options_of_the_reader_are_for_clusters(run, rtj) -> None:
    """An option is refused rather than ignored."""
    for option in (("--image", "x"), ("--time-limit", "5")):
        result = rtj("checkpoints", "list", run.path, *option)
        assert result.exit_code == 2
        assert "are for jobs in a cluster" in result.output


# ---- the way into a cluster ----------------------------------------------------------------------------


def test_the_kubeconfig_is_found_as_kubectl_does(tmp_path: Path) -> None:
    """The option, $KUBECONFIG (several files), ~/.kube/config, a pod's own account."""
    given, one, two = (tmp_path / name for name in ("given", "one", "two"))
    for file in (given, one, two):
        file.touch()
    home = tmp_path / "home"
    several = {"KUBECONFIG": f"{one}:{tmp_path / 'none'}:{two}"}
    assert find_config(given, several, home) == given
    assert str(find_config(None, several, home)) == f"{one}:{two}"
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert find_config(None, in_pod, home) is None
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").touch()
    assert find_config(None, {}, home) == home / ".kube" / "config"
    assert find_config(None, in_pod, home) == home / ".kube" / "config"


@pytest.mark.parametrize(
    ("given", "environment", "message"),
    [
        ("missing", {}, "no kubeconfig .*missing"),
        (None, {}, "neither .KUBECONFIG nor ~/.kube/config"),
        (None, {"KUBECONFIG": "/x/a:/x/b"}, r"\$KUBECONFIG names 2 files that can't be found"),
    ],
)
def test_without_a_kubeconfig_there_is_no_way(
    tmp_path: Path, given: str | None, environment: dict[str, str], message: str
) -> None:
    """It is said where was looked."""
    with pytest.raises(UsageProblem, match=message):
        find_config(tmp_path / given if given else None, environment, tmp_path)


def kubeconfig(path: Path, server: str = "http://127.0.0.1:9") -> Path:
    """With two contexts."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("one", "two")]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_context_that_is_not_there_names_those_that_are(tmp_path: Path, rtj) -> None:
    """A usage error: nothing is asked of any cluster."""
    file = kubeconfig(tmp_path / "config")
    result = rtj("status", "gpt", "--kubeconfig", file, "--context", "three")
    assert result.exit_code == 2
    assert result.output == f"Error: kubeconfig {file} has no context three; it has one, two\n"


@pytest.mark.parametrize("text", ["", "{}", "[", "- a"])
def test_a_kubeconfig_that_is_none_is_a_usage_error(tmp_path: Path, rtj, text: str) -> None:
    """In one line that names the file."""
    (tmp_path / "config").write_text(text)
    result = rtj("status", "gpt", "--kubeconfig", tmp_path / "config")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert str(tmp_path / "config") in result.output


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, rtj) -> None:
    """Nobody listens there: trouble of the infrastructure, not the user's."""
    result = rtj("status", "gpt", "--kubeconfig", kubeconfig(tmp_path / "config"))
    assert result.exit_code == 6
    assert "Error: the API server http://127.0.0.1:9 can't be reached: " in result.output


def test_without_the_client_it_is_said_what_to_install() -> None:
    """`pip install` without extras has no Kubernetes client."""
    code = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from resumable_operator.cli.main import cli\n"
        "cli.main(['status', 'gpt', '-n', 'team'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert "pip install 'resumable-training[operator]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["gpt", "rtj/gpt", "resumabletrainingjob.resumable.dev/gpt"])
def test_a_job_is_named_as_kubectl_names_it(text: str) -> None:
    """What `kubectl get -o name` prints can be pasted."""
    assert job_name(text) == "gpt"


@pytest.mark.parametrize("text", ["runs/gpt", "/tmp/gpt", "Gpt", "", "pod/gpt", "-gpt"])
def test_what_can_not_be_a_name_is_refused(text: str) -> None:
    """A path with -n is a mistake; no request is made of it."""
    with pytest.raises(UsageProblem, match="no name of a job in a cluster"):
        job_name(text)
