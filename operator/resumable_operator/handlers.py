"""What the watches tell, written into the cache. The only file that knows kopf.

kopf logs in, watches and reconnects; nothing else of it is used. It writes nothing to any object: no
finalizers, annotations, peering or Events. It hands over every event of an object, in order, a deletion with
the object's last state. What it cannot see (objects that vanished while a watch was down) the relist finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client import Configuration

from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.errors import FatalError, RetryableError
from resumable_training.contract.labels import GROUP, PLURAL, VERSION

POD_SELECTOR = "app.kubernetes.io/managed-by=resumable-training"
WATCHER = "watcher for "  # how kopf's names of these tasks begin
LOOK_SECONDS = 0.1
RETRY_SECONDS = (0.1, 0.3, 1.0, *(2.0 for _ in range(150)))  # five minutes of an API server that is away


def registry(cache: KubeCache, login: Configuration, *, nodes: bool) -> kopf.OperatorRegistry:
    """All handlers. ``nodes``: watch them, too."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def credentials(**_: Any) -> kopf.ConnectionInfo:
        return await connection(login)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def job(event: Any, **_: Any) -> None:
        cache.apply("job", event["type"], event["object"])

    @kopf.on.event("", "v1", "pods", registry=handlers)
    async def pod(event: Any, **_: Any) -> None:
        cache.apply("pod", event["type"], event["object"])

    if nodes:

        @kopf.on.event("", "v1", "nodes", registry=handlers)
        async def node(event: Any, **_: Any) -> None:
            cache.apply("node", event["type"], event["object"])

    return handlers


async def connection(login: Configuration) -> kopf.ConnectionInfo:
    """The API client's credentials, as they are now, for the watches."""
    header = await login.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").partition(" ")
    return kopf.ConnectionInfo(
        server=login.host,
        ca_path=login.ssl_ca_cert,
        insecure=not login.verify_ssl,
        username=login.username or None,
        password=login.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=login.cert_file,
        private_key_path=login.key_file,
        proxy_url=login.proxy,
    )


class _Forgetful(kopf.DiffBaseStorage):
    """Nothing is compared with an earlier state, so none is computed or kept: that is most of the cost."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def settings() -> kopf.OperatorSettings:
    """kopf as a mere watcher."""
    chosen = kopf.OperatorSettings()
    chosen.watching.label_selectors["", "v1", "pods"] = POD_SELECTOR
    chosen.watching.chunk_size = 200  # a whole list at once is held three times over
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.persistence.finalizer = f"{GROUP}/never-set"  # so that no other operator's is taken off
    chosen.persistence.diffbase_storage = _Forgetful()
    chosen.queueing.idle_timeout = 0.05  # each object has a task, and its last event is held, for so long
    chosen.networking.error_backoffs = RETRY_SECONDS
    chosen.process.ultimate_exiting_timeout = None
    return chosen


async def watch(
    handlers: kopf.OperatorRegistry,
    namespaces: Iterable[str],
    take_signals: Callable[[], None] = lambda: None,
    *,
    nodes: bool = False,
) -> None:
    """Watch until cancelled.

    This is ``kopf.operator`` but for its end: that one waits five seconds and cancels every younger task of
    the whole event loop, ours too.

    Args:
        namespaces: none: the whole cluster.
        take_signals: called when kopf has set its own handlers for SIGTERM and SIGINT, to put others back.
        nodes: as of ``registry``.

    Raises:
        RetryableError: the connection broke while kopf asked what there is to be watched, which it does once.
        FatalError: a watch has ended for good, or did not begin. A fresh process begins anew.
    """
    chosen = tuple(namespaces)
    tasks = await kopf.spawn_tasks(
        registry=handlers,
        settings=settings(),
        standalone=True,
        clusterwide=not chosen,
        namespaces=chosen,
    )
    take_signals()
    wanted = {PLURAL, "pods", *(["nodes"] if nodes else [])}
    begun = asyncio.Event()
    tasks = [*tasks, asyncio.create_task(_require_watches(wanted, begun), name="are all watched")]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)
        # A watcher that fails leaves the others behind. They must not meet the end of the loop: one that is
        # cancelled together with its own helper task takes that for a pause, and goes on for ever.
        await _end(task for task in asyncio.all_tasks() if task.get_name().startswith(WATCHER))
    errors = [error for task in done if (error := task.exception()) is not None]
    if errors and isinstance(errors[0], FatalError):
        raise errors[0]
    if errors and isinstance(errors[0], aiohttp.ClientError) and not begun.is_set():
        raise RetryableError(f"no watch could begin: {_words(errors[0])}") from errors[0]
    if errors:
        raise FatalError(f"the watch of the cluster failed: {_words(errors[0])}") from errors[0]
    raise FatalError("the watch of the cluster ended unexpectedly")


async def _require_watches(plurals: set[str], begun: asyncio.Event) -> None:
    """For ever, unless a kind is not watched: the API server did not name it when kopf asked for all kinds,
    once, and kopf passes over that.

    Raises:
        FatalError
    """
    while not (watched := _watched()):  # noqa: ASYNC110 -- kopf does not tell; they all begin together
        await asyncio.sleep(LOOK_SECONDS)
    begun.set()
    missing = ", ".join(sorted(plurals - watched))
    if missing:
        raise FatalError(f"there is no watch of {missing}: the API server does not list that kind yet")
    await asyncio.Event().wait()


def _watched() -> set[str]:
    """Plurals; the tasks are named ``watcher for <plural>.<version>.<group>@<namespace>``."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return {name.removeprefix(WATCHER).split(".")[0] for name in names if name.startswith(WATCHER)}


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    chosen = list(tasks)
    for task in chosen:
        task.cancel()
    await asyncio.gather(*chosen, return_exceptions=True)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
