"""Run directories that were copied, renamed or moved: every command works on the checkpoints in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_store import Store, flip_a_bit
from run_samples import SPEC, STATUS

from resumable_operator.cli.run_checks import resume_source
from resumable_operator.cli.run_local import check_continuation
from resumable_operator.cli.run_options import Wish
from resumable_operator.cli.rundir import RunDir
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local_files import RunFiles
from resumable_operator.cluster.local_paths import recorded
from resumable_operator.cluster.local_store import JobStore
from resumable_operator.model import CheckpointStatus, JobSpec, parse_spec
from resumable_training.contract.manifest import checkpoint_name

STEPS = (10, 20, 30, 40, 50)
NEWEST = checkpoint_name(50, 1)


def spec_with(store: Path) -> JobSpec:
    return parse_spec({**SPEC, "checkpoint": {"directory": {"path": str(store)}}})


def made_run(tmp_path: Path, layout: int, store: Path | None = None) -> Path:
    """A run that has saved; ``layout`` 1: as its records were when they held absolute paths alone."""
    root = tmp_path / "runs" / "train"
    files = RunFiles(root)
    scratch = files.worker("train-0-1")
    scratch.mkdir(parents=True)
    (scratch / "spec.json").write_text(json.dumps({"directory": str(scratch)}))
    store = store or files.checkpoints
    filled = Store(store)
    filled.record(1)
    for step in STEPS:
        filled.save(step, 1)
    (store / "pins").mkdir()
    newest = CheckpointStatus(name=NEWEST, step=50, samples=800, at=1.0)
    status = STATUS.model_copy(update={"store": str(store), "checkpoint": newest})
    job = {"namespace": "local", "name": "train", "uid": "u-1", "created": 1.0, "generation": 1}
    for path, plain in (
        (files.job, {**job, "spec": spec_with(store).plain()}),
        (files.status, {"resourceVersion": 7, "status": status.plain()}),
    ):
        path.write_text(json.dumps(plain if layout == 1 else recorded(plain, files)))
    files.history.write_text("")
    return root


def copied(root: Path) -> Path:
    """The original stays, and holds what the copy must not touch."""
    return Path(shutil.copytree(root, root.parent / "copy"))


def renamed(root: Path) -> Path:
    return root.rename(root.parent / "renamed")


def set_aside(root: Path) -> Path:
    """As `--fresh` does; another run then has its place."""
    aside = RunFiles(root).set_aside()
    assert aside is not None
    shutil.copytree(aside / "checkpoints", root / "checkpoints")
    return aside


Way = Callable[[Path], Path]


@pytest.fixture(
    params=[(copied, 2), (copied, 1), (renamed, 2), (renamed, 1), (set_aside, 2)],
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """(a run directory that is not where it was made, where that was)"""
    way, layout = request.param
    root = made_run(tmp_path, layout)
    return way(root), root


def names(store: Path) -> set[str]:
    return {path.name for path in store.glob("step-*")}


def content(root: Path, other: Path) -> dict[str, bytes]:
    """Every file in ``root`` that is not in ``other``."""
    if not root.exists():
        return {}
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_relative_to(other))
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoints", "list", "RUN"],
        ["checkpoints", "verify", "RUN"],
        ["checkpoints", "history", "RUN"],
        ["report", "RUN"],
        ["status", "RUN"],
        ["checkpoints", "copy", "RUN", "TARGET", "--all"],
        ["checkpoints", "prune", "RUN", "--keep", "2", "--yes"],
        ["checkpoints", "rollback", "RUN", "--to", "30"],
        ["checkpoints", "pin", "RUN", "30", "--until", "7d"],
    ],
    ids=lambda words: "-".join(words),
)
def test_every_command_works_on_the_runs_own_store(places, words: list[str], tmp_path: Path, rtj) -> None:
    """It succeeds, and nothing where the run was made is written or deleted."""
    here, made = places
    before = content(made, here)
    texts = {"RUN": str(here), "TARGET": str(tmp_path / "target")}
    result = rtj(*(texts.get(word, word) for word in words))
    assert result.exit_code == 0, result.output
    assert content(made, here) == before


def test_prune_deletes_in_the_copy_and_says_where(places, rtj) -> None:
    """The store is named before anything is deleted, and the other one keeps all that it has."""
    here, made = places
    result = rtj("checkpoints", "prune", here, "--keep", 2, "--yes")
    assert result.output.splitlines()[0] == f"store: {here / 'checkpoints'}"
    kept = {checkpoint_name(step, 1) for step in (40, 50)}
    assert names(here / "checkpoints") == kept
    assert not (made / "checkpoints").exists() or len(names(made / "checkpoints")) == len(STEPS)
    told = json.loads(rtj("checkpoints", "prune", here, "--json").output)
    assert told["store"] == str(here / "checkpoints")


def test_rollback_appends_to_the_copys_records_and_says_so(places, rtj) -> None:
    """The original goes on from where it was."""
    here, _ = places
    result = rtj("checkpoints", "rollback", here, "--to", 30)
    assert result.output.splitlines()[0] == f"store: {here / 'checkpoints'}"
    assert len(list((here / "checkpoints" / "records").iterdir())) == 2


def test_damage_in_the_copy_is_found_there(places, rtj) -> None:
    """Not looked for in the original."""
    here, _ = places
    flip_a_bit(here / "checkpoints" / NEWEST)
    assert rtj("checkpoints", "verify", here).exit_code == 1


def test_another_run_resumes_from_the_runs_own_store(places) -> None:
    """`rtj run --resume-from RUN` means the checkpoints in RUN."""
    here, _ = places
    assert resume_source(str(here), Path("/")) == str(here / "checkpoints")


@pytest.mark.parametrize("phase", ["Running", "Suspended"])
def test_rtj_run_goes_on_in_the_runs_own_store(places, phase: str) -> None:
    """Also one that was killed; its records are then relative, and the spec has not changed."""
    here, _ = places
    files = RunFiles(here)
    store = JobStore(files, SystemClock())
    job = store.job()
    assert job is not None
    job = store.write_status(job, job.status.model_copy(update={"phase": phase}))
    assert job.status.store == str(files.checkpoints)
    spec = spec_with(files.checkpoints)
    check_continuation(job, Wish("train", spec))
    again = store.submit("train", spec)
    assert (again.generation, again.spec) == (1, spec)
    assert json.loads(files.job.read_text())["spec"]["checkpoint"]["directory"]["path"] == "checkpoints"
    assert json.loads(files.status.read_text())["status"]["store"] == "checkpoints"


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("way", [copied, renamed], ids=lambda way: way.__name__)
def test_a_store_elsewhere_stays_the_store(tmp_path: Path, layout: int, way: Way) -> None:
    """Two runs may share it by its path: a copy has no other one."""
    shared = tmp_path / "shared" / "checkpoints"
    here = way(made_run(tmp_path, layout, shared))
    assert RunDir(here).checkpoints() == shared
    assert RunDir(here).status().store == str(shared)


def test_a_link_is_told_with_where_it_leads(tmp_path: Path, rtj) -> None:
    """A copy of a link leads to the same store: who deletes there is to see it."""
    here = made_run(tmp_path, 2)
    (here / "checkpoints").rename(tmp_path / "disk")
    (here / "checkpoints").symlink_to(tmp_path / "disk")
    told = rtj("checkpoints", "prune", here).output.splitlines()[0]
    assert told == f"store: {here / 'checkpoints'}, a link to {tmp_path / 'disk'}"


def test_a_store_is_not_copied_onto_itself(tmp_path: Path, rtj) -> None:
    """However it is written; the store to copy, and the place, are told first."""
    here = made_run(tmp_path, 2)
    result = rtj("checkpoints", "copy", here, here / "checkpoints", "--all")
    assert result.exit_code == 2
    assert "is the store that is to be copied" in result.output
    result = rtj("checkpoints", "copy", here, tmp_path / "other", "--all")
    assert result.output.splitlines()[0] == f"store: {here / 'checkpoints'}, to {tmp_path / 'other'}"
