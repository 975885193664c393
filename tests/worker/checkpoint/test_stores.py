"""From what a user writes to a store: directories, S3, and what is neither."""

from pathlib import Path

import pytest

from resumable_training.checkpoint.engine import CheckpointEngine
from resumable_training.checkpoint.errors import StorageUnavailable, StoreMisconfigured
from resumable_training.checkpoint.s3 import Patience, S3Store, split_url
from resumable_training.checkpoint.stores import open_checkpoint, open_store
from resumable_training.contract import exitcodes
from resumable_training.contract.assignment import CheckpointConfig


@pytest.mark.parametrize(
    "url", ["gs://bucket/team", "file:///tmp/x", "s3://", "s3:///a", "s3://b/a//c", "s3://b/../c"]
)
def test_a_url_is_not_taken_for_a_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no store of ours ends the job with its name, not in a directory of the container."""
    monkeypatch.chdir(tmp_path)
    engine = CheckpointEngine(CheckpointConfig(directory=url), "ns/job", "uid", 1, None, 0, 1, print)
    with pytest.raises(StoreMisconfigured, match=url) as caught:
        engine.preflight()
    assert caught.value.exit_code == exitcodes.USER_ERROR
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://b/team/job/", "b", "team/job")],
)
def test_buckets_and_prefixes(url: str, bucket: str, prefix: str) -> None:
    """A prefix may be missing, and a slash at the end means nothing."""
    assert split_url(url) == (bucket, prefix)
    assert open_store(url).location == f"s3://{bucket}/{prefix}".rstrip("/")


def test_one_checkpoint_is_a_name_in_a_store(tmp_path: Path) -> None:
    """A path or an URL of a checkpoint is split into its store and its name there."""
    store, name = open_checkpoint(str(tmp_path / "step-00000001.1"))
    assert (store.location, name) == (str(tmp_path), "step-00000001.1")
    store, name = open_checkpoint("s3://b/team/step-00000001.1/")
    assert (store.location, name) == ("s3://b/team", "step-00000001.1")
    store, name = open_checkpoint("s3://b/step-00000001.1")
    assert (store.location, name) == ("s3://b", "step-00000001.1")
    with pytest.raises(StoreMisconfigured, match="is a bucket"):
        open_checkpoint("s3://b")


def test_the_client_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without the client says which package to install, before anything is trained."""
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(StoreMisconfigured, match=r"pip install 'resumable-training\[worker\]'"):
        open_store("s3://bucket/team")


def test_a_variable_that_the_client_can_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own error is the user's to mend, and stays in one line."""
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "banana")
    with pytest.raises(StoreMisconfigured, match=r'^s3://bucket/team: .*"banana" as boolean: mend') as caught:
        open_store("s3://bucket/team")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["minio:9000", "127.0.0.1:9000", "http://", "ftp://x", "http://a b", "//x"]
)
def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Without its scheme the client would panic, and with it the process."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, address)
        with pytest.raises(StoreMisconfigured, match=f"{name} is .*give an address such as https://"):
            open_store("s3://bucket/prefix")
        monkeypatch.delenv(name)
    with pytest.raises(StoreMisconfigured):
        open_store("s3://bucket/prefix", {"AWS_ENDPOINT_URL": address})


def test_a_server_that_is_waited_for_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sits before a terminal need not wonder for a minute; what follows is the same as without."""
    told: list[str] = []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    hasty = Patience(request=1.0, connect=1.0, retry=0.2, first_pause=0.01, longest_pause=0.02)
    store = S3Store("s3://bucket/prefix", hasty, tell=told.append)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            store.entries()
    (text,) = told
    assert text.startswith("s3://bucket/prefix: ")
    assert text.endswith("trying again for up to 0 s")
