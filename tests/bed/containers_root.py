"""The file system and the identity of a container, built by the new process itself between fork and exec.

The root is the host's, copy-on-write (an overlay whose upper side is a tmpfs of the container's own). Where
the kernel refuses that overlay the host's entries are bound read-only below a tmpfs instead. Homes, /tmp
and /run of the host are hidden, but for what the image is made of (image_files.py), which no volume covers
either: a pod may mount one at /tmp. All mounts live in a mount namespace that ends with the container's
last process, so nothing is ever left to unmount.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID = 0x00020000, 0x04000000, 0x20000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38

HOME = "/home/app"
HIDDEN = ("/tmp", "/run", "/root", "/home")
OWN = ("/proc", "/sys", "/dev")  # made anew for each container
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "dri", "kfd", "infiniband")
OLD = "/.host"  # where the host's root is while the mounts are made

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Bind:
    """Path `source` of the host at `target` inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Identity:
    """User, groups and powers of a container's first process. `capabilities` are numbers; None keeps all."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    capabilities: frozenset[int] | None = None
    no_new_privileges: bool = False


@dataclass(frozen=True)
class Host:
    """What all containers of one bed share: how their root is made, found out once."""

    base: str  # an empty directory; each container mounts its own tmpfs there
    overlay: bool
    submounts: tuple[str, ...]  # file systems mounted somewhere in the host's root
    kept: tuple[str, ...]  # real paths that must stay visible, whatever is hidden or mounted over them
    links: tuple[tuple[str, str], ...]  # symbolic links on the way to them, with what they say

    @classmethod
    def probe(cls, base: Path, kept: Iterable[Path]) -> Host:
        """Look at this machine. The calling process must be in a mount namespace of its own."""
        base.mkdir(parents=True, exist_ok=True)
        own = (*OWN, *HIDDEN, str(base.parent))
        mounts = tuple(point for point in _mount_points() if point != "/" and not _below(point, own))
        paths: set[str] = set()
        links: dict[str, str] = {}
        for path in kept:
            real, met = way(path)
            paths.add(real)
            links |= met
        inner = {path for path in paths if _below(path, paths - {path})}
        return cls(
            str(base),
            _overlay_works(base),
            mounts,
            tuple(sorted(paths - inner)),
            tuple(sorted(links.items())),
        )


@dataclass(frozen=True)
class Root:
    """The root of one container."""

    host: Host
    hostname: str
    binds: tuple[Bind, ...] = ()
    shm_bytes: int | None = 64 << 20  # None: a volume is mounted at /dev/shm
    read_only: bool = False


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); OSError names the target."""
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode() or None)
    _check(done, f"mount {source} at {target}")


def unmount(target: str) -> None:
    """umount2(2), lazily."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """setns(2)."""
    _check(_libc.setns(descriptor, flags), "setns")


def own_mount_namespace() -> None:
    """Put this process into a mount namespace of its own, where nothing reaches the host's."""
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def bind(source: str, target: str, read_only: bool = False) -> None:
    """Bind `source` at `target`, which is made if it is not there (a file for a file)."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        _make_read_only(target)


def build(root: Root, identity: Identity) -> None:
    """Make `root` the root of this process, which must be PID 1 of a new PID namespace."""
    unshare(CLONE_NEWNS | CLONE_NEWUTS)
    _libc.sethostname(root.hostname.encode(), len(root.hostname.encode()))
    os.umask(0o022)
    base = root.host.base
    mount("scratch", base, "tmpfs", MS_NOSUID, "mode=755")
    for folder in ("upper", "work", "root"):
        os.mkdir(f"{base}/{folder}", 0o755)
    new = f"{base}/root"
    if root.host.overlay:
        _overlay(base, new)
    else:
        _bound_root(new, root)
    os.makedirs(new + OLD, exist_ok=True)
    _check(_libc.pivot_root(new.encode(), (new + OLD).encode()), "pivot_root")
    os.chdir("/")
    _hide(root, f"{OLD}{base}/hidden")
    _system_mounts(root)
    _home(identity)
    _fill(root)
    unmount(OLD)
    os.rmdir(OLD)
    if root.read_only:
        volumes = {volume.target for volume in root.binds}
        for point in {"/", *HIDDEN} - volumes:
            _make_read_only(point)


def become(identity: Identity, directory: str) -> None:
    """Take on user, groups and powers, and go to `directory` (made if it is not there)."""
    with contextlib.suppress(OSError):  # on a read-only root it must exist; chdir says so
        os.makedirs(directory, exist_ok=True)
    os.chdir(directory)
    if identity.capabilities is not None:
        for number in range(_last_capability() + 1):
            if number not in identity.capabilities:
                _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups(identity.groups)
    os.setgid(identity.gid)
    os.setuid(identity.uid)
    if identity.no_new_privileges:
        _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel for `signal_number` when the parent ends. After setuid, which would undo it."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "pdeathsig")


def _overlay(base: str, new: str) -> None:
    mount("overlay", new, "overlay", data=f"lowerdir=/,upperdir={base}/upper,workdir={base}/work")


def _overlay_works(base: Path) -> bool:
    mount("probe", str(base), "tmpfs")
    try:
        for folder in ("upper", "work", "root"):
            (base / folder).mkdir()
        _overlay(str(base), f"{base}/root")
        (base / "root" / "bed-probe").mkdir()
        unmount(f"{base}/root")
    except OSError:
        return False
    finally:
        unmount(str(base))
    return True


def _bound_root(new: str, root: Root) -> None:
    """A tmpfs with the host's entries bound read-only; folders on the way to a mount point are opened up."""
    mount(new, new, flags=MS_BIND)
    _open_up("/", new, [volume.target for volume in root.binds])


def _open_up(folder: str, new: str, targets: Sequence[str]) -> None:
    for entry in os.scandir(folder):
        path = entry.path
        if path in OWN or path in HIDDEN:
            os.mkdir(new + path)
        elif entry.is_symlink():
            os.symlink(os.readlink(path), new + path)
        elif entry.is_dir() and any(_below(target, (path,)) for target in targets):
            os.mkdir(new + path, 0o755)
            _open_up(path, new, targets)
        else:
            with contextlib.suppress(FileNotFoundError):  # gone since the listing
                bind(path, new + path, read_only=True)


def _hide(root: Root, scratch: str) -> None:
    for point in HIDDEN:
        inside = scratch + point
        os.makedirs(inside)
        os.chmod(inside, 0o1777 if point == "/tmp" else 0o755)
        bind(inside, point)
    if root.host.overlay:  # an overlay shows one file system, not those that are mounted in it
        for path in root.host.submounts:
            with contextlib.suppress(OSError):  # unmounted since, or one that cannot be bound
                bind(OLD + path, path, read_only=True)


def _fill(root: Root) -> None:
    """Volumes, and above them what the image is made of, where it would be hidden or covered.

    Places to mount at are made in the volumes, so these become read-only last.
    """
    covers = (*HIDDEN, *(volume.target for volume in root.binds))
    image = [Bind(path, path, read_only=True) for path in root.host.kept if _below(path, covers)]
    for item in sorted([*image, *root.binds], key=lambda item: item.target.count("/")):
        bind(OLD + item.source, item.target, item.read_only and item in image)
    for path, target in root.host.links:
        if _below(path, covers) and not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
    for volume in root.binds:
        if volume.read_only:
            _make_read_only(volume.target)


def _make_read_only(point: str) -> None:
    mount("none", point, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def _system_mounts(root: Root) -> None:
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(f"{OLD}/sys", "/sys")
    mount("dev", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    gpus = [name for name in os.listdir(f"{OLD}/dev") if name.startswith("nvidia")]
    for name in (*DEVICES, *gpus):
        if os.path.exists(f"{OLD}/dev/{name}"):
            bind(f"{OLD}/dev/{name}", f"/dev/{name}")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.mkdir("/dev/shm", 0o1777)
    if root.shm_bytes is not None:
        mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={root.shm_bytes}")


def _home(identity: Identity) -> None:
    os.mkdir(HOME, 0o755)
    os.chown(HOME, identity.uid, identity.gid)


def _last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())


def way(path: Path) -> tuple[str, dict[str, str]]:
    """The real path of an existing one, and the symbolic links on the way there with what they say."""
    links: dict[str, str] = {}
    done, ahead = "/", _parts(str(path))
    while ahead:
        here = os.path.normpath(os.path.join(done, ahead.pop()))
        if os.path.islink(here):
            target = links[here] = os.readlink(here)
            done = "/" if os.path.isabs(target) else done
            ahead += _parts(target)
        else:
            done = here
    return done, links


def _parts(path: str) -> list[str]:
    """Last one first."""
    return [part for part in reversed(path.split("/")) if part]


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _mount_points() -> list[str]:
    """Mount points of this namespace, outer ones first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = {line.split()[4].encode().decode("unicode_escape") for line in lines}
    return sorted(points, key=lambda point: (point.count("/"), point))
