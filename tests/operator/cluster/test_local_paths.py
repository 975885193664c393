"""Where a run directory's records say that checkpoints are, after it was copied, renamed or moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.cluster.local_files import RunFiles, directory_id, left_behind
from resumable_operator.cluster.local_paths import LAYOUT, localized, recorded


def job(path: str) -> dict[str, Any]:
    return {"name": "train", "spec": {"checkpoint": {"directory": {"path": path}, "keep": 3}}}


def path_of(plain: dict[str, Any]) -> str:
    return str(plain["spec"]["checkpoint"]["directory"]["path"])


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    (tmp_path / "run").mkdir()
    return RunFiles(tmp_path / "run")


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("{root}/checkpoints", "checkpoints"),
        ("{root}/deep/store", "deep/store"),
        ("{root}", "."),
        ("{root}/../run/checkpoints", "checkpoints"),
        ("{link}/checkpoints", "checkpoints"),
        ("{root}2/checkpoints", "{root}2/checkpoints"),
        ("/shared/store", "/shared/store"),
        ("s3://bucket/run", "s3://bucket/run"),
        ("", ""),
    ],
)
def test_places_in_the_run_directory_are_written_relative_to_it(
    files: RunFiles, path: str, written: str
) -> None:
    """They come back as places of whatever directory holds the record; all others as they were."""
    link = files.root.parent / "link"
    link.symlink_to(files.root)
    names = {"root": str(files.root), "link": str(link)}
    for plain in (job(path.format(**names)), {"status": {"store": path.format(**names)}}):
        kept = recorded(plain, files)
        text = path_of(kept) if "spec" in kept else kept["status"]["store"]
        assert text == written.format(**names)
        assert kept["layout"] == LAYOUT
        copy = RunFiles(files.root.parent / "copy")
        back = localized(kept, copy)
        text = path_of(back) if "spec" in back else back["status"]["store"]
        inside = text.startswith(str(copy.root))
        assert inside == (written in ("checkpoints", "deep/store", "."))
        assert text == (str(copy.root / written) if inside else written.format(**names))


def test_a_default_store_that_is_a_link_is_still_the_default(files: RunFiles) -> None:
    """`checkpoints` may lead to another disk; a copy of the run directory has a link of its own."""
    files.checkpoints.symlink_to("/elsewhere")
    assert path_of(recorded(job(str(files.checkpoints)), files)) == "checkpoints"


OLD, OTHER = "/gone/train", "/gone/other"


@pytest.mark.parametrize(
    ("path", "workers", "store", "meant"),
    [
        pytest.param(f"{OLD}/checkpoints", [OLD], False, "checkpoints", id="the default of its former place"),
        pytest.param(f"{OLD}/in/it", [OLD], False, "in/it", id="another place in it"),
        pytest.param(f"{OTHER}/checkpoints", [OLD], True, None, id="another run's store, by its path"),
        pytest.param("/shared/store", [OLD], True, None, id="a place elsewhere"),
        pytest.param(f"{OLD}/checkpoints", [OTHER, OLD], False, "checkpoints", id="moved twice"),
        pytest.param(f"{OLD}/checkpoints", [], True, "checkpoints", id="copied without its workers' files"),
        pytest.param(f"{OLD}/checkpoints", [], False, None, id="and without a store"),
    ],
)
def test_records_of_layout_1_tell_by_the_workers_where_they_were(
    files: RunFiles, path: str, workers: list[str], store: bool, meant: str | None
) -> None:
    """An absolute path into the former run directory means the same place in that of today."""
    for number, root in enumerate(workers):
        scratch = files.worker(f"train-{number}-1")
        scratch.mkdir(parents=True)
        (scratch / "spec.json").write_text(json.dumps({"directory": f"{root}/workers/train-{number}-1"}))
    if store:
        files.checkpoints.mkdir()
        (files.checkpoints / "store.json").touch()
    wanted = path if meant is None else str(files.root / meant)
    assert path_of(localized(job(path), files)) == wanted
    assert localized({"status": {"store": path}}, files)["status"]["store"] == wanted
    kept = {**job(path), "layout": LAYOUT}
    assert path_of(localized(kept, files)) == path  # a new record's absolute path is what it says


@pytest.mark.parametrize("plain", [None, [], 3, {"spec": None}, {"spec": {"checkpoint": {"directory": [1]}}}])
def test_damaged_records_are_left_to_their_readers(files: RunFiles, plain: Any) -> None:
    """They come out as they are."""
    assert localized(plain, files) == plain


def test_a_copy_leaves_the_processes_of_a_living_run_alone(files: RunFiles) -> None:
    """What a killed run left is its own; a renamed directory is the same one, a copy is not."""
    files.cluster.write_text(json.dumps({"control": "/x", "directory": directory_id(files.root)}))
    assert left_behind(files)["control"] == "/x"
    moved = RunFiles(files.root.rename(files.root.parent / "moved"))
    assert left_behind(moved)["control"] == "/x"
    copy = RunFiles(files.root.parent / "copy")
    copy.root.mkdir()
    copy.cluster.write_bytes(moved.cluster.read_bytes())
    assert left_behind(copy) == {}
