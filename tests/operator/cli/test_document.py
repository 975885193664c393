"""YAML documents: read as Kubernetes would, and refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable_operator.cli.document import read_document
from resumable_operator.cli.exitcodes import UsageProblem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"workers:\n\treplicas: 1\n", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "not YAML"),
        (b"a: \xff\xfe\n", "not YAML"),
        (b"a: \x00\n", "not YAML"),
        (b"!!python/object/apply:os.system ['id']\n", "not YAML"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "not YAML"),
        (b"a: 1\nb: {c: 1, c: 2}\n", "c is given twice"),
    ],
)
def test_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Whatever is wrong with the file is a usage error, never a traceback."""
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageProblem, match=message):
        read_document(path)


def test_dates_are_strings_and_keys_may_be_merged(tmp_path: Path) -> None:
    """A date stays as it was written, for JSON has none; a merge key is no second key."""
    path = tmp_path / "job.yaml"
    path.write_text("a: &a {x: 2020-01-01}\nb: {<<: *a, y: 1}\n")
    assert read_document(path) == {"a": {"x": "2020-01-01"}, "b": {"x": "2020-01-01", "y": 1}}


def test_missing(tmp_path: Path) -> None:
    """A file that is not there is named, once and in words; so is a directory."""
    with pytest.raises(UsageProblem, match=r"^\S+/job\.yaml: no such file$"):
        read_document(tmp_path / "job.yaml")
    with pytest.raises(UsageProblem, match=r"^cannot read \S+: Is a directory$"):
        read_document(tmp_path)
