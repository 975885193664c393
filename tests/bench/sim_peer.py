"""The operator's peer in the benchmark: what one writes with kopf from its tutorial, over the same objects.

``handlers``: ``on.resume``/``on.create``/``on.update`` and a timer on the jobs, each of which asks the API
server for the job's pods. ``index``: the same, but looking its pods up in a ``kopf.index`` that all pods are
kept in. Neither decides or writes anything of its own; kopf writes its annotations and finalizers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sim_measure import memory_mb

from bed.control_plane import ControlPlane
from bed.processes import wait_until

PEERS = ("handlers", "index")
PATIENCE_SECONDS = 900.0
_COMMON = """
import asyncio, kopf, os, ssl, aiohttp
from pathlib import Path
seen = set()
def note(name):
    if name not in seen:
        seen.add(name)
        if len(seen) == int(os.environ["JOBS"]):
            Path(os.environ["DONE"]).write_text("all")
"""
_HANDLERS = """
GET = None
@kopf.on.startup()
async def begin(**_):
    global GET
    context = ssl.create_default_context(cafile=os.environ["CA"])
    headers = {"Authorization": "Bearer " + os.environ["TOKEN"]}
    connector = aiohttp.TCPConnector(ssl=context, limit=16)
    session = aiohttp.ClientSession(os.environ["URL"], headers=headers, connector=connector)
    async def GET(name, namespace):
        query = f"?labelSelector=resumable.dev/job={name}"
        async with session.get(f"/api/v1/namespaces/{namespace}/pods{query}") as answer:
            return (await answer.json())["items"]
@kopf.on.resume("resumable.dev", "v1alpha1", "resumabletrainingjobs")
@kopf.on.create("resumable.dev", "v1alpha1", "resumabletrainingjobs")
@kopf.on.update("resumable.dev", "v1alpha1", "resumabletrainingjobs")
@kopf.timer("resumable.dev", "v1alpha1", "resumabletrainingjobs", interval=30, initial_delay=10)
async def job(name, namespace, **_):
    await GET(name, namespace)
    note(name)
"""
_INDEX = """
@kopf.index("", "v1", "pods", labels={"app.kubernetes.io/managed-by": "resumable-training"})
async def pods(name, labels, body, **_):
    return {labels["resumable.dev/job"]: dict(body)}
@kopf.on.resume("resumable.dev", "v1alpha1", "resumabletrainingjobs")
@kopf.on.create("resumable.dev", "v1alpha1", "resumabletrainingjobs")
@kopf.on.update("resumable.dev", "v1alpha1", "resumabletrainingjobs")
async def job(name, pods, **_):
    len(pods.get(name, ()))
    note(name)
@kopf.on.event("", "v1", "pods", labels={"app.kubernetes.io/managed-by": "resumable-training"})
async def pod(**_):
    pass
"""
_BODIES = {"handlers": _HANDLERS, "index": _INDEX}


def run_peer(peer: str, plane: ControlPlane, directory: Path, namespace: str, jobs: int) -> dict[str, Any]:
    """Start it over what is there, as admin; seconds until each job was handled once, and memory then.

    ``seconds`` is None when it took longer than ``PATIENCE_SECONDS``.
    """
    script, done = directory / f"peer_{peer}.py", directory / f"peer_{peer}.done"
    script.write_text(_COMMON + _BODIES[peer])
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig),
        "URL": plane.url,
        "TOKEN": plane.admin_token,
        "CA": str(plane.ca_file),
        "JOBS": str(jobs),
        "DONE": str(done),
    }
    command = [sys.executable, "-m", "kopf", "run", "--quiet", "--standalone", "-n", namespace, str(script)]
    with (directory / f"peer_{peer}.log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        seconds: float | None = None
        try:
            wait_until(
                lambda: done.exists() or process.poll() is not None,
                PATIENCE_SECONDS,
                "the peer",
                interval=0.1,
            )
            seconds = time.monotonic() - began if done.exists() else None
        except TimeoutError:
            pass
        ended = process.poll()
        return {
            "seconds": seconds,
            "memory_mb": memory_mb(process.pid) if ended is None else {},
            "ended_with": ended,
        }
    finally:
        process.kill()
        process.wait()
