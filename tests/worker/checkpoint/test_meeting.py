"""Writers of an attempt meet: order of arrival, deaths, strangers; all in one process, over real sockets."""

import contextlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_process import wait_until
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint import meeting as meeting_module
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.meeting import NO_FLIGHT, Guest, Host, HostGone, flight_number, listen
from resumable_training.checkpoint.writer_main import Writer
from resumable_training.contract import env
from resumable_training.contract.framing import Inbox, send

OK = {"ok": True, "message": ""}


class Meeting:
    """A host that can be started anew on the same port, as after its writer's death."""

    def __init__(self, world_size: int) -> None:
        self.listener = listen("127.0.0.1")
        self.address = self.listener.getsockname()
        self.world_size = world_size
        self.guests: list[Guest] = []
        self.host = self.another_host()

    def another_host(self) -> Host:
        self.host = Host(self.listener.dup(), "secret", self.world_size)
        return self.host

    def guest(self, rank: int, flight: int = 1, secret: str = "secret") -> Guest:
        self.guests.append(Guest(self.address, secret, rank, flight))
        return self.guests[-1]


@pytest.fixture
def meet() -> Iterator[Callable[[int], Meeting]]:
    made: list[Meeting] = []

    def make(world_size: int) -> Meeting:
        made.append(Meeting(world_size))
        return made[-1]

    yield make
    for meeting in made:
        for guest in meeting.guests:
            guest.close()
        meeting.listener.close()


def in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start; the result, once it is asked for."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(30)
        assert found, "it did not end in time"
        return found[0]

    return result


@pytest.mark.parametrize("early", [True, False])
def test_guests_write_after_the_claim_and_hear_the_outcome(meet: Any, early: bool) -> None:
    """Whoever comes before the flight was opened waits, whoever comes late is told at once."""
    meeting = meet(3)
    first = meeting.guest(1) if early else None
    meeting.host.open(1)
    second = meeting.guest(2)
    meeting.host.claimed()
    first = first or meeting.guest(1)
    assert first.await_claim() is None
    assert second.await_claim() is None
    outcomes = [in_background(lambda g=guest: g.stored({"file": "x"})) for guest in (first, second)]
    assert [one["file"] for one in meeting.host.collect()] == ["x", "x"]
    meeting.host.close(OK)
    assert all(outcome()["ok"] for outcome in outcomes)
    assert meeting.guest(1).await_claim()["ok"]


def test_a_guest_that_fails_fails_the_flight(meet: Any) -> None:
    """With its rank and its words; it hears the same as all."""
    meeting = meet(2)
    meeting.host.open(1)
    outcome = in_background(lambda: meeting.guest(1).failed("No space left on device"))
    meeting.host.claimed()
    with pytest.raises(StorageUnavailable, match="rank 1: No space left on device"):
        meeting.host.collect()
    meeting.host.close({"ok": False, "message": "failed"})
    assert outcome()["message"] == "failed"


@pytest.mark.parametrize("hangs", [True, False])
def test_guests_leave_before_what_was_written_is_removed(
    hangs: bool, meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one could write on into what is being removed. Not for ever: it may hang in the store."""
    monkeypatch.setattr(meeting_module, "_LEAVE_SECONDS", 0.05 if hangs else 30.0)
    meeting = meet(3)
    meeting.host.open(1)
    writes, stored = meeting.guest(1), meeting.guest(2)
    meeting.host.claimed()
    assert writes.await_claim() is None
    outcome = in_background(lambda: stored.stored({"file": "x"}))
    called_off = in_background(lambda: meeting.host.call_off("No space left on device"))
    assert outcome()["message"] == "No space left on device"
    if hangs:
        called_off()
        return
    wait_until(lambda: says_gone(writes), "the word that it is over")
    assert len(meeting.host._of_flight()) == 2
    writes.close()
    called_off()


def says_gone(guest: Guest) -> bool:
    try:
        guest.look()
    except HostGone as error:
        return "No space left on device" in str(error)
    return False


def test_a_guest_may_fail_before_its_flight_is_opened(meet: Any) -> None:
    """Rank 0 still copies: its words are kept until then, and nobody waits for more."""
    meeting = meet(2)
    outcome = in_background(lambda: meeting.guest(1, flight=2).failed("its state is strange"))
    meeting.host.open(1)
    meeting.host.close(OK)
    wait_until(lambda: any(guest.answer for guest in meeting.host._guests), "an answer")
    meeting.host.open(2)
    with pytest.raises(StorageUnavailable, match="rank 1: its state is strange"):
        meeting.host.collect()
    meeting.host.close({"ok": False, "message": "failed"})
    assert outcome()["message"] == "failed"


@pytest.mark.parametrize("early", [True, False])
def test_a_rank_that_has_ended_fails_every_later_flight(meet: Any, early: bool) -> None:
    """At once, however many of them it has missed; but not the last one that it has copied for."""
    meeting = meet(2)
    guest = meeting.guest(1, NO_FLIGHT)
    meeting.host.open(5)
    if early:
        guest.ended(5, "its rank ended")
        guest.close()
    outcome = in_background(lambda: meeting.guest(1, flight=5).stored({"file": "x"}))
    assert [one["file"] for one in meeting.host.collect()] == ["x"]
    meeting.host.close(OK)
    assert outcome()["ok"]
    for flight in (6, 9):
        meeting.host.open(flight)
        if not early:
            guest.ended(5, "its rank ended")
        with pytest.raises(StorageUnavailable, match="rank 1: its rank ended"):
            meeting.host.collect()
        meeting.host.close({"ok": False, "message": "failed"})


def test_a_guest_of_a_later_flight_has_nothing_for_this_one(meet: Any) -> None:
    """Its rank has copied over what was in the arena; its own flight may follow."""
    meeting = meet(2)
    early = meeting.guest(1, flight=4)
    for _ in range(2):
        meeting.host.open(3)
        with pytest.raises(StorageUnavailable, match="rank 1: its rank had copied a later step"):
            meeting.host.collect()
        meeting.host.close({"ok": False, "message": "failed"})
    meeting.host.open(4)
    meeting.host.claimed()
    assert early.await_claim() is None


def test_a_writer_that_stayed_is_missed(meet: Any) -> None:
    """By a flight of dead ranks, open or not; one of living ranks waits for the writer that follows it."""
    meeting = meet(2)
    meeting.guest(1, NO_FLIGHT).close()
    wait_until(lambda: meeting.host._left, "the writer missed")
    meeting.host.open(1)
    outcome = in_background(lambda: meeting.guest(1, flight=1).stored({"file": "x"}))
    assert [one["file"] for one in meeting.host.collect()] == ["x"]
    meeting.host.close(OK)
    assert outcome()["ok"]
    again = meeting.guest(1, NO_FLIGHT)
    meeting.host.open(2, held=True)
    again.close()
    for flight in (3, 4):
        with pytest.raises(StorageUnavailable, match="rank 1: its checkpoint writer went away"):
            meeting.host.collect()
        meeting.host.open(flight, held=True)


PICKS = {
    "all hold the newest": ([7, 5], [[7, 5], [7, 5]], 7),
    "one was behind": ([7, 5], [[5, 3], [7, 5]], 5),
    "rank 0 was behind": ([5, 3], [[7, 5], [7, 5]], 5),
    "one has room for one copy": ([7, 5], [[7], [7, 5]], 7),
    "one has room for one copy, and was behind": ([7, 5], [[5], [7, 5]], 5),
    "nothing that all hold": ([7, 5], [[7, 5], [3]], NO_FLIGHT),
    "two that no third one holds": ([7], [[5], [5]], NO_FLIGHT),
}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("own", "others", "found"), PICKS.values(), ids=PICKS.keys())
def test_the_newest_copy_that_all_hold_is_picked(
    own: list[int], others: list[list[int]], found: int, early: bool, meet: Any
) -> None:
    """Whoever says first what it holds. Its flight is as any other; without one all hear why."""
    meeting = meet(3)
    guests = [meeting.guest(rank, NO_FLIGHT) for rank in (1, 2)]
    pick = None if early else in_background(lambda: meeting.host.pick(own))
    told = [
        in_background(lambda guest=guest, held=held: guest.holds(held, 2, "its rank ended"))
        for guest, held in zip(guests, others, strict=True)
    ]
    if early:
        wait_until(lambda: len(meeting.host._holding) == 2, "what they hold")
    number, why = pick() if pick else meeting.host.pick(own)
    assert number == found
    assert [(one()["flight"], one()["message"]) for one in told] == [(number, why)] * 2
    if number == NO_FLIGHT:
        assert "different steps" in why
        return
    flying = [meeting.guest(rank, flight=number) for rank in (1, 2)]
    meeting.host.open(number, held=True)
    meeting.host.claimed()
    assert [guest.await_claim() for guest in flying] == [None, None]
    stored = [in_background(lambda g=guest: g.stored({"file": "x"})) for guest in flying]
    assert [one["file"] for one in meeting.host.collect()] == ["x", "x"]
    meeting.host.close(OK)
    assert all(outcome()["ok"] for outcome in stored)


@pytest.mark.parametrize("how", ["gone", "ended", "gone after it spoke"])
def test_nothing_is_picked_without_all(how: str, meet: Any) -> None:
    """A writer that died, or one whose rank had copied nothing; nobody waits for it."""
    meeting = meet(3)
    present, absent = meeting.guest(1, NO_FLIGHT), meeting.guest(2, NO_FLIGHT)
    answers = [in_background(lambda: present.holds([7], 2, "its rank ended"))]
    if how == "ended":
        absent.ended(2, "its rank ended")
    elif how == "gone after it spoke":
        answers.append(in_background(lambda: absent.holds([7], 2, "its rank ended")))
        wait_until(lambda: len(meeting.host._holding) == 2, "what they hold")
    pick = in_background(lambda: meeting.host.pick([7]))
    if how != "gone after it spoke":
        absent.close()
        number, why = pick()
        assert number == NO_FLIGHT
        assert why.startswith("saving failed on rank 2: its ")
        assert answers[0]()["message"] == why
        return
    assert pick() == (7, "")
    assert [one()["flight"] for one in answers] == [7, 7]
    absent.close()
    in_background(lambda: outcome_or_none(meeting.guest(1, flight=7)))
    assert why_not(meeting.host) == "saving failed on rank 2: its checkpoint writer went away"


def outcome_or_none(guest: Guest) -> Any:
    """Of one that has stored its part; None: the host went away, as at the end of a test."""
    with contextlib.suppress(HostGone):
        return guest.stored({"file": "x"})


def test_who_waits_for_a_save_that_rank_0_never_began_says_what_it_holds(meet: Any) -> None:
    """Rank 0 died in its copy for a save that the other had copied for."""
    meeting = meet(2)
    stays, waits = meeting.guest(1, NO_FLIGHT), meeting.guest(1, flight=9)
    ended = in_background(waits.await_claim)
    pick = in_background(lambda: meeting.host.pick([7, 5]))
    assert not ended()["ok"]
    assert stays.holds([7, 5], 9, "its rank ended")["flight"] == 7
    assert pick() == (7, "")


def test_a_save_in_flight_does_not_wait_for_a_rank_that_holds(meet: Any) -> None:
    """It died before it had copied for that save; then what both hold is stored."""
    meeting = meet(2)
    guest = meeting.guest(1, NO_FLIGHT)
    meeting.host.open(9)
    told = in_background(lambda: guest.holds([7], 2, "its rank ended"))
    assert why_not(meeting.host) == "saving failed on rank 1: its rank ended"
    meeting.host.close({"ok": False, "message": "failed"})
    assert meeting.host.pick([7]) == (7, "")
    assert told()["flight"] == 7


def test_a_save_of_dead_ranks_does_not_wait_for_a_writer_that_left(meet: Any) -> None:
    """It was there when the save began, whose ranks all lived; now no other one will come."""
    meeting = meet(2)
    alive = [True]
    meeting.host._is_orphan = lambda: not alive[0]
    meeting.guest(1, NO_FLIGHT).close()
    wait_until(lambda: meeting.host._left, "the writer missed")
    meeting.host.open(1)
    why = in_background(lambda: why_not(meeting.host))
    alive[0] = False
    assert why() == "saving failed on rank 1: its checkpoint writer went away"


def die_as_host(listener: socket.socket) -> None:
    """A host to which one came to stay."""
    connection, _ = listener.accept()
    with connection:
        send(connection, {"kind": "challenge", "nonce": "x"})
        assert (Inbox(connection).receive() or {})["flight"] == NO_FLIGHT
        send(connection, {"kind": "heard"})


def why_not(host: Host) -> str:
    with pytest.raises(StorageUnavailable) as caught:
        host.collect()
    return str(caught.value)


class WriterOfRank1:
    """It has come to stay with a host, which has died since. It runs until its rank's death."""

    def __init__(self, directory: Path) -> None:
        self.listener = listen("127.0.0.1")
        self.rank, self._socket = socket.socketpair()
        self.writer = Writer(self._socket, os.getpid())
        host, port = self.listener.getsockname()[:2]
        begin = {"rank": 1, "world_size": 2, "store": str(directory), "secret": "secret", "listener": -1}
        send(self.rank, {"kind": "begin", **begin, "host": host, "port": port})
        self._letters = [os.memfd_create("letter") for _ in range(2)]
        send(self.rank, {"kind": "letters", "letters": 2}, self._letters)
        self._run = in_background(self.writer.run)
        die_as_host(self.listener)
        told = Inbox(self.rank)
        assert [(told.receive() or {})["kind"] for _ in range(2)] == ["ready", "standing by"]

    def another_host(self) -> Host:
        return Host(self.listener.dup(), "secret", 2)

    def lose_rank(self) -> None:
        self.rank.shutdown(socket.SHUT_WR)
        self._run()

    def die(self) -> None:
        self.lose_rank()
        self.writer._leave()

    def close(self) -> None:
        self.die()
        self.rank.close()
        self._socket.close()
        self.listener.close()
        for letter in (*self._letters, *self.writer._letters):
            os.close(letter)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriterOfRank1]:
    monkeypatch.delenv(env.KEEPER, raising=False)
    with contextlib.closing(WriterOfRank1(tmp_path)) as left:
        yield left


def stays(host: Host) -> bool:
    return any(guest.flight == NO_FLIGHT for guest in host._guests)


def test_a_writer_comes_to_stay_with_another_host(left: WriterOfRank1) -> None:
    """As soon as there is one, though its rank says nothing: if it dies nobody waits for what it holds."""
    send(left.rank, {"kind": "plan", "items": [], "view": "another"})
    wait_until(lambda: left.writer._view == "another", "the plan, before any host comes")
    another = left.another_host()
    wait_until(lambda: stays(another), "the guest that stays")
    left.die()
    number, why = in_background(lambda: another.pick([7]))()
    assert (number, why) == (NO_FLIGHT, "saving failed on rank 1: its checkpoint writer went away")


@pytest.mark.parametrize("how", ["after a flight", "there", "not there yet", "gone for good"])
def test_another_host_hears_that_a_rank_has_ended(how: str, left: WriterOfRank1) -> None:
    """Rank 0 has another writer than the one that this rank's had come to stay with, or had."""
    if how in ("not there yet", "gone for good"):
        left.lose_rank()
    if how == "gone for good":
        left.listener.close()
        left.writer._say_that_it_ended()
        return
    another = left.another_host()
    if how == "after a flight":
        another.open(1)
        settle = {"kind": "settle", "flight": 1, "why": "its writer died", "unlike": False}
        send(left.rank, settle)
        assert "its writer died" in why_not(another)
        another.close(OK)
    if how != "not there yet":
        wait_until(lambda: stays(another), "the guest that stays")
        left.lose_rank()
    left.writer._last_flight = 1
    left.writer._say_that_it_ended()
    another.open(2, held=True)
    assert "its rank ended" in in_background(lambda: why_not(another))()


@given(*[st.integers(0, 10**6), st.integers(0, 10**15)] * 2)
def test_numbers_of_flights_grow(saves: int, step: int, later_saves: int, later_step: int) -> None:
    """By saves first, then by steps: what one rank left out does not count."""
    assert (flight_number(saves, step) < flight_number(later_saves, later_step)) == (
        (saves, step) < (later_saves, later_step)
    )


def test_a_guest_that_goes_away_fails_the_flight(meet: Any) -> None:
    """A killed writer closes its connection; nobody waits for it."""
    meeting = meet(2)
    meeting.host.open(1)
    guest = meeting.guest(1)
    meeting.host.claimed()
    assert guest.await_claim() is None
    guest.close()
    with pytest.raises(StorageUnavailable, match="rank 1: its checkpoint writer went away"):
        meeting.host.collect()


def test_a_guest_notices_in_mid_write_that_its_flight_has_ended(meet: Any) -> None:
    """The directory is gone by then: it must not go on."""
    meeting = meet(2)
    meeting.host.open(1)
    guest = meeting.guest(1)
    meeting.host.claimed()
    assert guest.await_claim() is None
    guest.look()
    meeting.host.close({"ok": False, "message": "the disk is full"})
    with pytest.raises(HostGone, match="the disk is full"):
        look_until_it_raises(guest)


def look_until_it_raises(guest: Guest) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        guest.look()
        time.sleep(0.01)


def test_a_guest_of_an_earlier_flight_is_sent_away(meet: Any) -> None:
    """Also one that was waiting when a later flight began."""
    meeting = meet(2)
    waiting = meeting.guest(1, flight=1)
    outcome = in_background(waiting.await_claim)
    meeting.host.open(3)
    assert not outcome()["ok"]
    assert not meeting.guest(1, flight=2).await_claim()["ok"]


def test_what_was_overheard_is_of_no_use(meet: Any) -> None:
    """The secret does not travel, and a hello that is said again on another connection is not believed."""
    meeting = meet(2)
    meeting.host.open(1)
    with (
        socket.create_connection(meeting.address) as first,
        socket.create_connection(meeting.address) as second,
    ):
        nonces = [Inbox(one).receive()["nonce"] for one in (first, second)]  # type: ignore[index]
        assert nonces[0] != nonces[1]
        proof = hmac.digest(b"secret", f"{nonces[0]} 1 1".encode(), "sha256").hex()
        hello = {"kind": "hello", "rank": 1, "flight": 1, "proof": proof}
        send(second, hello)
        second.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert second.recv(100) == b""
        meeting.host.claimed()
        send(first, hello)
        assert Inbox(first).receive() == {"kind": "write"}


def framed(said: bytes) -> bytes:
    return len(said).to_bytes(4, "big") + said


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 300,
        framed(b"[]"),
        framed(b"{}"),
        framed(b"abc"),
        framed(b""),
        framed(b"null"),
        framed(b"NaN"),
        framed(b'"\xff"'),
        framed(b"[" * 4_000),
        framed(b'{"":' * 1_010),
        framed(b"[" * 100_000),
        framed(b'{"kind": []}'),
        framed(b'{"kind": "hello"}'),
        framed(b'{"kind": "hello", "rank": 1e999, "flight": 1}'),
        framed(b'{"kind": "hello", "rank": 1, "flight": -Infinity}'),
        framed(b'{"kind": "hello", "rank": NaN, "flight": 1}'),
        framed(b'{"kind": "hello", "rank": {}, "flight": 1}'),
        framed(b'{"kind": "hello", "rank": %s, "flight": 1}' % (b"9" * 5000)),
        framed(b'{"kind": "hello", "rank": 1, "flight": 1, "proof": "\\ud800"}'),
    ],
)
def test_strangers_are_sent_away(meet: Any, said: bytes) -> None:
    """A port scanner, or a writer of another attempt: neither joins, and the meeting goes on."""
    meeting = meet(2)
    meeting.host.open(1)
    with socket.create_connection(meeting.address) as stranger, contextlib.suppress(ConnectionError):
        stranger.settimeout(30)
        stranger.sendall(said)
        while stranger.recv(4096):
            continue
    with pytest.raises(HostGone):
        meeting.guest(1, secret="another").await_claim()
    meeting.host.claimed()
    assert meeting.guest(1).await_claim() is None
