"""What agents are told, from spec and status."""

from __future__ import annotations

from typing import Any

import pytest

from resumable_operator.decide.assign import (
    assignment,
    checkpoint_config,
    contract_members,
    limits,
    mtbf_seconds,
    processes_per_worker,
    settings_digest,
    store_root,
    template_digest,
)
from resumable_operator.decide.observation import Job
from resumable_operator.model import (
    AttemptStatus,
    CheckpointStatus,
    JobSpec,
    JobStatus,
    LedgerStatus,
    MemberStatus,
    parse_spec,
)


def spec(**fields: Any) -> JobSpec:
    return parse_spec({"workers": {"replicas": 1}, **fields})


@pytest.mark.parametrize(
    ("checkpoint", "root"),
    [
        ({}, ""),
        ({"directory": {"path": "/data/run"}}, "/data/run"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "/checkpoints"),
        ({"persistentVolumeClaim": {"claimName": "c", "path": "jobs/a"}}, "/checkpoints/jobs/a"),
        ({"s3": {"bucket": "models", "prefix": "a/b"}}, "s3://models/a/b"),
    ],
)
def test_store_root(checkpoint: dict[str, Any], root: str) -> None:
    """Where ranks find the store."""
    assert store_root(spec(checkpoint=checkpoint).checkpoint) == root


@pytest.mark.parametrize(
    ("workers", "template", "ranks"),
    [
        (2, {}, 2),
        ("auto", {}, 1),
        ("auto", {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}, 8),
        ("auto", {"spec": {"containers": [{"resources": {"requests": {"amd.com/gpu": 4}}}]}}, 4),
        ("auto", {"spec": {"containers": [{"resources": {"limits": {"cpu": "8"}}}]}}, 1),
    ],
)
def test_processes_per_worker(workers: int | str, template: dict[str, Any], ranks: int) -> None:
    """``auto`` is the number of GPUs asked for, else one."""
    given = spec(workers={"replicas": 1, "processesPerWorker": workers}, template=template)
    assert processes_per_worker(given) == ranks


def test_checkpoint_config() -> None:
    """Interval, retention and the user's words arrive, and whether a checkpoint is remembered."""
    given = spec(
        checkpoint={
            "directory": {"path": "/x"},
            "interval": {"steps": 50, "seconds": 9.0},
            "keep": 4,
            "keepEverySteps": 1000,
            "resumeFrom": "step-00000001.1",
            "adopt": True,
            "startFresh": True,
        }
    )
    status = JobStatus(store="/x")
    config = checkpoint_config(given, status)
    assert (config.directory, config.every_steps, config.every_seconds) == ("/x", 50, 9.0)
    assert (config.keep_last, config.keep_every_steps, config.adopt, config.start_fresh) == (
        4,
        1000,
        True,
        True,
    )
    assert (config.resume_from, config.known_checkpoint) == ("step-00000001.1", False)
    assert (config.newest_checkpoint, config.blocking_ms, config.durable_ms) == ("", None, None)
    made = CheckpointStatus(name="c", step=1, samples=8, at=1.0, blocking_ms=3, durable_ms=70)
    later = checkpoint_config(given, JobStatus(store="/x", checkpoint=made, resumed_from="step-00000001.1"))
    assert (later.resume_from, later.known_checkpoint) == (None, True)
    assert (later.newest_checkpoint, later.blocking_ms, later.durable_ms) == ("c", 3, 70)
    assert checkpoint_config(spec(), JobStatus()).every_steps is None


@pytest.mark.parametrize(
    ("wanted", "steps", "auto"), [(None, None, False), (1, 1, False), (200, 200, False), ("auto", None, True)]
)
def test_copies_in_memory(wanted: int | str | None, steps: int | None, auto: bool) -> None:
    """Every so many steps, or as often as they cost little; a change is pushed while the job trains."""
    changed = spec(checkpoint={"directory": {"path": "/x"}, "memoryEverySteps": wanted})
    config = checkpoint_config(changed, JobStatus(store="/x"))
    assert (config.memory_every_steps, config.memory_auto) == (steps, auto)
    plain = spec(checkpoint={"directory": {"path": "/x"}})
    assert (settings_digest(changed) != settings_digest(plain)) == (wanted is not None)


def test_limits() -> None:
    """Limits are the recovery section's."""
    given = limits(spec(recovery={"hangSeconds": 900, "drainSeconds": 20, "autonomySeconds": 5}))
    assert (given.hang_seconds, given.drain_seconds, given.autonomy_seconds) == (900, 20, 5)
    assert given.start_seconds == 900


def test_mtbf() -> None:
    """The prior alone at first; then interruptions per time lived, without queueing and planned endings."""
    assert mtbf_seconds(JobStatus()) == 3600
    ledger = LedgerStatus(started_at=0, settled_at=10_000_000, phases={"queued": 2_800_000})
    status = JobStatus(ledger=ledger, interruption_counts={"crash": 2, "scale": 7})
    assert mtbf_seconds(status) == pytest.approx((3600 + 7200) / 3)


def test_digests_follow_only_what_they_cover() -> None:
    """Settings: what agents take live. Template: the pods. Neither sees the other."""
    base = spec()
    assert settings_digest(base) != settings_digest(spec(recovery={"hangSeconds": 1}))
    assert settings_digest(base) == settings_digest(spec(recovery={"growCooldownSeconds": 1}))
    assert settings_digest(base) == settings_digest(spec(template={"a": 1}))
    assert settings_digest(base) == settings_digest(spec(checkpoint={"directory": {"path": "/elsewhere"}}))
    assert template_digest(base) != template_digest(spec(template={"a": 1}))


def test_what_came_later_changes_no_fingerprint() -> None:
    """Else a new version of the operator would tell every job that trains of settings that did not change."""
    assert settings_digest(spec()) == "54b1d536d2ea5822"


def test_assignment() -> None:
    """Master is the first member's address; the high-water mark and the reservation are in it."""
    members = tuple(
        MemberStatus(
            worker=f"w-{n}-1",
            place=n,
            incarnation=1,
            address=f"10.0.0.{n}",
            agent_port=9000,
            first_rank=2 * n,
            ranks=2,
        )
        for n in range(2)
    )
    status = JobStatus(
        attempt=AttemptStatus(number=7, digest="d", members=members, world_size=4), high_water_samples=99
    )
    job, members = Job("ns", "w", "uid", 1, spec(), status), contract_members(status.attempt.members)
    made = assignment(job, status, members, "w-1-1", 20001)
    assert (made.job, made.job_uid, made.attempt, made.digest) == ("ns/w", "uid", 7, "d")
    assert (made.master_address, made.master_port, made.world_size) == ("10.0.0.0", 20001, 4)
    assert made.member().first_rank == 2
    assert made.high_water_samples == 99
