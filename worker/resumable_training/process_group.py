"""Forms the process group of one attempt: a store in rank 0, a meeting with a deadline, the backends."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore  # the typed names

from resumable_training.contract import env
from resumable_training.errors import MasterBindFailed, PeerLost, StartTimeout, UserError
from resumable_training.launch import Launch

_RETRY_SECONDS = 0.005
_BACKLOG = 4096
_OF_ONE_SECONDS = 60.0  # nobody else is waited for
_REFUSED_SECONDS = 10.0  # for the others to read why, in the store of a rank 0 that is about to end
_SAVES, _DOES_NOT, _ALIKE = "saves", "does not", "alike"  # what ranks say when they meet, and rank 0


@dataclass(frozen=True)
class Group:
    """What the rest of the library needs of the attempt's group.

    ``private``: gloo group that only the library uses, so that its collectives can't meet the script's; None
    with one rank, as is ``watcher_store``, a second client for the watcher's thread.
    """

    store: Store
    watcher_store: Store | None
    private: dist.ProcessGroup | None


def choose_device(launch: Launch) -> torch.device:
    """This rank's GPU if there is one, else the CPU; becomes torch's current device."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", launch.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def form(launch: Launch, device: torch.device, start_timeout_seconds: float, timeout_seconds: float) -> Group:
    """Meet all ranks of the attempt and make the default process group.

    Args:
        start_timeout_seconds: for all ranks to arrive.
        timeout_seconds: of each collective afterwards.

    Raises:
        MasterBindFailed: rank 0's port is taken.
        StartTimeout: some ranks did not come; the text names them.
        PeerLost: a rank came and went.
        UserError: the script made a process group before, or only some ranks have a checkpoint directory.
    """
    if dist.is_initialized():
        raise UserError("rt.start() makes the process group: remove the call of init_process_group before it")
    if launch.world_size == 1:
        return _alone(device, timeout_seconds)
    deadline = time.monotonic() + start_timeout_seconds
    _use_loopback(launch.address)
    base = _base_store(launch, deadline)
    store = PrefixStore(launch.store_prefix, base)
    _meet(store, launch, deadline)
    try:
        watcher_store = PrefixStore(launch.store_prefix, base.clone())
        _initialize(device, store, launch.rank, launch.world_size, timeout_seconds)
        private = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise PeerLost(f"a rank went away while the process group was formed: {error}") from error
    assert isinstance(private, dist.ProcessGroup)
    return Group(store, watcher_store, private)


def _alone(device: torch.device, timeout_seconds: float) -> Group:
    """A group of one, so that DDP and FSDP2 work under plain python."""
    store = HashStore()
    _initialize(device, store, 0, 1, timeout_seconds)
    return Group(store, None, None)


def of_one() -> dist.ProcessGroup:
    """A CPU group of this process alone, in which collectives cost nothing."""
    store, timeout = HashStore(), timedelta(seconds=_OF_ONE_SECONDS)
    group = dist.ProcessGroup(store, 0, 1)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend = dist.ProcessGroupGloo(store, 0, 1, timeout)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def _initialize(
    device: torch.device, store: Store, rank: int, world_size: int, timeout_seconds: float
) -> None:
    backend = "cpu:gloo"
    if device.type == "cuda":
        backend += ",cuda:nccl" if dist.is_nccl_available() else ",cuda:gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )


def _use_loopback(address: str) -> None:
    """On one machine gloo must not depend on what the host's name resolves to."""
    if address.startswith("127.") and "GLOO_SOCKET_IFNAME" not in os.environ:
        names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if names:
            os.environ["GLOO_SOCKET_IFNAME"] = names[0]


def _base_store(launch: Launch, deadline: float) -> TCPStore:
    """Rank 0 hosts the store in its own process (or torchrun's agent does); the others connect."""
    address, port = launch.master_address, launch.master_port
    if launch.rank == 0 and not launch.agent_store:
        listener = _listen(address, port)
        return TCPStore(
            address,
            listener.getsockname()[1],
            launch.world_size,
            True,
            timeout=_until(deadline),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    _wait_for_listener(address, port, deadline)
    try:
        return TCPStore(address, port, None, False, timeout=_until(deadline), wait_for_workers=False)
    except RuntimeError as error:
        raise PeerLost(f"the store at {address}:{port} went away: {error}") from error


def _listen(address: str, port: int) -> socket.socket:
    """Listen on the master address only; on all, where that address is not this host's own (NAT)."""
    for host in (address, ""):
        try:
            infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return _bind(infos[0])
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise MasterBindFailed(errno.EADDRINUSE, f"master port {address}:{port} is taken") from error
            if host == "":
                raise UserError(
                    f"rank 0 can't listen on MASTER_ADDR {address}, port {port}: {error}"
                ) from error
    raise AssertionError("unreachable")


def _bind(info: tuple[int, int, int, str, object]) -> socket.socket:
    family, kind, protocol, _, where = info
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)  # type: ignore[arg-type]
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _wait_for_listener(address: str, port: int, deadline: float) -> None:
    """Torch's own retries begin at a second apart; rank 0 is mostly there within a fraction of that."""
    while True:
        try:
            socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise StartTimeout(
                    f"rank 0's store at {address}:{port} did not answer in time: {error}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _meet(store: Store, launch: Launch, deadline: float) -> None:
    """All ranks are here, and save or don't; or an error that names who is not, or does not."""
    word = _SAVES if launch.checkpoint.directory else _DOES_NOT
    try:
        _pass_together(store, "start", launch.rank, launch.world_size, deadline, word, _who_does_not_save)
        refusal = store.get("start/all").decode()
    except dist.DistStoreError as error:
        raise StartTimeout(f"not all {launch.world_size} ranks came in time") from error
    except RuntimeError as error:
        raise PeerLost(f"rank 0's store went away: {error}") from error
    if refusal != _ALIKE:
        leave(store, launch.rank, launch.world_size, _REFUSED_SECONDS)  # with rank 0 goes what others read
        raise UserError(refusal)


def _who_does_not_save(words: list[str]) -> str:
    """What is wrong with some ranks that have a checkpoint directory beside some that have none."""
    without = [rank for rank, word in enumerate(words) if word != _SAVES]
    if len(without) in (0, len(words)):
        return _ALIKE
    few = f"{', '.join(map(str, without[:8]))}{' and more' if len(without) > 8 else ''}"
    return (
        f"{len(without)} of {len(words)} ranks ({few}) have no checkpoint directory, and the others do: give"
        f" all the same rt.start(checkpoint_dir=...), or set {env.CHECKPOINT_DIR} on all machines"
    )


def meet_at_end(store: Store, rank: int, world_size: int, name: str, timeout_seconds: float) -> None:
    """No rank passes before all have come: whoever leaves now can't break a collective of the others.

    ``name`` is of this meeting alone.

    Raises:
        PeerLost: a rank did not come.
    """
    if world_size == 1:
        return
    try:
        _pass_together(store, name, rank, world_size, time.monotonic() + timeout_seconds)
    except (RuntimeError, StartTimeout) as error:
        raise PeerLost(f"not all ranks came to the end of the loop: {error}") from error


def _pass_together(
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    deadline: float,
    word: str = "1",
    judge: Callable[[list[str]], str] | None = None,
) -> None:
    """``judge``: what rank 0 says, under ``<name>/all``, to the words of all."""
    store.set(f"{name}/{rank}", word)
    if rank == 0:
        _wait_for_all(store, name, world_size, deadline)
        words = store.multi_get([f"{name}/{other}" for other in range(world_size)]) if judge else []
        store.set(f"{name}/all", judge([one.decode() for one in words]) if judge else _ALIKE)
    store.wait([f"{name}/all"], _until(deadline + 5))  # rank 0 knows who is missing, so let it speak first


def _wait_for_all(store: Store, name: str, world_size: int, deadline: float) -> None:
    for rank in range(world_size):
        try:
            store.wait([f"{name}/{rank}"], _until(deadline))
        except dist.DistStoreError as error:
            missing = [other for other in range(world_size) if not store.check([f"{name}/{other}"])]
            raise StartTimeout(f"ranks {missing} of {world_size} did not come in time") from error


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def leave(store: Store, rank: int, world_size: int, timeout_seconds: float) -> None:
    """The last use of the store: ranks sign off, rank 0, whose process holds it, leaves last.

    A store that is gone or a rank that never signs off is no error here: the training is committed.
    """
    if world_size == 1:
        return
    deadline = time.monotonic() + timeout_seconds
    with contextlib.suppress(RuntimeError):
        store.set(f"left/{rank}", "1")
        if rank == 0:
            store.wait([f"left/{other}" for other in range(world_size)], _until(deadline))
