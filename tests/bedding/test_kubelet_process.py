"""The nodes' process itself: nothing outlives it, however it ends, and it survives an absent API server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bed import containers, containers_root, image_files
from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes, NodesError
from bed.pod_testing import PodWatch, phase, pod, shell, state
from bed.processes import wait_until

Object = dict[str, Any]

SECONDS = 30.0
LOOPS = "sleep 1000 & setsid sleep 1000 & wait"
MEMORY = [{"name": "m", "emptyDir": {"medium": "Memory"}}]


@pytest.fixture
def own_nodes(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Nodes]:
    """A nodes' process that the test may kill, with one node, `alone`."""
    nodes = Nodes.start(control_plane, tmp_path / "nodes")
    try:
        nodes.add("alone")
        yield nodes
    finally:
        nodes.stop()
        control_plane.api.delete(path("v1", "nodes", None, "alone"))


def _run(control_plane: ControlPlane, nodes: Nodes, namespace: str) -> list[int]:
    main = shell(LOOPS, volumeMounts=[{"name": "m", "mountPath": "/m"}])
    with PodWatch(control_plane.api, namespace) as pods:
        pods.create(*(pod(f"p{number}", main, node="alone", volumes=MEMORY) for number in range(5)))
        for number in range(5):
            pods.until(f"p{number}", phase("Running"))

    def pids() -> list[int]:
        return [pid for number in range(5) for pid in nodes.pids(namespace, f"p{number}")]

    wait_until(lambda: len(pids()) == 15, SECONDS, "three processes in each pod")
    return pids()


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_stop_leaves_nothing(control_plane: ControlPlane, own_nodes: Nodes, namespace: str) -> None:
    """No process, no mount and no socket is left of it; files are the caller's."""
    pids = _run(control_plane, own_nodes, namespace)
    own_nodes.stop()
    assert _alive(pids) == []
    assert str(own_nodes.directory) not in Path("/proc/self/mountinfo").read_text()
    assert not (own_nodes.directory / "nodes.sock").exists()
    assert list((own_nodes.directory / "pods").iterdir()) == []


def test_killing_it_kills_all_containers(
    control_plane: ControlPlane, own_nodes: Nodes, namespace: str
) -> None:
    """SIGKILL of the nodes' process: every container ends with it."""
    pids = _run(control_plane, own_nodes, namespace)
    assert own_nodes._process is not None
    os.kill(own_nodes._process.process.pid, signal.SIGKILL)
    wait_until(lambda: _alive(pids) == [], SECONDS, "the end of all containers")
    assert str(own_nodes.directory) not in Path("/proc/self/mountinfo").read_text()


def test_another_process_can_command_it(control_plane: ControlPlane, own_nodes: Nodes) -> None:
    """By its directory alone, whatever the length of its path; only its owner ends it."""
    other = Nodes.connect(own_nodes.directory)
    assert other.add("second").startswith("127.")
    other.remove("second")
    with pytest.raises(NodesError, match="started by another process"):
        other.stop()


def test_nodes_outlast_an_absent_api_server(tmp_path: Path) -> None:
    """What happens to pods meanwhile is reported when the server is back, and new pods are run."""
    with (
        ControlPlane.start(tmp_path / "plane") as plane,
        Nodes.start(plane, tmp_path / "nodes") as nodes,
    ):
        nodes.add("node-1")
        with PodWatch(plane.api, "default") as pods:
            script = "until [ -e /tmp/end ]; do sleep 0.1; done; exit 3"
            pods.create(pod("ends", shell(script)), pod("stays", shell("sleep 1000")))
            for name in ("ends", "stays"):
                pods.until(name, phase("Running"))
            ends, stays = (nodes.pids("default", name) for name in ("ends", "stays"))
            plane.stop_apiserver()
            Path(f"/proc/{ends[0]}/root/tmp/end").touch()
            wait_until(lambda: _alive(ends) == [], SECONDS, "a process to end")
            plane.start_apiserver()
            found = pods.until("ends", phase("Failed"), seconds=60)
            assert state(found)["terminated"]["exitCode"] == 3
            pods.create(pod("new", shell("exit 0")))
            pods.until("new", phase("Succeeded"), seconds=60)
            assert nodes.pids("default", "stays") == stays


ROOT_SCRIPT = (
    "import os; print(os.getpid(), os.path.exists('/checkpoints/x'), os.listdir('/tmp'), os.getcwd())"
)


@pytest.mark.parametrize("overlay", [True, False])
def test_containers_work_with_and_without_an_overlay(tmp_path: Path, overlay: bool) -> None:
    """Where the kernel refuses an overlay, bind mounts give containers the same view."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "x").touch()
    volume = containers_root.Bind(str(tmp_path / "volume"), "/checkpoints")
    assert _run_apart(_contained(tmp_path, overlay, ("-c", ROOT_SCRIPT), binds=(volume,))) == 0
    assert (tmp_path / "out").read_text() == f"1 True [] {containers_root.HOME}\n"
    assert not Path("/checkpoints").exists()


def _run_apart(work: Coroutine[None, None, int]) -> int:
    """Its result, from a process with a mount namespace of its own: the test's own stays as it is."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            containers_root.own_mount_namespace()
            code = asyncio.run(work)
        finally:
            os._exit(code)
    work.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _contained(
    directory: Path,
    overlay: bool,
    command: Sequence[str],
    kept: Sequence[Path] = (),
    binds: tuple[containers_root.Bind, ...] = (),
) -> int:
    python = [Path(sys.prefix), Path(sys.base_prefix)]
    host = replace(containers_root.Host.probe(directory / "root", [*python, *kept]), overlay=overlay)
    root = containers_root.Root(host, "h", binds)
    program = containers.Program(
        (f"{sys.prefix}/bin/python", *command),
        {"PATH": "/usr/bin:/bin"},
        containers_root.HOME,
        containers_root.Identity(uid=65532),
    )
    with (directory / "out").open("ab", buffering=0) as out:
        process = containers.start(program, root, out.write)
        return await process.wait()


KEPT_SCRIPT = """
import os, sys
way = sys.argv[1]
print(open(way + "/code.py").read(), os.path.exists("/tmp/mine"))
for path in (way + "/new", "/tmp/new"):
    try:
        open(path, "w").close()
        print("written")
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("overlay", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_volumes_do_not_cover_the_image(tmp_path: Path, overlay: bool, read_only: bool) -> None:
    """A checkout below /tmp, reached by links, is there, read-only, in a pod that mounts a volume at /tmp."""
    for folder in ("volume", "kept", "links"):
        (tmp_path / folder).mkdir()
    (tmp_path / "volume").chmod(0o777)
    (tmp_path / "volume" / "mine").touch()
    (tmp_path / "kept" / "code.py").write_text("code")
    (tmp_path / "links" / "first").symlink_to("second")
    (tmp_path / "links" / "second").symlink_to(tmp_path / "kept")
    way = tmp_path / "links" / "first"
    volume = containers_root.Bind(str(tmp_path / "volume"), "/tmp", read_only)
    command = ("-c", KEPT_SCRIPT, str(way))
    assert _run_apart(_contained(tmp_path, overlay, command, kept=[way], binds=(volume,))) == 0
    own, theirs = "Read-only file system", "Read-only file system" if read_only else "written"
    assert (tmp_path / "out").read_text() == f"code True\n{own}\n{theirs}\n"


def test_first_closed_path_is_found(tmp_path: Path) -> None:
    """What others may not enter or read is named, but not what lies above a kept path that is hidden."""
    kept = tmp_path / "private" / "kept"
    kept.mkdir(parents=True)
    (kept / "file").touch()
    (tmp_path / "private").chmod(0o700)
    assert image_files.first_closed([kept / "file"], [kept]) is None
    assert image_files.first_closed([kept / "file"], [tmp_path / "private"]) == tmp_path / "private"
    (kept / "file").chmod(0o600)
    assert image_files.first_closed([kept / "file"], [kept]) == kept / "file"
    kept.chmod(0o700)
    assert image_files.first_closed([kept / "file"], [kept]) == kept
