"""``rtj checkpoints export``: files that other programs load. Torch is loaded only for that."""

from __future__ import annotations

import fcntl
import glob
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from resumable_operator.cli.checkpoints_common import STEP
from resumable_operator.cli.checkpoints_reading import Reading, reading
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.progress import bytes_bar
from resumable_operator.cli.units import byte_size
from resumable_operator.words import counted
from resumable_training.checkpoint.content import Content, group_name, read_content
from resumable_training.checkpoint.export_plan import (
    DTYPES,
    ExportRefused,
    Kept,
    Names,
    Shard,
    parse_size,
    require_safetensors,
    select,
    split,
)
from resumable_training.contract.codec import to_plain

SAFETENSORS, TORCH = "safetensors", "torch"
_WRITER = "resumable_training.checkpoint.export"  # needs torch, so it is never imported from here by name
NEEDS = "export needs torch and safetensors: pip install 'resumable-training[worker]'"

CLUSTER_HELP = """Export a checkpoint of JOB: says how to reach it from this machine."""
_EXAMPLES = """\b
Examples:
  rtj checkpoints export runs/gpt gpt-hf                     safetensors, in files of at most 5 GB
  rtj checkpoints export runs/gpt gpt-hf --step 1200 --dtype bf16 --max-shard-size 2GB
  rtj checkpoints export runs/gpt gpt-hf --drop lm_head.weight      tied to the embedding
  rtj checkpoints export runs/gpt gpt.pt --format torch      for torch.load(..., weights_only=True)
  rtj checkpoints export s3://models/gpt/step-00001200.7 gpt-hf --module ema --prefix transformer.
"""


@dataclass(frozen=True)
class Plan:
    """What to write, decided without torch. ``others``: keys of optimizers."""

    shards: tuple[Shard, ...]
    others: tuple[str, ...]
    dtype: str | None
    bytes: int
    stored: int

    @property
    def kept(self) -> tuple[Kept, ...]:
        return tuple(one for shard in self.shards for one in shard.kept)


@click.command(
    "export",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Write weights as safetensors, or as one torch file.",
)
@click.argument("source", metavar="DIR|URL|JOB")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@STEP
@click.option("--format", "kind", type=click.Choice([SAFETENSORS, TORCH]), default=SAFETENSORS,
              show_default=True, help="A directory of safetensors, or one file of torch.save.")  # fmt: skip
@click.option("--max-shard-size", "size", default="5GB", show_default=True,
              help="Of each safetensors file, and of the memory that it takes.")  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(sorted(DTYPES)), help="Of floating-point tensors. Default: as saved."
)
@click.option("--module", "modules", multiple=True, help="Only this tracked module, such as model or ema.")
@click.option("--strip-prefix", "strip", help="Taken from names that begin with it. Default: the module's"
              " name and a dot, where one module is exported; '' takes nothing.")  # fmt: skip
@click.option("--prefix", default="", help="Put in front of every name.")
@click.option("--drop", multiple=True, help="A name to leave out, such as the second of two tied tensors.")
@click.option("--with-optimizer", is_flag=True, help="Also the optimizers; for --format torch only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def export_command(
    source: str,
    out: Path,
    which: str | None,
    kind: str,
    size: str,
    dtype: str | None,
    modules: tuple[str, ...],
    strip: str | None,
    prefix: str,
    drop: tuple[str, ...],
    with_optimizer: bool,
    as_json: bool,
    place: Place,
) -> None:
    """Write the weights of a checkpoint to OUT: Hugging Face safetensors, or one file of torch.save.

    Names are those of the bare module's state_dict. Bytes are verified as they are read, the checkpoint is
    pinned meanwhile, and OUT appears when it is whole; it is never overwritten. Tensors of one output file
    are in memory at a time. Needs torch and safetensors.
    """
    if os.path.lexists(out):
        raise UsageProblem(f"{out} is there already, and is not overwritten")
    if with_optimizer and kind != TORCH:
        raise UsageProblem("safetensors hold tensors alone: with --with-optimizer give --format torch")
    names, most = Names(modules, strip, prefix, drop), _size(size) if kind == SAFETENSORS else None
    with reading(source, which, place, "rtj checkpoints export") as one:
        content = read_content(one.store, one.name, foreign=one.foreign)
        planned = _plan(content, names, dtype, most, with_optimizer)
        _require_space(out, planned.bytes)
        done = _write(one, planned, out, kind)
    told = {"checkpoint": one.location, "out": str(out), **to_plain(done)}
    click.echo(json.dumps(told, indent=2) if as_json else _told(done, one, out))


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ExportRefused as error:
        raise UsageProblem(f"--max-shard-size: {error}") from error


def _plan(content: Content, names: Names, dtype: str | None, most: int | None, optimizers: bool) -> Plan:
    """``most``: bytes of each file of safetensors; None: one file of torch's."""
    wanted = DTYPES[dtype] if dtype else None
    try:
        kept = select(content, names, wanted)
        if most is not None:
            require_safetensors(kept)
    except ExportRefused as error:
        raise UsageProblem(str(error)) from error
    most = most or sum(one.bytes for one in kept) + 1
    taken = {group.name for group in content.groups if optimizers and group.kind == "optimizer"}
    others = [value for value in content.values if group_name(value.key) in taken]
    return Plan(
        split(kept, most),
        tuple(value.key for value in others),
        wanted,
        sum(one.bytes for one in kept) + sum(value.bytes for value in others),
        sum(one.stored for one in kept) + sum(value.bytes for value in others if value.shape is not None),
    )


def _require_space(out: Path, needed: int) -> None:
    parent = out.absolute().parent
    if not parent.is_dir():
        raise UsageProblem(f"{parent}: no such directory")
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise UsageProblem(f"{parent} has {byte_size(free)} free, and the export takes {byte_size(needed)}")


def _write(one: Reading, planned: Plan, out: Path, kind: str) -> Any:
    """The writer's ``Exported``."""
    writer = _writer()
    tensors = writer.Tensors(one.store, one.name, foreign=one.foreign)
    with bytes_bar(f"exporting {one.name}", planned.stored) as advance, _appearing(out, kind) as place:
        if kind == SAFETENSORS:
            return writer.write_safetensors(tensors, planned.shards, place, planned.dtype, advance)
        return writer.write_torch(tensors, planned.kept, planned.others, place, planned.dtype, advance)


def _writer() -> Any:
    try:
        return importlib.import_module(_WRITER)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "safetensors", "numpy"):
            raise
        raise UsageProblem(NEEDS) from error


@contextmanager
def _appearing(out: Path, kind: str) -> Iterator[Path]:
    """A place beside OUT that becomes OUT when the block ends well, and goes when it does not."""
    prefix, parent = f".{out.name}-export-", out.absolute().parent
    _sweep(parent, prefix)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as scratch,
        _locked(Path(scratch)),
    ):
        place = Path(scratch) / out.name
        if kind == SAFETENSORS:
            place.mkdir()
        try:
            yield place
            _sync(place)
            if os.path.lexists(out):
                raise UsageProblem(f"{out} has come to be meanwhile, and is not overwritten")
            os.rename(place, out)
        except OSError as error:
            raise UsageProblem(f"{out} can't be written: {error.strerror or error}") from error


@contextmanager
def _locked(scratch: Path) -> Iterator[None]:
    """For the length of the block others see that somebody is at work there. Raises BlockingIOError."""
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what exports to the same place that were killed have left: it may be a whole model."""
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        try:
            with _locked(left):
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # an export that is at work, or somebody else's
            continue


def _sync(place: Path) -> None:
    for path in [*place.rglob("*"), place] if place.is_dir() else [place]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _told(done: Any, one: Reading, out: Path) -> str:
    files = counted(len(done.files), "file")
    lines = [
        f"{out}  {counted(done.tensors, 'tensor')}, {byte_size(done.bytes)} in {files}, from {one.location}"
    ]
    lines += [
        f"{first} and {second} hold the same bytes; if they are tied, --drop {second} saves them"
        for first, second in done.twins
    ]
    return "\n".join(lines)
