"""Preflight on a real store: one error with all that is wrong, one warning, and how much is needed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_programs import error_of
from torch import nn

from resumable_training.checkpoint import TrainingState, preflight
from resumable_training.checkpoint.errors import StorageUnavailable, StoreMisconfigured, StoreOwnership
from resumable_training.checkpoint.fitness import Needs, Shm, shm_text
from resumable_training.checkpoint.footprint import state_bytes
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.store import Entry
from resumable_training.contract.assignment import CheckpointConfig

MUCH = 1 << 60


def check(store: LocalStore, needs: Needs | None = None, owner: str = "a/b", **config: Any) -> list[str]:
    """The warnings."""
    warnings: list[str] = []
    settings = CheckpointConfig(directory=store.location, **config)
    preflight.preflight(store, settings, owner, Ranks(None, 0, 1), needs, warnings.append)
    return warnings


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", visibility_seconds=0.0)


def test_all_is_well(store: LocalStore) -> None:
    """Nothing is said, and no probe is left."""
    assert check(store, Needs(1000)) == []
    assert store.entries("probes") == []


def test_no_space_for_two(store: LocalStore) -> None:
    """Before the first step, on the disk that the store is on."""
    with pytest.raises(StoreMisconfigured, match="two must fit"):
        check(store, Needs(MUCH))


def test_everything_at_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No create-only writes, no space, no shared memory: one error, numbered."""
    monkeypatch.setattr(LocalStore, "create", LocalStore.put)
    monkeypatch.setattr(preflight, "_shm", lambda: Shm(1 << 26, 1 << 26))
    with pytest.raises(StoreMisconfigured) as caught:
        check(store, Needs(MUCH, MUCH))
    text = str(caught.value)
    assert text.startswith("(1) ")
    assert "created twice" in text
    assert "(2) " in text
    assert "two must fit" in text
    assert "(3) the shared memory" in text


def test_another_owner_keeps_its_name(store: LocalStore) -> None:
    """The kind of error is that of the store; what else is wrong is beside it."""
    check(store)
    with pytest.raises(StoreOwnership, match=r"\(1\) .*belongs to job a/b.*\(2\) .*two must fit"):
        check(store, Needs(MUCH), owner="a/c")


def test_a_job_that_has_saved_before_trains_on_over_a_full_disk(store: LocalStore) -> None:
    """It is told how to make room; what is wrong with the store itself is a broken mount then."""
    check(store)
    (warning,) = check(store, Needs(MUCH), known_checkpoint=True)
    assert "rtj checkpoints prune" in warning
    (store.root / "store.json").unlink()
    with pytest.raises(StorageUnavailable):
        check(store, Needs(MUCH), known_checkpoint=True)


def test_a_store_whose_clock_is_wrong(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by the time of a probe."""
    plain = LocalStore.entries

    def early(self: LocalStore, directory: str = "") -> list[Entry]:
        return [
            Entry(one.name, one.bytes, one.modified - 300, one.is_directory) for one in plain(self, directory)
        ]

    monkeypatch.setattr(LocalStore, "entries", early)
    (warning,) = check(store)
    assert "300 s behind that of rank 0" in warning


def test_shm_that_is_too_small() -> None:
    """For whoever puts something there: the sentence, or nothing."""
    there = Shm(1 << 26, 1 << 26)
    assert shm_text(there, 1 << 26) is None
    assert "emptyDir" in str(shm_text(there, (1 << 26) + 1))


class OfTwo(Ranks):
    """One of two ranks, which are threads."""

    def __init__(self, rank: int, both: threading.Barrier, told: dict[int, Any]) -> None:
        super().__init__(None, rank, 1)
        self.world_size = 2
        self.both, self.told = both, told

    def gather(self, value: Any) -> list[Any]:
        self.told[self.rank] = value
        self.both.wait(60)
        found = [self.told[0], self.told[1]]
        self.both.wait(60)
        return found

    def first(self, work: Any) -> Any:
        return self.agree(lambda: work() if self.rank == 0 else None)[0]


def test_ranks_that_fail_in_different_ways_all_end(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with an error of its own says nothing more, and the other does not wait for that."""

    def leave_probe(_: object, claimed: object, rank: int) -> tuple[str, float]:
        raise ZeroDivisionError("mine") if rank else StoreMisconfigured("not writable")

    monkeypatch.setattr(preflight, "_leave_probe", leave_probe)
    both, told = threading.Barrier(2), dict[int, Any]()

    def run(rank: int) -> str:
        ranks = OfTwo(rank, both, told)
        settings = CheckpointConfig(directory=store.location)
        return error_of(lambda: preflight.preflight(store, settings, "a/b", ranks, Needs(MUCH)))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, (0, 1))
    assert first == "StoreMisconfigured: rank 0: not writable; rank 1: mine"
    assert second == "ZeroDivisionError: mine"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(10, 10, bias=False)
        self.two = nn.Linear(10, 10, bias=False)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.zeros(50, dtype=torch.bfloat16), requires_grad=False)


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (torch.optim.AdamW, 2),
        (lambda parameters: torch.optim.SGD(parameters, lr=1.0), 0),
        (lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9), 1),
    ],
)
def test_the_size_of_a_state_before_its_first_step(make: Any, copies: int) -> None:
    """Tied tensors are stored twice and stepped once, frozen ones have no optimizer state."""
    model = Tied()
    state = TrainingState({"model": model}, {"optimizer": make(model.parameters())})
    assert state_bytes(state) == 800 + 100 + copies * 400
    model.two(model.one(torch.zeros(1, 10))).sum().backward()
    state.optimizers["optimizer"].step()
    assert state_bytes(state) == pytest.approx(800 + 100 + copies * 400, abs=8)
