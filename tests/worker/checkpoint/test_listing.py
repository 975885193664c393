"""What a person gets to see of a store."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_training.checkpoint.documents import Pin, pin, seal
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.verify import DAMAGED, OK, hash_bytes
from resumable_training.contract.manifest import (
    MANIFEST_FILE,
    MARKER_FILE,
    Manifest,
    Record,
    checkpoint_name,
    parse_checkpoint_name,
    record_name,
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path, visibility_seconds=0.0)
    for name in ("records", "pins"):
        store.make_directory(name)
    for seq, parent in ((1, None), (2, checkpoint_name(20, 1))):
        store.create(f"records/{record_name(seq)}", seal(Record(seq, "u", seq + 4, parent)))
    return store


def add(store: LocalStore, step: int, record: int, created: float = 100.0) -> str:
    """A complete checkpoint whose one shard is plain bytes: listing and hashes need no more."""
    name = checkpoint_name(step, record)
    store.make_directory(name)
    contents = {"__0_0.distcp": b"x" * step, MARKER_FILE: pickle.dumps(step)}
    files = {file: hash_bytes(data) for file, data in contents.items()}
    manifest = Manifest("s", record, step, step * 64, 2, files, created=created, attempt=record + 4)
    store.create(f"{name}/__0_0.distcp", contents["__0_0.distcp"])
    store.create(f"{name}/{MANIFEST_FILE}", seal(manifest))
    store.create(f"{name}/{MARKER_FILE}", contents[MARKER_FILE])
    return name


def test_list_says_what_each_is_and_why_not(store: LocalStore) -> None:
    """Newest first; zombies, half-written and damaged ones are shown with their reason."""
    old, newest = add(store, 20, 1), add(store, 30, 2, created=160.0)
    zombie, broken = add(store, 90, 1), add(store, 25, 2)
    store.make_directory(checkpoint_name(40, 2))
    store.make_directory("step-00000099.2.backup")
    store.put(f"{broken}/__0_0.distcp", b"y" * 25)
    pin(store, "reader", Pin(old, "eval", until=1000.0))

    infos = {info.name: info for info in list_checkpoints(store, now=200.0, verify_bytes=True)}
    assert list(infos) == [checkpoint_name(40, 2), newest, broken, zombie, old]
    assert infos[newest].resumable
    assert (infos[newest].step, infos[newest].record, infos[newest].attempt) == (30, 2, 6)
    assert (infos[newest].samples, infos[newest].world_size, infos[newest].age_seconds) == (1920, 2, 40.0)
    assert infos[newest].verdict is not None
    assert infos[newest].verdict.outcome == OK
    assert infos[old].pinned
    assert infos[old].resumable
    assert infos[zombie].why_not.startswith("off the chain")
    assert infos[checkpoint_name(40, 2)].why_not.startswith("incomplete")
    assert infos[broken].verdict is not None
    assert infos[broken].verdict.outcome == DAMAGED
    assert infos[broken].why_not.startswith("damaged: __0_0.distcp")


def test_without_verifying_bytes_nothing_is_claimed(store: LocalStore) -> None:
    """A quick list reads no shard and says so by having no verdict; a broken manifest shows even then."""
    name = add(store, 20, 1)
    assert [info.verdict for info in list_checkpoints(store, now=0.0)] == [None]
    store.put(f"{name}/{MANIFEST_FILE}", b"{}")
    assert list_checkpoints(store, now=0.0)[0].why_not.startswith("damaged: manifest.json")


TORCH_FREE = (
    "chain documents errors identity listing local marker mismatch reports resume retain store values verify"
)


def test_torch_free_part_works_without_torch(store: LocalStore, tmp_path: Path) -> None:
    """Listing and verifying run where torch and numpy can't be imported."""
    name = add(store, 20, 1)
    code = f"""
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
package = "resumable_training.checkpoint."
for module in {TORCH_FREE.split()!r}:
    importlib.import_module(package + module)
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
(info,) = list_checkpoints(LocalStore({str(tmp_path)!r}), 0.0, verify_bytes=True)
assert info.name == {name!r} and info.resumable, info
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_names_round_trip() -> None:
    """A checkpoint's name tells its step and record; anything else is no checkpoint."""
    assert parse_checkpoint_name(checkpoint_name(123456789012, 7)) == (123456789012, 7)
    for name in (
        "step-100.7",
        "step-00000100.7.tmp",
        "step-00000100.7/",
        "xstep-00000100.7",
        "step-00000100.",
    ):
        assert parse_checkpoint_name(name) is None
