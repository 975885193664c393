"""The demo on a cluster: what it applies is the example, and its verdict can fail."""

from pathlib import Path

import pytest
import yaml

from bed import demo
from resumable_operator.model import AttemptStatus, Interruption, JobStatus, LedgerStatus, MemberStatus


def test_what_is_applied_is_the_example() -> None:
    """The documents of deploy/, with other numbers: same kinds, names, image and command."""
    claim, job = yaml.safe_load_all(demo.documents(240))
    example_claim, example = yaml.safe_load_all(demo.EXAMPLE.read_text())
    assert claim == example_claim
    assert job["metadata"] == example["metadata"]
    worker, original = (each["spec"]["template"]["spec"]["containers"][0] for each in (job, example))
    assert (worker["image"], worker["command"]) == (original["image"], original["command"])
    assert job["spec"]["workers"] == example["spec"]["workers"]
    assert worker["args"][:2] == ["--steps", "240"]


AUDIT = {"ok": True, "samples": 5760, "attempts": [1, 5]}


def _ending(cause: str, **more: object) -> Interruption:
    return Interruption(attempt=1, cause=cause, **more)


def _member(place: int) -> MemberStatus:
    address = f"127.0.0.{place + 1}"
    return MemberStatus(
        worker=f"gpt-{place}-1",
        place=place,
        incarnation=1,
        address=address,
        agent_port=1,
        first_rank=place,
        ranks=1,
    )


GOOD = JobStatus(
    phase="Succeeded",
    step=240,
    attempt=AttemptStatus(number=5, members=tuple(_member(place) for place in range(3))),
    interruptions=(_ending("node_lost", rework_steps=9), _ending("preempted"), _ending("hang")),
    ledger=LedgerStatus(started_at=1000, settled_at=3000, phases={"productive": 2000}),
)


@pytest.mark.parametrize(
    ("changed", "audit", "failed"),
    [
        ({}, {}, []),
        ({"phase": "Failed"}, {}, ["the job succeeded"]),
        ({"step": 239}, {}, ["all steps were done"]),
        ({"attempt": AttemptStatus(members=(_member(0),))}, {}, ["it grew back"]),
        ({"interruptions": GOOD.interruptions[:2]}, {}, ["every fault became one interruption"]),
        (
            {"interruptions": (*GOOD.interruptions[:2], _ending("crash"))},
            {},
            ["every fault became one interruption"],
        ),
        (
            {"interruptions": (_ending("node_lost"), _ending("preempted", rework_steps=1), _ending("hang"))},
            {},
            ["the spot notice cost no step"],
        ),
        (
            {"ledger": LedgerStatus(started_at=1000, settled_at=3001, phases={"productive": 2000})},
            {},
            ["the phases sum to the job's age"],
        ),
        (
            {},
            {"ok": False, "problems": ["sample 7 twice"]},
            ["the final weights saw samples 0..N-1 in order, each once"],
        ),
    ],
)
def test_each_check_can_fail(changed: dict, audit: dict, failed: list[str]) -> None:
    """One thing that went wrong fails one check, and only that."""
    checks = demo.judge(GOOD.model_copy(update=changed), {**AUDIT, **audit}, 240)
    assert [what for what, held, _ in checks if not held] == failed


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_story_holds(tmp_path: Path) -> None:
    """Power cut, spot notice, hang and growth on real machines' terms: every check holds."""
    checks = demo.play(tmp_path, print, 900)
    assert [what for what, held, _ in checks if not held] == []
