"""What is imported while torch's libraries are loaded, and when nothing is."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from resumable_training.agent.preload_native import EXTENSION, LIBRARY, Beside


@pytest.fixture
def package(tmp_path: Path) -> str:
    """Directory of a torch whose library can't be loaded, which is torch's to tell."""
    library = tmp_path / LIBRARY
    library.parent.mkdir()
    library.write_text("no library")
    return str(tmp_path)


def asked(
    monkeypatch: pytest.MonkeyPatch, *questions: tuple[str, list[str] | None], cpus: int = 2
) -> list[str]:
    """What a finder has loaded when it was asked; it never finds anything, and leaves when it has acted."""
    loaded: list[str] = []
    finder = Beside(["first"], ["beside", "more"], loaded.append)
    monkeypatch.setattr(sys, "meta_path", [finder])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cpus)))
    for name, path in questions:
        finder.find_spec(name, path)  # type: ignore[func-returns-value]
    assert (finder in sys.meta_path) == (EXTENSION not in [name for name, _ in questions])
    return loaded


def test_imports_beside_the_libraries(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Once, in their order, and no thread is left that would forbid a fork."""
    threads = threading.active_count()
    assert asked(monkeypatch, (EXTENSION, [package]), (EXTENSION, [package])) == ["first", "beside", "more"]
    assert threading.active_count() == threads


def test_other_modules_are_none_of_its_business(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Before torch asks for its own extension, what it prefers may not be there yet."""
    assert asked(monkeypatch, ("torch", None), ("torch.version", [package]), ("mine._C", [package])) == []


@pytest.mark.parametrize("cpus", [1, 2])
def test_where_nothing_is_gained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, cpus: int
) -> None:
    """A torch without such a library, or a single processor: torch does as it always did."""
    path = package if cpus == 1 else str(tmp_path / "elsewhere")
    assert asked(monkeypatch, (EXTENSION, [path]), cpus=cpus) == []
