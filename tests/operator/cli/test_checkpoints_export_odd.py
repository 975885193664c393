"""`rtj checkpoints export`: tensors that few have, markers and shards that lie, an export that was killed."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from resumable_training.checkpoint.files import single_process_is_fine
from resumable_training.checkpoint.marker import load_real

SHARD = "__0_0.distcp"


class Runs:
    """What a stranger would like to be run: it leaves a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def saved(directory: Path, state: dict[str, Any]) -> Path:
    with single_process_is_fine():
        dcp.save(state, checkpoint_id=directory, no_dist=True)
    return directory


ODD = {
    **{
        str(dtype).removeprefix("torch."): torch.ones(3).to(dtype)
        for dtype in (
            *(torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
            *(torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64),
        )
    },
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0),
    "no.rows": torch.empty(0, 5),
    "turned": torch.arange(12.0).reshape(3, 4).t(),
    "part": torch.arange(12.0).reshape(3, 4)[:, 1:3],
    "one.for.all": torch.ones(1).expand(5),
    "with/slash": torch.ones(2),
    "..": torch.ones(2),
    "a.b/../c": torch.ones(2),
    "x" * 300: torch.ones(2),
    "\u00e9\u2603": torch.ones(2),
}


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("options", [(), ("--max-shard-size", "1B"), ("--format", "torch")])
def test_tensors_that_few_have(rtj, tmp_path: Path, options: tuple[str, ...]) -> None:
    """Types, shapes, strides and names: bit for bit, in one file, in one each, and as torch has them."""
    source, out = saved(tmp_path / "odd", {"model": ODD}), tmp_path / "out"
    result = rtj("checkpoints", "export", source, out, *options)
    assert result.exit_code == 0, result.output
    if out.is_dir():
        found = {key: value for file in out.glob("*.safetensors") for key, value in load_file(file).items()}
    else:
        found = torch.load(out, weights_only=True)
    assert {key: bits(value) for key, value in found.items()} == {key: bits(v) for key, v in ODD.items()}


@pytest.mark.parametrize(
    ("key", "tensor", "words"),
    [
        ("z", torch.ones(2, dtype=torch.complex128), "z is complex128, which safetensors can't hold"),
        ("__metadata__", torch.ones(2), "safetensors keep the name __metadata__ for themselves"),
    ],
)
def test_what_safetensors_can_not_hold(rtj, tmp_path: Path, key: str, tensor: Any, words: str) -> None:
    """Known before anything is written, and the way round it works."""
    source = saved(tmp_path / "odd", {"model": {key: tensor, "w": torch.ones(1)}})
    result = rtj("checkpoints", "export", source, tmp_path / "out")
    assert (result.exit_code, words in result.output, "--drop it" in result.output) == (2, True, True)
    assert rtj("checkpoints", "export", source, tmp_path / "out", "--drop", key).exit_code == 0


def relabelled(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        metadata = load_real((directory / ".metadata").read_bytes())
        change(metadata)
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))

    return do


def placed(**changes: Any) -> Callable[[Path], None]:
    def change(metadata: Any) -> None:
        for index, info in list(metadata.storage_data.items()):
            metadata.storage_data[index] = replace(info, **changes)

    return relabelled(change)


def sized(*size: int) -> Callable[[Path], None]:
    def change(metadata: Any) -> None:
        described = metadata.state_dict_metadata["model.w"]
        described.size = torch.Size(size)
        described.chunks = [replace(described.chunks[0], sizes=torch.Size(size))]

    return relabelled(change)


def filled(content: Callable[[int], bytes]) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        size = (directory / SHARD).stat().st_size
        (directory / SHARD).write_bytes(content(size))

    return do


HARMS: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "rubbish": (filled(lambda size: b"\x93" * size), 1, "model.w is no tensor"),
    "zeros": (filled(bytes), 1, "model.w is no tensor"),
    "cut": (filled(lambda size: bytes(100)), 1, f"{SHARD} has 100 bytes"),
    "a negative length": (placed(length=-5), 1, "-5 bytes"),
    "a negative place": (placed(offset=-100), 1, "from -100 on can't be"),
    "a place far away": (placed(offset=10**18), 1, f"{SHARD} has "),
    "a file outside": (placed(relative_path="../../x"), 1, "outside the checkpoint: ../../x"),
    "another shape": (sized(100, 2), 1, "a piece of model.w has shape (2, 100)"),
    "a size beyond all disks": (sized(10**9, 10**9), 2, "and the export takes"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_markers_and_shards_that_lie(rtj, tmp_path: Path, harm: str) -> None:
    """Of another program's checkpoint nobody vouches for anything: a message, and nothing is left."""
    source = saved(tmp_path / "odd", {"model": {"w": torch.ones(2, 100)}})
    do, code, words = HARMS[harm]
    do(source)
    result = rtj("checkpoints", "export", source, tmp_path / "out")
    assert (result.exit_code, words in result.output) == (code, True), result.output
    assert os.listdir(tmp_path) == ["odd"]


def test_nothing_that_a_checkpoint_says_is_run(rtj, tmp_path: Path) -> None:
    """In its values, in place of its shard, in place of its marker."""
    ran = tmp_path / "ran"
    optimizer = {"param_groups": [{"lr": 0.1, "extra": Runs(ran)}], "state": {"w": {"m": torch.ones(1)}}}
    source = saved(tmp_path / "odd", {"model": {"w": torch.ones(2)}, "optimizer": optimizer})
    assert rtj("checkpoints", "export", source, tmp_path / "weights").exit_code == 0
    whole = rtj("checkpoints", "export", source, tmp_path / "x", "--format", "torch", "--with-optimizer")
    assert (whole.exit_code, "without running what is in it" in whole.output) == (2, True)
    filled(lambda size: pickle.dumps(Runs(ran)).ljust(size, b"\0"))(source)
    assert rtj("checkpoints", "export", source, tmp_path / "y").exit_code == 1
    (source / ".metadata").write_bytes(pickle.dumps(Runs(ran)))
    for command in ("show", "verify"):
        assert rtj("checkpoints", command, source).exit_code == 1
    assert not ran.exists()


def test_what_a_killed_export_left_goes_with_the_next(rtj, tmp_path: Path) -> None:
    """It is as large as the model. One that is at work is left alone."""
    source = saved(tmp_path / "odd", {"model": {"w": torch.ones(2)}})
    left, busy = tmp_path / ".out-export-abc", tmp_path / ".out-export-def"
    for path in (left, busy):
        (path / "out").mkdir(parents=True)
        (path / "out" / "model.safetensors").write_bytes(b"half")
    held = os.open(busy, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert rtj("checkpoints", "export", source, tmp_path / "out").exit_code == 0
    finally:
        os.close(held)
    assert sorted(os.listdir(tmp_path)) == [".out-export-def", "odd", "out"]
