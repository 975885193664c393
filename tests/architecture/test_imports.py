"""Who may import whom: the import-linter contracts, and what they cannot say."""

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "worker" / "resumable_training"
PRINT_HEAVY = "print(*({'torch', 'numpy'} & set(sys.modules)))"
PUBLIC_NAMES = [
    "DataChanged",
    "NonFiniteLoss",
    "PeerLost",
    "ResumableError",
    "Run",
    "Step",
    "UserError",
    "start",
]
PUBLIC_NAMES_LIMIT = 10


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield node.module or ""


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def _python(code: str) -> str:
    result = _run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_contracts_hold() -> None:
    """Every contract in .importlinter is kept."""
    program = Path(sys.executable).parent / "lint-imports"
    result = _run(program, "--no-logo", "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("part", ["contract", "agent"])
def test_contract_and_agent_use_the_standard_library_only(part: str) -> None:
    """What is copied into foreign images imports the standard library and the contract, nothing else."""
    own = ("resumable_training.contract", f"resumable_training.{part}")
    strangers = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in (WORKER / part).rglob("*.py")
        for module in _imports(path)
        if not module.startswith(own)
        and module != "resumable_training"  # the package's root imports nothing
        and module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert strangers == []


def test_importing_the_library_loads_no_torch() -> None:
    """`import resumable_training` loads neither torch nor numpy (its time is printed, not judged)."""
    started = time.perf_counter()
    loaded = _python(f"import sys, resumable_training; {PRINT_HEAVY}")
    print(f"import resumable_training, with the interpreter's start: {time.perf_counter() - started:.3f} s")
    assert loaded == ""


def test_the_operator_and_its_commands_load_no_torch() -> None:
    """The `rtj` command works where torch is not installed, so no module of the operator may load it."""
    walk = "pkgutil.walk_packages(resumable_operator.__path__, 'resumable_operator.')"
    load = f"[importlib.import_module(module.name) for module in {walk}]"
    assert _python(f"import importlib, pkgutil, sys, resumable_operator; {load}; {PRINT_HEAVY}") == ""


def test_public_names_are_pinned() -> None:
    """The library's public surface is small and changes only on purpose."""
    names = _python("import resumable_training as rt; print(*sorted(rt.__all__))").split()
    assert names == PUBLIC_NAMES
    assert len(names) <= PUBLIC_NAMES_LIMIT


def test_every_public_name_exists() -> None:
    """Each name in `__all__` can be had and has a docstring."""
    code = "import resumable_training as rt; print(*[n for n in rt.__all__ if not getattr(rt, n).__doc__])"
    assert _python(code) == ""
