"""What outlives the ranks of an attempt on this worker: writers that still store, arenas (``arenas``).

A rank's writer connects when it starts, and says when a copy is complete and how its store ended. When its
rank is dead it may go on for as long as ``landing.patience`` says; the ranks of the next attempt ask to be
told when no writer of an older one is left. Every process here is also killed with the agent: the connection
ends, and the guard knows the sessions. Messages: ``contract.keeping``. Runs in the agent's loop, and nothing
here waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set

from resumable_training.agent import landing, reap
from resumable_training.agent.arenas import Arenas
from resumable_training.agent.landing import Flight
from resumable_training.contract import env, keeping
from resumable_training.contract.framing import Inbox, Message, send

_BACKLOG = 512
_LONGEST = 1 << 20  # of a message, in bytes
_STRANGERS = 4096  # of one before hello

Leaders = Callable[[], Dict[int, int]]  # rank -> pid of its session's leader


@dataclass(eq=False)
class _Peer:
    connection: socket.socket
    inbox: Inbox
    role: str = ""  # empty until it has said hello
    attempt: int = 0
    rank: int = -1
    slot: int = 0
    slots: int = 1
    pid: int = 0
    session: int = 0
    flight: Optional[Flight] = None  # of a writer: not landed yet
    asked_at: Optional[float] = None  # of a rank: it waits for older writers since then
    deadline: Optional[asyncio.TimerHandle] = None


@dataclass
class _Ended:
    """An attempt whose ranks are dead."""

    at: float
    sessions: Set[int] = field(default_factory=set)  # in which writers of it live


class Keeper:
    """Made before the agent's loop runs; ``begin`` opens it.

    Args:
        path: of its socket; short (108 bytes).
        let_go: told of a session in which nothing lives any more.
        say: for the agent's own log.
    """

    def __init__(self, path: str, let_go: Callable[[int], None], say: Callable[[str], None]) -> None:
        self._path = path
        self._let_go = let_go
        self._say = say
        self._listener: Optional[socket.socket] = None
        self._peers: Set[_Peer] = set()
        self._arenas = Arenas()
        self._attempt = 0
        self._leaders: Leaders = dict
        self._ended: Dict[int, _Ended] = {}
        self._outcomes: Dict[int, List[Message]] = {}  # by attempt
        self._told: Set[int] = set()  # attempts whose outcomes a rank of a later one has heard
        self._untold: Optional[Message] = None  # how rank 0's last save ended, of which it has not spoken
        self.on_landed: Callable[[int, Message], None] = lambda _attempt, _told: None  # without its rank 0

    # what the agent says ------------------------------------------------------------------------------

    def begin(self, attempt: int, leaders: Leaders) -> None:
        """The ranks of this attempt are about to start; only theirs are let in from now on."""
        for number in self._told:
            self._outcomes.pop(number, None)
        self._told.clear()
        self._ended = {number: ended for number, ended in self._ended.items() if ended.sessions}
        self._attempt, self._leaders, self._untold = attempt, leaders, None
        if self._listener is None:
            try:
                self._listener = _listen(self._path)
            except OSError as error:
                self._say("nothing outlives a rank here: %s: %s" % (self._path, error))
                return
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def environment(self) -> Dict[str, str]:
        """What a rank must know to find this."""
        return {env.KEEPER: self._path} if self._listener is not None else {}

    def pids(self) -> List[int]:
        """Writers, which are no leftovers."""
        return [peer.pid for peer in self._writers()]

    def stores(self, attempt: int) -> bool:
        """Writers of it may still have something to store."""
        return any(peer.attempt == attempt for peer in self._writers())

    def heard(self, step: object) -> None:
        """Rank 0 has told how its save of that step ended."""
        if self._untold is not None and self._untold["step"] == step:
            self._untold = None

    def end(self, attempt: int, sessions: Set[int]) -> Set[int]:
        """All ranks of the attempt are dead. Those of their sessions in which writers still live."""
        if self._untold is not None:
            self._keep(attempt, self._untold, of_rank_0=True)
        mine = [peer for peer in self._writers() if peer.attempt == attempt]
        self._ended[attempt] = _Ended(time.monotonic(), {peer.session for peer in mine} & sessions)
        for peer in mine:
            self._bound(peer)
        return set(self._ended[attempt].sessions)

    def close(self) -> None:
        """Kill what is left, and give all memory back."""
        for peer in list(self._peers):
            if peer.role == keeping.WRITER:
                reap.send(peer.pid, signal.SIGKILL)
            peer.connection.close()
        self._peers.clear()
        self._arenas.close()
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _writers(self) -> List[_Peer]:
        return [peer for peer in self._peers if peer.role == keeping.WRITER]

    # connections --------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        peer = _Peer(connection, Inbox(connection))
        self._peers.add(peer)
        asyncio.get_running_loop().add_reader(connection.fileno(), self._hear, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            for message in peer.inbox.waiting():
                if not peer.role:
                    self._welcome(peer, message)
                else:
                    self._handle(peer, message)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            self._say("a process that spoke to the keeper is not understood: %r" % error)
            self._gone(peer)
            return
        too_long = peer.inbox.pending > (_LONGEST if peer.role else _STRANGERS)
        if peer.inbox.closed or too_long:
            self._gone(peer)

    def _welcome(self, peer: _Peer, message: Message) -> None:
        attempt, rank, pid = message["attempt"], message["rank"], int(message["pid"])
        session = _session(pid)
        if message["kind"] != keeping.HELLO or attempt != self._attempt or session is None:
            raise ValueError("process %d of attempt %r" % (pid, attempt))
        if self._leaders().get(rank) != session:
            raise ValueError("process %d is not of rank %r" % (pid, rank))
        if message["role"] not in (keeping.WRITER, keeping.RANK):
            raise ValueError("role %r" % message["role"])
        peer.attempt, peer.rank, peer.pid, peer.session = attempt, int(rank), pid, session
        peer.slot, peer.slots = int(message["slot"]), int(message["slots"])
        peer.role = message["role"]
        self._reply(peer, {"kind": keeping.WELCOME})

    def _reply(self, peer: _Peer, message: Message, *descriptors: int) -> None:
        """One that does not read is lost; it does without."""
        try:
            send(peer.connection, message, descriptors)
        except OSError:
            self._gone(peer)

    def _gone(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        asyncio.get_running_loop().remove_reader(peer.connection.fileno())
        peer.connection.close()
        for descriptor in peer.inbox.descriptors:
            os.close(descriptor)
        if peer.deadline is not None:
            peer.deadline.cancel()
        if peer.role == keeping.WRITER:
            self._lost(peer)

    def _lost(self, peer: _Peer) -> None:
        """A writer is gone."""
        if peer.flight is not None:
            self._tell(peer, {"ok": False, "message": "its writer was lost", "bytes": 0})
        ended = self._ended.get(peer.attempt)
        alone = not any(other.session == peer.session for other in self._writers())
        if ended is not None and alone and peer.session in ended.sessions:
            ended.sessions.discard(peer.session)
            self._let_go(peer.session)
        self._settle()

    # what they say ------------------------------------------------------------------------------------

    def _handle(self, peer: _Peer, message: Message) -> None:
        handle: Callable[[_Peer, Message], None] = {
            (keeping.WRITER, keeping.ARENA): self._on_arena,
            (keeping.WRITER, keeping.FLIGHT): self._on_flight,
            (keeping.WRITER, keeping.LANDED): self._on_landed,
            (keeping.RANK, keeping.AWAIT): self._on_await,
            (keeping.RANK, keeping.FIND): self._on_find,
            (keeping.RANK, keeping.TAKE): self._on_take,
        }[peer.role, message["kind"]]
        handle(peer, message)

    def _on_arena(self, peer: _Peer, message: Message) -> None:
        self._arenas.put(peer.slot, peer.inbox.descriptors.pop(0), int(message["bytes"]))

    def _on_flight(self, peer: _Peer, message: Message) -> None:
        name, step = str(message["checkpoint"]), int(message["step"])
        durable, worth = float(message["durable"]), float(message["worth"])
        self._arenas.describe(peer.slot, name, peer.inbox.descriptors.pop(0))
        held, samples = message.get("held") is True, int(message.get("samples", -1))
        peer.flight = Flight(name, step, time.monotonic(), durable, worth, held, samples)
        if peer.attempt in self._ended:
            self._bound(peer)

    def _on_landed(self, peer: _Peer, message: Message) -> None:
        if peer.flight is not None and peer.flight.checkpoint == message["checkpoint"]:
            self._tell(peer, message)

    def _tell(self, peer: _Peer, how: Message) -> None:
        """Keep for the next attempt how a flight ended of which no rank may live to tell."""
        flight, peer.flight = peer.flight, None
        assert flight is not None
        ended = self._ended.get(peer.attempt)
        waited = time.monotonic() - ended.at if ended is not None else 0.0
        told = {name: how.get(name) for name in ("ok", "message", "bytes", "seconds")}
        told.update(checkpoint=flight.checkpoint, step=flight.step, waited=round(waited, 3))
        told["samples"] = flight.samples
        if ended is not None:
            self._keep(peer.attempt, told, of_rank_0=peer.rank == 0)
        elif peer.rank == 0:
            self._untold = told

    def _keep(self, attempt: int, told: Message, of_rank_0: bool) -> None:
        if of_rank_0 and told["ok"] and told["samples"] >= 0:
            self.on_landed(attempt, told)
        self._outcomes.setdefault(attempt, []).append(told)
        how = "has landed" if told["ok"] else "was given up: %s" % told["message"]
        self._say("%s, in flight when its ranks ended, %s" % (told["checkpoint"], how))

    def _on_await(self, peer: _Peer, _: Message) -> None:
        peer.asked_at = time.monotonic()
        self._settle()

    def _settle(self) -> None:
        """Answer those who wait for older writers."""
        for peer in [peer for peer in self._peers if peer.asked_at is not None]:
            if any(writer.attempt < peer.attempt for writer in self._writers()):
                continue
            assert peer.asked_at is not None
            waited, peer.asked_at = time.monotonic() - peer.asked_at, None
            flights: List[Any] = []
            for attempt in sorted(number for number in self._outcomes if number < peer.attempt):
                flights += self._outcomes[attempt]
                self._told.add(attempt)
            self._reply(peer, {"kind": keeping.SETTLED, "waited": round(waited, 3), "flights": flights})

    def _on_find(self, peer: _Peer, message: Message) -> None:
        for size, arena, content in self._arenas.find(str(message["checkpoint"])):
            self._reply(peer, {"kind": keeping.FOUND, "bytes": size}, arena, content)
        self._reply(peer, {"kind": keeping.END})

    def _on_take(self, peer: _Peer, message: Message) -> None:
        taken = self._arenas.take(peer.slot, int(message["bytes"]), peer.slots)
        if taken is None:
            self._reply(peer, {"kind": keeping.TAKEN, "bytes": -1})
        else:
            self._reply(peer, {"kind": keeping.TAKEN, "bytes": taken[0]}, taken[1])

    # time ---------------------------------------------------------------------------------------------

    def _bound(self, peer: _Peer) -> None:
        """A writer of an ended attempt has so long from the end on, whenever it says what it stores."""
        ended_at = self._ended[peer.attempt].at
        seconds, why = landing.IDLE_SECONDS, "it has nothing to store"
        if peer.flight is not None:
            seconds, why = landing.patience(peer.flight, ended_at)
        left = max(0.0, ended_at + seconds - time.monotonic())
        if peer.flight is not None:
            self._say("%s may land within %.1f s (%s)" % (peer.flight.checkpoint, left, why))
        if peer.deadline is not None:
            peer.deadline.cancel()
        loop = asyncio.get_running_loop()
        peer.deadline = loop.call_later(left, self._give_up, peer, seconds, why)

    def _give_up(self, peer: _Peer, seconds: float, why: str) -> None:
        reap.send(peer.pid, signal.SIGKILL)
        if peer.flight is not None:
            message = "not stored within %.1f s (%s)" % (seconds, why)
            self._tell(peer, {"ok": False, "message": message, "bytes": 0})
        self._gone(peer)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _session(pid: int) -> Optional[int]:
    try:
        return os.getsid(pid)
    except (OSError, OverflowError):
        return None
