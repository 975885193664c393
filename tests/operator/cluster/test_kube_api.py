"""The API client: what is tried again and what is not, lists in parts, credentials that change, counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_world import template
from kubernetes.aio.client import Configuration

from bed.api import path
from bed.control_plane import ControlPlane
from resumable_operator.cluster import kube_api
from resumable_operator.cluster.kube_api import JOBS, METADATA_LIST, PODS, KubeApi
from resumable_operator.cluster.kube_errors import AlreadyExists, Expired, NotFound
from resumable_operator.errors import ClusterRefused, ConflictError, RetryableError, UserError

Raw = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers each request with the next of its answers, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[web.Request] = []
        self.bodies: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.text())
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return await answer(request)


def says(code: int, body: Raw | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body or {}, status=code, headers=named)

    return answer


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def says_nothing(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


def shows(text: str) -> Answer:
    """A page, as a proxy or a login in between does."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text)

    return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(kube_api, "FIRST_WAIT_SECONDS", 0.001)
    return Server()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    client = KubeApi(Configuration(host=f"http://{host}:{port}"), timeout_seconds=0.5)
    yield client
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Sun, 29 Nov 2026 20:00:00 GMT", 1795982400.5),
        ("", None),
        ("yesterday", None),
        ("Sun, 99 Nov 2026 99:00:00 GMT", None),
    ],
)
async def test_time_of_the_server(server: Server, api: KubeApi, date: str, seconds: float | None) -> None:
    """What the server's clock shows is known from any answer, also a refusal; nonsense is passed over."""
    assert api.server_time() is None
    server.answers = [says(404, Date=date)]
    await api.get(PODS, "p", "ns")
    shown = api.server_time()
    assert (shown is None) == (seconds is None)
    if seconds is not None and shown is not None:
        assert 0.0 <= shown - seconds < 60.0


# ---- tries -------------------------------------------------------------------------------------------

GET = ("get", "pods")


@pytest.mark.parametrize(
    "trouble",
    [says(500), says(503), says(504), says(429), hangs_up, says_nothing, shows("<html>"), shows("[]")],
)
async def test_trouble_is_outlived(server: Server, api: KubeApi, trouble: Answer) -> None:
    """A server in trouble for a moment is asked again."""
    server.answers = [trouble, says(200, {"kind": "Pod"})]
    assert await api.get(PODS, "a", "team") == {"kind": "Pod"}
    assert api.requests[*GET, 200] == 1
    assert len(server.seen) == 2


async def test_trouble_that_lasts(server: Server, api: KubeApi) -> None:
    """After a few tries it is the caller's turn, and each try is counted."""
    server.answers = [says(503, {"message": "no leader"})]
    with pytest.raises(RetryableError, match=r"get pods a: no leader \(HTTP 503\)"):
        await api.get(PODS, "a", "team")
    assert api.requests == {(*GET, 503): kube_api.TRIES}


async def test_server_that_is_away(server: Server, api: KubeApi) -> None:
    """No answer at all is retryable, says what was asked, and is counted as code 0."""
    server.answers = [hangs_up]
    with pytest.raises(RetryableError, match="get pods a: no answer"):
        await api.get(PODS, "a", "team")
    assert api.requests == {(*GET, 0): kube_api.TRIES}


async def test_no_tries_without_end(server: Server, api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lets every request time out is not asked again for long."""
    monkeypatch.setattr(kube_api, "LONGEST_CALL_SECONDS", 0.1)
    server.answers = [says_nothing]
    with pytest.raises(RetryableError):
        await api.get(PODS, "a", "team")
    assert len(server.seen) == 1


@pytest.mark.parametrize("trouble", [says(500), hangs_up])
async def test_creates_are_not_repeated(server: Server, api: KubeApi, trouble: Answer) -> None:
    """A create that may have been done is not done again here."""
    server.answers = [trouble]
    with pytest.raises(RetryableError):
        await api.create(PODS, {"metadata": {"name": "a"}}, "team")
    assert len(server.seen) == 1


@pytest.mark.parametrize("refusal", [says(429), says(409, {"reason": "Conflict"})])
async def test_creates_that_were_not_done_are_repeated(server: Server, api: KubeApi, refusal: Answer) -> None:
    """What surely was not created (too many requests, a race for a quota) is tried again."""
    server.answers = [refusal, says(201, {"kind": "Pod"})]
    assert await api.create(PODS, {"metadata": {"name": "a"}}, "team") == {"kind": "Pod"}


async def test_server_says_when(server: Server, api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is heeded; one that is too long is left to the caller."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    server.answers = [says(429, Retry_After="2"), says(200, {})]
    await api.get(PODS, "a", "team")
    assert [2.0 <= wait <= 2.5 for wait in waits if wait] == [True]
    server.answers = [says(429, Retry_After="60")]
    with pytest.raises(RetryableError):
        await api.get(PODS, "a", "team")


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (403, "Forbidden", ClusterRefused),
        (422, "Invalid", ClusterRefused),
        (409, "Conflict", ConflictError),
        (404, "NotFound", NotFound),
    ],
)
async def test_refusals_are_final(
    server: Server, api: KubeApi, code: int, reason: str, error: type[Exception]
) -> None:
    """What the server understood and refused is not asked again."""
    server.answers = [says(code, {"reason": reason})]
    with pytest.raises(error):
        await api.replace(JOBS, {"metadata": {"name": "a"}}, "team", subresource="status")
    assert api.requests == {("update", "resumabletrainingjobs/status", code): 1}


# ---- requests ----------------------------------------------------------------------------------------


async def test_not_found_is_none(server: Server, api: KubeApi) -> None:
    """Reading and deleting what is not there is no error."""
    server.answers = [says(404)]
    assert await api.get(PODS, "a", "team") is None
    assert await api.delete(PODS, "a", "team") is None


@pytest.mark.parametrize(
    "message",
    [
        "the UID in the precondition (a) does not match the UID in record (b)",
        "Precondition failed: UID in precondition: a, UID in object meta: b",
    ],
)
async def test_deleting_another_object(server: Server, api: KubeApi, message: str) -> None:
    """The very object is not there any more: that is success; other conflicts are not."""
    server.answers = [says(409, {"reason": "Conflict", "message": message})]
    assert await api.delete(PODS, "a", "team", uid="a") is None
    server.answers = [says(409, {"reason": "Conflict", "message": "try again"})]
    with pytest.raises(ConflictError):
        await api.delete(PODS, "a", "team", uid="a")


async def test_delete_options(server: Server, api: KubeApi) -> None:
    """Grace, precondition and propagation are sent."""
    server.answers = [says(200)]
    await api.delete(PODS, "a", "team", uid="u", grace_seconds=0, propagation="Background")
    for part in ('"uid": "u"', '"gracePeriodSeconds": 0', '"propagationPolicy": "Background"'):
        assert part in server.bodies[0]


async def test_kinds_of_requests(server: Server, api: KubeApi) -> None:
    """Paths, queries and content types are those of the API."""
    server.answers = [says(200)]
    await api.create(PODS, {"metadata": {"name": "a"}}, "team", dry_run=True)
    await api.patch(PODS, "a", {}, "team", kind="strategic", subresource="status")
    await api.patch(PODS, "a", {}, "team")
    await api.get(PODS, "a", "team", metadata_only=True)
    dry, strategic, merge, metadata = server.seen
    assert dry.path_qs == "/api/v1/namespaces/team/pods?dryRun=All&fieldValidation=Strict"
    assert strategic.path == "/api/v1/namespaces/team/pods/a/status"
    assert strategic.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert merge.headers["Content-Type"] == "application/merge-patch+json"
    assert "PartialObjectMetadata" in metadata.headers["Accept"]


# ---- lists -------------------------------------------------------------------------------------------


def part(*names: str, more: str = "") -> Answer:
    items = [{"metadata": {"name": name}} for name in names]
    return says(200, {"metadata": {"resourceVersion": "7", "continue": more}, "items": items})


async def test_list_in_parts(server: Server, api: KubeApi) -> None:
    """All parts are fetched, each with a limit, the selector and the token of the one before."""
    server.answers = [part("a", more="t/1="), part("b")]
    found = await api.list(PODS, labels="x=y")
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert found.resource_version == "7"
    assert [request.query.get("continue") for request in server.seen] == [None, "t/1="]
    assert {(request.query["limit"], request.query["labelSelector"]) for request in server.seen} == {
        (str(kube_api.PAGE), "x=y")
    }


async def test_list_that_expires(server: Server, api: KubeApi) -> None:
    """A list that expires between two parts begins anew, and nothing of the first try is left."""
    server.answers = [part("old", more="t"), says(410), part("new")]
    found = await api.list(PODS)
    assert [item["metadata"]["name"] for item in found.items] == ["new"]
    server.answers = [says(410)]
    with pytest.raises(RetryableError, match="expired"):
        await api.list(PODS)
    with pytest.raises(Expired):
        async for _ in api.pages(PODS):
            pass


async def test_part_of_a_list(server: Server, api: KubeApi) -> None:
    """A part alone, of metadata if that is enough; its token leads to the next one."""
    server.answers = [part("a", more="t/1="), part("b")]
    first = await api.page(PODS, "team", labels="x=y", metadata_only=True)
    last = await api.page(PODS, "team", first.token, labels="x=y")
    assert (first.token, last.token) == ("t/1=", "")
    assert [request.query.get("continue") for request in server.seen] == [None, "t/1="]
    assert [request.headers["Accept"] for request in server.seen] == [METADATA_LIST, "application/json"]


# ---- what the environment says -----------------------------------------------------------------------


async def test_logins_of_a_user_are_for_other_servers(
    server: Server, api: KubeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A netrc for every host does not get in the way of the cluster's own token."""
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    api.configuration.api_key["BearerToken"] = "Bearer ours"
    server.answers = [says(200)]
    await api.get(PODS, "a", "team")
    assert server.seen[0].headers["Authorization"] == "Bearer ours"


async def test_proxy_of_the_environment(
    server: Server, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is asked through it, unless it is named as one to be asked directly."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", api.configuration.host)
    server.answers = [says(200, {"kind": "Pod"})]
    through = KubeApi(Configuration(host="http://api.example"))
    try:
        assert await through.get(PODS, "a", "team") == {"kind": "Pod"}
        assert server.seen[0].host == "api.example"
    finally:
        await through.close()
    monkeypatch.setenv("no_proxy", ".example")
    assert KubeApi(Configuration(host="http://api.example")).configuration.proxy is None


async def test_named_proxy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kubeconfig says goes before the environment."""
    monkeypatch.setenv("https_proxy", "http://other.example:3128")
    named = Configuration(host="https://api.example", proxy="http://mine.example:3128")
    assert KubeApi(named).configuration.proxy == "http://mine.example:3128"


# ---- credentials -------------------------------------------------------------------------------------


async def test_new_credentials_after_a_refusal(server: Server, api: KubeApi) -> None:
    """When the server does not know us the credentials are read anew, and the request is made again."""

    async def reload(configuration: Configuration) -> None:
        configuration.api_key["BearerToken"] = "Bearer new"

    api._reload = reload
    api.configuration.api_key["BearerToken"] = "Bearer old"
    server.answers = [says(401), says(200)]
    await api.create(PODS, {"metadata": {"name": "a"}}, "team")
    assert [request.headers["Authorization"] for request in server.seen] == ["Bearer old", "Bearer new"]
    server.answers = [says(401)]
    with pytest.raises(RetryableError):
        await api.get(PODS, "a", "team")
    assert len(server.seen) == 3


async def test_credentials_that_cannot_be_read(server: Server, api: KubeApi) -> None:
    """New credentials that can't be read leave the old ones in use; the refusal stays one."""

    async def reload(_: Configuration) -> None:
        raise UserError("no file")

    api._reload = reload
    server.answers = [says(401)]
    with pytest.raises(RetryableError):
        await api.get(PODS, "a", "team")


async def test_no_credentials(tmp_path: Path) -> None:
    """A kubeconfig that is not there, or is nonsense, is the user's error, with its name."""
    with pytest.raises(UserError, match="nowhere"):
        await KubeApi.login(tmp_path / "nowhere")
    (tmp_path / "bad").write_text("clusters: 7")
    with pytest.raises(UserError, match="bad"):
        await KubeApi.login(tmp_path / "bad")


# ---- the real one ------------------------------------------------------------------------------------


async def test_real_api_server(control_plane: ControlPlane, namespace: str) -> None:
    """Login by kubeconfig, and the errors of a real API server."""
    api = await KubeApi.login(control_plane.kubeconfig)
    try:
        pod = {"metadata": {"name": "a"}, **template()}
        created = await api.create(PODS, pod, namespace)
        assert abs((api.server_time() or 0.0) - time.time()) < 10.0
        with pytest.raises(AlreadyExists):
            await api.create(PODS, pod, namespace)
        with pytest.raises(ClusterRefused) as refused:
            await api.create(PODS, {"metadata": {"name": "b"}, "spec": {"containers": []}}, namespace)
        assert [field.field for field in refused.value.fields] == ["spec.containers"]  # type: ignore[attr-defined]
        stale = {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}
        with pytest.raises(ConflictError):
            await api.patch(PODS, "a", stale, namespace)
        status = {"status": {"phase": "Failed"}}
        patched = await api.patch(PODS, "a", status, namespace, kind="strategic", subresource="status")
        assert patched["status"]["phase"] == "Failed"
        listed = await api.list(PODS, namespace)
        assert [item["metadata"]["name"] for item in listed.items] == ["a"]
        assert int(listed.resource_version) >= int(patched["metadata"]["resourceVersion"])
        assert await api.delete(PODS, "a", namespace, uid="another") is None
        assert await api.delete(PODS, "a", namespace, uid=created["metadata"]["uid"]) is not None
        with pytest.raises(NotFound):
            await api.patch(PODS, "a", {}, namespace)
    finally:
        await api.close()
    assert control_plane.api.find(path("v1", "pods", namespace, "a")) is None
