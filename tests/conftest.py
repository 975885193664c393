"""Marks by what a test needs, so that `make test-fast` can leave out what is slow to import or to run."""

import re
import signal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["bed.fixtures"]

TESTS = Path(__file__).parent
LONGEST_REPORT = 6000  # characters, of a first try
NEEDS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


# How long an example takes says something of the machine alone.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start, also where it is ignored: a shell's background jobs inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def _fakes_with_torch() -> frozenset[str]:
    """Names of what in fakes/ loads torch, by itself or through another of them."""
    texts = {path.stem: path.read_text() for path in (TESTS / "fakes").glob("*.py")}
    found = {name for name, text in texts.items() if NEEDS_TORCH.search(text)}
    while more := {name for name, text in texts.items() if name not in found and _mentions(text, found)}:
        found |= more
    return frozenset(found)


def _mentions(text: str, names: set[str] | frozenset[str]) -> bool:
    return any(re.search(rf"\b{name}\b", text) for name in names)


@cache
def _needs_torch(path: Path) -> bool:
    text = path.read_text()
    return bool(NEEDS_TORCH.search(text)) or _mentions(text, _fakes_with_torch())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole clusters and runs get a second try: on two cores a machine's hiccup outlasts any sane wait.

    The summary lists every RERUN; a test that shows up there twice has a fault to be found.
    """
    for item in items:
        if _needs_torch(item.path):
            item.add_marker(pytest.mark.torch)
        if (TESTS / "e2e") in item.path.parents:
            item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("cluster") or item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What went wrong in a first try: the second one may say nothing of it."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-LONGEST_REPORT:])
