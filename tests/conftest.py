"""Marks by what a test needs, so that `make test-fast` can leave out what is slow to import or to run."""

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NEEDS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


@cache
def _needs_torch(path: Path) -> bool:
    return bool(NEEDS_TORCH.search(path.read_text()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_torch(item.path):
            item.add_marker(pytest.mark.torch)
        if (TESTS / "e2e") in item.path.parents:
            item.add_marker(pytest.mark.e2e)
