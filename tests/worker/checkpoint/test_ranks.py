"""Several ranks: any world size to any other, and errors that reach all of them at once."""

import pickle
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_programs
import torch
import torch.distributed.checkpoint as dcp
from rank_programs import run_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore

STEPS = 3


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        assert found["tensors"][key].dtype == value.dtype, key
        assert torch.equal(found["tensors"][key], value), key
    assert found["groups"] == expected["groups"]
    assert found["scheduler"] == expected["scheduler"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("saved_at", [1, 4])
def test_saved_at_n_loads_at_m(kind: str, saved_at: int, tmp_path: Path) -> None:
    """Every value is bit-equal at any other world size, and each rank gets its own per-rank values."""
    root = str(tmp_path / "store")
    expected = run_ranks(saved_at, rank_programs.save_run, tmp_path, root, kind, STEPS)[0]
    for attempt, world_size in enumerate((1, 2, 3, 4), 2):
        found = run_ranks(world_size, rank_programs.load_run, tmp_path, root, kind, attempt)
        for rank, values in enumerate(found):
            assert_same(values, expected)
            own = b"rng of %d" % rank if rank < saved_at else None
            shared = {"fingerprint": {"length": 10}, "step": STEPS}
            assert values["report"] == (STEPS, STEPS * 64, shared, own)


def test_kinds_of_wrapping_load_each_other(tmp_path: Path) -> None:
    """Keys do not depend on DDP, FSDP2 or torch.compile: each loads what another saved."""
    for saver, loaders in (("fsdp", ("plain", "compiled", "ddp")), ("compiled", ("fsdp",))):
        root = str(tmp_path / saver)
        (expected,) = run_ranks(1, rank_programs.save_run, tmp_path, root, saver, STEPS)
        for attempt, loader in enumerate(loaders, 2):
            (found,) = run_ranks(1, rank_programs.load_run, tmp_path, root, loader, attempt)
            assert_same(found, expected)


def test_plain_dcp_reads_ours(tmp_path: Path) -> None:
    """`dcp.load` and `dcp_to_torch_save` need nothing of ours; every byte is vouched for."""
    root = tmp_path / "store"
    expected = run_ranks(2, rank_programs.save_run, tmp_path, str(root), "fsdp", STEPS)[0]
    (name,) = survey(LocalStore(root)).complete
    assert verify.verify_checkpoint(LocalStore(root), name).outcome == verify.OK

    template = {
        "model": {
            "embedding.weight": torch.zeros(5, 4),
            "brain.weight": torch.zeros(3, 2, dtype=torch.bfloat16),
        }
    }
    dcp.load(template, checkpoint_id=root / name, no_dist=True)
    assert torch.equal(template["model"]["embedding.weight"], expected["tensors"]["model.embedding.weight"])

    dcp_to_torch_save(root / name, tmp_path / "all.pt")
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    for key, value in expected["tensors"].items():
        if key.startswith("model."):
            assert torch.equal(whole["model"][key.removeprefix("model.")], value)
    assert whole["optimizer"]["param_groups"][0]["lr"] == expected["groups"][0]["lr"]


def test_ours_has_no_pickle_but_the_marker_and_groups(tmp_path: Path) -> None:
    """Scheduler, shared and per-rank values are tensors; the only pickled values are optimizer options."""
    root = tmp_path / "store"
    run_ranks(1, rank_programs.save_run, tmp_path, str(root), "ddp", 1)
    (name,) = survey(LocalStore(root)).complete
    metadata = pickle.loads((root / name / ".metadata").read_bytes())
    pickled = [
        k for k, v in metadata.state_dict_metadata.items() if type(v).__name__ == "BytesStorageMetadata"
    ]
    assert pickled
    assert all(key.startswith("optimizer.param_groups.") for key in pickled)


# Errors reach all ranks ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, str | None]]:
    """A file system of 2 MB and a file to fill it with; without the right to mount, a directory and None."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield mount, None
        return
    yield mount, str(mount / "ballast")
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("real_disk", [True, False], ids=["small disk", "limited files"])
def test_disk_full_in_mid_save(real_disk: bool, small_disk: tuple[Path, str | None], tmp_path: Path) -> None:
    """The save fails on all ranks with the cause and leaves nothing; with room again the next one works."""
    root, ballast = small_disk[0] / "store", small_disk[1] if real_disk else None
    found = run_ranks(2, rank_programs.full_disk_run, tmp_path, str(root), ballast)
    for oks, message, left in found:
        assert oks == (True, False, True)
        assert ("No space left on device" if ballast else "File too large") in message
        assert left == ["step-00000001.1"]
    seen = survey(LocalStore(root))
    assert seen.resume_points == ["step-00000003.1", "step-00000001.1"]
    assert all(verify.verify_checkpoint(LocalStore(root), n).outcome == verify.OK for n in seen.resume_points)


def test_an_error_on_one_rank_reaches_all(tmp_path: Path) -> None:
    """The rank at fault raises its own error, the others say whose it was; nobody waits."""
    found = run_ranks(2, rank_programs.one_bad_rank_run, tmp_path, str(tmp_path / "store"))
    assert found[1] == ["ZeroDivisionError: mine"] * 3
    assert found[0] == ["PeerFailed: rank 1: mine"] * 3


def test_a_source_that_one_rank_cannot_open(tmp_path: Path) -> None:
    """All say so, with that rank's reason, and nobody waits for it in a collective; nothing was begun."""
    root, other = tmp_path / "store", tmp_path / "other"
    run_ranks(2, rank_programs.save_run, tmp_path, str(other), "ddp", 1)
    why = f"{other}/step-00000001.1: no client for it is installed"
    found = run_ranks(2, rank_programs.unopened_source_run, tmp_path, str(root), f"{other}/step-00000001.1")
    assert found == [f"StoreMisconfigured: rank 1: {why}"] * 2
    assert survey(LocalStore(root)).records == {}


def test_one_machine_that_reads_wrong_is_no_proof(tmp_path: Path) -> None:
    """A mismatch that another rank can't confirm does not orphan the checkpoint."""
    root = str(tmp_path / "store")
    run_ranks(2, rank_programs.save_run, tmp_path, root, "ddp", 1)
    for (error,) in run_ranks(2, rank_programs.one_bad_reader_run, tmp_path, root):
        assert error.startswith("StorageUnavailable")
        assert "two reads of it differ" in error


@pytest.mark.parametrize(("lacking", "known"), [([0], False), ([0, 2], True), ([0, 1, 2], False)])
def test_ranks_that_lack_the_client_of_the_store(lacking: list[int], known: bool, tmp_path: Path) -> None:
    """All end together with one text: which ranks, where, and what to install. A mount is not to blame."""
    url = "s3://bucket/team"
    why = f"{url} needs obstore: pip install 'resumable-training[worker]'"
    ranks = ", ".join(f"{rank} (on {socket.gethostname()})" for rank in lacking)
    text = why if len(lacking) == 3 else f"rank {ranks}: {why}"
    found = run_ranks(3, rank_programs.unlike_machines_run, tmp_path, url, {}, lacking, [], known)
    assert found == [f"StoreMisconfigured: {text}"] * 3


@pytest.mark.parametrize("known", [False, True])
def test_directories_that_are_not_shared(known: bool, tmp_path: Path) -> None:
    """Each node sees its own directory: said on all ranks, with the fix; a broken mount if it worked."""
    roots = [str(tmp_path / "node-0"), str(tmp_path / "node-1")]
    if known:
        for root in roots:
            run_ranks(1, rank_programs.preflight_run, tmp_path, [root], False)
    found = run_ranks(2, rank_programs.preflight_run, tmp_path, roots, known)
    for error in found:
        assert error.startswith("StorageUnavailable" if known else "StoreMisconfigured")
        assert "not shared between the ranks" in error
        assert "ReadWriteMany" in error
        assert "actimeo" in error


def test_shared_directory_passes(tmp_path: Path) -> None:
    """Three ranks, one directory: no complaint, and no probe is left."""
    root = tmp_path / "shared"
    assert run_ranks(3, rank_programs.preflight_run, tmp_path, [str(root)] * 3, False) == [""] * 3
    assert not list((root / "probes").iterdir())
    shutil.rmtree(root)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_differs_between_ranks_is_rank_0s(kind: str, tmp_path: Path) -> None:
    """Buffers and hyper-parameters: never a mixture, nor whichever copy a balanced plan happens to keep."""
    found = run_ranks(3, rank_programs.different_replicas_run, tmp_path, str(tmp_path / "store"), kind)
    assert found == [[0, 0.0, 0.0, 0.0]] * 3
