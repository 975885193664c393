"""`rtj checkpoints`: what a store holds, what can be resumed from, whether its bytes are whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from checkpoint_store import Store, flip_a_bit

from resumable_operator.cli.directory_store import foreign_names
from resumable_training.contract.manifest import MARKER_FILE, checkpoint_name


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Attempt 1 saved 10, 20 and 30; attempt 2 went on from 20, saved 25 and is writing 35."""
    made = Store(tmp_path / "store")
    made.record(1)
    for step in (10, 20, 30):
        made.save(step, 1)
    made.record(2, parent=checkpoint_name(20, 1))
    made.save(25, 2)
    made.save(35, 2, complete=False)
    return made


def lines(output: str) -> dict[str, str]:
    """The line of each checkpoint, by name, without padding."""
    found = [line.split() for line in output.splitlines()]
    return {words[0]: " ".join(words[1:]) for words in found if words and words[0].startswith("step-")}


def test_the_list_says_what_can_be_resumed_from(store, rtj) -> None:
    """One is the next resume point; of each other it is said whether it could be one and why not."""
    result = rtj("checkpoints", "list", store.root)
    assert result.exit_code == 0
    told = lines(result.output)
    assert list(told) == [checkpoint_name(*c) for c in ((35, 2), (25, 2), (30, 1), (20, 1), (10, 1))]
    assert "incomplete" in told["step-00000035.2"]
    assert told["step-00000025.2"].startswith("25 2 400 3 7.")
    assert told["step-00000025.2"].endswith("next resume point")
    assert "off the chain" in told["step-00000030.1"]
    assert told["step-00000020.1"].endswith("complete")


def test_the_list_says_what_it_has_not_looked_at(store, rtj) -> None:
    """It reads no shards: what is damaged is still marked as the next resume point."""
    assert (
        "whether the bytes are whole says `checkpoints verify`"
        in rtj("checkpoints", "list", store.root).output
    )


def test_a_damaged_resume_point_is_told_with_what_comes_instead(store, rtj) -> None:
    """By `verify`, which has read the bytes."""
    flip_a_bit(store.root / checkpoint_name(25, 2))
    last = rtj("checkpoints", "verify", store.root).output.splitlines()[-1]
    assert last == (
        "the next resume point is damaged: the next attempt passes over it, and resumes step-00000020.1"
    )
    assert isinstance(json.loads(rtj("checkpoints", "verify", store.root, "--json").output), list)


def test_the_list_as_json(store, rtj) -> None:
    """Programs get the same facts by name."""
    told = json.loads(rtj("checkpoints", "list", store.root, "--json").output)
    assert [item["step"] for item in told] == [35, 25, 30, 20, 10]
    assert [item["complete"] for item in told] == [False, True, True, True, True]
    assert told[2]["on_chain"] is False


def test_verifying_whole_checkpoints_succeeds(store, rtj) -> None:
    """Every byte is read; what is incomplete is not a checkpoint yet and no failure."""
    result = rtj("checkpoints", "verify", store.root)
    assert result.exit_code == 0
    assert lines(result.output) == dict.fromkeys(
        [checkpoint_name(*c) for c in ((25, 2), (30, 1), (20, 1), (10, 1))], "ok"
    )


def test_one_flipped_bit_is_found(store, rtj) -> None:
    """Same size, same name, other bytes: proved damaged, exit code 1, and the others are still checked."""
    flip_a_bit(store.root / checkpoint_name(20, 1))
    result = rtj("checkpoints", "verify", store.root)
    assert result.exit_code == 1
    assert "the next resume point" not in result.output
    told = lines(result.output)
    assert told["step-00000020.1"].startswith("damaged: __0_0.distcp")
    assert told["step-00000010.1"] == "ok"
    assert rtj("checkpoints", "verify", store.root, "--step", 10).exit_code == 0
    (only,) = json.loads(rtj("checkpoints", "verify", store.root, "--step", 20, "--json").output)
    assert (only["outcome"], only["foreign"]) == ("damaged", False)


def test_a_store_that_can_not_be_read_leaves_it_open(store, rtj, monkeypatch) -> None:
    """An I/O error proves nothing: neither whole nor damaged, another exit code."""
    from resumable_training.checkpoint.errors import StorageUnavailable
    from resumable_training.checkpoint.local import LocalStore

    def fail(*_: object) -> bytes:
        raise StorageUnavailable("Input/output error")

    monkeypatch.setattr(LocalStore, "open_read", fail)
    result = rtj("checkpoints", "verify", store.root, "--step", 10)
    assert result.exit_code == 6
    assert "cannot tell: Input/output error" in result.output
    monkeypatch.setattr(LocalStore, "entries", fail)
    for verb in ("list", "verify"):
        result = rtj("checkpoints", verb, store.root)
        assert (result.exit_code, result.output) == (6, "Error: Input/output error\n")


def test_a_step_that_is_not_there_names_those_that_are(store, rtj) -> None:
    """Incomplete ones are not offered."""
    result = rtj("checkpoints", "verify", store.root, "--step", 35)
    assert result.exit_code == 2
    assert "it has steps 30, 25, 20, 10\n" in result.output


def test_a_run_directory_stands_for_its_store(bare, rtj) -> None:
    """The user knows the run, not where its checkpoints lie."""
    bare.job()
    Store(bare.path / "checkpoints").save(10, 1)
    assert "step-00000010.1" in rtj("checkpoints", "list", bare.path).output
    assert rtj("checkpoints", "verify", bare.path).exit_code == 0


def test_one_checkpoint_can_be_verified_by_its_own_path(store, rtj) -> None:
    """Its manifest counts there too."""
    directory = store.root / checkpoint_name(25, 2)
    assert lines(rtj("checkpoints", "verify", directory).output) == {"step-00000025.2": "ok"}
    (directory / "__0_0.distcp").write_bytes(b"short")
    result = rtj("checkpoints", "verify", directory)
    assert result.exit_code == 1
    assert "has 5 bytes, not 7000" in result.output


def test_other_programs_directories_are_found_below(store, rtj) -> None:
    """A directory with a marker and a name of its own is another program's; ours are not named twice."""
    for name in ("epoch-3", "deep/er/epoch-4"):
        (store.root / name).mkdir(parents=True)
        (store.root / name / MARKER_FILE).write_bytes(b"no pickle")
    output = rtj("checkpoints", "list", store.root).output
    assert output.count("another program's") == 2
    told = json.loads(rtj("checkpoints", "list", store.root, "--json").output)
    assert {item["name"] for item in told[-2:]} == {"deep/er/epoch-4", "epoch-3"}
    assert [(item["foreign"], item["offered"]) for item in told[-2:]] == [(True, False)] * 2
    result = rtj("checkpoints", "verify", store.root / "epoch-3")
    assert result.exit_code == 1
    assert "epoch-3  damaged: .metadata" in result.output


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_a_directory_that_does_not_exist_is_a_usage_error(tmp_path: Path, rtj, verb: str) -> None:
    """Mistyped paths are not empty stores; whoever meant a job in a cluster is told the option."""
    result = rtj("checkpoints", verb, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {tmp_path / 'nowhere'}: no such directory; give ")
    assert "-n NAMESPACE for a job in a cluster" in result.output


def test_a_run_that_made_no_checkpoint_says_so(bare, rtj) -> None:
    """Not the run is missing, its checkpoints are."""
    result = rtj("checkpoints", "list", bare.job().path)
    assert result.exit_code == 2
    assert "this run has made no checkpoint" in result.output


def test_an_empty_directory_holds_nothing_to_list_or_verify(tmp_path: Path, rtj) -> None:
    """Listing nothing is fine; verifying nothing must not look like success."""
    assert rtj("checkpoints", "list", tmp_path).output == f"{tmp_path} holds no checkpoints\n"
    assert rtj("checkpoints", "list", tmp_path, "--json").output == "[]\n"
    result = rtj("checkpoints", "verify", tmp_path)
    assert result.exit_code == 2
    assert "holds no complete checkpoint" in result.output


@pytest.mark.parametrize("columns", [50, 79, 80, 120])
def test_narrow_terminals_keep_the_names(store, rtj, columns: int) -> None:
    """The name is what one copies; it is never cut."""
    output = rtj("checkpoints", "list", store.root, columns=columns).output
    assert "step-00000025.2" in output
    assert all(len(line) <= columns for line in output.splitlines())


def test_listing_one_checkpoint_names_the_directory_that_holds_it(tmp_path, rtj) -> None:
    """`list` takes the store, `verify` one checkpoint too: the error says which path was meant."""
    one = tmp_path / "step-00000010.1"
    one.mkdir()
    (one / ".metadata").write_bytes(b"x")
    result = rtj("checkpoints", "list", one)
    assert result.exit_code == 2
    assert str(tmp_path) in result.output


def test_other_programs_checkpoints_newest_first(tmp_path) -> None:
    """By the time of their markers; at equal times by name, as the agent does. Snapshots are none."""
    for name, modified in (("step-9", 30), ("a/step-80", 50), ("step-400", 50), (".snapshot/step-9", 60)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / MARKER_FILE).write_bytes(b"x")
        os.utime(tmp_path / name / MARKER_FILE, (modified, modified))
    assert foreign_names(tmp_path) == ["a/step-80", "step-400", "step-9"]


def test_the_parent_of_runs_or_stores_is_told_from_a_store(rtj, tmp_path: Path) -> None:
    """What was meant is named, at one level or two; nothing in it is another program's."""
    place = tmp_path / "a" / "runs" / "gpt"
    Store(place / "checkpoints").save(10, 1)
    (place / "job.json").touch()
    (place / "checkpoints" / "epoch-3").mkdir()
    (place / "checkpoints" / "epoch-3" / ".metadata").write_bytes(b"of the run's own script")
    for verb in (["list"], ["verify"], ["prune"], ["show"], ["rollback", "--to", "10", "--yes"]):
        result = rtj("checkpoints", *verb, place.parent)
        assert result.exit_code == 2
        assert result.output == (
            f"Error: {place.parent} is neither a checkpoint store nor a run directory; did you mean"
            f" {place}?\n"
        )
    assert f"did you mean {place}?" in rtj("checkpoints", "list", tmp_path / "a").output


def test_the_parent_of_stores_and_copies(rtj, tmp_path: Path) -> None:
    """Also where no run is at hand; beside another program's checkpoints they are left out of the list."""
    Store(tmp_path / "kept" / "a").save(10, 1)
    Store(tmp_path / "kept" / "b").save(10, 1)
    (tmp_path / "kept" / "b" / "store.json").unlink()
    result = rtj("checkpoints", "list", tmp_path / "kept")
    assert result.output.endswith(f"did you mean {tmp_path / 'kept' / 'a'} or {tmp_path / 'kept' / 'b'}?\n")
    (tmp_path / "kept" / "epoch-3").mkdir()
    (tmp_path / "kept" / "epoch-3" / ".metadata").write_bytes(b"another program's")
    listed = rtj("checkpoints", "list", tmp_path / "kept").output.splitlines()
    assert [line.split()[0] for line in listed] == ["epoch-3"]
