"""How the writers of an attempt meet, without the training's process group. No torch.

Rank 0's writer is the host, the others come as guests, once for each flight: a flight is one save, numbered
the same on all ranks. A guest says hello and waits for the word that the directory is claimed, writes its
file, hands in what it has written, and waits for the outcome. Whoever breaks the connection has failed.

A guest may also stay beside all flights, to be missed when its writer dies while nothing flies: for copies
that are held (``holding``), of which nobody speaks until ranks are dead. Then each says which it holds, and
the host picks the newest that all hold, which flies as any save. And a guest says when its rank has ended, so
that no later flight waits for it. When the host dies, those who stayed with it come to the next one at once.

The listening socket belongs to rank 0's training process and outlives a writer that dies. A guest proves that
it knows a secret which only this attempt's ranks were told, by signing what the host has just thought up: so
neither another attempt nor another job can join, nor who has listened in.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.marking import Unlike
from resumable_training.contract.framing import Inbox, Message, send

CONNECT_SECONDS = 60.0  # the port is open as long as rank 0's process lives
_RETRY_SECONDS = 0.05
_BACKLOG = 4096
_STRANGERS_BYTES = 4096  # of whoever has not said hello
_MOST_NAMED = 4
_LEAVE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_SILENT_SECONDS, _ASK_AGAIN_SECONDS, _TIMES = 5, 2, 3  # TCP asks after one that stays

CHALLENGE = "challenge"
HELLO = "hello"
HEARD = "heard"  # to one that stays
WRITE = "write"  # the directory is claimed
STORED = "stored"
FAILED = "failed"
ENDED = "ended"  # {last, message}: nothing comes from this rank after its flight ``last``
OUTCOME = "outcome"
HOLDS = "holds"  # {flights, last, message}: copies of a rank that is dead, and as ENDED
PICK = "pick"  # {flight, message}: which of them flies now; NO_FLIGHT: none, and why
NO_FLIGHT = -1  # of a guest that stays
_ALL_OVER = sys.maxsize  # later than any flight: whoever waits for one waits in vain
_STEP_BITS = 52


def flight_number(saves: int, step: int) -> int:
    """The same on all ranks for the same copy, however many of those before it one of them left out.

    It grows: a later save, or a later step after the same save, has a larger one.

    Args:
        saves: begun by the attempt so far, this one included; those all ranks begin together.
    """
    return (saves << _STEP_BITS) + step


class HostGone(StorageUnavailable):
    """Rank 0's writer died, or has given this flight up."""


def listen(host: str) -> socket.socket:
    """A listening socket on ``host``, or on all addresses where that is not this machine's own (NAT)."""
    for address in (host, ""):
        try:
            infos = socket.getaddrinfo(address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, where = infos[0]
            listener = socket.socket(family, kind, protocol)
            listener.bind(where)
            listener.listen(_BACKLOG)
            return listener
        except OSError:
            if not address:
                raise
    raise AssertionError("unreachable")


@dataclass(eq=False)
class _Guest:
    connection: socket.socket
    inbox: Inbox
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    rank: int = -1  # unknown until it has said hello
    flight: int = NO_FLIGHT
    answer: Message | None = None  # STORED or FAILED; it may come before the flight is opened


@dataclass
class _Flight:
    number: int = NO_FLIGHT
    claimed: bool = False
    closed: bool = True
    held: bool = False
    answers: dict[int, Message] = field(default_factory=dict)  # by rank: STORED or FAILED
    outcome: Message = field(default_factory=dict)


class Host:
    """Rank 0's side. A thread listens; the writer itself opens a flight, collects, and closes it."""

    def __init__(
        self, listener: socket.socket, secret: str, world_size: int, is_orphan: Callable[[], bool] = bool
    ) -> None:
        """``is_orphan``: whether rank 0 is dead; the others are then, too, and no writer follows another."""
        self._is_orphan = is_orphan
        self._listener = listener
        self._secret = secret
        self._world_size = world_size
        self._changed = threading.Condition()
        self._flight = _Flight()
        self._guests: set[_Guest] = set()
        self._ended: dict[int, tuple[int, str]] = {}  # by rank: its last flight, and why it is that
        self._left: set[int] = set()  # ranks whose writer had stayed and is gone
        self._holding: dict[int, Message] = {}  # by rank: HOLDS
        self._pick: Message | None = None  # once it is made
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        threading.Thread(target=self._serve, name="checkpoint-meeting", daemon=True).start()

    def open(self, number: int, *, held: bool = False) -> None:
        """Flight ``number`` begins; guests of an earlier one are told that it is over.

        ``held``: of ranks that are dead, so that a writer which is gone by now has no successor.
        """
        with self._changed:
            self._flight = _Flight(number, closed=False, held=held)
            for guest in list(self._guests):
                if 0 <= guest.flight < number:
                    self._tell(guest, {"kind": OUTCOME, "ok": False, "message": "the save was given up"})
                self._count(guest)
            for rank in list(self._ended):
                self._count_out(rank)
            if held:
                self._miss_those_who_left()

    def _miss_those_who_left(self) -> None:
        self._flight.held = True
        for rank in self._left:
            self._flight.answers.setdefault(rank, _LOST)

    def _all_have_answered(self) -> bool:
        return len(self._flight.answers) == self._world_size - 1

    def pick(self, own: Sequence[int]) -> tuple[int, str]:
        """Of copies that are held the newest that all ranks hold, whose flight has begun; or NO_FLIGHT, why.

        Waits for the other ranks' writers, but for those that are gone. All ranks are dead, or will be.

        Args:
            own: flights of those that rank 0 holds.
        """
        with self._changed:
            self.open(_ALL_OVER, held=True)  # of a save that rank 0 had no time to begin, too
            self._changed.wait_for(lambda: len(self._flight.answers | self._holding) == self._world_size - 1)
            lost = {rank: one for rank, one in self._flight.answers.items() if rank not in self._holding}
            held = [set(one["flights"]) for one in self._holding.values()]
            common = set(own).intersection(*held)
            if lost:
                found, why = NO_FLIGHT, _failures(lost)
            else:
                found = max(common, default=NO_FLIGHT)
                why = "" if common else "ranks hold copies of different steps"
            self._pick = {"kind": PICK, "flight": found, "message": why}
            if found != NO_FLIGHT:
                for rank in self._holding:
                    self._ended.pop(rank, None)
                self.open(found, held=True)
            for guest in list(self._guests):
                if guest.flight == NO_FLIGHT and guest.rank in self._holding:
                    self._tell(guest, self._pick)
        return found, why

    def claimed(self) -> None:
        """Guests may write now."""
        with self._changed:
            self._flight.claimed = True
            for guest in self._of_flight():
                self._tell(guest, {"kind": WRITE})

    def collect(self) -> list[Message]:
        """Wait for all guests; what they have stored.

        Raises:
            StorageUnavailable: at least one has failed; says which and why.
            Unlike: the same, and what one of them holds does not fit its plan any more.
        """
        with self._changed:
            while not self._changed.wait_for(self._all_have_answered, _LOOK_SECONDS):
                if self._is_orphan():
                    self._miss_those_who_left()
            answers = dict(sorted(self._flight.answers.items()))
        failed = {rank: one for rank, one in answers.items() if one["kind"] == FAILED}
        if failed:
            kind = Unlike if any(one.get("unlike") for one in failed.values()) else StorageUnavailable
            raise kind(_failures(failed))
        return list(answers.values())

    def call_off(self, why: str) -> None:
        """The flight has failed: guests stop writing, and take their files away. Waits for that.

        Not for long: one that hangs in the store, or is gone without a word, leaves its file to retention.
        """
        with self._changed:
            self._flight.closed = True
            self._flight.outcome = {"kind": OUTCOME, "ok": False, "message": why}
            for guest in self._of_flight():
                self._tell(guest, self._flight.outcome)
            self._changed.wait_for(lambda: all(one.answer for one in self._of_flight()), _LEAVE_SECONDS)

    def close(self, outcome: Message) -> None:
        """The flight is over; all guests, and those who come late, are told how it went."""
        with self._changed:
            self._flight.closed = True
            self._flight.outcome = {"kind": OUTCOME, **outcome}
            for guest in self._of_flight():
                self._tell(guest, self._flight.outcome)

    def _of_flight(self) -> list[_Guest]:
        return [guest for guest in self._guests if guest.flight == self._flight.number]

    def _tell(self, guest: _Guest, message: Message) -> None:
        try:
            send(guest.connection, message)
        except OSError:
            self._gone(guest)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(True)
        guest = _Guest(connection, Inbox(connection))
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._tell(guest, {"kind": CHALLENGE, "nonce": guest.nonce})

    def _hear(self, guest: _Guest) -> None:
        with self._changed:
            try:
                for message in guest.inbox.waiting():
                    self._take(guest, message)
            except (ValueError, KeyError, TypeError, OverflowError):  # not one of us
                self._gone(guest)
            if guest.inbox.closed or (guest.rank < 0 and guest.inbox.pending > _STRANGERS_BYTES):
                self._gone(guest)
            self._changed.notify_all()

    def _take(self, guest: _Guest, message: Message) -> None:
        if message["kind"] == HELLO:
            self._welcome(guest, message)
        elif guest not in self._guests:
            self._gone(guest)
        elif message["kind"] == ENDED:
            self._has_ended(guest, message)
            self._tell(guest, {"kind": HEARD})  # one that hangs up before may not be heard
        elif message["kind"] == HOLDS:
            self._holding[guest.rank] = {**message, "flights": [int(one) for one in message["flights"]]}
            self._has_ended(guest, message)
            if self._pick is not None:
                self._tell(guest, self._pick)
        else:
            guest.answer = message
            self._count(guest)

    def _has_ended(self, guest: _Guest, message: Message) -> None:
        self._ended[guest.rank] = int(message["last"]), str(message["message"])
        self._count_out(guest.rank)

    def _count(self, guest: _Guest) -> None:
        """What a guest means for the flight that is open: its part, or that there is none any more."""
        flight = self._flight
        if guest.flight == flight.number and guest.answer is not None:
            flight.answers[guest.rank] = guest.answer
        elif guest.flight > flight.number and not flight.closed:
            flight.answers.setdefault(guest.rank, _GONE_ON)

    def _count_out(self, rank: int) -> None:
        last, why = self._ended[rank]
        if self._flight.number > last:
            self._flight.answers.setdefault(rank, {"kind": FAILED, "message": why})

    def _welcome(self, guest: _Guest, message: Message) -> None:
        rank, number = int(message["rank"]), int(message["flight"])
        wanted = _proof(self._secret, guest.nonce, rank, number)
        if guest.rank >= 0 or not hmac.compare_digest(
            str(message.get("proof", "")).encode(), wanted.encode()
        ):
            self._gone(guest)
            return
        guest.rank, guest.flight = rank, number
        self._guests.add(guest)
        self._left.discard(rank)
        flight = self._flight
        self._count(guest)
        if guest.flight == NO_FLIGHT:
            _look_after(guest.connection)
            self._tell(guest, {"kind": HEARD})
            return
        if guest.flight < flight.number:
            self._tell(guest, {"kind": OUTCOME, "ok": False, "message": "the save was given up"})
        elif guest.flight == flight.number and flight.closed:
            self._tell(guest, flight.outcome)
        elif guest.flight == flight.number and flight.claimed:
            self._tell(guest, {"kind": WRITE})

    def _gone(self, guest: _Guest) -> None:
        if guest.connection.fileno() >= 0:
            self._selector.unregister(guest.connection)
            guest.connection.close()
        if guest in self._guests:
            self._guests.discard(guest)
            stayed = guest.flight == NO_FLIGHT
            if stayed:
                self._left.add(guest.rank)
            if guest.flight == self._flight.number or (stayed and self._flight.held):
                self._flight.answers.setdefault(guest.rank, _LOST)


class Guest:
    """Another rank's side, for one flight, or for as long as its writer lives (``NO_FLIGHT``)."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        rank: int,
        flight: int,
        connect_seconds: float = CONNECT_SECONDS,
        *,
        enters: bool = True,
    ) -> None:
        """``enters``: at once, and waits for a host that is not up yet; or it will when it is called in.

        Raises HostGone when rank 0's port does not answer for so long.
        """
        self._connection = _connect(address, connect_seconds)
        self._inbox = Inbox(self._connection)
        self._secret, self._rank, self._flight = secret, rank, flight
        self.is_in = False
        if enters:
            self.enter()

    def fileno(self) -> int:
        """Readable when the host calls one in that is not in yet, and when the host goes."""
        return self._connection.fileno()

    def enter(self) -> None:
        """Answer the host's challenge, or wait for it."""
        proof = _proof(self._secret, str(self._hear().get("nonce")), self._rank, self._flight)
        self._say({"kind": HELLO, "proof": proof, "rank": self._rank, "flight": self._flight})
        if self._flight == NO_FLIGHT:
            self._hear()  # from now on it is missed when it goes
        self.is_in = True

    def await_claim(self) -> Message | None:
        """Wait until the directory is claimed; the outcome if the flight has ended before that."""
        message = self._hear()
        return None if message["kind"] == WRITE else message

    def look(self) -> None:
        """Raises HostGone when the flight has ended, which while we write can only be in failure."""
        self._connection.setblocking(False)
        try:
            messages = self._inbox.waiting()
        finally:
            self._connection.setblocking(True)
        if messages or self._inbox.closed:
            raise HostGone(str(messages[0].get("message")) if messages else _HOST_GONE)

    @property
    def is_heard(self) -> bool:
        """Of one that stays: whether it is in, and the host still the one that it came to."""
        if not self.is_in:
            return False
        try:
            self.look()
        except HostGone:
            return False
        return True

    def stored(self, what: dict[str, Any]) -> Message:
        """Hand in what was stored, or say why not (``failed``); the outcome."""
        self._say({"kind": STORED, **what})
        return self._await_outcome()

    def failed(self, why: str, *, unlike: bool = False) -> Message:
        """``unlike``: what this rank holds does not fit its plan any more."""
        self._say({"kind": FAILED, "message": why, "unlike": unlike})
        return self._await_outcome()

    def ended(self, last: int, why: str) -> None:
        """Of a guest that stays: its rank is dead, and after its flight ``last`` nothing comes from it."""
        self._say({"kind": ENDED, "last": last, "message": why})
        self._hear()

    def holds(self, flights: Sequence[int], last: int, why: str) -> Message:
        """Of a guest that stays: as ``ended``, and its writer has copies to store; the host's pick."""
        self._say({"kind": HOLDS, "flights": list(flights), "last": last, "message": why})
        return self._hear()

    def close(self) -> None:
        self._connection.close()

    def _await_outcome(self) -> Message:
        while (message := self._hear())["kind"] != OUTCOME:
            continue  # the word to write, to one that has failed before it came
        return message

    def _say(self, message: Message) -> None:
        try:
            send(self._connection, message)
        except OSError as error:
            raise HostGone(_HOST_GONE) from error

    def _hear(self) -> Message:
        try:
            message = self._inbox.receive()
        except ValueError as error:  # somebody else is there
            raise HostGone(_HOST_GONE) from error
        if message is None:
            raise HostGone(_HOST_GONE)
        return message


def _proof(secret: str, nonce: str, rank: int, flight: int) -> str:
    """HMAC-SHA256 over what the host has thought up and who the guest says it is."""
    return hmac.digest(secret.encode(), f"{nonce} {rank} {flight}".encode(), "sha256").hex()


def _failures(failed: dict[int, Message]) -> str:
    told = [f"rank {rank}: {one['message']}" for rank, one in sorted(failed.items())]
    return "saving failed on " + "; ".join(told[:_MOST_NAMED])


_HOST_GONE = "the checkpoint writer of rank 0 went away"
_LOST: Message = {"kind": FAILED, "message": "its checkpoint writer went away"}
_GONE_ON: Message = {"kind": FAILED, "message": "its rank had copied a later step"}


def _connect(address: tuple[str, int], seconds: float) -> socket.socket:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _no_timeout(socket.create_connection(address, timeout=max(seconds, 1.0)))
        except OSError as error:
            if time.monotonic() > deadline:
                raise HostGone(f"the checkpoint writer of rank 0 does not answer: {error}") from error
        time.sleep(_RETRY_SECONDS)


def _look_after(connection: socket.socket) -> None:
    """Notice within seconds that the other end's machine is gone, though nothing is ever said."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_AGAIN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)


def _no_timeout(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
