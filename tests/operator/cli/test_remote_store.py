"""A store behind questions and answers: what is read is what is there, and only pins are written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_store import Store, branched

from resumable_operator.cli import remote_store
from resumable_operator.cli.remote_store import RemoteStore, answer, serve
from resumable_operator.cli.store_source import Opened
from resumable_operator.errors import RetryableError
from resumable_training.checkpoint.copying import copy_checkpoint
from resumable_training.checkpoint.errors import StorageUnavailable, StoreExists, StoreNotFound
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.pins import holding, read_pin_files
from resumable_training.checkpoint.verify import OK, verify_checkpoint
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def made(tmp_path: Path) -> Store:
    return branched(tmp_path / "store")


def opened(made: Store) -> Opened:
    return Opened(LocalStore(made.root), lambda: ["theirs"])


def remote(made: Store) -> RemoteStore:
    """Each question and answer goes through its bytes, as over a connection."""

    def ask(question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        answers = io.BytesIO()
        serve(opened(made), io.BytesIO(json.dumps(question).encode() + b"\n"), answers)
        line, _, data = answers.getvalue().partition(b"\n")
        told = json.loads(line)
        assert told["bytes"] == len(data)
        return told, data

    return RemoteStore(ask, "claim://data/store")


def test_it_looks_like_the_store_it_stands_for(made: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, sizes, any range of bytes over many answers; what is not there is not there."""
    monkeypatch.setattr(remote_store, "READ_BYTES", 1000)
    there, here = remote(made), LocalStore(made.root)
    shard = f"{name(25, 2)}/__0_0.distcp"
    assert there.entries() == here.entries()
    assert (there.entries("none"), there.foreign(), there.only) == ([], ["theirs"], None)
    assert (there.size(shard), there.size("none")) == (7000, None)
    for offset, length in ((0, None), (0, 7000), (999, 2), (6990, 100), (7000, 5), (0, 0), (2000, 1000)):
        assert there.read(shard, offset, length) == here.read(shard, offset, length)
    place = bytearray(3000)
    assert there.read_into(shard, 5000, memoryview(place)) == 2000
    with there.open_read(shard) as stream:
        stream.seek(10)
        assert stream.read() == here.read(shard, 10)
    with pytest.raises(StoreNotFound):
        there.read(f"{name(25, 2)}/none")


def test_a_checkpoint_is_copied_out_of_it(made: Store, tmp_path: Path) -> None:
    """Held meanwhile, by a pin that lies in the store itself."""
    there, target = remote(made), LocalStore(tmp_path / "kept")
    with holding(there, name(25, 2), "me", 60.0):
        assert [one.pin.checkpoint for one in read_pin_files(LocalStore(made.root)) if one.pin] == [
            name(25, 2)
        ]
        copy_checkpoint(there, name(25, 2), target)
    assert read_pin_files(LocalStore(made.root)) == []
    assert verify_checkpoint(target, name(25, 2)).outcome == OK


@pytest.mark.parametrize(
    "question",
    [
        {"act": "put", "name": "store.json", "data": ""},
        {"act": "create", "name": "records/00000009.json", "data": ""},
        {"act": "delete", "name": f"{name(25, 2)}/.metadata"},
        {"act": "make_directory", "name": "step-00000099.9"},
        {"act": "delete_tree", "name": "pins"},
        {"act": "anything else"},
    ],
)
def test_nothing_else_can_be_written(made: Store, question: dict[str, Any]) -> None:
    """Whoever asks, and whatever they ask."""
    before = sorted(made.root.rglob("*"))
    told, data = answer(opened(made), question)
    assert (told["error"], data) == ("StorageUnavailable", b"")
    assert sorted(made.root.rglob("*")) == before


def test_the_other_sides_errors_are_raised_here(made: Store) -> None:
    """By their kind; and one that gives no answer can't tell."""
    there = remote(made)
    there.make_directory("pins")
    with pytest.raises(StoreExists):
        there.make_directory("pins")

    def gone(question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        raise RetryableError("the connection to pod p has ended: it was closed")

    with pytest.raises(StorageUnavailable, match="pod p has ended"):
        RemoteStore(gone, "claim://data")
