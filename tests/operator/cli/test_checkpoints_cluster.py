"""`rtj checkpoints` of a job in a cluster: what the pod is told, what is patched, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from job_objects import stored_job

from resumable_operator.cli.reader import Output, ReaderStore, parsed
from resumable_operator.errors import RetryableError
from resumable_operator.model import Condition, JobStatus
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.contract.codec import to_plain
from resumable_training.contract.manifest import checkpoint_name as name

Raw = dict[str, Any]
NAMES = [name(35, 2), name(30, 1), name(20, 1)]


def line(checkpoint: str, why_not: str = "") -> Raw:
    step, record = int(checkpoint[5:13]), int(checkpoint[14:])
    info = CheckpointInfo(
        *(checkpoint, step, record, record, 1, 1, 10, 5.0),
        complete=True,
        on_chain=not why_not,
        pinned=False,
        verdict=None,
        why_not=why_not,
    )
    return dict(to_plain(info))


LISTED = [line(NAMES[0]), line(NAMES[1], "off the chain: ..."), line(NAMES[2])]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool]]:
    """What the pods were told; each answers with a list of three checkpoints."""
    asked: list[tuple[list[str], bool]] = []

    async def output(self: ReaderStore, arguments: list[str], writes: bool, after: Any) -> Output:
        asked.append(([*arguments, *after], writes))
        return Output(json.dumps(ANSWERS.get(arguments[0], LISTED), indent=2), 0)

    monkeypatch.setattr(ReaderStore, "_output", output)
    return asked


PLAN: Raw = {"doomed": [{"name": NAMES[2], "why": "old", "bytes": 7}], "kept": NAMES[:1]}
ANSWERS: dict[str, Any] = {
    "show": {"name": NAMES[0], "values": [], "groups": [], "files": [], "bytes": 7, "step": 35},
    "prune": {"plan": PLAN, "gone": [], "acted": False},
    "pin": {"checkpoint": NAMES[2], "holder": "eval"},
    "pins": [],
    "unpin": [{"file": "f", "checkpoint": NAMES[2], "holder": "eval", "seconds": 5.0, "counts": True}],
}


class Patching:
    """An API that takes patches, and changes the job that is seen from then on."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.patches: list[Raw] = []

    async def patch(self, resource: object, job: str, body: Raw, namespace: str) -> Raw:
        self.patches.append(body["spec"])
        stored, pods = self.session.states[0]
        changed = {**stored, "spec": {**stored["spec"], **body["spec"]}}
        if "suspend" in body["spec"]:
            condition = Condition(type="Suspended", status="True", reason="SpecSuspend")
            told = JobStatus(phase="Suspended", conditions=(condition,), observed_generation=1)
            changed["status"] = stored_job(told)["status"]
        self.session.states[0] = (changed, pods)
        return changed


def job(phase: str = "Suspended", suspend: bool = True, resumed: str | None = None, **checkpoint: Any) -> Raw:
    suspended = "True" if phase == "Suspended" else "False"
    condition = Condition(type="Suspended", status=suspended, reason="SpecSuspend")
    told = JobStatus(phase=phase, conditions=(condition,), observed_generation=1, resumed_from=resumed)
    stored = stored_job(told, suspend=suspend)
    stored["metadata"]["generation"] = 1
    stored["spec"]["checkpoint"] = {**stored["spec"].get("checkpoint", {}), **checkpoint}
    return stored


@pytest.fixture
def back(cluster, rtj, answers):
    """Call it with a job and options; the result and the patches."""

    def roll_back(stored: Raw, *options: str, to: object = 20) -> tuple[Any, list[Raw]]:
        session = cluster((stored, []))
        session.api = Patching(session)
        result = rtj("checkpoints", "rollback", "train", "-n", "team", "--to", to, *options)
        return result, session.api.patches

    return roll_back


def test_roll_back_sets_the_wish(back) -> None:
    """By the full name, so that nothing can change its meaning; the suspended job waits to be resumed."""
    result, patches = back(job())
    assert result.exit_code == 0, result.output
    assert patches == [{"checkpoint": {"resumeFrom": NAMES[2]}}]
    assert "it goes on with `rtj resume train -n team` from there" in result.output


def test_the_same_wish_again_is_another_one(back) -> None:
    """Granted before, by spec or by status: a serial number makes it count."""
    assert back(job(resumeFrom=NAMES[2]))[1] == [{"checkpoint": {"resumeFrom": f"{NAMES[2]}#2"}}]
    assert back(job(resumed=f"{NAMES[2]}#4"))[1] == [{"checkpoint": {"resumeFrom": f"{NAMES[2]}#5"}}]


def test_an_error_after_a_job_was_suspended_says_how_it_goes_on(back, monkeypatch) -> None:
    """The API server went away before it was told where from."""

    async def refuse(*arguments: object, **options: object) -> None:
        raise RetryableError("the API server does not answer")

    monkeypatch.setattr("resumable_operator.cli.checkpoints_rollback._set_wish", refuse)
    result, patches = back(job("Running", suspend=False), "--suspend")
    assert (result.exit_code, patches) == (6, [{"suspend": True}])
    assert "does not answer. Nothing was rolled back; the job was told to suspend" in result.output
    assert "`rtj resume train -n team` continues it" in result.output


def test_a_job_that_trains_is_refused_or_suspended(back) -> None:
    """With --suspend it is let go on in the same act that says where from."""
    result, patches = back(job("Running", suspend=False))
    assert (result.exit_code, patches) == (2, [])
    assert "suspend it first (`rtj suspend train --wait`)" in result.output
    result, patches = back(job("Running", suspend=False), "--suspend")
    assert result.exit_code == 0, result.output
    assert patches == [{"suspend": True}, {"checkpoint": {"resumeFrom": NAMES[2]}, "suspend": False}]


@pytest.mark.parametrize(
    ("stored", "to", "why"),
    [
        (job("Succeeded", suspend=False), 20, "has ended (Succeeded)"),
        (job("Running"), 20, "is being suspended"),
        (job(), 25, "On the chain are steps 35, 20."),
        (job(), 30, f"step 30 is off the chain: .*give its name: {NAMES[1]}"),
    ],
)
def test_what_is_refused(back, stored: Raw, to: int, why: str) -> None:
    """And nothing is changed, also not suspended for a step that is not there."""
    import re

    result, patches = back(stored, to=to)
    assert (result.exit_code, patches) == (2, [])
    assert re.search(why.replace("(", r"\(").replace(")", r"\)"), result.output), result.output


def test_an_abandoned_branch_by_its_name(back) -> None:
    """The way to undo a roll-back."""
    assert back(job(), to=NAMES[1])[1] == [{"checkpoint": {"resumeFrom": NAMES[1]}}]


def test_what_a_pod_is_told(cluster, rtj, answers) -> None:
    """The job's own numbers for prune, and a claim for writing only where something is written."""
    cluster((job(keep=5, keepEverySteps=100, resumeFrom="20#3"), []))
    where = ("-n", "team")
    assert "step 35" in rtj("checkpoints", "show", "train", *where, "--step", "35").output
    assert "would go: old, 7 B" in rtj("checkpoints", "prune", "train", *where).output
    assert rtj("checkpoints", "prune", "train", *where, "--keep", 2, "--yes").exit_code == 0
    assert "is held by eval" in rtj("checkpoints", "pin", "train", 20, *where, "--holder", "eval").output
    assert "has no pins" in rtj("checkpoints", "pins", "train", *where).output
    assert rtj("checkpoints", "unpin", "train", 20, *where, "--all").exit_code == 0
    told = [(" ".join(words), writes) for words, writes in answers]
    rules = "--keep-every-steps 100 --protect 20"
    assert told[:3] == [
        ("show --step 35", False),
        (f"prune --keep 5 {rules}", False),
        (f"prune --keep 2 {rules} --yes", True),
    ]
    assert told[3][0].startswith("pin --until @")
    assert told[3][0].endswith(" --holder eval 20")
    assert [writes for _, writes in told[3:]] == [True, False, True]


def test_an_object_is_found_in_a_log() -> None:
    """With a warning in front, as a log has it."""
    assert parsed(Output('warning: {x}\n{\n  "name": "a"\n}\n', 0), "t") == {"name": "a"}
