"""Which world a command line means: run directories of this machine, or jobs in a cluster.

A cluster is meant when one of its options is given, and by ``kubectl rtj``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

PLUGIN = "kubectl rtj"  # what the command line is called as a plug-in of kubectl
_OPTIONS = (
    click.option("-n", "--namespace", help="Namespace of the job in a cluster. Default: the context's."),
    click.option("--context", help="Context in the kubeconfig. Default: the current one."),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Default: $KUBECONFIG, else ~/.kube/config, else a pod's own account.",
    ),
)


@dataclass(frozen=True)
class Place:
    """What the command line says about where to look. ``plugin``: it was called by kubectl."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    plugin: bool = False

    @property
    def in_cluster(self) -> bool:
        return self.plugin or any((self.namespace, self.context, self.kubeconfig))


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a cluster; the command gets them as ``place``."""

    @wraps(command)
    @click.pass_context
    def with_place(
        ctx: click.Context,
        /,
        *arguments: Any,
        namespace: str | None,
        context: str | None,
        kubeconfig: Path | None,
        **options: Any,
    ) -> None:
        place = Place(namespace, context, kubeconfig, by_kubectl(ctx))
        command(*arguments, place=place, **options)

    for option in reversed(_OPTIONS):
        with_place = option(with_place)
    return with_place


class PlacedCommand(click.Command):
    """A command for both worlds, whose help as a plug-in of kubectl speaks of clusters alone.

    Args:
        cluster_help: its help there.
    """

    def __init__(self, *arguments: Any, cluster_help: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cluster_help = cluster_help

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """``RUN|JOB`` is a JOB there."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece.rpartition("|")[2] for piece in pieces] if by_kubectl(ctx) else pieces

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = self.help
        self.help = self.cluster_help if by_kubectl(ctx) else own
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = own


def by_kubectl(ctx: click.Context) -> bool:
    """Whether it was called as a plug-in of kubectl."""
    return ctx.find_root().info_name == PLUGIN
