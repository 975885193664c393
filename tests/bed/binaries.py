"""Where the bed's programs come from: the machine, else made once and kept in a cache: built from Go modules,
or taken out of a Debian package (debian.py).

`binary(name)` answers at once when it can. In turn: KUBEBUILDER_ASSETS, PATH (both only where the version
fits), the cache ($RESUMABLE_CACHE, else ~/.cache/resumable-training), a build. Used by control_plane.py, the
chart's tests and `python -m bed build`.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bed.debian import PROMETHEUS, Package
from bed.progress import Progress
from bed.toolchain import BuildFailed, go_environment, remove_own

TOOLS = Path(__file__).parent / "tools"
VERSION_SECONDS = 60


@dataclass(frozen=True)
class Module:
    """A Go module below tools/ and what is built from it.

    `programs` maps our names to Go packages; `variables` are set in the linker, so that the programs know
    their own version; `minutes` is for the reader of the progress line.
    """

    title: str
    directory: Path
    programs: Mapping[str, str]
    variables: Mapping[str, str]
    minutes: int

    @property
    def flags(self) -> list[str]:
        """Arguments of `go build`."""
        assigned = [f"-X {name}={value}" for name, value in self.variables.items()]
        return ["-trimpath", "-ldflags", " ".join(["-s", "-w", *assigned])]

    @property
    def key(self) -> str:
        """Changes with whatever changes the result: sources, flags, platform."""
        digest = hashlib.sha256()
        for part in (
            (self.directory / "go.mod").read_bytes(),
            (self.directory / "go.sum").read_bytes(),
            repr((self.flags, sorted(self.programs.items()))).encode(),
            f"{sys.platform} {platform.machine()}".encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:16]

    def make(self, output: Path) -> None:
        """Build its programs into `output`; BuildFailed with the end of what the compiler said."""
        _go_build(self, output)
        for name, package in self.programs.items():
            made = output / _go_name(package)
            if made.name != name:
                made.rename(output / name)


_STAMP = "k8s.io/component-base/version.git"

KUBERNETES = Module(
    title="Kubernetes 1.37.2 and etcd 3.7.0",
    directory=TOOLS,
    programs={
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "etcd": "go.etcd.io/etcd/server/v3",
    },
    variables={f"{_STAMP}Version": "v1.37.2", f"{_STAMP}Major": "1", f"{_STAMP}Minor": "37"},
    minutes=8,
)
HELM = Module(
    title="Helm 4.3.1",
    directory=TOOLS / "helm",
    programs={"helm": "helm.sh/helm/v4/cmd/helm"},
    variables={"helm.sh/helm/v4/internal/version.version": "v4.3.1"},
    minutes=3,
)
SEAWEEDFS = Module(
    title="SeaweedFS of 2026-11-09",
    directory=TOOLS / "seaweedfs",
    programs={"weed": "github.com/seaweedfs/seaweedfs/weed"},
    variables={"github.com/seaweedfs/seaweedfs/weed/util/version.COMMIT": "7506e5f91cd6"},
    minutes=6,
)
MODULES: tuple[Module | Package, ...] = (KUBERNETES, HELM, SEAWEEDFS, PROMETHEUS)

# How each program says its version, and which answers will do when it was not built here.
_VERSIONS: Mapping[str, tuple[list[str], str]] = {
    "kube-apiserver": (["--version"], r"v1\.37\.\d+"),
    "kube-controller-manager": (["--version"], r"v1\.37\.\d+"),
    "kube-scheduler": (["--version"], r"v1\.37\.\d+"),
    "kubectl": (["version", "--client"], r"v1\.37\.\d+"),
    "etcd": (["--version"], r"3\.[67]\.\d+"),
    "helm": (["version", "--short"], r"v4\.\d+\.\d+"),
    # It calls itself "30GB 4.05", which says too little about what it can do: ours is always built.
    "weed": (["version"], r"7506e5f91cd6"),
    "prometheus": (["--version"], r"[23]\.\d+\.\d+"),
    "promtool": (["--version"], r"[23]\.\d+\.\d+"),
}


def binary(name: str) -> Path:
    """The program called `name`, built first if it must be (minutes, with progress on stderr).

    ValueError for a name that the bed does not have, BuildFailed with the reason and the fix.
    """
    module = module_of(name)
    return _found(name) or _cached(module, name) or build(module) / name


_OF_A_CLUSTER = tuple(name for name in _VERSIONS if name not in PROMETHEUS.programs)


def missing(names: Collection[str] = _OF_A_CLUSTER) -> list[Module | Package]:
    """The modules that `binary` would have to make for these names; without names: for a cluster and S3."""
    return [
        module
        for module in MODULES
        if any(not (_found(n) or _cached(module, n)) for n in names if n in module.programs)
    ]


def module_of(name: str) -> Module | Package:
    """The module or package that a program comes from."""
    for module in MODULES:
        if name in module.programs:
            return module
    raise ValueError(f"the bed has no program {name!r}, only {', '.join(_VERSIONS)}")


def cache_directory() -> Path:
    """Outside of the checkout, so that a fresh clone does not build again."""
    given = os.environ.get("RESUMABLE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "resumable-training"


def build(module: Module | Package) -> Path:
    """Make all of a module's programs into the cache, once, whoever else tries the same; their directory.

    What failed once in this process fails again at once: a test run would repeat minutes of it for each test.
    """
    final = _directory(module)
    if final in _failures:
        raise _failures[final]
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final.with_suffix(".lock"), module.title):
        if not all(_cached(module, name) for name in module.programs):
            try:
                _build_into(module, final)
            except BuildFailed as error:
                _failures[final] = error
                raise
            if not missing():
                remove_own(cache_directory())
    return final


_failures: dict[Path, BuildFailed] = {}


def _build_into(module: Module | Package, final: Path) -> None:
    """Whole or not at all: a directory beside `final` takes its name when everything is in it."""
    for leftover in final.parent.glob(f".{final.name}-*"):  # of a build that was killed: we hold the lock
        shutil.rmtree(leftover)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        output = work / "bin"
        output.mkdir()
        module.make(output)
        if final.exists():  # incomplete: not made by a build that ended well
            shutil.rmtree(final)
        output.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _go_name(package: str) -> str:
    """`go build` names a program after the last element of its package that is no major version."""
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))


def _go_build(module: Module, output: Path) -> None:
    """Download and compile, with progress; BuildFailed with the end of what the compiler said."""
    with Progress(f"building {module.title}, about {module.minutes} minutes on 2 cores") as progress:
        progress.say("looking for Go")
        go, env = go_environment(cache_directory())
        arguments = ["build", "-v", *module.flags, "-o", f"{output}/", *module.programs.values()]
        process = subprocess.Popen(
            [go, *arguments],
            cwd=module.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            errors = _follow(process, progress)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise BuildFailed(
            f"`go {' '.join(arguments)}` in {module.directory} failed with {process.returncode}:\n{errors}\n"
            "It needs the Go module proxy (GOPROXY), about 6 GB of disk and 4 GB of memory."
        )


def _follow(process: subprocess.Popen[str], progress: Progress) -> str:
    """Turn the lines of `go build -v` into progress; the last lines of anything else come back."""
    assert process.stdout is not None
    downloads = packages = 0
    others: list[str] = []
    for line in process.stdout:
        if line.startswith("go: downloading "):
            downloads += 1
        elif re.fullmatch(r"[\w./~-]+\n", line):
            packages += 1
        else:
            others = [*others, line][-20:]
        progress.say(f"{downloads} modules fetched, {packages} packages compiled")
    process.wait()
    return "".join(others)


@functools.cache
def _found(name: str) -> Path | None:
    """On this machine already, with a version that fits. One that does not fit is named on stderr."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for place in (assets, os.environ.get("PATH", "")):
        path = shutil.which(name, path=place) if place else None
        if path and _fits(name, Path(path)):
            return Path(path)
    return None


def _fits(name: str, path: Path) -> bool:
    arguments, wanted = _VERSIONS[name]
    try:
        result = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"bed: passing over {path}: {error}", file=sys.stderr)
        return False
    said = re.search(r"v?\d+\.\d+\.\d+", result.stdout)
    if said and re.fullmatch(wanted, said[0]):
        return True
    print(f"bed: passing over {path}: it is {said[0] if said else 'of no known version'}", file=sys.stderr)
    return False


def _directory(module: Module | Package) -> Path:
    return cache_directory() / f"{module.title.split()[0].lower()}-{module.key}"


def _cached(module: Module | Package, name: str) -> Path | None:
    path = _directory(module) / name
    return path if os.access(path, os.X_OK) else None


@contextmanager
def _locked(path: Path, title: str) -> Iterator[None]:
    """Hold the lock; say so when another builder has it. The kernel frees it with its holder."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"bed: another process builds {title}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
