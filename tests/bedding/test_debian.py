"""Programs out of a Debian package: fetched once, into the cache only, or told why not."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bed import binaries
from bed.binaries import build
from bed.debian import Package
from bed.toolchain import BuildFailed

TOY = Package(title="Toy (Debian's package)", name="toy", programs={"toy": "usr/bin/toy"})
# Knows no package before its lists were fetched, as on a fresh machine.
APT = """\
#!/bin/sh
echo "$@" >> "$HOME/calls"
case "$*" in
  update) touch "$HOME/lists";;
  *"download toy")
    [ -e "$HOME/lists" ] || { echo "E: Unable to locate package toy" >&2; exit 100; }
    touch toy.deb;;
esac
"""
DPKG = """\
#!/bin/sh
mkdir -p "$3/usr/bin" && echo '#!/bin/sh' > "$3/usr/bin/toy" && chmod 755 "$3/usr/bin/toy"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose apt-get and dpkg-deb are fakes, and whose cache is empty."""
    for name in ("sh", "touch", "mkdir", "chmod"):
        (tmp_path / "path").mkdir(exist_ok=True)
        (tmp_path / "path" / name).symlink_to(binaries.shutil.which(name))
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        path = tmp_path / "path" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RESUMABLE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_fetched_once_and_never_installed(machine: Path) -> None:
    """Lists are fetched where there are none; the package is downloaded and unpacked, once."""
    made = build(TOY)
    assert build(TOY) == made
    assert [path.name for path in made.iterdir()] == ["toy"]
    assert made.parent == machine / "cache"
    asked = (machine / "calls").read_text().splitlines()
    assert [line.split()[-2:] for line in asked] == [["download", "toy"], ["update"], ["download", "toy"]]


def test_the_reason_and_the_fix(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apt, or without the package, the error says so and what to do; nothing half is left."""
    other = Package(title="Other (Debian's package)", name="other", programs={"other": "usr/bin/other"})
    with pytest.raises(BuildFailed, match="apt-get install other"):
        build(other)
    (machine / "path" / "apt-get").unlink()
    lonely = Package(title="Lonely (Debian's package)", name="lonely", programs={"lonely": "usr/bin/lonely"})
    with pytest.raises(BuildFailed, match="put lonely on PATH"):
        build(lonely)
    assert [path.name for path in (machine / "cache").iterdir() if path.is_dir()] == []


def test_key_follows_what_is_taken(machine: Path) -> None:
    """Another list of programs is another directory."""
    assert TOY.key != Package("Toy", "toy", {"toy": "usr/bin/toy", "tool": "usr/bin/tool"}).key
