"""Agreement on where to stop, without the operator and without a collective per step.

A rank's training is a sequence of *boundaries* ``(step, poll)``, ordered like tuples: ``(S, 0)`` is the start
of step S, ``(S, 1), (S, 2), ...`` are the polls after step S (in an evaluation), ``(S, END)`` is the end of
step S, where ranks meet if a save may be due: nobody may come there when others commit. When any rank gets a
drain request it says so in the attempt's store. Each rank's watcher thread then acknowledges with the
boundary its loop has started last, and from then on the loop starts no other until rank 0's watcher has named
the largest of all acknowledgements. Every rank goes on to exactly that boundary and stops before the next
one.

Why nobody hangs: a step that any rank has started is started by all (the largest), so its collectives find
all their members; acknowledging needs no help from the loop, which may be inside a collective; and no rank
can have started anything beyond the largest acknowledgement, because it waits.
Until a request comes the loop pays for one uncontended lock a boundary. The watcher asks the store a few
times a second instead of blocking on a key: a thread that is blocked inside the store's client can't be
ended, and takes the interpreter down when it returns during its exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from resumable_training.errors import PeerLost

Boundary = tuple[int, int]
NOTHING: Boundary = (-1, 0)  # before anything was started
END = 1 << 30  # later than any poll of an evaluation; between loops polls go on from here

POLL_SECONDS = 0.2  # until a request is known
FAST_POLL_SECONDS = 0.01  # afterwards
RANKS_PER_SECOND = 5000  # questions that rank 0's store should answer at most

_REQUEST = "drain/request"
_STOP = "drain/stop"
_EVALUATING = "evaluating"  # a counter: odd while rank 0 evaluates


class Store(Protocol):
    """What is needed of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def add(self, key: str, amount: int, /) -> int: ...


class Agreement:
    """What the loop and the watcher of one rank share."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._started: Boundary = NOTHING
        self._requested = False
        self._stop: Boundary | None = None
        self._failure: str | None = None
        self.reason = ""

    @property
    def requested(self) -> bool:
        """Whether this rank knows of a request."""
        return self._requested

    def start(self, boundary: Boundary, waiting: Callable[[], None] | None = None) -> bool:
        """Start ``boundary`` unless the agreed stop lies before it; returns whether it was started.

        May wait for the stop to be named; calls ``waiting`` about twice a second meanwhile.

        Raises:
            PeerLost: the store, so rank 0, is gone before the stop was named.
        """
        with self._changed:
            while (started := self._try_start(boundary)) is None:
                self._changed.wait(0.5)
                if waiting is not None:
                    waiting()
            return started

    def try_start(self, boundary: Boundary) -> bool | None:
        """As :meth:`start`; None where that would wait."""
        with self._changed:
            return self._try_start(boundary)

    def _try_start(self, boundary: Boundary) -> bool | None:
        if self._stop is not None and boundary > self._stop:
            return False
        if self._requested and self._stop is None:
            if self._failure is not None:
                raise PeerLost(self._failure)
            return None
        self._started = boundary
        return True

    def stops_before(self, boundary: Boundary) -> bool:
        """Whether the stop is named already and lies before ``boundary``; never waits."""
        with self._changed:
            return self._stop is not None and boundary > self._stop

    def acknowledge(self, reason: str) -> Boundary:
        """Learn of a request; returns the boundary started last. Repeating it changes nothing."""
        with self._changed:
            if not self._requested:
                self._requested = True
                self.reason = reason
            return self._started

    def name_stop(self, boundary: Boundary) -> None:
        """The agreed stop, known to this rank."""
        with self._changed:
            if self._stop is None:
                self._stop = boundary
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        """The stop can never be named."""
        with self._changed:
            self._failure = why
            self._changed.notify_all()


class Participant:
    """One rank's part of the protocol; :meth:`advance` does what can be done now and never waits.

    ``store`` is a client of its own: one that another thread waits on can do nothing else.
    """

    def __init__(self, store: Store, rank: int, world_size: int, agreement: Agreement) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._agreement = agreement
        self._acknowledged = False
        self._named = False

    def request(self, reason: str) -> None:
        """Ask all ranks to stop. Any rank may, more than once; one reason is kept."""
        if not self._store.check([_REQUEST]):
            self._store.set(_REQUEST, reason)

    def advance(self) -> bool:
        """Returns whether the stop is named, which ends this rank's part."""
        if not self._acknowledged:
            if not self._store.check([_REQUEST]):
                return False
            boundary = self._agreement.acknowledge(self._store.get(_REQUEST).decode())
            self._store.set(_key(self._rank), _encode(boundary))
            self._acknowledged = True
        if self._rank == 0 and not self._named:
            keys = [_key(rank) for rank in range(self._world_size)]
            if not self._store.check(keys):
                return False
            self._store.set(_STOP, _encode(max(_decode(self._store.get(key)) for key in keys)))
            self._named = True
        if not self._store.check([_STOP]):
            return False
        self._agreement.name_stop(_decode(self._store.get(_STOP)))
        return True

    def rank_0_evaluates(self) -> bool:
        """Whether rank 0 is in a declared evaluation, so that this rank may be waiting for it."""
        return self._store.add(_EVALUATING, 0) % 2 == 1

    def evaluating(self) -> None:
        """Rank 0 only: an evaluation begins or ends."""
        self._store.add(_EVALUATING, 1)


def _key(rank: int) -> str:
    return f"drain/started/{rank}"


def _encode(boundary: Boundary) -> str:
    return f"{boundary[0]},{boundary[1]}"


def _decode(text: bytes) -> Boundary:
    step, poll = text.decode().split(",")
    return int(step), int(poll)


class Watcher:
    """The thread beside the loop. With one rank (``store`` None) it is not needed and not started.

    ``on_rank_0_evaluating`` is told, on ranks other than 0, when rank 0 enters and leaves an evaluation.
    """

    def __init__(
        self,
        agreement: Agreement,
        store: Store | None,
        rank: int,
        world_size: int,
        on_rank_0_evaluating: Callable[[bool], None],
    ) -> None:
        self._agreement = agreement
        self._tell = on_rank_0_evaluating
        self._wake = threading.Event()
        self._closing = False
        self._reason: str | None = None
        self._toggles = 0
        self._rank = rank
        self._poll_seconds = max(POLL_SECONDS, world_size / RANKS_PER_SECOND)
        self._participant = Participant(store, rank, world_size, agreement) if store is not None else None
        self._thread = threading.Thread(target=self._run, name="rt-drain", daemon=True)
        if self._participant is not None:
            self._thread.start()

    def request(self, reason: str) -> None:
        """Ask all ranks to stop; returns at once, callable from any thread."""
        if self._participant is None:
            self._agreement.name_stop(self._agreement.acknowledge(reason))
            return
        self._reason = reason
        self._wake.set()

    def evaluating(self) -> None:
        """This rank's evaluation begins or ends; only rank 0's matters to the others."""
        if self._rank == 0:
            self._toggles += 1
            self._wake.set()

    def close(self) -> None:
        """End the thread. After all ranks have met for the last time, or when this one goes without them."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        participant = self._participant
        assert participant is not None
        seen = False
        sent = 0
        try:
            while not self._closing:
                if self._reason is not None:
                    participant.request(self._reason)
                    self._reason = None
                for _ in range(self._toggles - sent):
                    participant.evaluating()
                    sent += 1
                if participant.advance():
                    return
                if self._rank != 0 and seen != (seen := participant.rank_0_evaluates()):
                    self._tell(seen)
                self._wake.wait(FAST_POLL_SECONDS if self._agreement.requested else self._poll_seconds)
                self._wake.clear()
        except RuntimeError as error:  # torch's store errors: rank 0 is gone
            self._agreement.fail(f"rank 0's store went away: {str(error).splitlines()[0]}")
