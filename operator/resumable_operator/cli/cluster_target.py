"""PURE: where a job's checkpoint is to go that lies in a cluster, and what its pod needs to get there."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import Any

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.reader_pod import TARGET_DIRECTORY, Needs, service_account
from resumable_operator.decide.observation import Job
from resumable_operator.manifests_storage import memory_bytes, s3_env
from resumable_operator.model import S3Storage

CLAIM_SCHEME, S3_SCHEME = "claim://", "s3://"
PREFIX = "TARGET_"  # of the pod's variables for the target's bucket
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True)
class ClaimPath:
    """A place on a claim. ``path`` is relative; empty: the claim itself."""

    claim: str
    path: str

    def __str__(self) -> str:
        return f"{CLAIM_SCHEME}{self.claim}/{self.path}".rstrip("/")

    @property
    def in_pod(self) -> str:
        return f"{TARGET_DIRECTORY}/{self.path}".rstrip("/")

    def named(self, text: str) -> str:
        """What was said in the pod, with this place as it is called outside where a path begins with it."""
        whole = rf"(?<![\w./-]){re.escape(self.in_pod)}(?![\w-]|\.+[\w-])"
        return re.sub(whole, lambda _: str(self), text)


@dataclass(frozen=True)
class Bucket:
    """Object storage. ``secret``: with its keys; None: reached as the job reaches its own."""

    url: str
    secret: str | None = None
    endpoint: str | None = None


def claim_path(text: str) -> ClaimPath | None:
    """``claim://NAME/PATH``; None: it is no such place.

    Raises:
        UsageProblem: it can't be one.
    """
    if not text.startswith(CLAIM_SCHEME):
        return None
    name, _, path = text.removeprefix(CLAIM_SCHEME).partition("/")
    parts = [part for part in path.split("/") if part]
    if not _NAME.fullmatch(name) or any(part in (".", "..") for part in parts):
        raise UsageProblem(f"{text} is no place on a claim: give {CLAIM_SCHEME}NAME/PATH")
    return ClaimPath(name, posixpath.join("", *parts))


def bucket(text: str, secret: str | None, endpoint: str | None) -> Bucket | None:
    """``s3://BUCKET/PREFIX``; None: it is none.

    Raises:
        UsageProblem: keys or an endpoint for something else.
    """
    if text.startswith(S3_SCHEME):
        return Bucket(text, secret, endpoint)
    if secret is not None or endpoint is not None:
        option = "--target-secret" if secret is not None else "--target-endpoint"
        raise UsageProblem(f"{option} is for buckets, and {text} is none")
    return None


def needs_of(job: Job, target: Bucket | ClaimPath) -> tuple[Needs, list[str]]:
    """What the pod that copies has, and options of its ``rtj checkpoints copy``.

    It pins what it copies, so the job's claim is mounted for writing.

    Raises:
        UsageProblem: nothing says how the bucket is reached.
    """
    if isinstance(target, ClaimPath):
        return Needs(writes=True, claim=target.claim), []
    if target.secret is not None:
        env = tuple(_prefixed(entry) for entry in _secret_env(target.secret, target.endpoint))
        return Needs(writes=True, env=env), ["--target-env", PREFIX]
    if job.spec.checkpoint.s3 is None and service_account(job) is None:
        raise UsageProblem(
            f"{target.url}: give --target-secret NAME, a Secret of namespace {job.namespace} with"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION or AWS_ENDPOINT_URL where needed"
        )
    if target.endpoint is not None:
        raise UsageProblem("--target-endpoint goes with --target-secret")
    return Needs(writes=True, identity=True), []


def _secret_env(secret: str, endpoint: str | None) -> list[dict[str, Any]]:
    """As for a job's own bucket; the Secret may also have the endpoint."""
    env: list[dict[str, Any]] = s3_env(S3Storage(bucket="target", secret_name=secret, endpoint=endpoint))
    if endpoint is None:
        reference = {"name": secret, "key": "AWS_ENDPOINT_URL", "optional": True}
        env.append({"name": "AWS_ENDPOINT_URL", "valueFrom": {"secretKeyRef": reference}})
    return env


def _prefixed(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "name": PREFIX + entry["name"]}


def with_memory(needs: Needs, text: str | None, otherwise: int) -> Needs:
    """Memory as a quantity such as 8Gi, which is kept for the pod; None: a limit of so many bytes.

    Raises:
        UsageProblem: it is no quantity.
    """
    if text is None:
        return replace(needs, memory=otherwise)
    found = memory_bytes(text)
    if found is None:
        raise UsageProblem(f"--memory {text}: give a quantity such as 8Gi")
    return replace(needs, memory=found, reserved=True)
