"""`rtj checkpoints export`: what others load, bit for bit, whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from resumable_training.checkpoint import CheckpointEngine, Reached, TrainingState
from resumable_training.checkpoint.export_plan import ExportRefused, Kept, parse_size, split
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import checkpoint_name as name


class Model(nn.Module):
    """Tied weights, a buffer of whole numbers, two types, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(600, 500)
        self.head = nn.Linear(500, 600, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.LayerNorm(500, dtype=torch.bfloat16)
        self.register_buffer("count", torch.tensor(7))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A store with one checkpoint of the model, an average of it, and its optimizer."""
    root = tmp_path_factory.mktemp("export") / "store"
    torch.manual_seed(3)
    model, average = Model(), nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model.head(model.embedding(torch.tensor([1]))).sum().backward()
    optimizer.step()
    config = CheckpointConfig(directory=str(root))
    engine = CheckpointEngine(config, "local/job", "u", 1, None, 0, 1, lambda text: None)
    state = TrainingState({"model": model, "average": average}, {"optimizer": optimizer})
    engine.preflight()
    engine.restore(state)
    assert engine.save(state, Reached(10, 80, {}, {"rng": b"x"})).ok
    return root, model


def loaded(directory: Path) -> dict[str, torch.Tensor]:
    return {key: value for file in directory.glob("*.safetensors") for key, value in load_file(file).items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one
    )


def test_safetensors_have_the_models_own_names_and_values(trained, rtj, tmp_path: Path) -> None:
    """As `model.state_dict()` gives them; one file and no index; transformers' word for the framework."""
    root, model = trained
    out = tmp_path / "hf"
    result = rtj("checkpoints", "export", root, out, "--module", "model")
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    assert (out / "model.safetensors").stat().st_mode & 0o777 == out.stat().st_mode & 0o666
    assert same(loaded(out), dict(model.state_dict()))
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert "embedding.weight and head.weight hold the same bytes" in result.output


def test_of_several_modules_all_keep_their_names(trained, rtj, tmp_path: Path) -> None:
    """Neither the optimizer's state nor the library's own values are weights."""
    rtj("checkpoints", "export", trained[0], tmp_path / "hf")
    names = loaded(tmp_path / "hf").keys()
    assert {name.partition(".")[0] for name in names} == {"model", "average"}


def test_shards_and_their_index(trained, rtj, tmp_path: Path) -> None:
    """Sizes bound, an index that names every tensor's file, together the model again."""
    root, model = trained
    out = tmp_path / "hf"
    options = ("--module", "model", "--max-shard-size", "1.3MB")
    assert rtj("checkpoints", "export", root, out, *options).exit_code == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in loaded(out).values())
    for tensor, file in index["weight_map"].items():
        assert tensor in load_file(out / file)
    assert same(loaded(out), dict(model.state_dict()))


def test_names_and_types_can_be_changed(trained, rtj, tmp_path: Path) -> None:
    """Floating-point tensors alone are cast; tied ones can be dropped by the name that is written."""
    root, model = trained
    options = ("--module", "model", "--dtype", "bf16", "--prefix", "net.", "--drop", "net.head.weight")
    result = rtj("checkpoints", "export", root, tmp_path / "hf", *options)
    assert result.exit_code == 0, result.output
    found = loaded(tmp_path / "hf")
    assert sorted(found) == ["net.count", "net.embedding.weight", "net.norm.bias", "net.norm.weight"]
    assert torch.equal(found["net.embedding.weight"], model.embedding.weight.to(torch.bfloat16))
    assert found["net.count"].dtype == torch.int64
    assert rtj("checkpoints", "export", root, tmp_path / "x", "--strip-prefix", "model.head.").exit_code == 0
    assert "weight" in loaded(tmp_path / "x")


def test_one_torch_file(trained, rtj, tmp_path: Path) -> None:
    """For `load_state_dict(torch.load(..., weights_only=True))`."""
    root, model = trained
    options = ("--format", "torch", "--module", "model")
    assert rtj("checkpoints", "export", root, tmp_path / "m.pt", *options).exit_code == 0
    assert same(torch.load(tmp_path / "m.pt", weights_only=True), dict(model.state_dict()))
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_one_torch_file_with_the_optimizer(trained, rtj, tmp_path: Path) -> None:
    """Nested as it was saved, hyper-parameters too."""
    options = ("--format", "torch", "--module", "model", "--with-optimizer")
    assert rtj("checkpoints", "export", trained[0], tmp_path / "m.pt", *options).exit_code == 0
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert sorted(state) == ["model", "optimizer"]
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.25
    assert state["optimizer"]["state"]["embedding.weight"]["exp_avg"].shape == (600, 500)


@pytest.mark.parametrize(
    "options",
    [
        ("--max-shard-size", "1.3MB"),
        ("--format", "torch"),
        ("--format", "torch", "--with-optimizer"),
    ],
)
def test_the_size_that_is_told_is_that_of_the_files(trained, rtj, tmp_path: Path, options) -> None:
    """All that was written: headers, the index, the optimizer."""
    out = tmp_path / "out"
    told = json.loads(rtj("checkpoints", "export", trained[0], out, "--json", *options).output)
    files = [out] if out.is_file() else list(out.iterdir())
    assert told["bytes"] == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--with-optimizer"], "give --format torch"),
        (["--module", "ema"], "has no module ema; it has average, model"),
        (["--strip-prefix", "net."], "no key begins with 'net.'; the first is 'average.bias'"),
        (["--drop", "nothing"], "there is no nothing to drop"),
        (["--max-shard-size", "big"], "'big' is no size"),
        (["--step", "11"], "On the chain are steps 10"),
    ],
)
def test_what_makes_no_sense_is_refused(trained, rtj, tmp_path: Path, options: list[str], why: str) -> None:
    """Before anything is written; the message has the choices."""
    result = rtj("checkpoints", "export", trained[0], tmp_path / "hf", *options)
    assert result.exit_code == 2
    assert why in result.output
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(trained, rtj, tmp_path: Path) -> None:
    """Neither a directory, also an empty one, nor a file."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "m.pt").write_bytes(b"mine")
    for out, kind in (("hf", "safetensors"), ("m.pt", "torch")):
        result = rtj("checkpoints", "export", trained[0], tmp_path / out, "--format", kind)
        assert result.exit_code == 2
        assert "not overwritten" in result.output
    assert (tmp_path / "m.pt").read_bytes() == b"mine"


def test_it_appears_whole_or_not_at_all(trained, rtj, tmp_path: Path, monkeypatch) -> None:
    """A failure in the middle leaves nothing, and the pin is given back."""
    from resumable_training.checkpoint import export

    saved: list[Path] = []

    def fail_at_second(content: object, file: Path) -> None:
        assert list((trained[0] / "pins").iterdir())
        saved.append(file)
        if len(saved) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_save_shard", fail_at_second)
    result = rtj("checkpoints", "export", trained[0], tmp_path / "hf", "--max-shard-size", "100kB")
    assert result.exit_code == 2
    assert "can't be written: No space left on device" in result.output
    assert list(tmp_path.iterdir()) == []
    assert list((trained[0] / "pins").iterdir()) == []


def test_a_flipped_bit_is_not_exported(trained, rtj, tmp_path: Path) -> None:
    """Every block that is read is compared with the manifest."""
    shard = trained[0] / name(10, 1) / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    try:
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        result = rtj("checkpoints", "export", trained[0], tmp_path / "hf")
    finally:
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    assert result.exit_code == 1
    assert f"{name(10, 1)} is damaged: __0_0.distcp: the {len(data)} bytes from 0 on are not" in result.output
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_says_what_to_install(trained, rtj, tmp_path: Path, monkeypatch) -> None:
    """All that needs no torch comes first: the plan and its errors."""
    monkeypatch.delitem(sys.modules, "resumable_training.checkpoint.export", raising=False)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = rtj("checkpoints", "export", trained[0], tmp_path / "hf")
    assert result.exit_code == 2
    assert "pip install 'resumable-training[worker]'" in result.output


def test_one_file_in_memory(trained, tmp_path: Path, monkeypatch) -> None:
    """Of the tensors that were read, no more than those of the shard at hand are alive."""
    import gc
    import weakref

    from resumable_training.checkpoint import export
    from resumable_training.checkpoint.local import LocalStore

    alive: list[Any] = []
    most: list[int] = []
    read = export.Tensors.read

    def counted(self: Any, key: str) -> torch.Tensor:
        gc.collect()
        most.append(sum(ref() is not None for ref in alive))
        tensor = read(self, key)
        alive.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(export.Tensors, "read", counted)
    tensors = export.Tensors(LocalStore(trained[0]), name(10, 1), foreign=False)
    keys = [key for key in tensors.marker.shapes if key.startswith("model.")]
    kept = [Kept(key, key, 1, 1) for key in keys]
    (tmp_path / "hf").mkdir()
    export.write_safetensors(tensors, split(kept, 2), tmp_path / "hf", None, lambda count: None)
    assert max(most) <= 2


@pytest.mark.parametrize(
    ("text", "bytes_"), [("5GB", 5 * 10**9), ("2GiB", 2**31), ("1.5 MB", 1_500_000), ("700", 700)]
)
def test_sizes(text: str, bytes_: int) -> None:
    """Powers of 1000, or with an i of 1024."""
    assert parse_size(text) == bytes_
    with pytest.raises(ExportRefused):
        parse_size("-" + text)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_files_hold_everything_once_in_order(sizes: list[int], most: int) -> None:
    """No file is larger than allowed unless it holds one tensor, and none is empty."""
    kept = [Kept(f"k{i}", f"k{i}", size, size) for i, size in enumerate(sizes)]
    shards = split(kept, most)
    assert [one for shard in shards for one in shard.kept] == kept
    assert all(shard.kept and (shard.bytes <= most or len(shard.kept) == 1) for shard in shards)
