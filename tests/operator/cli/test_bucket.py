"""`rtj checkpoints` of a store in object storage, by its URL and by the run that made it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_store import Store, flip_a_bit
from run_samples import SPEC

from bed.s3 import S3Server
from resumable_training.checkpoint.stores import open_store
from resumable_training.contract.manifest import MARKER_FILE, checkpoint_name


@pytest.fixture
def bucket(s3_url: str, tmp_path: Path) -> str:
    """The URL of a store with steps 10 and 20, of which 10 is damaged, and one of another program's."""
    local = Store(tmp_path / "store")
    local.record(1)
    flip_a_bit(local.save(10, 1))
    local.save(20, 1)
    (local.root / "epoch-3").mkdir()
    (local.root / "epoch-3" / MARKER_FILE).write_bytes(b"no pickle")
    remote = open_store(s3_url)
    for path in sorted(local.root.rglob("*")):
        if path.is_file():
            remote.put(str(path.relative_to(local.root)), path.read_bytes())
    return s3_url


def test_a_store_in_a_bucket_is_listed_and_verified(bucket: str, rtj) -> None:
    """As one in a directory is, with the same exit codes."""
    told = json.loads(rtj("checkpoints", "list", bucket, "--json").output)
    assert [item["name"] for item in told] == [checkpoint_name(20, 1), checkpoint_name(10, 1), "epoch-3"]
    assert (told[0]["why_not"], told[2]["foreign"]) == ("", True)
    result = rtj("checkpoints", "verify", bucket)
    assert result.exit_code == 1
    first, second, third = result.output.splitlines()
    assert first == f"{checkpoint_name(20, 1)}  ok"
    assert second.startswith(f"{checkpoint_name(10, 1)}  damaged: __0_0.distcp")
    assert third.startswith("epoch-3  damaged: .metadata")
    one = rtj("checkpoints", "verify", f"{bucket}/{checkpoint_name(20, 1)}")
    assert (one.exit_code, one.output) == (0, f"{checkpoint_name(20, 1)}  ok\n")
    assert f"give what holds it, {bucket}" in rtj("checkpoints", "list", f"{bucket}/epoch-3").output


def test_what_is_not_there(bucket: str, rtj) -> None:
    """An empty prefix lists as empty and does not verify as whole; steps that are there are named."""
    assert rtj("checkpoints", "list", f"{bucket}-none").output == f"{bucket}-none holds no checkpoints\n"
    result = rtj("checkpoints", "verify", f"{bucket}-none")
    assert (result.exit_code, "holds no complete checkpoint" in result.output) == (2, True)
    assert "it has steps 20, 10\n" in rtj("checkpoints", "verify", bucket, "--step", 7).output


def test_a_run_with_its_store_in_a_bucket(bucket: str, bare, rtj, s3: S3Server, monkeypatch) -> None:
    """The user knows the run; it also knows the endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    container = {
        "name": "worker",
        "command": ["x"],
        "env": [{"name": "AWS_ENDPOINT_URL", "value": s3.endpoint}],
    }
    template = {"spec": {"containers": [container]}}
    bare.job({**SPEC, "template": template, "checkpoint": {"s3": {"bucket": name, "prefix": prefix}}})
    result = rtj("checkpoints", "list", bare.path)
    assert result.exit_code == 0, result.output
    assert "next resume point" in result.output


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/x", "checkpoints go to a directory or to s3://BUCKET/PREFIX"),
        ("s3:///x", "s3://BUCKET/PREFIX"),
    ],
)
def test_an_url_that_is_no_store_is_a_usage_error(rtj, url: str, message: str) -> None:
    """In one line that says what could be one."""
    result = rtj("checkpoints", "list", url)
    assert result.exit_code == 2
    assert message in result.output


def test_without_the_client_it_is_said_what_to_install() -> None:
    """`pip install` without extras has no S3 client."""
    code = (
        "import sys; sys.modules['obstore'] = sys.modules['obstore.store'] = sys.modules['torch'] = None\n"
        "from resumable_operator.cli.main import cli\n"
        "cli.main(['checkpoints', 'list', 's3://bucket/x'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "needs obstore: pip install" in result.stderr


def prefixed(monkeypatch: pytest.MonkeyPatch, s3: S3Server, prefix: str, **changes: str) -> None:
    for variable, value in {**s3.environment(), **changes}.items():
        monkeypatch.setenv(f"{prefix}{variable}", value)


def test_two_services_with_credentials_of_their_own(bucket: str, rtj, s3: S3Server, monkeypatch) -> None:
    """Each side is reached with its own variables alone, and with none of the plain ones: these are wrong."""
    prefixed(monkeypatch, s3, "OLD_")
    prefixed(monkeypatch, s3, "NEW_")
    prefixed(monkeypatch, s3, "", AWS_SECRET_ACCESS_KEY="wrong", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another account")
    both = ("--source-env", "OLD_", "--target-env", "NEW_")
    result = rtj("checkpoints", "copy", bucket, f"{bucket}-kept", *both)
    assert result.exit_code == 0, result.output
    assert result.output == f"{bucket}-kept/{checkpoint_name(20, 1)}  7.0 kB copied, verified\n"
    prefixed(monkeypatch, s3, "")
    assert rtj("checkpoints", "verify", f"{bucket}-kept").output == f"{checkpoint_name(20, 1)}  ok\n"


def test_one_side_may_have_the_plain_variables(bucket: str, rtj, s3: S3Server, monkeypatch, tmp_path) -> None:
    """And whose credentials are refused is told, with its place."""
    prefixed(monkeypatch, s3, "OLD_")
    copied = rtj("checkpoints", "copy", bucket, tmp_path / "far", "--source-env", "OLD_")
    assert copied.exit_code == 0, copied.output
    prefixed(monkeypatch, s3, "")
    prefixed(monkeypatch, s3, "NEW_", AWS_SECRET_ACCESS_KEY="wrong")
    refused = rtj("checkpoints", "copy", bucket, f"{bucket}-no", "--target-env", "NEW_")
    assert (refused.exit_code, f"Error: {bucket}-no: " in refused.output) == (6, True), refused.output
    assert "SignatureDoesNotMatch" in refused.output


def test_prefixes_that_can_not_be(bucket: str, rtj, tmp_path) -> None:
    """None of the variables is there, or there is no bucket for them."""
    for options, words in (
        (
            (bucket, tmp_path / "far", "--source-env", "OLD_"),
            "no variable OLD_AWS_... is set, such as OLD_AWS_A",
        ),
        ((bucket, tmp_path / "far", "--target-env", "X_"), f"{tmp_path / 'far'} is a directory"),
        ((tmp_path, f"{bucket}-kept", "--source-env", "X_"), "--source-env is for buckets"),
    ):
        result = rtj("checkpoints", "copy", *options)
        assert (result.exit_code, words in result.output) == (2, True), result.output
