"""Which assignment an agent accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resumable_training.agent.accept import Known, judge
from resumable_training.contract.assignment import AgentSpec, Assignment, Member

SPEC = AgentSpec("local/train", "uid", "train-1-1", 1, 1, ("python",), "10.0.0.2")
FIRST = Member("train-0-1", 0, 1, "10.0.0.1", 7000, 0, 2)
OWN = Member("train-1-1", 1, 1, "10.0.0.2", 7000, 2, 2)
WANTED = Assignment("local/train", "uid", 3, "d3", "train-1-1", (FIRST, OWN), "10.0.0.1", 29000)
AT_3 = Known(attempt=3, digest="d3")

REFUSED = [
    ("a newer contract", Known(), replace(WANTED, contract_version=99), "contract"),
    ("attempt 0", Known(), replace(WANTED, attempt=0), "contract"),
    ("no ranks", Known(), replace(WANTED, members=(FIRST, replace(OWN, ranks=0))), "contract"),
    ("another job", Known(), replace(WANTED, job="local/other"), "other_job"),
    ("the job of that name before", Known(), replace(WANTED, job_uid="old"), "other_job"),
    ("another worker", Known(), replace(WANTED, worker="train-0-1"), "other_job"),
    ("not a member", Known(), replace(WANTED, members=(FIRST,)), "other_membership"),
    ("an older attempt", Known(4, "d4"), WANTED, "older_attempt"),
    ("same attempt, other members", Known(3, "x"), WANTED, "other_membership"),
    ("an unfit worker", Known(2, "d2", unfit=True), WANTED, "unfit"),
    ("a worker that is ended", Known(2, "d2", terminating=True), WANTED, "terminating"),
    ("no port and not rank 0", Known(), replace(WANTED, master_port=0), "master_port"),
    ("no such port", Known(), replace(WANTED, master_port=70000), "master_port"),
]


@pytest.mark.parametrize(
    ("known", "wanted", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused(known: Known, wanted: Assignment, code: str) -> None:
    """Refused with the code that says why, and a sentence."""
    verdict = judge(SPEC, known, wanted)
    assert verdict.refusal is not None
    assert verdict.refusal.code == code
    assert verdict.refusal.message


@pytest.mark.parametrize("known", [Known(), Known(2, "d2"), Known(1, "d3")])
def test_a_newer_attempt_is_accepted(known: Known) -> None:
    """Whatever came before, a greater number is new."""
    verdict = judge(SPEC, known, WANTED)
    assert (verdict.refusal, verdict.repeated) == (None, False)


@pytest.mark.parametrize("known", [AT_3, replace(AT_3, unfit=True), replace(AT_3, terminating=True)])
def test_the_same_again_changes_nothing(known: Known) -> None:
    """Recognised, also by an agent that would take nothing new."""
    verdict = judge(SPEC, known, WANTED)
    assert (verdict.refusal, verdict.repeated) == (None, True)


def test_rank_0_may_choose_the_port() -> None:
    """Port 0 is for rank 0's agent, and with a port it is the same assignment still."""
    spec = replace(SPEC, worker="train-0-1")
    wanted = replace(WANTED, worker="train-0-1", master_port=0)
    assert judge(spec, Known(), wanted).refusal is None
    assert judge(spec, AT_3, replace(wanted, master_port=29000)).repeated
