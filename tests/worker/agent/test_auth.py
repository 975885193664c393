"""The gate: only holders of the key, each signature once."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable_training.agent.auth import Denied, Gate, read_keys
from resumable_training.contract import signing

KEY, OLD, FOREIGN = b"a" * 32, b"b" * 32, b"c" * 32


def headers(counter: int, key: bytes = KEY, boot: str = "boot", body: bytes = b"{}") -> dict[str, str]:
    sign = signing.sign_request(key, "PUT", "/v1/x", body, boot, counter)
    return {
        signing.HEADER_KEY_ID.lower(): signing.key_id(key),
        signing.HEADER_BOOT_ID.lower(): boot,
        signing.HEADER_COUNTER.lower(): str(counter),
        signing.HEADER_SIGNATURE.lower(): sign,
    }


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY.hex()}\n{OLD.hex()}\n")
    return path


@pytest.fixture
def gate(key_file: Path) -> Gate:
    return Gate(key_file, "boot")


def code_of(gate: Gate, sent: dict[str, str], target: str = "/v1/x", body: bytes = b"{}") -> str:
    with pytest.raises(Denied) as denied:
        gate.admit("PUT", target, sent, body)
    return denied.value.code


def test_current_and_previous_key(gate: Gate) -> None:
    """Both are accepted, and the reply is for the key that signed."""
    assert gate.admit("PUT", "/v1/x", headers(1), b"{}").key == KEY
    assert gate.admit("PUT", "/v1/x", headers(2, OLD), b"{}").key == OLD


def test_every_counter_once_and_upwards(gate: Gate) -> None:
    """A replay and anything older is stale; gaps are fine."""
    gate.admit("PUT", "/v1/x", headers(5), b"{}")
    assert code_of(gate, headers(5)) == "stale_counter"
    assert code_of(gate, headers(4)) == "stale_counter"
    gate.admit("PUT", "/v1/x", headers(900), b"{}")
    assert gate.counter == 900


@pytest.mark.parametrize(
    ("sent", "target", "body", "code"),
    [
        (headers(1, FOREIGN), "/v1/x", b"{}", "unknown_key"),
        (headers(1, boot="other"), "/v1/x", b"{}", "wrong_boot"),
        (headers(1), "/v1/x", b"{} ", "bad_signature"),
        (headers(1), "/v1/x?a=1", b"{}", "bad_signature"),
        ({**headers(1), "resumable-counter": "2"}, "/v1/x", b"{}", "bad_signature"),
        ({**headers(1), "resumable-counter": "-1"}, "/v1/x", b"{}", "bad_signature"),
        ({**headers(1), "resumable-signature": ""}, "/v1/x", b"{}", "bad_signature"),
        ({}, "/v1/x", b"{}", "unknown_key"),
    ],
)
def test_denied(gate: Gate, sent: dict[str, str], target: str, body: bytes, code: str) -> None:
    """Refused with the reason, and the counter stays where it was."""
    assert code_of(gate, sent, target, body) == code
    assert gate.counter == 0


def test_a_rotated_key_is_picked_up(gate: Gate, key_file: Path) -> None:
    """The file is read again when an unknown key appears."""
    assert code_of(gate, headers(1, FOREIGN)) == "unknown_key"
    key_file.write_text(f"{FOREIGN.hex()}\n{KEY.hex()}\n")
    gate.admit("PUT", "/v1/x", headers(2, FOREIGN), b"{}")
    assert code_of(gate, headers(3, OLD)) == "unknown_key"


def test_a_key_file_that_vanishes_leaves_the_keys(gate: Gate, key_file: Path) -> None:
    """A volume's trouble locks nobody out who was known."""
    key_file.unlink()
    assert code_of(gate, headers(1, FOREIGN)) == "unknown_key"
    gate.admit("PUT", "/v1/x", headers(1), b"{}")


@pytest.mark.parametrize("content", ["", "\n", "not hexadecimal"])
def test_a_file_without_keys(tmp_path: Path, content: str) -> None:
    """It is an error at start, not an open door."""
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"."):
        read_keys(path)
