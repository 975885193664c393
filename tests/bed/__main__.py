"""`python -m bed`: a real Kubernetes cluster on this machine, for a person (`make cluster` calls it)."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import click

from bed import binaries, standing
from bed import demo as story
from bed.binaries import binary
from bed.install import InstallFailed
from bed.nodes import NodesError
from bed.processes import ComponentDied
from bed.standing import Standing, StandingError
from bed.toolchain import BuildFailed

EXPECTED = (StandingError, InstallFailed, NodesError, BuildFailed, ComponentDied, TimeoutError)

directory_option = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where the cluster keeps its files (one cluster each).  [default: in the cache]",
)


class Commands(click.Group):
    """Errors that a user can do something about come without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
def main() -> None:
    """A real Kubernetes control plane with process-backed nodes, on this machine."""


@main.command()
@directory_option
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--operator/--no-operator", default=True, help="Install the operator from the chart.")
@click.option("--detach", is_flag=True, help="Return when it is ready; it stays until `down`.")
@click.option("--background", is_flag=True, hidden=True)  # who detached it says what to type next
def up(directory: Path | None, nodes: int, operator: bool, detach: bool, background: bool) -> None:
    """Start the cluster; without --detach it ends with Ctrl-C."""
    cluster = _standing(directory)
    if detach:
        arguments = ["up", "--background", "--directory", str(cluster.directory), "--nodes", str(nodes)]
        standing.start_in_background(cluster, [*arguments, "--operator" if operator else "--no-operator"])
        print(standing.what_next(cluster, operator), flush=True)
        return
    signal.signal(signal.SIGTERM, _as_interrupt)
    steps = standing.hold(cluster, nodes, operator)
    began = time.monotonic()
    try:
        for step in steps:
            print(f"bed: {step} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
            if step == standing.READY:
                if not background:
                    print(standing.what_next(cluster, operator), flush=True)
                signal.pause()
    except KeyboardInterrupt:
        print("\nbed: stopping", file=sys.stderr, flush=True)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it ends already
        steps.close()


@main.command()
@directory_option
def down(directory: Path | None) -> None:
    """Stop the cluster and everything in it."""
    cluster = _standing(directory)
    print("stopped" if cluster.stop() else f"no cluster runs in {cluster.directory}")


@main.command()
@directory_option
def status(directory: Path | None) -> None:
    """Nodes, jobs and pods of the cluster."""
    state = _standing(directory).state()
    print(f"export KUBECONFIG={state['kubeconfig']}\n", flush=True)
    for what in (["nodes"], ["all", "--all-namespaces"]):
        subprocess.run([binary("kubectl"), "--kubeconfig", state["kubeconfig"], "get", *what], check=False)


@main.command()
@click.option("--quiet", is_flag=True, help="Say nothing when all is there.")
def build(quiet: bool) -> None:
    """Build what the machine does not have: the control plane, kubectl, Helm, an S3 server, Prometheus."""
    programs = [name for module in binaries.MODULES for name in module.programs]
    for module in binaries.missing(programs):
        binaries.build(module)
    for name in [] if quiet else programs:
        print(binary(name))


@main.command()
@click.argument("what", type=click.Choice(list(standing.NODE_ACTS)))
@click.argument("name")
@directory_option
def node(what: str, name: str, directory: Path | None) -> None:
    """Do to node NAME what can happen to a machine.

    \b
    kill       its processes end, and it is silent from now on
    partition  its processes run on, but the API server hears nothing of it
    heal       ends a partition
    shutdown   graceful: pods get their grace, then it is gone
    spot       a spot notice; the machine is taken when the notice is over
    reboot     it comes back under the same name, with nothing running
    """
    cluster = _standing(directory)
    cluster.state()
    standing.act_on_node(cluster, what, name)
    print(f"{what}: {name}")


@main.command()
@click.option("--time-limit", default=900.0, show_default=True, help="Give up after this many seconds.")
def demo(time_limit: float) -> None:
    """Train on a cluster whose machines fail, then audit the result; exit code 0 only if every check held."""
    for module in binaries.missing():
        binaries.build(module)
    with tempfile.TemporaryDirectory(prefix="bed-demo-") as directory:
        checks = story.play(Path(directory), lambda line: print(line, flush=True), time_limit)
    for what, held, detail in checks:
        print(f"{'held  ' if held else 'FAILED'}  {what}: {detail}")
    sys.exit(0 if all(held for _, held, _ in checks) else 1)


def _standing(directory: Path | None) -> Standing:
    return Standing((directory or standing.default_directory()).absolute())


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(prog_name="python -m bed")
