"""``rtj checkpoints serve``: not for people. What ``rtj`` elsewhere runs in a pod to read its store."""

from __future__ import annotations

import sys

import click

from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.place import Place
from resumable_operator.cli.remote_store import serve
from resumable_operator.cli.store_source import StoreSource


@click.command("serve", hidden=True)
@click.argument("directory", metavar="DIR|URL")
def serve_command(directory: str) -> None:
    """Answer questions about a store, from standard input to standard output, until nobody asks any more."""
    with checkpoints_at(directory, Place(), None, None) as source:
        assert isinstance(source, StoreSource)
        with source.opened() as found:
            serve(found, sys.stdin.buffer, sys.stdout.buffer)
