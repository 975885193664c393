"""What is in an image, told from inside: run by the image's own Python, from its standard input, as root.

Standard library only. Prints one line of JSON, read by image_check.py.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

BUILDERS = ("cc", "gcc", "g++", "clang", "make", "git", "go", "cargo")
# What a build leaves behind, or a checkout brings along.
LEFTOVERS = ("/src", "/wheels", "/etc/pip.conf", "/run/secrets", "/root/.cache", "/root/.config/pip")
STRAY_FOLDERS = {".git", ".github", ".ci", ".venv", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
OURS = ("resumable_training", "resumable_operator")
NOT_OURS = ("/proc", "/sys", "/dev")


def strays() -> list[str]:
    """Files and folders that have no business in an image that only runs."""
    found = [path for path in LEFTOVERS if os.path.lexists(path)]
    for folder, names, _ in os.walk("/"):
        if folder == "/":
            names[:] = [name for name in names if f"/{name}" not in NOT_OURS]
        found += [os.path.join(folder, name) for name in names if name in STRAY_FOLDERS]
    for package in OURS:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            found += [str(path) for path in Path(place).rglob("test*") if "__pycache__" not in path.parts]
    return sorted(set(found))


def pip_check() -> str:
    """What the base's pip says about the environment's packages."""
    base = Path(sys.base_prefix, "bin", "python3")
    command = [base, "-m", "pip", "--no-cache-dir", "--python", sys.prefix, "check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (result.stdout + result.stderr).strip()


def loads(module: str) -> str:
    """ "" if it can be imported, else why not."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The files that imports compile meanwhile: just those whose bytecode is not there, or not accepted."""
    compiled: list[str] = []
    original, keeps_none = SourceFileLoader.source_to_code, sys.dont_write_bytecode

    def noted(self: SourceFileLoader, data: bytes, path: str, *, _optimize: int = -1) -> CodeType:
        compiled.append(path)
        return original(self, data, path, _optimize=_optimize)

    SourceFileLoader.source_to_code = noted  # type: ignore[method-assign, assignment]
    sys.dont_write_bytecode = True
    try:
        yield compiled
    finally:
        SourceFileLoader.source_to_code = original  # type: ignore[method-assign]
        sys.dont_write_bytecode = keeps_none


def load_again(modules: Mapping[str, ModuleType]) -> None:
    """Read these as their imports have: what an interpreter imports before it runs anything is seen, too."""
    for name, module in modules.items():
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if isinstance(loader, SourceFileLoader) and loader.name == name:
            loader.get_code(name)


def facts() -> dict[str, object]:
    with compilations() as compiled:
        load_again(dict(sys.modules))
        modules = {name: loads(name) for name in sys.argv[1:]}
    return {
        "python": sys.version.split()[0],
        "prefix": sys.prefix,
        "distributions": {
            item.metadata["Name"].lower(): item.version for item in importlib.metadata.distributions()
        },
        "not_importable": {name: why for name, why in modules.items() if why},
        "compiled": sorted(set(compiled)),
        "torch_loaded": "torch" in sys.modules,
        "torch_present": importlib.util.find_spec("torch") is not None,
        "builders": [name for name in BUILDERS if shutil.which(name)],
        "strays": strays(),
        "pip_check": pip_check(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
