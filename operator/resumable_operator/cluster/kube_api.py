"""A thin client of the Kubernetes API: plain JSON in and out, errors mapped to ``resumable_operator.errors``.

Credentials, TLS and token refresh are those of ``kubernetes.aio``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path


class KubeApi:
    """Use ``await KubeApi.login()``; ``await close()`` at the end."""

    requests: Counter[tuple[str, str, int]]  # (verb, resource, status code) -> number; code 0: no answer

    @classmethod
    async def login(cls, kubeconfig: Path | None = None, context: str | None = None) -> KubeApi:
        """In-cluster credentials when there are any, unless a kubeconfig is named; else the usual kubeconfig.

        Raises:
            UserError: there are no credentials, or they can't be read.
        """
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
