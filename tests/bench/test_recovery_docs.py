"""The page of measured recoveries takes new numbers between its two marks, and keeps all else."""

from __future__ import annotations

from pathlib import Path

import pytest
import recovery_docs
from recovery_cases import Outcome

RESULTS = {2: {"rank": {"rtj run": [Outcome(1.25, 1.25, 3, 0.3)]}}}


def test_new_numbers_replace_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice written it is as if once; the picture lies beside."""
    page, picture = tmp_path / "page.md", tmp_path / "recovery-time.svg"
    page.write_text(recovery_docs.PAGE.read_text())
    monkeypatch.setattr(recovery_docs, "PAGE", page)
    monkeypatch.setattr(recovery_docs, "PICTURE", picture)
    recovery_docs.write(RESULTS, ["rtj run: a note"])
    first = page.read_text()
    assert first.count("a note") == 1
    assert "1.25" in first
    assert "Aims:" in first
    assert first.startswith("# How fast a training recovers")
    assert "## Reading it" in first
    recovery_docs.write(RESULTS, ["rtj run: a note"])
    assert page.read_text() == first
    assert picture.read_text().startswith("<svg")
