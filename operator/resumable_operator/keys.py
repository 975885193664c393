"""The operator's master key, and the keys of jobs that follow from it.

One Secret in the operator's own namespace holds 32 random bytes that the operator made itself; every job's
key is derived from them and the job's uid. The process makes one ``KeyRing`` at its start and lets it
``refresh`` now and then; the cluster asks it which key a new worker gets and which one an old worker has.

To change the master: move ``current`` to ``previous`` in the Secret and put new bytes in ``current``. New
workers get the new key, those that run are still spoken to with the old one. No key is ever logged.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from resumable_operator.cluster.kube_api import SECRETS, KubeApi
from resumable_operator.cluster.kube_errors import AlreadyExists
from resumable_operator.errors import FatalError
from resumable_training.contract import signing
from resumable_training.contract.labels import GROUP

logger = logging.getLogger(__name__)

SECRET_NAME = "resumable-training-master"  # noqa: S105 -- a name
MASTER_BYTES = 32
CURRENT, PREVIOUS = "current", "previous"
MOST_UNKNOWN = 1_000  # ids of unknown keys that were told about
LABELS = {"app.kubernetes.io/managed-by": "resumable-training", "app.kubernetes.io/component": "master-key"}


PURPOSE = "The keys of all agents follow from this. If it is lost, all workers are replaced."


class Secrets(Protocol):
    """What this needs of the API server: two verbs on Secrets of one namespace."""

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The Secret; None when there is none.

        Raises:
            RetryableError: ask again. ClusterRefused: no right to.
        """
        ...

    async def create_secret(self, namespace: str, body: Mapping[str, Any]) -> bool:
        """Create; False when one of that name is there already.

        Raises:
            RetryableError: ask again. ClusterRefused: no right to.
        """
        ...


@dataclass(frozen=True, repr=False)
class Masters:
    """The master keys in force, newest first."""

    keys: tuple[bytes, ...]

    def secret(self, namespace: str) -> dict[str, Any]:
        """The Secret that holds them."""
        named = zip((CURRENT, PREVIOUS), self.keys, strict=False)
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": SECRET_NAME,
                "namespace": namespace,
                "labels": LABELS,
                "annotations": {f"{GROUP}/purpose": PURPOSE},
            },
            "data": {name: base64.b64encode(key).decode() for name, key in named},
        }


def new_masters() -> Masters:
    """Random ones."""
    return Masters((secrets.token_bytes(MASTER_BYTES),))


def read_masters(secret: Mapping[str, Any]) -> Masters:
    """The master keys in a Secret.

    Raises:
        FatalError: it does not hold what it should; the message names the field, never its value.
    """
    data = secret.get("data") or {}
    if not data.get(CURRENT):
        raise FatalError(f"Secret {SECRET_NAME}: data.{CURRENT} is missing; restore it, or delete the Secret")
    return Masters(tuple(_decode(name, data[name]) for name in (CURRENT, PREVIOUS) if data.get(name)))


def _decode(name: str, text: object) -> bytes:
    try:
        key = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != MASTER_BYTES:
        raise FatalError(
            f"Secret {SECRET_NAME}: data.{name} must be {MASTER_BYTES} bytes in base64; "
            "restore it, or delete the Secret (then all workers are replaced)"
        )
    return key


class KeyRing:
    """Keys of jobs. Its text shows none of them."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters
        self._unknown: set[str] = set()

    def current_key_id(self, job_uid: str) -> str:
        """Id of the key that a worker of this job is started with now."""
        return signing.key_id(signing.derive_job_key(self._masters.keys[0], job_uid))

    def fingerprints(self) -> tuple[str, ...]:
        """One for each master key, newest first: says which key it is without telling the key."""
        return tuple(signing.key_id(master) for master in self._masters.keys)

    def key(self, job_uid: str, key_id: str) -> bytes:
        """The job's key of that id; without an id the current one.

        An id that no master in force gives means that the master was replaced under a running worker: the
        current key is returned, its agent will refuse it, and the worker is judged by its silence.
        """
        keys = [signing.derive_job_key(master, job_uid) for master in self._masters.keys]
        for key in keys:
            if key_id and signing.key_id(key) == key_id:
                return key
        if key_id and key_id not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
            self._unknown.add(key_id)
            logger.warning("a worker was started with key %s, which no master key in force gives", key_id)
        return keys[0]

    async def refresh(self, api: Secrets, namespace: str) -> None:
        """Take over a changed Secret; put a deleted one back.

        Raises:
            RetryableError, ClusterRefused: the Secret could not be read; the keys stay as they are.
        """
        secret = await api.read_secret(namespace, SECRET_NAME)
        if secret is None:
            logger.warning("Secret %s/%s is gone; putting it back", namespace, SECRET_NAME)
            await api.create_secret(namespace, self._masters.secret(namespace))
            return
        try:
            masters = read_masters(secret)
        except FatalError as error:
            logger.error("%s; going on with the keys as they were", error)
            return
        if masters != self._masters:
            logger.info("the master key was changed; new workers get keys that follow from the new one")
            self._masters = masters


async def load(api: Secrets, namespace: str) -> KeyRing:
    """The keys in the Secret, which is made if there is none; who comes second takes the first one's.

    Raises:
        RetryableError: ask again. ClusterRefused: no right to. FatalError: the Secret is damaged.
    """
    secret = await api.read_secret(namespace, SECRET_NAME)
    if secret is None:
        masters = new_masters()
        if await api.create_secret(namespace, masters.secret(namespace)):
            logger.info("made the master key: Secret %s/%s", namespace, SECRET_NAME)
            return KeyRing(masters)
        secret = await api.read_secret(namespace, SECRET_NAME)
    if secret is None:
        raise FatalError(f"Secret {namespace}/{SECRET_NAME} can neither be created nor read")
    return KeyRing(read_masters(secret))


class ApiSecrets:
    """``Secrets`` of the real API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return await self._api.get(SECRETS, name, namespace)

    async def create_secret(self, namespace: str, body: Mapping[str, Any]) -> bool:
        try:
            await self._api.create(SECRETS, dict(body), namespace)
        except AlreadyExists:
            return False
        return True
