"""What `pip install .` gives on a fresh machine: both packages and `rtj`, without torch."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_wheel_installs_and_runs_without_torch(tmp_path: Path) -> None:
    """A fresh environment with only the wheel has both packages and a working `rtj`, and no torch."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    _run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"resumable_operator/cli/html/page.{kind}" for kind in ("css", "js")} <= set(names)
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "resumable_operator",
        "resumable_training",
    }

    _run(sys.executable, "-m", "venv", tmp_path / "fresh", cwd=tmp_path)
    programs = tmp_path / "fresh" / "bin"
    _run(programs / "python", *pip, "install", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert "run" in _run(programs / "rtj", "--help", cwd=tmp_path)
    find = "import importlib.util, resumable_training; print(importlib.util.find_spec('torch'))"
    assert _run(programs / "python", "-c", find, cwd=tmp_path).strip() == "None"
