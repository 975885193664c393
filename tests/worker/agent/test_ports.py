"""Where the master of an attempt listens."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent import ports


@pytest.mark.parametrize(
    ("ephemeral", "wanted"),
    [
        (None, (20000, 32000)),
        ((32768, 60999), (20000, 32768)),
        ((10000, 65535), (1024, 10000)),
        ((1024, 60000), (60001, 65536)),
        ((1024, 65535), (20000, 32000)),  # nothing outside it: better than nothing
    ],
)
def test_range(ephemeral: tuple[int, int] | None, wanted: tuple[int, int]) -> None:
    """Outside the ephemeral range where there is room."""
    assert ports.master_range(ephemeral) == wanted


@given(st.text(), st.integers(1, 10**6), st.integers(1024, 30000), st.integers(1, 30000))
def test_candidates(uid: str, attempt: int, low: int, width: int) -> None:
    """The same for the same attempt, and always inside the range."""
    found = ports.port_candidates(uid, attempt, (low, low + width))
    assert found == ports.port_candidates(uid, attempt, (low, low + width))
    assert all(low <= port < low + width for port in found)


def test_attempts_and_jobs_are_kept_apart() -> None:
    """Nearly all of a thousand attempts begin with a port of their own."""
    first = {
        ports.port_candidates(uid, attempt, (20000, 32768))[0] for uid in ("a", "b") for attempt in range(500)
    }
    assert len(first) > 900


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next candidate is used; when all are taken there is none."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.bindable("127.0.0.1", port)
        monkeypatch.setattr(ports, "master_range", lambda _: (port, port + 1))
        assert ports.choose_master_port("127.0.0.1", "uid", 1) is None
    monkeypatch.undo()
    chosen = ports.choose_master_port("127.0.0.1", "uid", 1)
    assert chosen is not None
    assert ports.bindable("127.0.0.1", chosen)


def test_a_held_port_is_kept_from_others_until_it_is_let_go() -> None:
    """Nobody binds it meanwhile, at any address, with SO_REUSEADDR or without; its rank can, right after."""
    held = ports.hold_port("127.0.0.1", "uid/w", 1)
    assert held is not None
    assert not ports.bindable("127.0.0.1", held.number)
    assert not ports.bindable("127.0.0.2", held.number)
    other = ports.hold_port("127.0.0.1", "uid/w", 1)
    assert other is not None
    assert other.number != held.number
    held.let_go()
    assert ports.bindable("127.0.0.1", held.number)
    other.let_go()


def test_a_held_port_is_another_one_than_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the attempt that begins is not bound yet, and must not be taken from its rank 0."""
    held = ports.hold_port("127.0.0.1", "uid/w", 1)
    assert held is not None
    held.let_go()
    again = ports.hold_port("127.0.0.1", "uid/w", 1, but=held.number)
    assert again is not None
    assert again.number != held.number
    again.let_go()
    monkeypatch.setattr(ports, "master_range", lambda _: (held.number, held.number + 1))
    assert ports.hold_port("127.0.0.1", "uid/w", 1, but=held.number) is None


def test_no_port_is_held_at_an_address_of_another_machine() -> None:
    """The agent says that it has none, and the others wait for what it chooses."""
    assert ports.hold_port("192.0.2.1", "uid/w", 1) is None


def test_an_address_of_another_machine_is_not_bindable() -> None:
    """TEST-NET-1 is nobody's."""
    assert not ports.bindable("192.0.2.1", 23456)
