"""Directories that a plain ``dcp.save`` of several ranks wrote, resumed at other sizes and wrappings."""

from pathlib import Path
from typing import Any

import foreign_programs
import pytest
import torch
from rank_programs import run_ranks


def saved(tmp_path: Path, layout: str, kind: str, world_size: int) -> tuple[str, dict[str, Any]]:
    path = str(tmp_path / "theirs")
    return path, run_ranks(world_size, foreign_programs.plain_save, tmp_path, path, kind, layout)[0]


def resumed(
    tmp_path: Path, path: str, kind: str, world_size: int, name: str = "store"
) -> list[dict[str, Any]]:
    return run_ranks(world_size, foreign_programs.resume, tmp_path, str(tmp_path / name), path, kind)


def assert_same(found: dict[str, Any], expected: dict[str, Any], prefix: str = "") -> None:
    """Tensors whose key begins with ``prefix`` are equal to the bit."""
    assert found["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        assert not key.startswith(prefix) or torch.equal(found["tensors"][key], value), key


@pytest.mark.parametrize(
    ("layout", "kind", "saved_at", "loaded_at", "loaded_as"),
    [
        ("torchtitan", "fsdp", 2, 3, "fsdp"),
        ("torchtitan", "fsdp", 3, 1, "ddp"),
        ("application", "ddp", 2, 4, "fsdp"),
        ("numbered", "ddp", 2, 3, "ddp"),
    ],
)
def test_layouts_of_other_programs(
    layout: str, kind: str, saved_at: int, loaded_at: int, loaded_as: str, tmp_path: Path
) -> None:
    """Weights and optimizer are found under other names, at another world size, and come back bit-equal."""
    path, expected = saved(tmp_path, layout, kind, saved_at)
    found = resumed(tmp_path, path, loaded_as, loaded_at)
    for values in found:
        assert_same(values, expected)
        for number in (0, 2) if layout == "torchtitan" else (0, 1, 2):  # it keeps none without parameters
            assert values["groups"][number] == expected["groups"][number]
    (text,) = [text for text in found[0]["said"] if "another program" in text]
    unused = {
        "torchtitan": ["dataloader.dp_rank_0", "lr_scheduler (", "train_state (2 keys)"],
        "application": ["iteration"],
        "numbered": ["epoch"],
    }
    assert all(name in text for name in unused[layout])
    assert "starts fresh: scheduler" in text


def test_weights_alone(tmp_path: Path) -> None:
    """Without an optimizer in it the tracked one starts fresh, and that is said."""
    path, expected = saved(tmp_path, "weights", "fsdp", 2)
    found = resumed(tmp_path, path, "fsdp", 2)
    for values in found:
        values["tensors"] = {**expected["tensors"], **values["tensors"]}  # it has no state before a step
        assert_same(values, expected, "model.")
    assert "starts fresh: optimizer, scheduler" in " ".join(found[0]["said"])
    assert "model under 'state.'" in " ".join(found[0]["said"])
