"""Lets child processes import the rank programs of this directory by name, and S3 with trouble in between."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from s3_proxy import S3Proxy

from bed.s3 import S3Server
from resumable_training.checkpoint import s3 as s3_store

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def s3_trouble(s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """What makes trouble between the clients of this test and the server; they lose patience early."""
    hasty = partial(
        s3_store.Patience, request=3.0, connect=3.0, retry=1.0, first_pause=0.02, longest_pause=0.2
    )
    monkeypatch.setattr(s3_store, "Patience", hasty)
    monkeypatch.setattr(s3_store, "LEAST_BYTES_PER_SECOND", 1 << 40)
    with S3Proxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
