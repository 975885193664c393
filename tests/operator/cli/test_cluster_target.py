"""Where a pod is to copy to, and what it gets for that."""

from __future__ import annotations

from typing import Any

import pytest
from job_objects import stored_job

from resumable_operator.cli.cluster_target import (
    Bucket,
    ClaimPath,
    bucket,
    claim_path,
    needs_of,
    with_memory,
)
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.reader_pod import READS, Needs
from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.decide.observation import Job


def job(**spec: Any) -> Job:
    return job_of(stored_job(**spec))


@pytest.mark.parametrize(
    ("text", "claim", "in_pod"),
    [
        ("claim://kept", "kept", "/target"),
        ("claim://kept/", "kept", "/target"),
        ("claim://kept/a//b/", "kept", "/target/a/b"),
        ("claim://kept.one/a b", "kept.one", "/target/a b"),
    ],
)
def test_a_place_on_a_claim(text: str, claim: str, in_pod: str) -> None:
    """Where it is in the pod that has it mounted."""
    found = claim_path(text)
    assert found is not None
    assert (found.claim, found.in_pod) == (claim, in_pod)
    assert claim_path(str(found)) == found


@pytest.mark.parametrize(
    ("place", "said", "told"),
    [
        ("claim://kept", "/target", "claim://kept"),
        ("claim://kept", '"/target/gpt"', '"claim://kept/gpt"'),
        (
            "claim://kept",
            "/checkpoints/target/gpt to /target/gpt",
            "/checkpoints/target/gpt to claim://kept/gpt",
        ),
        ("claim://kept", "/target-2 /targets /target.old", "/target-2 /targets /target.old"),
        ("claim://kept", "s3://b/target ./target ../target", "s3://b/target ./target ../target"),
        ("claim://kept/a", "/target/a/step-1, /target/ab", "claim://kept/a/step-1, /target/ab"),
        (
            "claim://kept/a",
            "no room on /target/a. /target/a: full",
            "no room on claim://kept/a. claim://kept/a: full",
        ),
        ("claim://kept/a+(b)", "/target/a+(b)/x /target/aab", "claim://kept/a+(b)/x /target/aab"),
        (r"claim://kept/\1", r"/target/\1", r"claim://kept/\1"),
    ],
)
def test_a_place_as_it_is_called_outside(place: str, said: str, told: str) -> None:
    """Wherever a path begins with it, and in no other path."""
    found = claim_path(place)
    assert found is not None
    assert found.named(said) == told


@pytest.mark.parametrize(
    "text", ["claim://", "claim:///a", "claim://Kept/a", "claim://kept/../x", "claim://k/."]
)
def test_no_place_on_a_claim(text: str) -> None:
    """What a claim can't be called, and what would leave it."""
    with pytest.raises(UsageProblem, match="give claim://NAME/PATH"):
        claim_path(text)


def test_other_places_are_none() -> None:
    """Paths of this machine; an option for buckets is refused there."""
    assert (claim_path("/data"), bucket("/data", None, None)) == (None, None)
    for secret, endpoint, option in (("s", None, "--target-secret"), (None, "http://x", "--target-endpoint")):
        with pytest.raises(UsageProblem, match=f"{option} is for buckets"):
            bucket("/data", secret, endpoint)


def test_keys_of_the_target_come_by_reference_and_with_a_prefix() -> None:
    """So that nothing of one side reaches the other; region and endpoint may be in the Secret, too."""
    needs, options = needs_of(job(), Bucket("s3://kept/a", "keys"))
    assert options == ["--target-env", "TARGET_"]
    by_name = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in needs.env}
    assert by_name["TARGET_AWS_ACCESS_KEY_ID"] == {"name": "keys", "key": "AWS_ACCESS_KEY_ID"}
    optional = {name for name, reference in by_name.items() if reference.get("optional")}
    assert optional == {f"TARGET_AWS_{name}" for name in ("SESSION_TOKEN", "REGION", "ENDPOINT_URL")}
    given, _ = needs_of(job(), Bucket("s3://kept/a", "keys", "http://minio:9000"))
    assert {"name": "TARGET_AWS_ENDPOINT_URL", "value": "http://minio:9000"} in given.env


def test_without_keys_it_is_reached_as_the_job_reaches_its_own() -> None:
    """By the job's bucket's variables, or its workers' identity; else it must be said."""
    in_bucket = job(checkpoint={"s3": {"bucket": "models", "secretName": "keys"}})
    assert needs_of(in_bucket, Bucket("s3://kept")) == (Needs(writes=True, identity=True), [])
    known = job(template={"spec": {"serviceAccountName": "trainer", "containers": [{"name": "worker"}]}})
    assert needs_of(known, Bucket("s3://kept"))[0].identity
    with pytest.raises(UsageProblem, match="--target-secret NAME, a Secret of namespace team"):
        needs_of(job(), Bucket("s3://kept"))
    with pytest.raises(UsageProblem, match="goes with --target-secret"):
        needs_of(in_bucket, Bucket("s3://kept", None, "http://x"))


def test_a_claim_is_mounted() -> None:
    """And nothing else is needed."""
    assert needs_of(job(), ClaimPath("kept", "a")) == (Needs(writes=True, claim="kept"), [])


def test_memory() -> None:
    """What is asked for is kept for the pod; what is not is only a limit."""
    assert with_memory(READS, None, 5) == Needs(memory=5)
    assert with_memory(READS, "2Gi", 5) == Needs(memory=2 << 30, reserved=True)
    with pytest.raises(UsageProblem, match="--memory much"):
        with_memory(READS, "much", 5)
