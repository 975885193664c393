"""Verdicts: ok, damaged with proof, or cannot tell; and markers that are read without being trusted."""

import errno
import io
import itertools
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.documents import seal, unseal
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.marker import load_real
from resumable_training.checkpoint.verify import CANNOT_TELL, DAMAGED, OK, BlockHasher, hash_bytes
from resumable_training.contract.manifest import MANIFEST_FILE, MARKER_FILE, Manifest, StoreIdentity
from resumable_training.contract.marker import DamagedMarker, ForbiddenName, parse_marker

NAME = "step-00000010.1"
SHARD = "__0_0.distcp"
BLOCK = 4096


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one checkpoint: real DCP files, several blocks, and a manifest."""
    root = tmp_path_factory.mktemp("store")
    values = {"model": {"weight": torch.arange(3000.0), "scalar": torch.tensor(1.5)}, "lr": 0.1}
    dcp.save(values, checkpoint_id=root / NAME, no_dist=True)
    store = LocalStore(root, visibility_seconds=0.0)
    files = {file: hash_bytes((root / NAME / file).read_bytes(), BLOCK) for file in (SHARD, MARKER_FILE)}
    manifest = Manifest("s", 1, 10, 640, 1, files, block_bytes=BLOCK)
    store.create(f"{NAME}/{MANIFEST_FILE}", seal(manifest))
    return root


@pytest.fixture
def store(written: Path, tmp_path: Path) -> LocalStore:
    shutil.copytree(written, tmp_path / "copy")
    return LocalStore(tmp_path / "copy", visibility_seconds=0.0)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300)), block=st.integers(1, 64))
def test_hash_does_not_depend_on_how_it_was_written(data: bytes, cuts: list[int], block: int) -> None:
    """Blocks and whole are the same whatever pieces the bytes came in."""
    hasher = BlockHasher(block)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        hasher.update(data[start:end])
    entry = hasher.entry()
    assert entry == hash_bytes(data, block)
    assert entry.bytes == len(data)
    assert len(entry.blocks) == -(-len(data) // block)


def test_whole_checkpoint_is_ok(store: LocalStore) -> None:
    """Untouched files give `ok`, as a whole and block by block."""
    assert verify.verify_checkpoint(store, NAME).outcome == OK
    manifest = verify.inspect(store, NAME).manifest
    assert manifest is not None
    places = verify.blocks_of(manifest).places
    assert len(places) == len(manifest.files[SHARD].blocks) > 3
    read = [verify.read_block(store, NAME, place) for place in places]
    assert {verdict.outcome for _, verdict in read} == {OK}
    assert b"".join(data for data, _ in read) == store.read(f"{NAME}/{SHARD}")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_damage(store: LocalStore, data: st.DataObject) -> None:
    """One flipped bit in shard, manifest or marker is proven, and named."""
    file = data.draw(st.sampled_from([SHARD, MANIFEST_FILE, MARKER_FILE]))
    path = store.path(f"{NAME}/{file}")
    intact = path.read_bytes()
    position = data.draw(st.integers(0, len(intact) - 1))
    flipped = bytearray(intact)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(flipped)
    try:
        verdict = verify.verify_checkpoint(store, NAME)
        blocks = _blocks(store)
    finally:
        path.write_bytes(intact)
    assert verdict.outcome == DAMAGED
    assert file in verdict.reason
    assert blocks.outcome == DAMAGED


def _blocks(store: LocalStore) -> verify.Verdict:
    """As a resume looks at it."""
    seen = verify.inspect(store, NAME)
    if seen.verdict.outcome != OK or seen.manifest is None:
        return seen.verdict
    places = verify.blocks_of(seen.manifest).places
    return verify.worst(verify.read_block(store, NAME, place)[1] for place in places)


@pytest.mark.parametrize("file", [SHARD, MANIFEST_FILE, MARKER_FILE])
def test_truncated_or_missing_is_damage(store: LocalStore, file: str) -> None:
    """Cut short by a byte, emptied, longer by a byte, or gone: damaged, and the file is named."""
    path = store.path(f"{NAME}/{file}")
    intact = path.read_bytes()
    for content in (intact[:-1], b"", intact + b"x"):
        path.write_bytes(content)
        verdict = verify.verify_checkpoint(store, NAME)
        assert verdict.outcome == DAMAGED
        assert file in verdict.reason
    path.unlink()
    verdict = verify.verify_checkpoint(store, NAME)
    assert verdict.outcome == DAMAGED
    assert file in verdict.reason


def test_a_late_file_is_waited_for(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing only counts after the listing was repeated for as long as names may be late."""
    path = store.path(f"{NAME}/{SHARD}")
    hidden = path.rename(path.with_name("hidden"))
    real = LocalStore.entries

    def late(self: LocalStore, directory: str = "") -> list[object]:
        if hidden.exists():
            hidden.rename(path)
        return list(real(self, directory))

    monkeypatch.setattr(LocalStore, "entries", late)
    store.visibility_seconds = 30.0
    assert verify.verify_checkpoint(store, NAME).outcome == OK


@pytest.mark.parametrize("call", ["open", "stat"])
def test_unreadable_is_cannot_tell(store: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """An I/O error proves nothing."""
    target = io if call == "open" else os
    real: Callable[..., object] = getattr(target, call)

    def broken(path: object, *args: object, **kwargs: object) -> object:
        if str(path).endswith(SHARD):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(target, call, broken)
    verdict = verify.verify_checkpoint(store, NAME)
    assert verdict.outcome == CANNOT_TELL
    assert "Input/output error" in verdict.reason


def test_unknown_algorithm_is_cannot_tell(store: LocalStore) -> None:
    """A newer library's hashes can't be compared, which is not damage."""
    store.put(f"{NAME}/{MANIFEST_FILE}", seal(Manifest("s", 1, 10, 640, 1, {}, algorithm="blake9")))
    assert verify.verify_checkpoint(store, NAME).outcome == CANNOT_TELL


def test_worst_of_many() -> None:
    """Proof outweighs doubt, doubt outweighs ok."""
    ok, doubt, proof = verify.Verdict(OK), verify.cannot_tell("?"), verify.damaged("!")
    assert verify.worst([ok, doubt, proof]) == proof
    assert verify.worst([ok, doubt]) == doubt
    assert verify.worst([]) == ok


# Directories of other programs ----------------------------------------------------------------------------


def test_foreign_directory_is_judged_by_structure(store: LocalStore) -> None:
    """Without a manifest: fine where that is expected, damage in our own store."""
    store.delete(f"{NAME}/{MANIFEST_FILE}")
    assert verify.verify_checkpoint(store, NAME, foreign=True).outcome == OK
    assert verify.verify_checkpoint(store, NAME).outcome == DAMAGED


@pytest.mark.parametrize("harm", ["short shard", "no shard", "cut marker", "no marker"])
def test_foreign_damage_is_seen(store: LocalStore, harm: str) -> None:
    """A shard that is missing or too short for what the marker names, a marker that is cut or missing."""
    store.delete(f"{NAME}/{MANIFEST_FILE}")
    victim = store.path(f"{NAME}/{SHARD if 'shard' in harm else MARKER_FILE}")
    content = victim.read_bytes()
    victim.unlink()
    if not harm.startswith("no"):
        victim.write_bytes(content[:-1])
    assert verify.verify_checkpoint(store, NAME, foreign=True).outcome == DAMAGED


def test_entries_that_were_never_stored_are_seen(store: LocalStore) -> None:
    """A swallowed writer error leaves a marker that declares more than was stored."""
    metadata = load_real(store.read(f"{NAME}/{MARKER_FILE}"))
    metadata.storage_data = {k: v for k, v in metadata.storage_data.items() if k.fqn != "model.weight"}
    store.put(f"{NAME}/{MARKER_FILE}", pickle.dumps(metadata))
    store.delete(f"{NAME}/{MANIFEST_FILE}")
    verdict = verify.verify_checkpoint(store, NAME, foreign=True)
    assert verdict.outcome == DAMAGED
    assert "model.weight" in verdict.reason


def test_pieces_that_do_not_make_up_the_tensor_are_seen(store: LocalStore) -> None:
    """With one rank DCP itself does not notice that half a tensor was given."""
    metadata = load_real(store.read(f"{NAME}/{MARKER_FILE}"))
    metadata.state_dict_metadata["model.weight"].size = torch.Size([6000])
    store.put(f"{NAME}/{MARKER_FILE}", pickle.dumps(metadata))
    store.delete(f"{NAME}/{MANIFEST_FILE}")
    assert "model.weight" in verify.verify_checkpoint(store, NAME, foreign=True).reason


def test_a_marker_cannot_point_outside(store: LocalStore) -> None:
    """A shard named ../x is damage, not a file to read."""
    metadata = load_real(store.read(f"{NAME}/{MARKER_FILE}"))
    for info in metadata.storage_data.values():
        info.relative_path = "../../etc/passwd"
    store.put(f"{NAME}/{MARKER_FILE}", pickle.dumps(metadata))
    store.delete(f"{NAME}/{MANIFEST_FILE}")
    assert "outside" in verify.verify_checkpoint(store, NAME, foreign=True).reason


# Markers ------------------------------------------------------------------------------------------------


def relabel(store: LocalStore, **changes: object) -> None:
    """The manifest says something else, sealed as a writer would."""
    path = store.path(f"{NAME}/{MANIFEST_FILE}")
    manifest = unseal(Manifest, path.read_bytes())
    path.write_bytes(seal(replace(manifest, **changes)))


LIES = {
    "a file above": (lambda known: {"files": {**known, "../../x": known[SHARD]}}, "outside the checkpoint"),
    "an absolute path": (lambda known: {"files": {**known, "/etc/passwd": known[SHARD]}}, "outside"),
    "no name": (lambda known: {"files": {**known, "": known[SHARD]}}, "outside the checkpoint: ''"),
    "a name that no file system has": (lambda known: {"files": {**known, "a\0b": known[SHARD]}}, "outside"),
    "half a letter": (lambda known: {"files": {**known, "\ud800": known[SHARD]}}, "outside"),
    "blocks of no bytes": (lambda known: {"block_bytes": 0}, "blocks of 0 bytes"),
    "blocks beyond all memory": (lambda known: {"block_bytes": 1 << 70}, "blocks of"),
    "a size beyond all numbers": (
        lambda known: {"files": {**known, SHARD: replace(known[SHARD], bytes=10**400)}},
        "the size of",
    ),
    "another step": (lambda known: {"step": 11}, "it is of step 11 and record 1, under another name"),
    "another record": (lambda known: {"record": 2}, "it is of step 10 and record 2"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_damage(store: LocalStore, lie: str) -> None:
    """Whoever has sealed it: nothing outside the directory is opened, and nothing else raised."""
    changed, words = LIES[lie]
    known = unseal(Manifest, store.read(f"{NAME}/{MANIFEST_FILE}")).files
    relabel(store, **changed(known))
    found = verify.verify_checkpoint(store, NAME)
    assert (found.outcome, words in found.reason) == (DAMAGED, True), found


def test_a_directory_that_was_renamed_is_damage(store: LocalStore) -> None:
    """The chain goes by names. Under a name that is no checkpoint's it is a copy, and fine."""
    os.rename(store.path(NAME), store.path("step-00000020.1"))
    found = verify.inspect(store, "step-00000020.1").verdict
    assert (found.outcome, "step 10 and record 1" in found.reason) == (DAMAGED, True)
    os.rename(store.path("step-00000020.1"), store.path("best"))
    assert verify.verify_checkpoint(store, "best").outcome == OK


def test_another_stores_checkpoint_is_none_of_this_one(store: LocalStore) -> None:
    """Copied in by hand it would be taken for the job's own; in a directory of copies it is one."""
    assert verify.inspect(store, NAME).verdict.outcome == OK
    for store_id, outcome in (("s", OK), ("other", DAMAGED)):
        store.put("store.json", seal(StoreIdentity(store_id, "team/job")))
        found = verify.inspect(store, NAME).verdict
        assert found.outcome == outcome, found
    assert "written in another store (s), not in this one (other)" in found.reason
    assert verify.inspect(store, NAME, foreign=True).verdict.outcome == OK


def test_what_is_no_file_is_missing(store: LocalStore) -> None:
    """A directory or a pipe under a shard's name: damaged at once, and nothing waits for the pipe."""
    path = store.path(f"{NAME}/{SHARD}")
    path.unlink()
    path.mkdir()
    assert verify.inspect(store, NAME).verdict == verify.damaged(f"{SHARD} is missing")
    path.rmdir()
    os.mkfifo(path)
    assert verify.inspect(store, NAME).verdict == verify.damaged(f"{SHARD} is missing")


def test_marker_says_the_same_with_and_without_torch(store: LocalStore) -> None:
    """Stubs see every key, shape and place that DCP's own classes see."""
    data = store.read(f"{NAME}/{MARKER_FILE}")
    marker, real = parse_marker(data), load_real(data)
    assert marker.shapes == {"model.weight": (3000,), "model.scalar": (), "lr": None}
    assert set(marker.items) == {
        (index.fqn, None if index.offset is None else tuple(index.offset)) for index in real.storage_data
    }
    assert marker.needed_bytes() == {SHARD: store.size(f"{NAME}/{SHARD}")}
    assert marker.gap() is None


class Evil:
    def __init__(self, call: tuple[object, ...]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


EVIL = [
    (os.system, ("touch evil",)),
    (eval, ("open('evil', 'w')",)),
    (getattr, ("x", "upper")),
    (torch.load, ("evil",)),
    (io.open, ("evil", "w")),
    (pickle.loads, (b"",)),
]


@pytest.mark.parametrize("call", EVIL, ids=lambda call: call[0].__qualname__)
@pytest.mark.parametrize("parse", [parse_marker, load_real])
def test_malicious_marker_is_refused_without_executing(
    call: tuple[object, ...],
    parse: Callable[[bytes], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pickle that wants anything but DCP's own names is refused before a call is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForbiddenName):
        parse(pickle.dumps({"state_dict_metadata": Evil(call)}))
    assert not list(tmp_path.iterdir())


def test_names_through_a_dotted_path_are_refused() -> None:
    """Protocol 4 allows "Size.__class__" as a name; the allow list has no dots."""
    for name in ("Size.__class__", "float32.__class__", "serialization.pickle"):
        data = b"\x80\x04\x8c\x05torch\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        with pytest.raises(ForbiddenName):
            parse_marker(data)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_rubbish_markers_are_damage(written: Path, data: st.DataObject) -> None:
    """Any bytes, or a marker with changed bytes: parsed, or DamagedMarker; never another error."""
    intact = (written / NAME / MARKER_FILE).read_bytes()
    changed = bytearray(intact)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(intact) - 1))] = data.draw(st.integers(0, 255))
    for content in (bytes(changed), data.draw(st.binary(max_size=50))):
        try:
            parse_marker(content).gap()
        except DamagedMarker:
            continue
