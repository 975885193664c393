"""A thin client of the Kubernetes API: plain JSON in and out, errors as in ``kube_errors``.

Credentials, TLS and token refresh are those of ``kubernetes.aio``; its model objects are not used: they cost
several times the time and memory of the JSON they are made from.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
import yaml
from kubernetes.aio.client import Configuration, rest
from kubernetes.aio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config,
)
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME

from resumable_operator.cluster.kube_errors import (
    Call,
    Expired,
    NotFound,
    Raw,
    error_of,
    retry_after_seconds,
    status_of,
)
from resumable_operator.errors import ConflictError, RetryableError, UserError
from resumable_training.contract.labels import GROUP, PLURAL, VERSION

logger = logging.getLogger(__name__)

PAGE = 200  # objects in one answer to a list: some megabytes of memory, and some ten milliseconds
AGENT = "resumable-training"
TRIES = 4
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0  # a server that asks for more is left to the caller's own backoff
LONGEST_CALL_SECONDS = 20.0  # no new try after this
HEARTBEAT_SECONDS = 30.0  # of a web socket; no sign of life for half as long after it ends the socket
RELOAD_SECONDS = 5.0  # credentials are read anew at most this often
_OTHER_UID = re.compile(r"UID in (the )?precondition")
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Reload = Callable[[Configuration], Awaitable[None]]
PatchKind = Literal["merge", "strategic"]


@dataclass(frozen=True)
class Resource:
    """A kind of objects. ``api``: its path up to the version."""

    api: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        parts = [self.api]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


JOBS = Resource(f"/apis/{GROUP}/{VERSION}", PLURAL)
PODS = Resource("/api/v1", "pods")
NODES = Resource("/api/v1", "nodes")
EVENTS = Resource("/api/v1", "events")
SECRETS = Resource("/api/v1", "secrets")
CLAIMS = Resource("/api/v1", "persistentvolumeclaims")


@dataclass(frozen=True)
class Page:
    """A part of a list. All parts of one list are of the same ``resource_version``."""

    items: list[Raw]
    resource_version: str
    token: str = ""  # of the next part; empty: this is the last one


class KubeApi:
    """Use ``await KubeApi.login()``; ``await close()`` at the end.

    All calls raise what ``kube_errors`` lists, ``RetryableError`` when no answer came. What is safe to do
    twice is tried a few times before.

    Attributes:
        requests: number of requests by (verb, resource, status code); code 0: no answer came.
        answered: told verb and seconds of every request that was answered.

    Args:
        reload: reads the credentials into the configuration anew; done when the server does not know us.
        timeout_seconds: longest silence of the server within a request.
    """

    def __init__(
        self, configuration: Configuration, reload: Reload | None = None, *, timeout_seconds: float = 15.0
    ) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.answered: Callable[[str, float], None] = lambda _verb, _seconds: None
        self.configuration = configuration
        self._reload = reload
        self._reload_lock = asyncio.Lock()
        self._reloaded_at = float("-inf")
        self._date: tuple[float, float] | None = None  # what the server's clock showed, and when, monotonic
        _read_environment_once(configuration)
        self._rest: Any = rest.RESTClientObject(configuration)
        self._timeout = aiohttp.ClientTimeout(
            total=4 * timeout_seconds, sock_connect=timeout_seconds, sock_read=timeout_seconds
        )

    @classmethod
    async def login(cls, kubeconfig: Path | None = None, context: str | None = None) -> KubeApi:
        """With a pod's own credentials when there are any and no kubeconfig is named, else by kubeconfig.

        Raises:
            UserError: there are no credentials, or they can't be read.
        """
        reload = _loader(kubeconfig, context)
        configuration = Configuration()
        await reload(configuration)
        return cls(configuration, reload)

    async def close(self) -> None:
        await self._rest.close()

    def server_time(self) -> float | None:
        """What the server's clock shows now, to a second; None: it has not told yet."""
        if self._date is None:
            return None
        shown, at = self._date
        return shown + time.monotonic() - at

    # ---- verbs ---------------------------------------------------------------------------------------

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, metadata_only: bool = False
    ) -> Raw | None:
        """One object; None when there is none."""
        try:
            return await self._call(
                Call("get", resource.plural, name),
                "GET",
                resource.path(namespace, name),
                accept=METADATA_ONLY if metadata_only else "application/json",
            )
        except NotFound:
            return None

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """All objects, part by part; ``labels`` and ``fields`` are selectors.

        Raises:
            Expired: the list must begin anew.
            NotFound: the API has no such resource.
        """
        token = ""
        while True:
            page = await self.page(resource, namespace, token, labels=labels, fields=fields)
            yield page
            token = page.token
            if not token:
                return

    async def page(
        self,
        resource: Resource,
        namespace: str | None = None,
        token: str = "",
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> Page:
        """One part of a list: the first, or that of ``token``. ``metadata_only``: half of a pod, or less.

        Raises:
            Expired, NotFound: as ``pages``.
        """
        given = {"continue": token, "labelSelector": labels, "fieldSelector": fields}
        query = {"limit": str(PAGE), **{name: text for name, text in given.items() if text}}
        answer = await self._call(
            Call("list", resource.plural),
            "GET",
            f"{resource.path(namespace)}?{urlencode(query)}",
            accept=METADATA_LIST if metadata_only else "application/json",
        )
        meta = answer.get("metadata") or {}
        items, version = answer.get("items") or [], str(meta.get("resourceVersion") or "")
        return Page(items, version, meta.get("continue") or "")

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Page:
        """All objects at once; begins anew when the list expires under way."""
        for _ in range(TRIES):
            items: list[Raw] = []
            version = ""
            try:
                async for page in self.pages(resource, namespace, labels=labels, fields=fields):
                    items += page.items
                    version = page.resource_version
            except Expired:
                continue
            return Page(items, version)
        raise RetryableError(f"list {resource.plural}: expired {TRIES} times under way")

    async def create(
        self, resource: Resource, body: Raw, namespace: str | None = None, *, dry_run: bool = False
    ) -> Raw:
        """Create; with ``dry_run`` all is checked, unknown fields too, and nothing stored.

        Raises:
            AlreadyExists
        """
        path = resource.path(namespace)
        if dry_run:
            path += "?dryRun=All&fieldValidation=Strict"
        name = str((body.get("metadata") or {}).get("name") or "")
        return await self._call(Call("create", resource.plural, name), "POST", path, body)

    async def replace(
        self, resource: Resource, body: Raw, namespace: str | None = None, *, subresource: str = ""
    ) -> Raw:
        """Write the whole object (of a subresource: that part). With ``metadata.resourceVersion`` only if it
        is still at that version.

        Raises:
            ConflictError: it is not.
            NotFound: it is gone.
        """
        name = body["metadata"]["name"]
        call = Call("update", _plural(resource, subresource), name)
        return await self._call(call, "PUT", resource.path(namespace, name, subresource), body)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Raw,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
    ) -> Raw:
        """Change parts. With ``metadata.resourceVersion`` only if it is still at that version.

        Raises:
            ConflictError: it is not.
            NotFound: it is gone.
        """
        words = {"merge": "merge-patch", "strategic": "strategic-merge-patch"}
        return await self._call(
            Call("patch", _plural(resource, subresource), name),
            "PATCH",
            resource.path(namespace, name, subresource),
            body,
            content_type=f"application/{words[kind]}+json",
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> Raw | None:
        """Begin deletion of the object, with ``uid`` only of that very one; None when it is not there.

        The answer is the object as it is now, or a ``Status``.
        """
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        try:
            return await self._call(
                Call("delete", resource.plural, name), "DELETE", resource.path(namespace, name), options
            )
        except NotFound:
            return None
        except ConflictError as error:
            if uid and _OTHER_UID.search(str(error)):
                return None  # another object has the name now
            raise

    @asynccontextmanager
    async def stream(self, call: Call, path: str) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of a GET as it comes, for a log; its silence is no error. Not tried again.

        Raises:
            NotFound
            RetryableError: no answer; what breaks the connection later is an ``aiohttp.ClientError``.
        """
        limit = aiohttp.ClientTimeout(sock_connect=self._timeout.sock_connect)
        try:
            response = await self._request("GET", path, {"User-Agent": AGENT}, None, limit)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.requests[call.verb, call.resource, 0] += 1
            raise RetryableError(f"{call}: no answer: {_words(error)}") from error
        self.requests[call.verb, call.resource, response.status] += 1
        try:
            if response.status >= 400:
                raise error_of(call, response.status, status_of(await response.read()))
            yield response.response.content
        finally:
            response.response.close()

    @asynccontextmanager
    async def websocket(
        self, call: Call, path: str, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A web socket, for a command in a pod. Not tried again.

        Args:
            protocols: offered; the server takes the first that it knows, and refuses when it knows none.

        Raises:
            NotFound, ClusterRefused: as for every call; the server's own words do not come through.
            RetryableError: no answer; what breaks the connection later is an ``aiohttp.ClientError``.
        """
        if self._rest.pool_manager is None:
            self._rest.pool_manager = self._rest._create_pool_manager()
        headers, options = {"User-Agent": AGENT}, {}
        if token := await self._token():
            headers["Authorization"] = token
        if self.configuration.tls_server_name:
            options["server_hostname"] = self.configuration.tls_server_name
        try:
            socket = await self._rest.pool_manager.ws_connect(
                self.configuration.host + path,
                protocols=protocols,
                headers=headers,
                heartbeat=HEARTBEAT_SECONDS,
                max_msg_size=0,
                proxy=self.configuration.proxy,
                proxy_headers=self.configuration.proxy_headers,
                **options,
            )
        except aiohttp.WSServerHandshakeError as error:
            self.requests[call.verb, call.resource, error.status] += 1
            raise error_of(call, error.status, {"message": f"HTTP {error.status}"}) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.requests[call.verb, call.resource, 0] += 1
            raise RetryableError(f"{call}: no answer: {_words(error)}") from error
        self.requests[call.verb, call.resource, 101] += 1
        try:
            yield socket
        finally:
            await socket.close()

    # ---- one request ---------------------------------------------------------------------------------

    async def _call(
        self,
        call: Call,
        method: str,
        path: str,
        body: Raw | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Raw:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "resumable-training"}
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + LONGEST_CALL_SECONDS
        for number in range(1, TRIES + 1):
            last, began = number == TRIES, loop.time()
            try:
                code, answer_headers, data = await self._send(method, path, headers, body)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.requests[call.verb, call.resource, 0] += 1
                # a create may have been done: its caller looks again
                if last or method == "POST" or loop.time() > give_up_at:
                    raise RetryableError(f"{call}: no answer: {_words(error)}") from error
                await asyncio.sleep(_wait_seconds(number))
                continue
            self.requests[call.verb, call.resource, code] += 1
            self.answered(call.verb, loop.time() - began)
            self._note_date(answer_headers.get("Date"))
            if code < 400:
                found: Raw = data
                return found
            status = status_of(data)
            wait = retry_after_seconds(answer_headers, status)
            if last or loop.time() > give_up_at or not await self._again(method, code, status, wait):
                raise error_of(call, code, status)
            await asyncio.sleep(_wait_seconds(number) if wait is None else wait * random.uniform(1.0, 1.25))  # noqa: S311
        raise AssertionError("unreachable")

    def _note_date(self, text: str | None) -> None:
        try:
            date = parsedate_to_datetime(text or "")
        except ValueError:
            return  # a proxy's own answer, perhaps
        self._date = date.timestamp() + 0.5, time.monotonic()  # it is cut off to whole seconds

    async def _again(self, method: str, code: int, status: Raw, wait: float | None) -> bool:
        """Whether the same request may do better."""
        if code == 401:
            return await self._renew()
        if wait is not None and wait > LONGEST_WAIT_SECONDS:
            return False
        if code == 409 and method == "POST":
            return status.get("reason") == "Conflict"  # several at once at one quota; nothing was created
        return code == 429 or (code >= 500 and method != "POST")

    async def _send(self, method: str, path: str, headers: dict[str, str], body: Raw | None) -> Any:
        """Status code and headers of the answer, and its object; of a refusal its body as it came."""
        response = await self._request(method, path, headers, body, self._timeout)
        data = await response.read()
        return response.status, response.headers, data if response.status >= 400 else _object(data)

    async def _request(
        self, method: str, path: str, headers: dict[str, str], body: Raw | None, limit: aiohttp.ClientTimeout
    ) -> Any:
        if token := await self._token():
            headers = {**headers, "Authorization": token}
        return await self._rest.request(
            method, self.configuration.host + path, headers=headers, body=body, _request_timeout=limit
        )

    async def _token(self) -> str | None:
        token: str | None = await self.configuration.get_api_key_with_prefix(
            "BearerToken", alias="authorization"
        )
        return token

    async def _renew(self) -> bool:
        """Read the credentials anew; False when that was done just now."""
        if self._reload is None:
            return False
        async with self._reload_lock:
            now = asyncio.get_running_loop().time()
            if now - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = now
            try:
                await self._reload(self.configuration)
            except UserError as error:
                logger.warning("credentials could not be read anew: %s", error)
                return False
            return True


def _read_environment_once(configuration: Configuration) -> None:
    """Which proxy it names; a user's netrc is for other servers.

    The client would look for both anew at each request, in a thread each time: a busy event loop waits longer
    for two threads than for most answers.
    """
    host = urlsplit(configuration.host)
    if not configuration.proxy and not proxy_bypass(host.hostname or ""):
        configuration.proxy = getproxies().get(host.scheme)
    configuration.client_session_kwargs = {**(configuration.client_session_kwargs or {}), "trust_env": False}


def _loader(kubeconfig: Path | None, context: str | None) -> Reload:
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and Path(SERVICE_TOKEN_FILENAME).exists()

    async def load(configuration: Configuration) -> None:
        try:
            if in_pod and kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                path = str(kubeconfig) if kubeconfig else None
                await load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=path, context=context, client_configuration=configuration
                )
        except (ConfigException, OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            where = kubeconfig or "the pod's service account" if in_pod else kubeconfig or "kubeconfig"
            raise UserError(f"no credentials for a cluster from {where}: {error}") from error

    return load


def _plural(resource: Resource, subresource: str) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural


def _object(data: bytes) -> Raw:
    """What is no JSON object (a login page, half an answer) did not come from the API server."""
    try:
        plain = orjson.loads(data)
    except ValueError as error:
        raise aiohttp.ClientPayloadError("what came is no JSON") from error
    if not isinstance(plain, dict):
        raise aiohttp.ClientPayloadError("what came is no JSON object")
    return plain


def _wait_seconds(number: int) -> float:
    """After the ``number``-th try: doubling, with jitter so that many callers don't return at once."""
    return FIRST_WAIT_SECONDS * 2.0 ** (number - 1) * random.uniform(0.5, 1.5)  # noqa: S311


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
