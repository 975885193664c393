"""Messages survive the trip as JSON, and what is wrong with one is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract.assignment import (
    AgentSpec,
    Assignment,
    CheckpointConfig,
    Limits,
    Member,
    Request,
    membership_digest,
)
from resumable_training.contract.codec import ContractError, from_json, plain_from_json, to_json
from resumable_training.contract.events import AgentState, Event, ProgressReport, RankExit
from resumable_training.contract.manifest import FileEntry, Manifest, Record

MEMBER = Member("train-0-1", 0, 1, "10.0.0.1", 7000, 0, 2)
ASSIGNMENT = Assignment(
    "local/train", "uid", 1, "digest", "train-0-1", (MEMBER,), "10.0.0.1", 0, env={"A": "b"}
)
MESSAGES = [
    ASSIGNMENT,
    Request("settings", limits=Limits(hang_seconds=5.0), checkpoint=CheckpointConfig(every_steps=3)),
    AgentSpec("local/train", "uid", "train-0-1", 0, 1, ("python", "train.py"), "127.0.0.1"),
    AgentState("boot", "train-0-1", outcome="failed"),
    Event(3, 1000, "rank_exited", 1, "boot", {"rank": 0, "tail": ["a"]}),
    RankExit(0, -9, True, tail=("last", "words")),
    ProgressReport(0, 1, 2, "productive", 3, 4, {"warmup": 1}, loss=0.5),
    Manifest("store", 1, 2, 3, 4, {"a": FileEntry(1, "x", ("y",))}),
    Record(1, "uid", 1, None),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: object) -> None:
    """Every message is the same after encoding and decoding."""
    assert from_json(type(message), to_json(message)) == message


@given(st.builds(Limits, *[st.floats(0, 1e9) for _ in range(4)]))
def test_round_trip_of_numbers(limits: Limits) -> None:
    """No digit of a number is lost."""
    assert from_json(Limits, to_json(limits)) == limits


def test_encoding_is_canonical() -> None:
    """The order of keys does not change the bytes, so that digests agree."""
    assert to_json({"b": 1, "a": (2,)}) == b'{"a":[2],"b":1}'


def test_unknown_fields_are_ignored() -> None:
    """A newer peer may say more than we know."""
    plain = json.loads(to_json(ASSIGNMENT))
    plain["colour"] = plain["members"][0]["colour"] = "blue"
    assert from_json(Assignment, json.dumps(plain).encode()) == ASSIGNMENT


def test_integer_for_a_float_is_taken() -> None:
    """JSON writers drop the fraction of 5.0."""
    assert from_json(Limits, b'{"hang_seconds": 5}').hang_seconds == 5.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attempt": "1"}, "Assignment.attempt"),
        ({"attempt": True}, "Assignment.attempt"),
        ({"members": {}}, "Assignment.members"),
        ({"members": [1]}, "Assignment.members[0]"),
        ({"members": [{"worker": "w"}]}, "Assignment.members[0].place is missing"),
        ({"env": {"A": 1}}, "Assignment.env.A"),
        ({"limits": {"hang_seconds": "x"}}, "Assignment.limits.hang_seconds"),
        ({"limits": {"hang_seconds": True}}, "Assignment.limits.hang_seconds"),
    ],
)
def test_wrong_field_is_named(change: dict[str, object], named: str) -> None:
    """The error says which field is wrong."""
    plain = {**json.loads(to_json(ASSIGNMENT)), **change}
    with pytest.raises(ContractError) as error:
        from_json(Assignment, json.dumps(plain).encode())
    assert named in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"1", b"null"])
def test_no_message_at_all(data: bytes) -> None:
    """What is no JSON object is refused as such."""
    with pytest.raises(ContractError):
        from_json(Limits, data)


UNBEARABLE = {
    "not a number": "[NaN]",
    "beyond all floats": '{"a": 1e999}',
    "beyond 64 bits": "[9223372036854775808]",
    "more digits than are read": "[1" + "0" * 5000 + "]",
    "half a character": '{"a": "\\uD83d"}',
    "a tower": "[" * 100_000,
    "cut off": '{"a": 1',
    "nothing": "",
}


@pytest.mark.parametrize("text", UNBEARABLE.values(), ids=UNBEARABLE)
def test_json_that_nobody_could_use(text: str) -> None:
    """One kind of error for all of it, whether it comes as text or as bytes."""
    for data in (text, text.encode()):
        with pytest.raises(ContractError, match="not valid JSON"):
            plain_from_json(data)


def test_a_tower_is_no_message() -> None:
    """Nor does it end whoever reads it."""
    with pytest.raises(ContractError, match="not valid JSON"):
        from_json(Limits, b"[" * 100_000)


def test_json_that_is_well() -> None:
    """Numbers up to 64 bits, and characters outside of 16 bits, also when they are written as two."""
    assert plain_from_json('{"a": [9223372036854775807, -1.5e300, "\\ud83d\\ude00"]}') == {
        "a": [2**63 - 1, -1.5e300, "\U0001f600"]
    }
    assert plain_from_json(b'"\xf0\x9f\x98\x80"') == "\U0001f600"


def test_not_a_number_is_not_sent() -> None:
    """NaN is no JSON."""
    with pytest.raises(ValueError, match="JSON"):
        to_json({"loss": float("nan")})


def test_digest_names_attempt_and_members() -> None:
    """The digest depends on the job, the attempt and every member, and on nothing else."""
    digest = membership_digest("uid", 1, (MEMBER,))
    assert digest == membership_digest("uid", 1, (MEMBER,))
    others = {
        membership_digest("uid", 2, (MEMBER,)),
        membership_digest("other", 1, (MEMBER,)),
        membership_digest("uid", 1, (MEMBER, MEMBER)),
        membership_digest("uid", 1, ()),
    }
    assert digest not in others
    assert len(others) == 4


def test_a_worker_finds_its_own_entry() -> None:
    """An assignment without the worker it is for is an error that names it."""
    assert ASSIGNMENT.member() == MEMBER
    assert ASSIGNMENT.world_size == 2
    stranger = Assignment("j", "u", 1, "d", "train-9-1", (MEMBER,), "a", 0)
    with pytest.raises(ValueError, match="train-9-1"):
        stranger.member()
