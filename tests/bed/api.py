"""A small synchronous client of the API server for tests and for the bed itself: dicts in, dicts out.

Nothing is cached, retried or waited for; what the server says comes back as it is, errors as ApiError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

import urllib3

Object = dict[str, Any]
PatchType = Literal["merge", "strategic", "json", "apply"]

PATCH_TYPES: Mapping[PatchType, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
REQUEST_SECONDS = 60.0


class ApiError(Exception):
    """The server said no, or (status 0, reason Unreachable) nothing at all.

    `status` is the HTTP status, `reason` the machine's word (NotFound, Conflict, Invalid, ...), `message` the
    text that a user of kubectl sees, `causes` the list of {reason, message, field} of a 422.
    """

    def __init__(self, status: int, reason: str, message: str, causes: list[Object] | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes or []


def path(
    group_version: str,
    plural: str,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """Path of a collection or an object: path("apps/v1", "deployments", "default", "web", "scale")."""
    root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
    scope = [] if namespace is None else ["namespaces", namespace]
    parts = [*scope, plural, *(part for part in (name, subresource) if part is not None)]
    return "/".join([root, *(quote(part, safe="/") for part in parts)])


class Api:
    """One identity at one API server. Safe to use from several threads."""

    def __init__(self, url: str, token: str, ca_file: Path | None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._pool = urllib3.PoolManager(
            maxsize=32, retries=False, ca_certs=str(ca_file) if ca_file else None, cert_reqs="CERT_REQUIRED"
        )

    def get(self, path: str, **params: Any) -> Object:
        """One object, or a whole List object."""
        return self._json("GET", path, params)

    def find(self, path: str, **params: Any) -> Object | None:
        """As get; None when there is none."""
        try:
            return self.get(path, **params)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, **params: Any) -> list[Object]:
        """The items of a collection; params as in the API: labelSelector, fieldSelector, ..."""
        items: list[Object] = self.get(path, **params)["items"]
        return items

    def create(self, path: str, body: Object, **params: Any) -> Object:
        """POST to a collection or a subresource; the object as the server made it."""
        return self._json("POST", path, params, body)

    def update(self, path: str, body: Object, **params: Any) -> Object:
        """PUT: the whole object, with the precondition of its resourceVersion if that is in it."""
        return self._json("PUT", path, params, body)

    def patch(self, path: str, body: Any, kind: PatchType = "merge", **params: Any) -> Object:
        """PATCH; kind `apply` needs fieldManager=."""
        return self._json("PATCH", path, params, body, PATCH_TYPES[kind])

    def patch_status(self, path: str, body: Any, kind: PatchType = "merge", **params: Any) -> Object:
        """PATCH of the status subresource of the object at `path`."""
        return self.patch(f"{path}/status", body, kind, **params)

    def delete(self, path: str, body: Object | None = None, **params: Any) -> Object:
        """DELETE; `body` is DeleteOptions, params e.g. gracePeriodSeconds=0."""
        return self._json("DELETE", path, params, body)

    def text(self, path: str, **params: Any) -> str:
        """What is not JSON: logs, /readyz, /metrics."""
        return self._request("GET", path, params).data.decode(errors="replace")

    def watch(self, path: str, seconds: float, **params: Any) -> Iterator[Object]:
        """Watch events {type, object} of a collection until the server closes, at the latest after `seconds`.

        Without resourceVersion= it begins with an ADDED for each existing object. An ERROR event (410 Gone
        and others) is raised as ApiError.
        """
        query = {"watch": "true", "timeoutSeconds": max(1, round(seconds)), **params}
        response = self._request("GET", path, query, stream_seconds=seconds + 10)
        try:
            for line in _lines(response):
                event: Object = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 0), event["object"])
                yield event
        finally:
            response.close()

    def _json(
        self, method: str, path: str, params: Mapping[str, Any], body: Any = None, content_type: str = ""
    ) -> Object:
        answer: Object = json.loads(self._request(method, path, params, body, content_type).data)
        return answer

    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any],
        body: Any = None,
        content_type: str = "",
        stream_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        query = urlencode({key: _text(value) for key, value in params.items() if value is not None})
        try:
            response = self._pool.request(
                method,
                f"{self.url}{path}{'?' if query else ''}{query}",
                body=None if body is None else json.dumps(body).encode(),
                headers={**self._headers, "Content-Type": content_type or "application/json"},
                timeout=urllib3.Timeout(connect=10, read=stream_seconds or REQUEST_SECONDS),
                preload_content=stream_seconds is None,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        if response.status >= 400:
            raise _error(response.status, response.data)
        return response


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Lines as they come in; the end of the stream by whatever means is the end."""
    rest = b""
    try:
        for chunk in response.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    except urllib3.exceptions.HTTPError:
        return


def _error(status: int, answer: bytes | Object) -> ApiError:
    """From a Status object; from plain text where a proxy or filter answered instead."""
    if isinstance(answer, bytes):
        try:
            answer = json.loads(answer)
        except ValueError:
            return ApiError(status, "", answer.decode(errors="replace").strip())  # type: ignore[union-attr]
    if not isinstance(answer, dict):
        return ApiError(status, "", str(answer))
    details = answer.get("details") or {}
    return ApiError(status, answer.get("reason", ""), answer.get("message", ""), details.get("causes") or [])
