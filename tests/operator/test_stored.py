"""The status as the API server keeps it: exact, small, readable, and never taken for another."""

import base64
import json
import lzma
import random
import string
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from statuses import NOW, any_status, large_status
from world import World

from resumable_operator.model import (
    AttemptStatus,
    Condition,
    Evidence,
    Interruption,
    JobStatus,
    MemberStatus,
)
from resumable_operator.packing import packed, unpacked
from resumable_operator.stored import LONGEST_TEXT, PACK_ABOVE, from_stored, to_stored
from resumable_operator.times import LAST_SECOND, rfc3339, seconds_of

SIZE_LIMIT = 64 * 1024
ALWAYS_THERE = {"phase", "attempt.state"}
MEMBER = MemberStatus(
    worker="train-0-1", place=0, incarnation=1, address="10.0.0.1", agent_port=8470, first_rank=0, ranks=1
)
ENDING = Interruption(attempt=1, cause="crash", at=NOW)


def through_json(stored: dict[str, Any]) -> dict[str, Any]:
    """As the API server would give it back: JSON, and no nulls."""
    text = json.dumps(stored, allow_nan=False)
    assert "null" not in text
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def size(stored: dict[str, Any]) -> int:
    return len(json.dumps(stored, separators=(",", ":"), ensure_ascii=False).encode())


# ---- there and back --------------------------------------------------------------------------------------


@given(any_status())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_status_comes_back_as_it_was(status: JobStatus) -> None:
    """All fields, all times to the last bit; so that what is stored is not written again and again."""
    stored = json.loads(json.dumps(to_stored(status), allow_nan=False))
    assert from_stored(stored) == status
    assert to_stored(from_stored(stored)) == stored


def test_statuses_of_a_whole_run_come_back() -> None:
    """Each status that the decisions make on the way through failures is stored without loss."""
    world = World({"workers": {"replicas": 4, "min": 1, "sizes": [1, 2, 4]}}, steps=300)
    for number in range(400):
        plan = world.step()
        assert from_stored(through_json(to_stored(plan.status))) == plan.status
        world.tick()
        if number in (60, 130):
            world.kill_rank(sorted(world.agents)[-1], code=1, tail=("Traceback", "ValueError: \u2603"))
        if number == 200:
            world.kill_worker(sorted(world.agents)[0])
    assert len(world.job.status.interruptions) >= 3


@pytest.mark.parametrize("workers", [0, 1, 16, 200, 1000])
def test_large_statuses_come_back(workers: int) -> None:
    """Whether packed or not."""
    status = large_status(workers)
    assert from_stored(through_json(to_stored(status))) == status


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_status_yet(nothing: dict[str, Any] | None) -> None:
    """A new job has an untouched status."""
    assert from_stored(nothing) == JobStatus()


def test_untouched_parts_are_left_out() -> None:
    """A job that was never started shows no attempt of the year 1970."""
    stored = to_stored(JobStatus(phase="Pending"))
    assert not {"attempt", "budgets", "ledger", "checkpoint", "packed"} & stored.keys()
    assert "1970" not in json.dumps(stored)


def test_what_says_nothing_is_left_out() -> None:
    """Each field costs at every write; but what people look for is there, also when it is 0."""
    stored = to_stored(JobStatus(attempt=AttemptStatus(number=1, members=(MEMBER,))))
    assert stored.keys() == {"phase", "size", "step", "samples", "replicas", "attempt"}
    assert (stored["phase"], stored["step"], stored["replicas"]) == ("Pending", 0, 0)
    assert stored["attempt"].keys() == {"number", "members", "state"}
    assert "node" not in stored["attempt"]["members"][0]


# ---- size ------------------------------------------------------------------------------------------------


def test_a_thousand_workers_fit() -> None:
    """Members, cursors, outcomes, witnesses and fifty endings with output: below 64 KiB, nothing given up."""
    stored = to_stored(large_status(1000))
    assert size(stored) < SIZE_LIMIT


def _noise(seed: int) -> tuple[str, ...]:
    """Output that can't be compressed, as long as it may be."""
    dice = random.Random(seed)
    return tuple("".join(dice.choices(string.printable, k=299)) + "\u2603" for _ in range(20))


def _noisy(status: JobStatus) -> JobStatus:
    evidence = tuple(
        item.model_copy(update={"tail": _noise(n)}) for n, item in enumerate(status.attempt.evidence)
    )
    endings = tuple(
        item.model_copy(update={"tail": _noise(99 + n)}) for n, item in enumerate(status.interruptions)
    )
    dice = random.Random(0)
    silent = {name: NOW + dice.random() for name in status.attempt.outcomes}
    attempt = status.attempt.model_copy(update={"evidence": evidence, "silent_since": silent})
    return status.model_copy(
        update={"attempt": attempt, "interruptions": endings, "last_interruption": endings[-1]}
    )


def test_noise_of_a_thousand_workers_fits() -> None:
    """Old output goes first; members, cursors and the newest ending stay; storing again changes nothing."""
    status = _noisy(large_status(1000))
    stored = to_stored(status)
    back = from_stored(through_json(stored))
    assert size(stored) < SIZE_LIMIT
    assert (back.attempt.members, back.cursors) == (status.attempt.members, status.cursors)
    assert [item.cause for item in back.attempt.evidence] == [item.cause for item in status.attempt.evidence]
    assert back.last_interruption is not None
    assert back.last_interruption.tail[-1:] == _noise(148)[-1:]
    assert to_stored(back) == stored


def test_small_statuses_are_not_packed() -> None:
    """A job of a few workers can be read in full with kubectl."""
    status = large_status(16, endings=5)
    attempt = status.attempt.model_copy(update={"evidence": status.attempt.evidence[:1]})
    stored = to_stored(status.model_copy(update={"attempt": attempt}))
    assert size(stored) <= PACK_ABOVE
    assert "packed" not in stored
    assert len(stored["attempt"]["members"]) == 16


def test_what_people_read_stays_readable() -> None:
    """Packing hides book-keeping only."""
    status = large_status(1000)
    stored = to_stored(status)
    assert stored["packed"]
    assert (stored["phase"], stored["workers"], stored["goodput"]) == ("Running", "1000/1000", "93.1%")
    assert (stored["step"], stored["checkpoint"]["step"], stored["size"]) == (123456, 123400, 1000)
    attempt = stored["attempt"]
    assert (attempt["number"], attempt["state"], attempt["worldSize"]) == (51, "running", 8000)
    assert stored["conditions"][0]["type"] == "Ready"
    assert stored["lastInterruption"]["cause"] == "node_lost"
    assert stored["interruptionCounts"] == {"node_lost": 50}
    assert stored["ledger"]["phases"]["productive"] == 10
    assert "members" not in attempt


def test_texts_are_bounded() -> None:
    """No message makes the status large, whoever wrote it."""
    long = "x" * 1_000_000
    status = JobStatus(
        reason=long,
        conditions=(Condition(type="Ready", status="False", message=long, last_transition=NOW),),
        last_interruption=ENDING.model_copy(update={"message": long, "tail": (long,)}),
    )
    stored = to_stored(status)
    assert size(stored) < SIZE_LIMIT
    assert len(stored["reason"]) == LONGEST_TEXT
    assert to_stored(from_stored(stored)) == stored


# ---- odd values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_lacks_are_nothing(loss: float) -> None:
    """A diverged loss must not make the status unwritable, nor different from itself."""
    stored = through_json(to_stored(JobStatus(loss=loss, step_seconds=loss)))
    assert from_stored(stored) == JobStatus()


def test_numbers_that_the_server_lacks_are_bounded() -> None:
    """It holds 64 bits; an agent's nonsense must not keep the status from being written."""
    attempt = AttemptStatus(number=1, reserved_at=1e300, running_at=-1.0, ending_since=float("nan"))
    status = JobStatus(step=10**30, samples=-(10**30), attempt=attempt)
    back = from_stored(through_json(to_stored(status)))
    assert (back.step, back.samples) == (2**63 - 1, 1 - 2**63)
    assert (back.attempt.reserved_at, back.attempt.running_at) == (LAST_SECOND, 0.0)
    assert to_stored(back) == to_stored(status)


def test_broken_unicode_becomes_unicode() -> None:
    """A lone surrogate, which UTF-8 can't hold, is replaced."""
    status = JobStatus().model_copy(update={"reason": "a\ud800b", "cursors": {"\udfff": 1}})
    stored = to_stored(status)
    json.dumps(stored, ensure_ascii=False).encode()
    assert (stored["reason"], list(stored["cursors"].values())) == ("a?b", [1])


def test_unknown_fields_are_left_out() -> None:
    """What a newer operator wrote does not disturb an older one."""
    stored = to_stored(JobStatus(attempt=AttemptStatus(number=2)))
    stored["fromTheFuture"] = {"a": 1}
    stored["attempt"]["shape"] = [1, 2]
    assert from_stored(stored) == JobStatus(attempt=AttemptStatus(number=2))


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ({"step": "many"}, "status.step: "),
        ({"phase": "Sleeping"}, "status.phase: "),
        ({"attempt": {"state": 5}}, "status.attempt.state: "),
        ({"startedAt": "yesterday"}, "status.startedAt: 'yesterday' is no RFC 3339 time"),
        ({"conditions": [{"type": "Ready"}]}, "status.conditions.0.status: "),
    ],
)
def test_wrong_values_are_named(stored: dict[str, Any], text: str) -> None:
    """A status that was spoilt by hand is not read as an empty one."""
    with pytest.raises(ValueError) as caught:
        from_stored(stored)
    assert str(caught.value).startswith(text)


GENUINE = packed({"cursors": {"a": 1}})


def _forged(value: bytes) -> str:
    return "xz1:" + base64.b64encode(lzma.compress(value)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        5,
        "xz9:" + GENUINE[4:],
        GENUINE[:-8],
        GENUINE[:30] + "AAAA" + GENUINE[34:],
        "xz1:not base64!",
        _forged(b"{"),
        _forged(b"[1, 2]"),
        _forged(b'{"+": ["a", 1]}'),
        _forged(b'{"|": {"a": [1], "b": [1, 2]}}'),
        _forged(b'{":": [["a"], []]}'),
        _forged(b'{"?": 1}'),
        _forged(b'{"{": 1}'),
        _forged(b"{}"),
        _forged(b"[" * 100_000),
        _forged(b" " * (65 * 1024 * 1024)),
    ],
)
def test_damaged_packing_is_told(text: Any) -> None:
    """Book-keeping that can't be read is an error that says so, not a job without members."""
    with pytest.raises(ValueError, match=r"^status\.packed can't be read: "):
        from_stored({"phase": "Running", "packed": text})


def test_packing_keeps_the_rest() -> None:
    """Packed and plain parts of the same object are put together."""
    text = packed({"attempt": {"doomed": ["w"]}, "cursors": {"a": 1}})
    status = from_stored({"attempt": {"number": 3}, "cursors": {"b": 2}, "packed": text})
    assert status == JobStatus(attempt=AttemptStatus(number=3, doomed=("w",)), cursors={"a": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=12),
    max_leaves=20,
)
RECORDS = st.lists(
    st.fixed_dictionaries({"a": st.integers(), "b": st.text(max_size=5), "c": st.none()}),
    min_size=9,
    max_size=12,
)


@given(JSON | RECORDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_packing_is_exact(value: Any) -> None:
    """Any JSON comes back, with its types."""
    assert json.dumps(unpacked(packed(value)), sort_keys=True) == json.dumps(value, sort_keys=True)


# ---- times -----------------------------------------------------------------------------------------------


@given(st.floats(0, 1e11))
def test_times_are_exact(seconds: float) -> None:
    """The text has as many digits as it takes to read the same number."""
    assert seconds_of(rfc3339(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1795987823.25, "2026-11-29T21:30:23.25Z"),
        (NOW, "2026-11-29T21:30:23.1234567Z"),
        (-0.5, "1969-12-31T23:59:59.5Z"),
        (1e-7, "1970-01-01T00:00:00.0000001Z"),
    ],
)
def test_times_as_text(seconds: float, text: str) -> None:
    """As Kubernetes writes times, in UTC."""
    assert rfc3339(seconds) == text


@pytest.mark.parametrize("text", ["2026-11-29T22:30:23.25+01:00", "2026-11-29t21:30:23.25z"])
def test_other_forms_of_times_are_read(text: str) -> None:
    """Any RFC 3339 form is."""
    assert seconds_of(text) == 1795987823.25


@pytest.mark.parametrize("text", ["", "2026-11-29", "2026-13-29T21:30:23Z", "2026-11-29T21:30:23", "now"])
def test_wrong_times_are_refused(text: str) -> None:
    """What is no time is not guessed at."""
    with pytest.raises(ValueError):
        seconds_of(text)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300])
def test_times_outside_the_calendar_are_refused(seconds: float) -> None:
    """They are an error of ours."""
    with pytest.raises(ValueError):
        rfc3339(seconds)


def defaults(model: type[BaseModel], path: str = "") -> dict[str, Any]:
    """Those that are not nothing, by path in the stored form; of conditions all is stored."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        here = f"{path}{field.serialization_alias or field.alias or name}"
        if here == "conditions":
            continue
        for below in (field.annotation, *get_args(field.annotation)):
            if isinstance(below, type) and issubclass(below, BaseModel):
                found |= defaults(below, f"{here}.")
        if not isinstance(field.default, BaseModel) and field.get_default(call_default_factory=True):
            found |= {here: field.default} if not field.is_required() else {}
    return found


def test_what_is_left_out_is_nothing_but_for_what_the_docs_name() -> None:
    """Whoever reads a status must know what is meant by what is not there."""
    assert {path: value for path, value in defaults(JobStatus).items() if path not in ALWAYS_THERE} == {
        "interruptions.restored": True,
        "interruptions.committed": True,
        "lastInterruption.restored": True,
        "lastInterruption.committed": True,
        "attempt.evidence.primary": True,
        "attempt.left.primary": True,
        "restartSeconds": 10.0,
        "ledger.openPhase": "queued",
        "ledger.controlPhase": "starting",
    }


def test_conditions_have_the_form_of_kubernetes() -> None:
    """`kubectl wait` and every client know these names."""
    condition = Condition(
        type="Ready", status="True", reason="Training", observed_generation=3, last_transition=NOW
    )
    assert to_stored(JobStatus(conditions=(condition,)))["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Training",
            "message": "",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-29T21:30:23.1234567Z",
        }
    ]


def test_witnesses_keep_their_times() -> None:
    """Packed times are bare numbers, and read as the same."""
    attempt = AttemptStatus(number=1, evidence=(Evidence(at=NOW, cause="crash", last_progress=NOW - 1),))
    status = large_status(300).model_copy(update={"attempt": attempt})
    stored = to_stored(status)
    assert "evidence" not in stored["attempt"]
    assert from_stored(stored).attempt == attempt
