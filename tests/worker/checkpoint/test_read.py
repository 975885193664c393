"""Reading with one rank: bad luck of every kind, what is made of it, and what is never touched."""

import multiprocessing
import pickle
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_programs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from engine_job import Job, make_state, save, start, weight

import resumable_training.checkpoint
from resumable_training.checkpoint import blocks, verify
from resumable_training.checkpoint.blocks import BlockStream, in_order, in_parallel
from resumable_training.checkpoint.documents import seal, unseal
from resumable_training.checkpoint.errors import NoResumePoint, NotPlain, StorageUnavailable
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.store import Entry
from resumable_training.checkpoint.verify import hash_bytes
from resumable_training.contract.manifest import MANIFEST_FILE, MARKER_FILE, FileEntry, Manifest

NEWEST = "step-00000020.1"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


def rewrite(job: Job, change: Callable[[dict[str, Any]], None]) -> None:
    """Seal the newest checkpoint's manifest anew, with other fields: its own check sum is right."""
    path = job.root / NEWEST / MANIFEST_FILE  # type: ignore[operator]
    manifest = unseal(Manifest, path.read_bytes())
    fields = dict(vars(manifest), files=dict(manifest.files))
    change(fields)
    path.write_bytes(seal(Manifest(**fields)))


def set_entry(**changed: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        (name,) = [file for file in fields["files"] if file != MARKER_FILE]
        fields["files"][name] = FileEntry(**{**vars(fields["files"][name]), **changed})

    return change


def drop_shard(fields: dict[str, Any]) -> None:
    fields["files"] = {MARKER_FILE: fields["files"][MARKER_FILE]}


LIES = {
    "no block": (set_entry(blocks=()), "0 hashes for the 1 blocks of __"),
    "another hash": (set_entry(blocks=("0" * 32,)), "are not those that were written"),
    "another size": (set_entry(bytes=17), "bytes, not 17"),
    "blocks of nothing": (lambda fields: fields.update(block_bytes=0), "blocks of 0 bytes"),
    "a shard less": (drop_shard, "the manifest has no such file"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_damage(job: Job, lie: str) -> None:
    """Whoever has sealed it: the next older checkpoint is resumed, and the reason names what can't be."""
    start(job, 1, 10, 20)
    change, reason = LIES[lie]
    rewrite(job, change)
    state = make_state()
    report = job.engine(2).restore(state)
    assert report is not None
    assert (report.step, weight(state)) == (10, 10)
    assert reason in report.fallback[0].why


class Unknown:
    """Stands for a class that a later torch may put into its marker."""


def test_a_marker_of_another_torch(job: Job) -> None:
    """It is what was written, and this torch can't read it: no damage, nothing older, but a word of why."""
    start(job, 1, 10, 20)
    marker = pickle.dumps(Unknown())
    (job.root / NEWEST / MARKER_FILE).write_bytes(marker)  # type: ignore[operator]

    def change(fields: dict[str, Any]) -> None:
        fields.update(torch_version="9.9.9")
        fields["files"][MARKER_FILE] = hash_bytes(marker)

    rewrite(job, change)
    with pytest.raises(NoResumePoint, match=r"torch 9\.9\.9 wrote its \.metadata.*Unknown"):
        job.engine(2).restore(make_state())
    assert job.resume_points == [NEWEST, "step-00000010.1"]


def test_a_body_that_comes_short_is_read_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an answer proves nothing."""
    start(job, 1, 10, 20)
    real, cut = LocalStore.read_into, []

    def read_into(store: LocalStore, name: str, offset: int, place: memoryview) -> int:
        came = real(store, name, offset, place)
        if name.endswith(".distcp") and not cut:
            cut.append(name)
            return came - 1
        return came

    monkeypatch.setattr(LocalStore, "read_into", read_into)
    report = job.engine(2).restore(make_state())
    assert report is not None
    assert (report.step, report.fallback) == (20, ())
    assert cut


@pytest.mark.parametrize("age", ["without the shard", "with another size"])
def test_an_old_listing_is_not_believed(job: Job, monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """What it lacks, or has in another size, is asked for by name."""
    start(job, 1, 10, 20)
    real = LocalStore.entries

    def entries(store: LocalStore, directory: str = "") -> list[Entry]:
        found = real(store, directory)
        if age == "without the shard":
            return [entry for entry in found if not entry.name.endswith(".distcp")]
        return [Entry(entry.name, 1, entry.modified, entry.is_directory) for entry in found]

    engine = job.engine(2)
    monkeypatch.setattr(LocalStore, "entries", entries)
    assert verify.inspect(engine.store, NEWEST).verdict.outcome == verify.OK


def test_ten_thousand_entries_cost_one_listing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of all files come with it, whatever else lies there; no file is asked for by itself."""
    start(job, 1, 10, 20)
    for number in range(10_000):
        (job.root / NEWEST / f"stray-{number}").touch()  # type: ignore[operator]
    listed = []
    real = LocalStore.entries

    def entries(store: LocalStore, directory: str = "") -> list[Entry]:
        listed.append(directory)
        return real(store, directory)

    def size(store: LocalStore, name: str) -> int | None:
        raise AssertionError(name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "entries", entries)
        patch.setattr(LocalStore, "size", size)
        assert verify.inspect(job.store, NEWEST).verdict.outcome == verify.OK
    assert listed == [NEWEST]
    assert job.engine(2).restore(make_state()).step == 20  # type: ignore[union-attr]


@pytest.mark.parametrize("file", [".distcp", MARKER_FILE, MANIFEST_FILE])
def test_a_store_that_hangs_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """A read that never ends: an error with the checkpoint's place, tried again, and the state untouched."""
    start(job, 1, 10)
    let_go = threading.Event()
    real, real_into = LocalStore.read, LocalStore.read_into

    def read(store: LocalStore, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name.endswith(file):
            let_go.wait(60)
        return real(store, name, offset, length)

    def read_into(store: LocalStore, name: str, offset: int, place: memoryview) -> int:
        if name.endswith(file):
            let_go.wait(60)
        return real_into(store, name, offset, place)

    engine = job.engine(2)
    state = make_state(3.0)
    monkeypatch.setattr(LocalStore, "read", read)
    monkeypatch.setattr(LocalStore, "read_into", read_into)
    monkeypatch.setattr(blocks, "SILENT_SECONDS", 0.05)
    try:
        with pytest.raises(StorageUnavailable, match=r"step-00000010\.1 has not answered a read for 0 s"):
            engine.restore(state)
    finally:
        let_go.set()
    assert weight(state) == 3


MOMENTS = sorted(
    {
        found
        for file in Path(resumable_training.checkpoint.__path__[0]).glob("*.py")
        for found in re.findall(r'moment\("(load\.[^"]+)"\)', file.read_text())
    }
)


@pytest.mark.parametrize("name", MOMENTS)
def test_killed_at_any_moment_of_a_load(job: Job, name: str) -> None:
    """The next attempt finds the same checkpoint, with its values, and saves after it."""
    start(job, 1, 10, 20)
    process = multiprocessing.get_context("forkserver").Process(
        target=foreign_programs.resume_until, args=(job.root, name)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    state = make_state()
    engine = job.engine(3)
    report = engine.restore(state)
    assert report is not None
    assert (report.step, weight(state), report.fallback) == (20, 20, ())
    for step in (30, 40, 50):
        assert save(engine, step).ok
    assert job.resume_points[:2] == [f"step-00000050.{report.record}", f"step-00000040.{report.record}"]


# Tensors of other kinds ---------------------------------------------------------------------------------


def stored(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    dcp.save(dict(tensors), checkpoint_id=tmp_path / "ckpt", no_dist=True)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("block_bytes", [100, 5000, 1 << 20])
def test_places_of_any_kind_are_filled(block_bytes: int, tmp_path: Path) -> None:
    """Other types, other orders of memory, parts of larger tensors; whatever a block's edge cuts."""
    tensors = foreign_programs.odd_tensors()
    where, alone = stored(tmp_path, tensors), Ranks(None, 0, 1)
    doubled = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in tensors.items()}
    found = foreign_programs.read_into(doubled, where, block_bytes, alone)
    assert all(torch.equal(value, tensors[key].double()) for key, value in found.items())
    wide = {key: torch.zeros(*value.shape, 2, dtype=value.dtype)[..., 0] for key, value in tensors.items()}
    found = foreign_programs.read_into(wide, where, block_bytes, alone)
    assert all(torch.equal(value, tensors[key]) for key, value in found.items())


def test_what_is_no_tensor_of_ours_is_named_before_anything_is_written(tmp_path: Path) -> None:
    """A tensor that the marker describes otherwise than its own archive does."""
    path = stored(tmp_path, {"good": torch.ones(3), "bad": torch.ones(4)})
    catalog_of = foreign_programs.load_real((path / MARKER_FILE).read_bytes())
    catalog_of.state_dict_metadata["bad"].properties.dtype = torch.int32
    (path / MARKER_FILE).write_bytes(pickle.dumps(catalog_of))
    places = {"good": torch.zeros(3), "bad": torch.zeros(4, dtype=torch.int32)}
    with pytest.raises(NotPlain, match=r"bad \(in __0_0\.distcp.*torch.int32 \[4\], the item torch.float32"):
        foreign_programs.read_into(places, path, 1 << 20, Ranks(None, 0, 1))
    assert torch.equal(places["good"], torch.zeros(3))


def test_a_compressed_checkpoint_is_refused_by_name(job: Job, tmp_path: Path) -> None:
    """What was written through an extension can't be read piece by piece: said, with the fix."""
    path = stored(tmp_path, {"model.weight": torch.ones(2, 3)})
    metadata = foreign_programs.load_real((path / MARKER_FILE).read_bytes())
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["stream.zstd/1"]
    (path / MARKER_FILE).write_bytes(pickle.dumps(metadata))
    with pytest.raises(NoResumePoint, match=r"model.weight was written through the extension stream.zstd/1"):
        job.engine(1, resume_from=str(path)).restore(make_state())


# Threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", [in_order, lambda work, todo, **o: in_parallel(work, todo, "there", **o)])
def test_all_is_done_and_not_too_much_at_once(do: Callable[..., Any]) -> None:
    """Every result comes, each with what it is of, and never more than so many are under way."""
    lock, now, most = threading.Lock(), [0], [0]
    both = threading.Barrier(2)

    def work(number: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        both.wait(30)
        with lock:
            now[0] -= 1
        return number * number

    found = list(do(work, range(40), at_once=2))
    assert sorted(found) == [(number, number * number) for number in range(40)]
    assert do is not in_order or found == sorted(found)
    assert most == [2]


@pytest.mark.parametrize("do", [in_order, lambda work, todo, **o: in_parallel(work, todo, "there", **o)])
def test_an_error_ends_it(do: Callable[..., Any]) -> None:
    """It is raised to the caller, and what had not begun does not begin."""
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        raise StorageUnavailable(f"number {number}")

    with pytest.raises(StorageUnavailable, match="number 0"):
        list(do(work, range(1000), at_once=1))
    assert len(begun) < 1000


def test_a_stream_reads_ahead_only_when_read_on_and_on() -> None:
    """From block to block the next ones are fetched meanwhile, each once; a jump fetches one."""
    data = bytes(range(100))
    asked: list[int] = []

    def fetch(number: int) -> bytes:
        asked.append(number)
        return data[number * 10 : number * 10 + 10]

    with BlockStream(100, 10, fetch, ahead=3) as stream:
        assert stream.read(25) == data[:25]
        assert stream.read() == data[25:]
        assert sorted(asked) == list(range(10))
        stream.seek(42)
        assert stream.read(3) == data[42:45]
        assert len(asked) == 11


def test_saving_again_after_a_foreign_start(job: Job, tmp_path: Path) -> None:
    """What was read from another program goes on as one's own checkpoint."""
    model = make_state(5.0).modules["model"]
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    state = make_state()
    engine = job.engine(1, resume_from=str(tmp_path / "ckpt"))
    engine.restore(state)
    assert save(engine, 3, state).ok
    state = make_state()
    assert job.engine(2).restore(state).step == 3  # type: ignore[union-attr]
    assert weight(state) == 5
