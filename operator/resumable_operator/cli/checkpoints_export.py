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
from typing import TYPE_CHECKING, Any

import click

from resumable_operator.cli.checkpoints_common import STEP, Pod, target_options
from resumable_operator.cli.checkpoints_reading import Reading, reading
from resumable_operator.cli.checkpoints_there import export, require_here
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.progress import bytes_bar
from resumable_operator.cli.units import byte_size
from resumable_operator.words import counted
from resumable_training.checkpoint.content import Content, group_name, read_content
from resumable_training.checkpoint.export_plan import (
    DTYPES,
    Exported,
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

if TYPE_CHECKING:
    from resumable_operator.cli.cluster_target import ClaimPath

SAFETENSORS, TORCH = "safetensors", "torch"
_WRITER = "resumable_training.checkpoint.export"  # needs torch, so it is never imported from here by name
NEEDS = "export needs torch and safetensors: pip install 'resumable-training[worker]'"

CLUSTER_HELP = """Write the weights of a checkpoint of JOB as files that other programs load.

To a claim (claim://NAME/PATH) a pod with the image that trains writes them. To a path of this machine the
bytes come through the API server, and torch is needed here.
"""
_EXAMPLES = """\b
Examples:
  rtj checkpoints export runs/gpt gpt-hf                     safetensors, in files of at most 5 GB
  rtj checkpoints export runs/gpt gpt-hf --step 1200 --dtype bf16 --max-shard-size 2GB
  rtj checkpoints export runs/gpt gpt-hf --drop lm_head.weight      tied to the embedding
  rtj checkpoints export runs/gpt gpt.pt --format torch      for torch.load(..., weights_only=True)
  rtj checkpoints export s3://models/gpt/step-00001200.7 gpt-hf --module ema --prefix transformer.
  rtj checkpoints export gpt -n team-a claim://models/gpt-hf --dtype bf16
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
@click.argument("out", metavar="OUT")
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
@click.option("--parents", is_flag=True, help="Make the directories above OUT that are missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@target_options(
    memory="at most 16Gi", image="the one that trains, and for OUT here the operator's", buckets=False
)
def export_command(
    source: str,
    out: str,
    which: str | None,
    kind: str,
    size: str,
    dtype: str | None,
    modules: tuple[str, ...],
    strip: str | None,
    prefix: str,
    drop: tuple[str, ...],
    with_optimizer: bool,
    parents: bool,
    as_json: bool,
    place: Place,
    pod: Pod,
) -> None:
    """Write the weights of a checkpoint to OUT: Hugging Face safetensors, or one file of torch.save.

    Names are those of the bare module's state_dict. Bytes are verified as they are read, the checkpoint is
    pinned meanwhile, and OUT appears when it is whole; it is never overwritten. Tensors of one output file
    are in memory at a time. Needs torch and safetensors. Of a job in a cluster (-n) OUT can also be
    claim://NAME/PATH: then a pod with the image that trains writes it, and nothing is needed here.
    """
    if with_optimizer and kind != TORCH:
        raise UsageProblem("safetensors hold tensors alone: with --with-optimizer give --format torch")
    names, most = Names(modules, strip, prefix, drop), _size(size) if kind == SAFETENSORS else None
    there = _claim(out, place, pod)
    if there is not None:
        options = _Options(which, kind, size, dtype, names, with_optimizer).words()
        _tell(*export(source, place, pod, there, options), out, as_json)
        return
    path = Path(out)
    if os.path.lexists(path):
        raise UsageProblem(f"{out} is there already, and is not overwritten")
    if parents:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with reading(source, which, place, "rtj checkpoints export", pod=pod) as one:
        content = read_content(one.store, one.name, foreign=one.foreign)
        planned = _plan(content, names, dtype, most, with_optimizer)
        _require_space(path, planned.bytes)
        done = _write(one, planned, path, kind)
    _tell(done, one.location, out, as_json)


def _claim(out: str, place: Place, pod: Pod) -> ClaimPath | None:
    """The claim that a pod is to write; None: it is a path of this machine."""
    if not place.in_cluster:
        require_here(out)
        pod.require_unused()
    if out.startswith("s3://"):
        raise UsageProblem(
            f"{out}: files are exported to a path, or of a job in a cluster to claim://NAME/PATH"
        )
    if not place.in_cluster:
        return None
    from resumable_operator.cli.cluster_target import claim_path

    there = claim_path(out)
    if there is None:
        pod.require_served()
    return there


@dataclass(frozen=True)
class _Options:
    """What was asked for, for a command line."""

    which: str | None
    kind: str
    size: str
    dtype: str | None
    names: Names
    with_optimizer: bool

    def words(self) -> list[str]:
        names = self.names
        found = ["--format", self.kind, "--max-shard-size", self.size, "--prefix", names.prefix]
        for option, value in (
            ("--step", self.which),
            ("--dtype", self.dtype),
            ("--strip-prefix", names.strip),
        ):
            found += [] if value is None else [option, value]
        for option, values in (("--module", names.modules), ("--drop", names.drop)):
            found += [word for value in values for word in (option, value)]
        return [*found, *(["--with-optimizer"] if self.with_optimizer else [])]


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
        raise UsageProblem(f"{parent}: no such directory; --parents makes it")
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise UsageProblem(f"{parent} has {byte_size(free)} free, and the export takes {byte_size(needed)}")


def _write(one: Reading, planned: Plan, out: Path, kind: str) -> Exported:
    writer = _writer()
    tensors = writer.Tensors(one.store, one.name, foreign=one.foreign)
    with bytes_bar(f"exporting {one.name}", planned.stored) as advance, _appearing(out, kind) as place:
        if kind == SAFETENSORS:
            done: Exported = writer.write_safetensors(tensors, planned.shards, place, planned.dtype, advance)
        else:
            kept, others = planned.kept, planned.others
            done = writer.write_torch(tensors, kept, others, place, planned.dtype, advance)
    return done


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


def _tell(done: Exported, checkpoint: str, out: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"checkpoint": checkpoint, "out": out, **to_plain(done)}, indent=2))
        return
    files = counted(len(done.files), "file")
    click.echo(
        f"{out}  {counted(done.tensors, 'tensor')}, {byte_size(done.bytes)} in {files}, from {checkpoint}"
    )
    for first, second in done.twins:
        click.echo(f"{first} and {second} hold the same bytes; if they are tied, --drop {second} saves them")
