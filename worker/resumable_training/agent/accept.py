"""PURE: which assignment an agent accepts, and why it refuses the others.

Called by ``core`` for every ``PUT /v1/assignment``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from resumable_training.contract import SUPPORTED_CONTRACT_VERSIONS
from resumable_training.contract.assignment import AgentSpec, Assignment

OLDER_ATTEMPT = "older_attempt"
OTHER_MEMBERSHIP = "other_membership"
OTHER_JOB = "other_job"
MASTER_PORT = "master_port"
UNFIT = "unfit"
TERMINATING = "terminating"
CONTRACT = "contract"


@dataclass(frozen=True)
class Known:
    """What the agent holds when an assignment arrives; ``attempt`` 0: nothing yet."""

    attempt: int = 0
    digest: str = ""
    unfit: bool = False
    terminating: bool = False


@dataclass(frozen=True)
class Refusal:
    """Answered as 409. ``code`` is for machines, ``message`` for people."""

    code: str
    message: str


@dataclass(frozen=True)
class Verdict:
    """``refusal`` None: accepted. ``repeated``: it is the one we have, nothing to do."""

    refusal: Optional[Refusal] = None
    repeated: bool = False


def judge(spec: AgentSpec, known: Known, assignment: Assignment) -> Verdict:
    """Accept, recognise or refuse an assignment.

    A repeated one is answered even by an agent that is going away: the answer is its state.
    """
    refusal = _malformed(assignment) or _not_ours(spec, assignment) or _stale(known, assignment)
    if refusal:
        return Verdict(refusal)
    if assignment.attempt == known.attempt:
        return Verdict(repeated=True)
    return Verdict(_unable(known, assignment))


def _malformed(assignment: Assignment) -> Optional[Refusal]:
    version = assignment.contract_version
    if version not in SUPPORTED_CONTRACT_VERSIONS:
        return Refusal(CONTRACT, "contract version %d; this agent speaks %s" % (version, _versions()))
    if assignment.attempt < 1:
        return Refusal(CONTRACT, "attempts are numbered from 1, not %d" % assignment.attempt)
    return None


def _versions() -> str:
    return ", ".join(str(version) for version in SUPPORTED_CONTRACT_VERSIONS)


def _not_ours(spec: AgentSpec, assignment: Assignment) -> Optional[Refusal]:
    if (assignment.job, assignment.job_uid) != (spec.job, spec.job_uid):
        return Refusal(
            OTHER_JOB,
            "for job %s (%s); this agent belongs to %s (%s)"
            % (assignment.job, assignment.job_uid, spec.job, spec.job_uid),
        )
    if assignment.worker != spec.worker:
        return Refusal(OTHER_JOB, "for worker %s; this is %s" % (assignment.worker, spec.worker))
    if all(member.worker != spec.worker for member in assignment.members):
        return Refusal(OTHER_MEMBERSHIP, "worker %s is not among the members" % spec.worker)
    if assignment.member().ranks < 1:
        return Refusal(CONTRACT, "worker %s is to run %d ranks" % (spec.worker, assignment.member().ranks))
    return None


def _stale(known: Known, assignment: Assignment) -> Optional[Refusal]:
    if assignment.attempt < known.attempt:
        return Refusal(
            OLDER_ATTEMPT, "attempt %d is over; the newest is %d" % (assignment.attempt, known.attempt)
        )
    if assignment.attempt == known.attempt and assignment.digest != known.digest:
        return Refusal(
            OTHER_MEMBERSHIP,
            "attempt %d has membership %s, not %s" % (known.attempt, known.digest, assignment.digest),
        )
    return None


def _unable(known: Known, assignment: Assignment) -> Optional[Refusal]:
    if known.unfit:
        return Refusal(UNFIT, "a rank of an earlier attempt could not be ended")
    if known.terminating:
        return Refusal(TERMINATING, "this worker is being ended")
    if assignment.master_port == 0 and assignment.member().first_rank != 0:
        return Refusal(MASTER_PORT, "no master port, and rank 0 is elsewhere")
    if not 0 <= assignment.master_port < 65536:
        return Refusal(MASTER_PORT, "%d is not a port" % assignment.master_port)
    return None
