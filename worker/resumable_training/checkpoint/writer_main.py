"""The writer process of a rank: stores what lies in the arena, commits it, deletes what is old. No torch.

Started by ``writer.WriterProcess``; it speaks to its rank over one socket (``framing``), and with
the writers of the other ranks as ``meeting`` says. It ends by itself when the socket does. Where an agent
keeps writers (``keeper``), one whose rank dies finishes the save it is at, or stores the copy that it holds
(``holding``), for as long as the agent lets it; elsewhere it lives exactly as long as its rank: the kernel
kills it when the rank dies. It ignores SIGTERM and SIGINT, which go to whole groups: the rank, which drains,
decides when it is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from resumable_training.checkpoint import cargo, holding, marking
from resumable_training.checkpoint.commit import claim, commit, discard
from resumable_training.checkpoint.errors import CheckpointError, Superseded
from resumable_training.checkpoint.fence import Fence
from resumable_training.checkpoint.keeper import Held, WriterLink
from resumable_training.checkpoint.meeting import CONNECT_SECONDS, NO_FLIGHT, Guest, Host, HostGone
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_store
from resumable_training.checkpoint.sweep import Sweeper
from resumable_training.contract.codec import from_plain, to_plain
from resumable_training.contract.framing import Inbox, Message, send
from resumable_training.contract.manifest import MARKER_FILE, FileEntry, Manifest, StoreIdentity

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_MOST_NAMED = 4
_RANK_ENDED = "its rank ended before its state was copied"


class _Arena:
    """What the rank copies into, as it is in this process. ``file``: its descriptor, which is ours."""

    def __init__(self, file: int, size: int) -> None:
        self.file, self.bytes = file, size
        self.view = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))  # behind it lies the seal

    def close(self) -> None:
        os.close(self.file)


class Writer:
    """State between messages: the store, the arenas, the plan of what lies in them."""

    def __init__(self, rank: socket.socket, parent: int) -> None:
        self._rank_socket = rank
        self._inbox = Inbox(rank)
        self._parent = parent
        self._arenas: dict[int, _Arena] = {}  # by number
        self._letters: list[int] = []  # of each arena: what is held in it
        self._stay: Guest | None = None  # missed by rank 0's writer when this one dies
        self._items: list[cargo.Item] = []
        self._view = ""  # of what all ranks hold
        self._host: Host | None = None
        self._keeper: WriterLink | None = None
        self._last_flight = 0
        self._last_landed = 0  # the newest flight that is a checkpoint

    def run(self) -> None:
        """Until the rank says goodbye or is gone, and what it has given before, or left, is stored."""
        while (message := self._next()) is not None:
            kind = message["kind"]
            if kind == "close":
                return
            handle: Callable[[Message], None] = getattr(self, f"_on_{kind}")
            handle(message)
        if self._keeper is not None:
            self._store_what_is_held(self._keeper)
            if self._rank > 0:
                self._say_that_it_ended()

    def _next(self) -> Message | None:
        """From the rank. Meanwhile rank 0 may get another writer, which would not miss this one yet."""
        while self._stay is not None and not self._inbox.pending:
            either = select.poll()
            either.register(self._rank_socket, select.POLLIN)
            either.register(self._stay, select.POLLIN)
            if any(ready == self._rank_socket.fileno() for ready, _ in either.poll()):
                break
            self._stay_with_the_next(self._stay)
        return self._inbox.receive()

    def _say(self, **message: Any) -> None:
        try:
            send(self._rank_socket, message)
        except OSError:
            if self._keeper is None:
                raise

    def _look(self) -> None:
        if self._keeper is None and self._is_orphan():
            os._exit(137)

    def _is_orphan(self) -> bool:
        return os.getppid() != self._parent

    # What the rank wants ------------------------------------------------------------------------------

    def _on_begin(self, message: Message) -> None:
        """Once, first: who we are."""
        self._rank: int = message["rank"]
        self._world_size: int = message["world_size"]
        self._store: Store = open_store(message["store"])
        self._sweeper = Sweeper(self._store)
        self._secret: str = message["secret"]
        self._address = (message["host"], message["port"])
        if message["listener"] >= 0:
            listener = socket.socket(fileno=message["listener"])
            self._host = Host(listener, self._secret, self._world_size, self._is_orphan)
        self._keeper = WriterLink.connect(self._rank)
        if self._keeper is not None:
            outlive_the_rank()
        self._say(kind="ready")

    def _on_arena(self, message: Message) -> None:
        """One that is new, or known; its descriptor came along."""
        before = self._arenas.pop(message["number"], None)
        if before is not None:
            before.close()
        descriptor = self._inbox.descriptors.pop(0)
        try:
            self._arenas[message["number"]] = _Arena(descriptor, message["bytes"])
        except ValueError:  # its rank has given it up since: another one follows
            os.close(descriptor)

    def _on_letters(self, message: Message) -> None:
        """Copies may be held from now on; the descriptors of what says so came along."""
        self._letters = [self._inbox.descriptors.pop(0) for _ in range(message["letters"])]
        self._stay_on()
        self._say(kind="standing by")

    def _stay_on(self) -> None:
        """Be missed by rank 0's writer, which may be another one than before."""
        if self._rank == 0 or not self._letters:
            return
        with contextlib.suppress(HostGone, OSError):
            if self._stay is not None and self._stay.is_heard:
                return
            self._leave()
            self._stay = self._new_stay()

    def _stay_with_the_next(self, stay: Guest) -> None:
        """Rank 0's writer has gone, or another one that has come up calls in ``stay``. Waits for neither."""
        try:
            if stay.is_in:
                self._leave()
                self._stay = self._new_stay(enters=False)
            else:
                stay.enter()
        except (HostGone, OSError):
            self._leave()  # until the next save

    def _new_stay(self, *, enters: bool = True) -> Guest:
        return Guest(self._address, self._secret, self._rank, NO_FLIGHT, connect_seconds=0.0, enters=enters)

    def _leave(self) -> None:
        if self._stay is not None:
            self._stay.close()
        self._stay = None

    def _on_plan(self, message: Message) -> None:
        self._items, self._view = cargo.from_plain(message["items"]), message["view"]

    def _on_save(self, message: Message) -> None:
        """Store the arena as one checkpoint."""
        self._last_flight = message["flight"]
        if self._keeper is not None:
            self._announce(self._keeper, message)
        outcome = self._fly(message)
        if self._keeper is not None:
            self._keeper.landed(message["name"], outcome)
        self._land(outcome)
        if self._rank == 0 and not self._is_orphan():  # else it would keep the next attempt waiting
            note = self._sweeper.sweep(
                message["keep_last"],
                message["keep_every_steps"],
                short=_may_want_room(outcome),
                stop=self._is_orphan,  # it holds a copy, perhaps, that must be stored in time
            )
            if note:
                self._say(kind="warning", message=note)
        self._say(kind="idle")
        self._stay_on()

    def _fly(self, message: Message, *, held: bool = False) -> Message:
        if self._rank == 0:
            outcome = self._as_host(message, held=held)
        else:
            patience = 0.0 if held else CONNECT_SECONDS  # no writer comes after that of a rank 0 that is dead
            work = lambda guest: self._write(message, guest)  # noqa: E731
            outcome = self._as_guest(message["flight"], work, connect_seconds=patience)
        if outcome["ok"]:
            self._last_landed = message["flight"]
        return outcome

    def _announce(self, keeper: WriterLink, message: Message, held: Held | None = None) -> None:
        """Whom the agent may give the memory to from now on, and for what it is worth waiting."""
        arena, manifest = self._arenas[message["arena"]], message["manifest"]
        keeper.arena(arena.file, arena.bytes)
        done = manifest["step"], manifest["samples"]
        keeper.flight(message["name"], *done, self._content(message), held)

    def _store_what_is_held(self, keeper: WriterLink) -> None:
        """The rank is dead. The newest copy that all ranks hold becomes a checkpoint as any other."""
        found = self._held()
        if not found:
            return
        moment("hold.found")
        message = found[0]
        self._announce_held(keeper, message)
        number, why = self._picked([one["flight"] for one in found])
        if number not in (NO_FLIGHT, message["flight"]):
            message = next(one for one in found if one["flight"] == number)
            self._announce_held(keeper, message)
        self._last_flight = message["flight"]
        if number == NO_FLIGHT:
            outcome: Message = {"ok": False, "message": why}
        else:
            outcome = self._fly(message, held=True)
        keeper.landed(message["name"], outcome)
        moment("hold.landed")

    def _announce_held(self, keeper: WriterLink, message: Message) -> None:
        self._announce(keeper, message, Held(message["at"], message["durable"]))

    def _picked(self, flights: list[int]) -> tuple[int, str]:
        """Which of what this rank holds is held by all; or NO_FLIGHT, and why none."""
        if self._host is not None:
            return self._host.pick(flights)
        if self._world_size == 1:
            return flights[0], ""
        try:
            told = self._beside(lambda stay: stay.holds(flights, self._last_flight, _RANK_ENDED))
        except (HostGone, OSError) as error:
            return NO_FLIGHT, str(error)
        return int(told["flight"]), str(told["message"])

    def _held(self) -> list[Message]:
        """What is held whole, the newest first, if it is newer than the newest checkpoint."""
        looked = [
            holding.held(letter, self._arenas[number].file, self._arenas[number].bytes)
            for number, letter in enumerate(self._letters)
            if number in self._arenas
        ]
        found = [one for one in looked if one is not None and one["flight"] > self._last_landed]
        return sorted(found, key=lambda one: -int(one["flight"]))

    def _content(self, message: Message) -> Message:
        """What lies in its arena now, for whoever reads it after us (``memory``)."""
        return {
            "file": cargo.file_name(self._rank),
            "seal": message["seal"],
            "items": cargo.to_plain(self._items),
            "smalls": message["smalls"],
        }

    def _on_settle(self, message: Message) -> None:
        """A writer before this one died, or was ended, in the middle of a flight: say what came of it."""
        self._last_flight = message["flight"]
        if self._rank == 0:
            outcome = self._settled(message)
            if outcome["ok"]:
                self._last_landed = message["flight"]
            self._land(outcome)
        else:
            why, unlike = message["why"], message["unlike"]
            self._land(self._as_guest(message["flight"], lambda guest: guest.failed(why, unlike=unlike)))
        self._say(kind="idle")
        self._stay_on()

    def _land(self, outcome: Message) -> None:
        moment("save.landed")
        self._say(**{**outcome, "kind": "landed"})

    # Rank 0 -------------------------------------------------------------------------------------------

    def _as_host(self, message: Message, *, held: bool = False) -> Message:
        if self._host is not None:
            self._host.open(message["flight"], held=held)
        outcome = self._outcome(message)
        if self._host is not None:
            self._host.close(outcome)
        return outcome

    def _outcome(self, message: Message) -> Message:
        claimed = False
        try:
            fence = Fence(from_plain(StoreIdentity, message["identity"]), message["manifest"]["record"])
            guard = lambda: fence.check(self._store)  # noqa: E731
            claim(self._store, message["name"], guard)
            claimed = True
            if self._host is not None:
                self._host.claimed()
            parts = [self._store_own(message, self._look)]
            moment("save.gather")
            told = self._host.collect() if self._host else []
            self._compare(told)
            parts += [_part(plain) for plain in told]
            size, note = self._commit(message, parts, guard)
            return {"ok": True, "bytes": size, "message": note, "at": time.monotonic()}
        except Superseded as error:
            return {"ok": False, "superseded": True, "message": str(error)}
        except (CheckpointError, OSError, ValueError, RuntimeError) as error:
            if self._host is not None:
                self._host.call_off(str(error))
            left = discard(self._store, message["name"]) if claimed else ""
            return {"ok": False, "message": f"{error}{left}", "unlike": isinstance(error, marking.Unlike)}

    def _compare(self, told: list[Message]) -> None:
        """Who stores what follows from what all have: one who has something else leaves gaps in the others'.

        Raises:
            Unlike: names the ranks.
        """
        others = [str(rank) for rank, one in enumerate(told, 1) if one["view"] != self._view]
        if others:
            more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
            who = f"rank 0 and rank {', '.join(others[:_MOST_NAMED])}{more}"
            raise marking.Unlike(f"{who} do not hold the tensors together that saves were planned for")

    def _commit(
        self, message: Message, parts: list[cargo.Stored | None], guard: Callable[[], None]
    ) -> tuple[int, str]:
        stored = [part for part in parts if part is not None]
        files = {part.file: part.entry for part in stored}
        marker = marking.marker(marking.join(part.written for part in stored))
        manifest = from_plain(Manifest, message["manifest"])
        history = tuple(message["history"])
        return commit(self._store, message["name"], manifest, files, marker, guard, history)

    def _settled(self, message: Message) -> Message:
        """If the marker is there it was committed; else nothing of it must stay."""
        try:
            committed = self._store.size(f"{message['name']}/{MARKER_FILE}") is not None
        except CheckpointError as error:
            outcome: Message = {"ok": False, "message": f"{message['why']}; {error}"}
        else:
            outcome = {"ok": committed, "bytes": 0, "message": message["why"], "at": time.monotonic()}
            if not committed:
                outcome["unlike"] = message["unlike"]
                outcome["message"] += discard(self._store, message["name"])
        if self._host is not None:
            self._host.open(message["flight"])
            self._host.close(outcome)
        return outcome

    # Every rank ---------------------------------------------------------------------------------------

    def _store_own(self, message: Message, look: Callable[[], None]) -> cargo.Stored | None:
        moment("save.write")
        arena = self._arenas[message["arena"]]
        smalls = [cargo.Small(key, tuple(path), *rest) for key, path, *rest in message["smalls"]]
        return cargo.store_cargo(
            self._store, message["name"], self._rank, self._items, smalls, arena.view, look
        )

    def _say_that_it_ended(self) -> None:
        """The others may have copied for flights that our rank did not live to copy for."""
        with contextlib.suppress(OSError, HostGone):
            self._beside(lambda stay: stay.ended(self._last_flight, _RANK_ENDED))

    def _beside(self, say: Callable[[Guest], T]) -> T:
        """Say it to rank 0's writer, which may be another one than before. Raises HostGone, OSError."""
        with contextlib.suppress(OSError, HostGone):
            if self._stay is not None:
                if not self._stay.is_in:
                    self._stay.enter()
                return say(self._stay)
        self._leave()
        self._stay = self._new_stay()
        return say(self._stay)

    def _as_guest(
        self, flight: int, work: Callable[[Guest], Message], *, connect_seconds: float = CONNECT_SECONDS
    ) -> Message:
        guest: Guest | None = None
        try:
            guest = Guest(self._address, self._secret, self._rank, flight, connect_seconds)
            return work(guest)
        except HostGone as error:
            return {"ok": False, "message": str(error)}
        finally:
            if guest is not None:
                guest.close()

    def _write(self, message: Message, guest: Guest) -> Message:
        ended = guest.await_claim()
        if ended is not None:
            return ended

        def look() -> None:
            self._look()
            guest.look()

        try:
            stored = self._store_own(message, look)
        except HostGone:
            self._take_away(message["name"])
            raise
        except (CheckpointError, OSError) as error:
            return guest.failed(str(error))
        moment("save.stored")
        return guest.stored({**_plain(stored), "view": self._view})

    def _take_away(self, name: str) -> None:
        """Our own file, of a save that nobody will commit."""
        try:
            self._store.delete(f"{name}/{cargo.file_name(self._rank)}")
        except CheckpointError:
            return


def _may_want_room(outcome: Message) -> bool:
    """Whether a save has failed, and not for a reason that has nothing to do with the disk."""
    return not (outcome["ok"] or outcome.get("unlike") or outcome.get("superseded"))


def _plain(stored: cargo.Stored | None) -> Message:
    if stored is None:
        return {"file": ""}
    return {
        "file": stored.file,
        "entry": to_plain(stored.entry),
        "written": marking.to_plain(stored.written),
    }


def _part(plain: Message) -> cargo.Stored | None:
    if not plain["file"]:
        return None
    return cargo.Stored(
        plain["file"], from_plain(FileEntry, plain["entry"]), marking.from_plain(plain["written"])
    )


def outlive_the_rank() -> None:
    """Leave the group of processes that is killed with the rank; its session, which the agent ends, stays."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the rank's thread that started us ends; at once if that was before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def main() -> None:
    """Arguments PARENT FD: pid of the rank, and our end of the pair of sockets."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = int(sys.argv[1])
    die_with_parent(parent)
    Writer(socket.socket(fileno=int(sys.argv[2])), parent).run()


if __name__ == "__main__":
    main()
