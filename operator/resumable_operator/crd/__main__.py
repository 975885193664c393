"""``python -m resumable_operator.crd``: write the definition to where it is committed.

``--check`` says whether it is there already, ``--print`` shows it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from resumable_operator.crd.document import as_yaml

_ROOT = Path(__file__).parents[3]
FILES = (_ROOT / "deploy" / "crd.yaml", _ROOT / "charts" / "resumable-training" / "files" / "crd.yaml")


@click.command(name="python -m resumable_operator.crd")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 when a file differs.")
@click.option("--print", "show", is_flag=True, help="Write to standard output only.")
def main(check: bool, show: bool) -> None:
    """Write the CustomResourceDefinition to deploy/crd.yaml and into the chart."""
    text = as_yaml()
    if show:
        click.echo(text, nl=False)
        return
    for path in FILES:
        if check:
            _compare(path, text)
        else:
            _write(path, text)


def _compare(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        click.echo(f"{path} is not what the models say: run `python -m resumable_operator.crd`", err=True)
        sys.exit(1)


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise click.ClickException(f"{path.parent} does not exist: run this in a checkout, or use --print")
    path.write_text(text)
    click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()
