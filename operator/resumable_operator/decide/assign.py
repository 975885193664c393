"""From spec and status to what an agent is told: assignment, limits, save settings; their fingerprints."""

from __future__ import annotations

import hashlib
from itertools import starmap
from typing import Any

from resumable_operator.decide import goodput
from resumable_operator.decide.observation import Job
from resumable_operator.model import Checkpoint, JobSpec, JobStatus, MemberStatus
from resumable_operator.template import gpu_count
from resumable_training.contract.assignment import Assignment, CheckpointConfig, Limits, Member
from resumable_training.contract.codec import to_json
from resumable_training.contract.metrics import INTERRUPTION_CAUSES

MOUNT_PATH = "/checkpoints"  # where the claim is mounted in the worker container
_LIVE = {"interval", "max_interval_seconds", "keep", "keep_every_steps"}
_LIVE_IF_SET = {"memory_every_steps"}  # came later: what does not use them keeps its fingerprint
START_SECONDS = 600.0  # process start to first step, imports and restore included


def assignment(
    job: Job,
    status: JobStatus,
    members: tuple[Member, ...],
    worker: str,
    master_port: int,
    env: dict[str, str] | None = None,
) -> Assignment:
    """The part of ``worker`` in the reserved attempt. ``master_port`` 0: its agent is to choose.

    Args:
        members: ``contract_members`` of the attempt, made once for all its workers.
    """
    attempt = status.attempt
    first = attempt.members[0]
    return Assignment(
        job=job.key,
        job_uid=job.uid,
        attempt=attempt.number,
        digest=attempt.digest,
        worker=worker,
        members=members,
        master_address=first.address,
        master_port=master_port,
        high_water_samples=status.high_water_samples,
        limits=limits(job.spec),
        checkpoint=checkpoint_config(job.spec, status),
        env=env or {},
    )


def contract_members(members: tuple[MemberStatus, ...]) -> tuple[Member, ...]:
    return tuple(
        Member(
            worker=member.worker,
            place=member.place,
            incarnation=member.incarnation,
            address=member.address,
            agent_port=member.agent_port,
            first_rank=member.first_rank,
            ranks=member.ranks,
        )
        for member in members
    )


def limits(spec: JobSpec) -> Limits:
    recovery = spec.recovery
    return Limits(
        hang_seconds=recovery.hang_seconds,
        drain_seconds=recovery.drain_seconds,
        autonomy_seconds=recovery.autonomy_seconds,
        start_seconds=max(START_SECONDS, recovery.hang_seconds),
    )


def checkpoint_config(spec: JobSpec, status: JobStatus) -> CheckpointConfig:
    """How to save. A deliberate ``resumeFrom`` holds until one attempt has restored from it."""
    checkpoint = spec.checkpoint
    interval = None if checkpoint.interval == "auto" else checkpoint.interval
    wanted, newest = checkpoint.resume_from, status.checkpoint
    copies = checkpoint.memory_every_steps
    return CheckpointConfig(
        directory=status.store,
        every_steps=interval.steps if interval else None,
        every_seconds=interval.seconds if interval else None,
        mtbf_seconds=mtbf_seconds(status),
        interruptions=interruptions(status),
        longest_seconds=checkpoint.max_interval_seconds,
        memory_every_steps=None if copies == "auto" else copies,
        memory_auto=copies == "auto",
        keep_last=checkpoint.keep,
        keep_every_steps=checkpoint.keep_every_steps,
        resume_from=wanted if wanted != status.resumed_from else None,
        adopt=checkpoint.adopt,
        known_checkpoint=newest is not None,
        newest_checkpoint=newest.name if newest else "",
        blocking_ms=newest.blocking_ms if newest else None,
        durable_ms=(newest.durable_ms or None) if newest else None,
        start_fresh=checkpoint.start_fresh,
    )


def mtbf_seconds(status: JobStatus) -> float:
    """Mean time between interruptions, with a prior that counts as one of them."""
    ledger = status.ledger
    idle = ledger.phases.get("suspended", 0) + ledger.phases.get("queued", 0)
    lived = max(0, ledger.settled_at - ledger.started_at - idle) / 1000
    return goodput.mtbf_seconds(lived, interruptions(status))


def interruptions(status: JobStatus) -> int:
    """Endings that nobody planned. A planned one loses no work, so it asks for no more saves."""
    return sum(max(0, status.interruption_counts.get(cause, 0)) for cause in INTERRUPTION_CAUSES)


def store_root(checkpoint: Checkpoint) -> str:
    """Root of the checkpoint store as ranks see it; empty: none."""
    if checkpoint.directory is not None:
        return checkpoint.directory.path
    if checkpoint.persistent_volume_claim is not None:
        return f"{MOUNT_PATH}/{checkpoint.persistent_volume_claim.path.strip('/')}".rstrip("/")
    if checkpoint.s3 is not None:
        return f"s3://{checkpoint.s3.bucket}/{checkpoint.s3.prefix}".rstrip("/")
    return ""


def processes_per_worker(spec: JobSpec) -> int:
    """Ranks in each worker; ``auto``: as many as the worker container asks GPUs for, else one."""
    wanted = spec.workers.processes_per_worker
    return max(1, gpus_per_worker(spec)) if wanted == "auto" else wanted


def gpus_per_worker(spec: JobSpec) -> int:
    """What the worker container asks for, of the kind of which it wants most."""
    has_containers = (spec.template.get("spec") or {}).get("containers")
    container: dict[str, Any] = spec.worker_container() if has_containers else {}
    resources = container.get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return max(starmap(gpu_count, requested.items()), default=0)


def template_digest(spec: JobSpec) -> str:
    return _digest(spec.template)


def settings_digest(spec: JobSpec) -> str:
    """Of all that agents accept while an attempt runs."""
    checkpoint = spec.checkpoint
    live = checkpoint.model_dump(mode="json", include=_LIVE)
    later = checkpoint.model_dump(mode="json", include=_LIVE_IF_SET, exclude_none=True)
    return _digest([limits(spec), {**live, **later}])


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()[:16]
