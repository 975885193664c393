"""The operator's process: watches, comparisons, reconciler and HTTP server in one event loop.

Crash-only: what it cannot go on with ends it, in one line and with an exit code, and a fresh process begins
anew from what the API server, the agents and the checkpoint store hold.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter

from resumable_operator import handlers, keys, metrics, rights
from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.kube_api import KubeApi
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.kube_compare import pause_seconds
from resumable_operator.cluster.kube_errors import NotFound
from resumable_operator.cluster.kubernetes import KubernetesCluster, KubernetesSettings
from resumable_operator.decide.observation import Job
from resumable_operator.errors import ClusterRefused, FatalError, RetryableError, first_leaf
from resumable_operator.garbage import Garbage
from resumable_operator.health import Health, application, serving
from resumable_operator.manifests import PodSettings
from resumable_operator.metrics_page import JobsPage
from resumable_operator.operator_options import Options
from resumable_operator.passes import MeteredReconciler, PassMeter
from resumable_operator.reconcile import Settings
from resumable_training.contract import metrics as names

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
CLOCKS_AGREE_SECONDS = 2.0  # the API server tells whole seconds, and its answer takes a while
SETTLE_SECONDS = 15.0  # an API server that has just begun knows no roles yet, and refuses everything
END_SECONDS = 3.0  # whatever holds the end up: nothing in memory is worth waiting for
NO_CRD = (
    "the kind ResumableTrainingJob is not installed: kubectl apply -f deploy/crd.yaml, "
    "or install the chart with crds.install=true"
)


T = TypeVar("T")


@dataclass
class Foundation:
    """What there is before the API server has answered."""

    options: Options
    clock: SystemClock
    registry: CollectorRegistry
    meter: PassMeter
    health: Health
    garbage: Garbage
    api: KubeApi
    cluster: KubernetesCluster | None = None
    page: JobsPage = field(default_factory=metrics.jobs_page)
    unreachable_at: float = float("-inf")  # when the API server last failed to answer, monotonic

    async def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """Everything for Prometheus."""
        jobs, now = list[Job](), self.clock.now()
        if self.cluster is not None:
            jobs = metrics.looked_after(await self.cluster.jobs(), self.cluster.operators(), now)
        return await self.page.render_in_slices(self.registry, jobs, now, accept)


async def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ResumableError: it cannot go on; the text is for people.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def take_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

    take_signals()
    work = asyncio.create_task(_work(options, take_signals), name="operator")
    asked = asyncio.create_task(stop.wait(), name="signals")
    await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not work.done():
        logger.info("stopping: a signal asked for it", extra={"event": "stopping"})
        work.cancel()
    loop.set_exception_handler(_after_the_end)
    await asyncio.wait({work}, timeout=END_SECONDS)
    if not work.done():
        logger.warning("not everything has ended in %.0f s; leaving it", END_SECONDS)
    elif not work.cancelled() and (error := work.exception()) is not None:
        raise first_leaf(error)


async def _work(options: Options, take_signals: Callable[[], None]) -> None:
    began = time.monotonic()
    logger.info("starting, serving %s", options.scope, extra={"event": "starting"})
    if options.namespaces:
        logger.info("limited to namespaces: nodes are not watched, their signals are off")
    async with AsyncExitStack() as stack:
        base = await _foundation(options, stack)
        await _patiently(
            base, lambda: rights.require(base.api, options.namespaces, options.operator_namespace)
        )
        _agree_on_time(base)
        agents = AgentPool(base.clock)
        stack.push_async_callback(agents.close)
        master = keys.ApiSecrets(base.api)
        ring = await _patiently(base, lambda: keys.load(master, options.operator_namespace))
        cluster = base.cluster = _cluster(base, ring)
        reconciler = _reconciler(base, cluster, agents)
        await _patiently(base, cluster.relist)
        base.health.relisted()
        base.garbage.tidy()
        count, taken = len(await cluster.jobs()), time.monotonic() - began
        logger.info("synced after %.2f s, %d jobs", taken, count, extra={"event": "synced"})
        nodes = cluster.node_signals
        watches = handlers.registry(cluster.cache, base.api.configuration, nodes=nodes)
        watching = _patiently(
            base, lambda: handlers.watch(watches, options.namespaces, take_signals, nodes=nodes)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(_compare(base, cluster, ring, master), name="relist")
            group.create_task(reconciler.run(), name="reconcile")
            group.create_task(watching, name="watch")


async def _foundation(options: Options, stack: AsyncExitStack) -> Foundation:
    """Log in and serve health, though not ready yet; ``stack`` ends what is begun."""
    clock, registry = SystemClock(), metrics.own_registry()
    meter = PassMeter(registry, clock)
    health = Health(clock, meter, options.relist_seconds)
    api = await KubeApi.login()
    stack.push_async_callback(api.close)
    api.answered = metrics.api_seconds(registry)
    base = Foundation(options, clock, registry, meter, health, Garbage(), api)
    pages = application(health, base.metrics_page)
    await stack.enter_async_context(serving(pages, options.bind_address, options.port))
    return base


def _agree_on_time(base: Foundation) -> None:
    """Take the API server's time, once: when a pod or a node will be gone is said in it, and a machine whose
    clock is minutes off would cut drains short or let them run into the end."""
    shown = base.api.server_time()
    wrong = 0.0 if shown is None else base.clock.agree_with(shown, CLOCKS_AGREE_SECONDS)
    if wrong:
        base.health.started_at += wrong
        how = "behind" if wrong > 0 else "ahead of"
        logger.warning("this machine's clock is %.0f s %s the API server's, which counts", abs(wrong), how)


def _cluster(base: Foundation, ring: keys.KeyRing) -> KubernetesCluster:
    options = base.options
    pods = PodSettings(
        agent_image=options.agent_image,
        agent_image_pull_policy=options.agent_image_pull_policy,
        image_pull_secrets=options.worker_pull_secrets,
        run_as_user=options.worker_user,
    )
    settings = KubernetesSettings(pods=pods, namespaces=options.namespaces)
    return KubernetesCluster(base.api, KubeCache(base.clock), ring, base.clock, settings)


def _reconciler(base: Foundation, cluster: KubernetesCluster, agents: AgentPool) -> MeteredReconciler:
    options = base.options
    settings = Settings(
        status_seconds=options.status_seconds,
        relist_seconds=options.relist_seconds,
        jobs_at_once=options.jobs_at_once,
        on_pass=base.meter.decided,
        on_wait=base.meter.waited,
    )
    reconciler = MeteredReconciler(cluster, agents, base.clock, settings, meter=base.meter)
    facts = metrics.Facts(
        queue_length=lambda: len(reconciler.queue),
        agents_connected=agents.connected,
        relisted_at=lambda: base.health.relisted_at,
        requests=base.api.requests,
    )
    base.registry.register(metrics.FactsCollector(facts))
    return reconciler


async def _compare(
    base: Foundation, cluster: KubernetesCluster, ring: keys.KeyRing, master: keys.Secrets
) -> None:
    """Compare the cache with the API server now and then; take over a changed master key."""
    failures = Counter(
        names.OPERATOR_RELIST_FAILURES_TOTAL,
        "Comparisons with the API server that failed.",
        registry=base.registry,
    )
    usual = pause = base.options.relist_seconds
    while True:
        await asyncio.sleep(pause)
        try:
            pause = pause_seconds(usual, await cluster.relist())
            base.health.relisted()
            base.garbage.tidy()
            await ring.refresh(master, base.options.operator_namespace)
        except NotFound as error:
            raise FatalError(NO_CRD) from error
        except (RetryableError, ClusterRefused) as error:
            failures.inc()
            logger.warning("could not compare with the API server: %s", error)


async def _patiently(base: Foundation, call: Callable[[], Awaitable[T]]) -> T:
    """Try until the API server answers, for a while.

    Raises:
        FatalError: it does not, or it says what only a person can mend.
    """
    server = base.api.configuration.host
    began, wait = time.monotonic(), FIRST_WAIT_SECONDS
    while True:
        try:
            return await call()
        except NotFound as error:
            raise FatalError(NO_CRD) from error
        except (RetryableError, ClusterRefused) as error:
            waited = time.monotonic() - began
            if isinstance(error, RetryableError):
                base.unreachable_at = time.monotonic()
            elif time.monotonic() - base.unreachable_at > SETTLE_SECONDS:
                raise FatalError(str(error)) from error
            if waited + wait > base.options.unreachable_seconds:
                raise FatalError(f"no use of the API server {server} for {waited:.0f} s: {error}") from error
            logger.warning("waiting for the API server %s: %s", server, error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def _after_the_end(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors of tasks that nobody waits for any more; the first error has been told."""
    logger.debug("while ending: %s: %r", context.get("message"), context.get("exception"))
