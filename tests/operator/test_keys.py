"""The master key: made once, shared by racing operators, changed without losing workers, never told."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from resumable_operator import keys
from resumable_operator.errors import FatalError
from resumable_training.contract import signing

NAMESPACE = "system"
OLD, NEW = b"o" * keys.MASTER_BYTES, b"n" * keys.MASTER_BYTES


class FakeSecrets:
    """A namespace's Secrets; every call gives others a chance to come first."""

    def __init__(self) -> None:
        self.stored: dict[str, Mapping[str, Any]] = {}
        self.creates = 0

    async def read_secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        await asyncio.sleep(0)
        return self.stored.get(f"{namespace}/{name}")

    async def create_secret(self, namespace: str, body: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        self.creates += 1
        key = f"{namespace}/{body['metadata']['name']}"
        if key in self.stored:
            return False
        self.stored[key] = body
        return True

    def put(self, **masters: bytes | str) -> None:
        data = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in masters.items()
        }
        self.stored[f"{NAMESPACE}/{keys.SECRET_NAME}"] = {"data": data}

    def remove(self) -> None:
        self.stored.clear()


@pytest.fixture
def api() -> FakeSecrets:
    return FakeSecrets()


async def test_made_once_and_read_again(api: FakeSecrets) -> None:
    """The first operator makes the master key, the next one uses the same."""
    first, second = await keys.load(api, NAMESPACE), await keys.load(api, NAMESPACE)
    assert api.creates == 1
    assert first.current_key_id("uid") == second.current_key_id("uid")


async def test_new_masters_are_random(api: FakeSecrets) -> None:
    """Two installations have nothing in common."""
    first = await keys.load(api, NAMESPACE)
    assert first.current_key_id("uid") != (await keys.load(FakeSecrets(), NAMESPACE)).current_key_id("uid")


async def test_racing_operators_agree(api: FakeSecrets) -> None:
    """Of operators that start at once one creates the Secret and all use it."""
    rings = await asyncio.gather(*(keys.load(api, NAMESPACE) for _ in range(5)))
    assert api.creates == 5
    assert len({ring.current_key_id("uid") for ring in rings}) == 1


async def test_jobs_have_keys_of_their_own(api: FakeSecrets) -> None:
    """The key is the contract's derivation from the master, and so another one for every job."""
    api.put(current=NEW)
    ring = await keys.load(api, NAMESPACE)
    assert ring.key("a", ring.current_key_id("a")) == signing.derive_job_key(NEW, "a")
    assert ring.key("a", "") != ring.key("b", "")


async def test_rotation_keeps_the_previous_key(api: FakeSecrets) -> None:
    """After a change of the master new workers get the new key, old ones are spoken to with theirs."""
    api.put(current=OLD)
    ring = await keys.load(api, NAMESPACE)
    old_id = ring.current_key_id("uid")
    api.put(current=NEW, previous=OLD)
    await ring.refresh(api, NAMESPACE)
    assert ring.current_key_id("uid") == signing.key_id(signing.derive_job_key(NEW, "uid")) != old_id
    assert ring.key("uid", old_id) == signing.derive_job_key(OLD, "uid")


async def test_key_of_no_master_in_force(api: FakeSecrets, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose key is lost is tried with the current one, and it is said once."""
    api.put(current=NEW)
    ring = await keys.load(api, NAMESPACE)
    for _ in range(2):
        assert ring.key("uid", "0123456789abcdef") == signing.derive_job_key(NEW, "uid")
    assert caplog.text.count("0123456789abcdef") == 1


async def test_deleted_secret_is_put_back(api: FakeSecrets) -> None:
    """Deleting the Secret under a running operator loses nothing, the previous key neither."""
    api.put(current=NEW, previous=OLD)
    ring = await keys.load(api, NAMESPACE)
    api.remove()
    await ring.refresh(api, NAMESPACE)
    again = await keys.load(api, NAMESPACE)
    old_id = signing.key_id(signing.derive_job_key(OLD, "uid"))
    assert again.current_key_id("uid") == ring.current_key_id("uid")
    assert again.key("uid", old_id) == signing.derive_job_key(OLD, "uid")


DAMAGED = {
    "nothing": {},
    "not base64": {"current": "%%%"},
    "too short": {"current": b"short"},
    "previous too short": {"current": NEW, "previous": b"short"},
    "only previous": {"previous": OLD},
}


@pytest.mark.parametrize("masters", DAMAGED.values(), ids=DAMAGED.keys())
async def test_damaged_secret(api: FakeSecrets, masters: dict[str, bytes | str]) -> None:
    """At the start a damaged Secret is an error that names the field, not its value."""
    api.put(**masters)
    with pytest.raises(FatalError, match=r"data\.(current|previous)") as caught:
        await keys.load(api, NAMESPACE)
    assert "c2hvcnQ" not in str(caught.value)


async def test_secret_damaged_later(api: FakeSecrets, caplog: pytest.LogCaptureFixture) -> None:
    """Under a running operator it is reported and the keys stay as they were."""
    api.put(current=NEW)
    ring = await keys.load(api, NAMESPACE)
    before = ring.current_key_id("uid")
    api.put(current="damaged")
    await ring.refresh(api, NAMESPACE)
    assert ring.current_key_id("uid") == before
    assert "data.current" in caplog.text


async def test_keys_are_not_told(api: FakeSecrets, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a log line nor the text of an object holds a key."""
    with caplog.at_level(logging.DEBUG):
        ring = await keys.load(api, NAMESPACE)
        ring.key("uid", "unknown")
        api.remove()
        await ring.refresh(api, NAMESPACE)
    (secret,) = api.stored.values()
    encoded = secret["data"]["current"]
    master = base64.b64decode(encoded)
    text = f"{caplog.text} {ring!r} {keys.read_masters(secret)!r}"
    assert caplog.text
    assert [form for form in (encoded, master.hex(), repr(master)) if form in text] == []


def test_made_up_key_ids_fill_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever changes a pod's annotation again and again fills neither memory nor the log."""
    ring = keys.KeyRing(keys.new_masters())
    for number in range(3 * keys.MOST_UNKNOWN):
        ring.key("uid", f"made-up-{number}")
    assert len(caplog.records) <= keys.MOST_UNKNOWN
