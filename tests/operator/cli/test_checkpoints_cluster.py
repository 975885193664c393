"""`rtj checkpoints` of a job in a cluster: what the pod is told, what is patched, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_store import Store, branched, flip_a_bit
from job_objects import stored_job

from resumable_operator.cli.reader import ReaderStore, parsed
from resumable_operator.cli.reader_life import Output
from resumable_operator.cli.remote_store import answer
from resumable_operator.cli.store_source import Opened
from resumable_operator.errors import FatalError, RetryableError
from resumable_operator.model import Condition, JobStatus
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.local import LocalStore
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


# ---- copy and export -----------------------------------------------------------------------------------

COPIED = {"checkpoint": NAMES[0], "bytes": 7000, "there": 0}
MOVED = {"owner": "team/train", "records": 2, "checkpoints": [COPIED], "damaged": {NAMES[2]: "torn"}}
EXPORTED: Raw = {
    "checkpoint": f"/checkpoints/{NAMES[0]}",
    "out": "/target/hf",
    "files": ["model.safetensors"],
    "tensors": 2,
    "bytes": 4800,
    "twins": [["a", "b"]],
}


class Pods:
    """An API that makes pods of which each has ended at once, with that answer."""

    def __init__(self, answer: Any, code: int = 0, said: str = "") -> None:
        self.text, self.code = json.dumps(answer, indent=2) if answer else said, code
        self.made: list[Raw] = []
        self.deleted: list[str] = []

    async def get(self, resource: Any, wanted: str, namespace: str) -> Raw | None:
        if resource.plural != "pods":
            return {"spec": {"accessModes": ["ReadWriteMany"]}}
        ended = {"terminated": {"exitCode": self.code, "reason": "Completed"}}
        return {"status": {"containerStatuses": [{"name": "reader", "state": ended}]}}

    async def create(self, resource: object, body: Raw, namespace: str) -> Raw:
        self.made.append(body)
        return body

    async def delete(self, resource: object, wanted: str, namespace: str) -> None:
        self.deleted.append(wanted)

    @asynccontextmanager
    async def stream(self, call: object, path: str) -> AsyncIterator[Any]:
        yield self

    async def read(self) -> bytes:
        return self.text.encode()

    def command(self) -> str:
        (body,) = self.made
        assert self.deleted == [body["metadata"]["name"]]
        (container,) = body["spec"]["containers"]
        return " ".join(container["command"]).partition(" checkpoints ")[2]


@pytest.fixture
def pods(cluster, rtj):
    """Call it with what a pod answers and a command line; the result and the pod."""

    def call(answer: Any, *words: object, code: int = 0, said: str = "") -> tuple[Any, Pods]:
        session = cluster((job(), []))
        session.api = Pods(answer, code, said)
        return rtj("checkpoints", *words, "-n", "team", "--image", "op:1"), session.api

    return call


def test_a_pod_copies_to_a_bucket(pods) -> None:
    """Of what it says a person is told what became of the checkpoint, not what it was called in the pod."""
    words = ("copy", "train", "s3://kept/a", "--step", "35", "--jobs", "2", "--target-secret", "keys")
    result, made = pods(COPIED, *words)
    assert result.exit_code == 0, result.output
    assert f"s3://kept/a/{NAMES[0]}  7.0 kB copied, verified\n" in result.output
    options = "copy --step 35 --jobs 2 --target-env TARGET_"
    assert made.command() == f"{options} --json /checkpoints s3://kept/a"
    assert made.made[0]["spec"]["activeDeadlineSeconds"] == 86400


def test_a_pod_copies_a_store_to_another_claim(pods) -> None:
    """What was damaged there is an error here."""
    result, made = pods(MOVED, "copy", "train", "claim://kept/a", "--all")
    assert (result.exit_code, f"{NAMES[2]} is damaged: torn (left out)" in result.output) == (1, True)
    assert made.command() == "copy --all --jobs 4 --json /checkpoints /target/a"


def test_a_pod_exports_to_a_claim(pods) -> None:
    """All that was asked for is passed on; the pod's names for places are not."""
    asked = (
        "--drop",
        "x",
        "--module",
        "ema",
        "--dtype",
        "bf16",
        "--strip-prefix",
        "",
        "--max-shard-size",
        "2GB",
    )
    result, made = pods(EXPORTED, "export", "train", "claim://models/hf", *asked)
    assert result.exit_code == 0, result.output
    assert f"claim://models/hf  2 tensors, 4.8 kB in 1 file, from claim://ckpt/{NAMES[0]}\n" in result.output
    assert "a and b hold the same bytes" in result.output
    for words in ("--drop x", "--module ema", "--dtype bf16", "--strip-prefix  ", "--max-shard-size 2GB"):
        assert words in made.command()
    assert made.command().endswith(" --json /checkpoints /target/hf")
    (container,) = made.made[0]["spec"]["containers"]
    assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"]


def test_errors_call_places_as_they_were_called_here(pods) -> None:
    """Not by where the pod has them mounted."""
    said = "Error: /target/hf is there already, and is not overwritten"
    result, _ = pods(None, "export", "train", "claim://models/hf", code=2, said=said)
    assert (result.exit_code, "claim://models/hf is there already" in result.output) == (2, True)


def test_it_is_exported_by_the_image_that_trains(pods, cluster, rtj) -> None:
    """The operator's has no torch; --image says otherwise."""
    _, made = pods(EXPORTED, "export", "train", "claim://models/hf")
    assert made.made[0]["spec"]["containers"][0]["image"] == "op:1"
    session = cluster((job(), []))
    session.api = Pods(EXPORTED)
    assert rtj("checkpoints", "export", "train", "claim://models/hf", "-n", "team").exit_code == 0
    worker = job()["spec"]["template"]["spec"]["containers"][0]["image"]
    assert session.api.made[0]["spec"]["containers"][0]["image"] == worker


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("copy", "train", "s3://kept", "--target-env", "X_"), "--target-env is for this machine"),
        (("copy", "train", "here", "--target-secret", "k"), "--target-secret is for buckets"),
        (("copy", "train", "here", "--memory", "2Gi"), "--memory is for a place that pods write"),
        (("copy", "train", "claim://Kept", "--all"), "give claim://NAME/PATH"),
        (("copy", "train", "claim://kept", "--memory", "x"), "--memory x"),
        (("export", "train", "s3://kept/hf"), "files are exported to a path"),
    ],
)
def test_what_makes_no_sense_there(pods, words: tuple[str, ...], message: str) -> None:
    """Said before a pod is made."""
    result, made = pods(None, *words)
    assert (result.exit_code, made.made) == (2, [])
    assert message in result.output


@pytest.mark.parametrize("verb", ["copy", "export"])
@pytest.mark.parametrize(
    "options", [("claim://kept/a",), ("out", "--image", "x"), ("out", "--memory", "2Gi")]
)
def test_what_makes_no_sense_here(rtj, tmp_path, verb: str, options: tuple[str, ...]) -> None:
    """A claim, and what is said about pods."""
    result = rtj("checkpoints", verb, tmp_path, *options)
    assert (result.exit_code, "-n NAMESPACE" in result.output) == (2, True)


def test_an_image_without_rtj_is_named_as_such(pods) -> None:
    """Python says only that a module is missing."""
    result, _ = pods(None, "copy", "train", "claim://kept", code=1)
    assert "the reader said nothing (exit code 1)" in result.output
    with pytest.raises(FatalError, match="its image has no rtj"):
        parsed(Output("python: Error while finding module: No module named 'resumable_operator'", 1), "t")


@pytest.fixture
def served(cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Store, Pods, list[Any]]:
    """A store that a pod has; what was made for it, and what was run in the pod."""
    made, commands = branched(tmp_path / "store"), []

    class InProcess:
        def __init__(self, api: object, namespace: str, pod: str, container: str, command: list[str]) -> None:
            commands.append(command)

        def __enter__(self) -> InProcess:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def ask(self, question: Raw) -> tuple[Raw, bytes]:
            return answer(Opened(LocalStore(made.root), list), question)

    class Running(Pods):
        async def get(self, resource: Any, wanted: str, namespace: str) -> Raw | None:
            found = await super().get(resource, wanted, namespace)
            running = {"status": {"containerStatuses": [{"name": "reader", "state": {"running": {}}}]}}
            return running if resource.plural == "pods" else found

    monkeypatch.setattr("resumable_operator.cli.reader.ExecChannel", InProcess)
    session = cluster((job(), []))
    session.api = Running(None)
    return made, session.api, commands


def test_to_this_machine_a_pod_is_asked(served, rtj, tmp_path: Path) -> None:
    """It waits for commands, and is deleted; here it looks like any other store, damage included."""
    made, pods, commands = served
    where = ("-n", "team", "--image", "op:1")
    result = rtj("checkpoints", "copy", "train", tmp_path / "kept", "--step", 20, *where)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path}/kept/{name(20, 1)}  7.0 kB copied, verified\n" in result.output
    assert commands == [
        ["python", "-m", "resumable_operator.cli.main", "checkpoints", "serve", "/checkpoints"]
    ]
    (body,) = pods.made
    assert body["spec"]["containers"][0]["command"][:2] == ["python", "-c"]
    assert pods.deleted == [body["metadata"]["name"]]
    flip_a_bit(made.root / name(25, 2))
    damaged = rtj("checkpoints", "copy", "train", tmp_path / "other", *where)
    assert (damaged.exit_code, "the next older is step 20: --step 20" in damaged.output) == (1, True)
    everything = rtj("checkpoints", "copy", "train", tmp_path / "all", "--all", *where)
    assert (everything.exit_code, f"{name(25, 2)} is damaged" in everything.output) == (1, True)
    none = rtj("checkpoints", "copy", "train", tmp_path / "none", "--step", 7, *where)
    assert (none.exit_code, "On the chain are steps" in none.output) == (2, True)
