"""Saves that the loop waits for no longer than it takes to copy this rank's bytes.

::

    rank                                writer process of the rank
    begin: copy the state -> arena
           send what it is      ---->   claim, store, gather, manifest, guard, marker   (``writer_main``)
    (the loop goes on)                  retention
    poll                        <----   landed: committed, or why not

One save is in flight at a time. A writer that dies is replaced at once; its successor finds out what came of
the flight: committed, if the marker is there, else failed, and then nothing of it stays. Ranks begin saves
together, so flights have the same number everywhere, and no rank needs to speak with another in the loop.

Between saves a rank may copy alone, and go on: what it has copied is held (``holding``) until the next copy
is whole or a save is committed, and stored only if the rank dies. While a save is in flight no copy is made.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from resumable_training.checkpoint import cargo, meeting
from resumable_training.checkpoint.arena import NoArena
from resumable_training.checkpoint.copies import Copies
from resumable_training.checkpoint.errors import StorageUnavailable, Superseded, Unstorable
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.plan import Unsupported
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.reports import SaveReport
from resumable_training.checkpoint.save import Offer, SaveTask, SynchronousSaver
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.writer import WriterDied, WriterProcess
from resumable_training.contract import env
from resumable_training.contract.codec import to_plain
from resumable_training.contract.framing import Message

_START_SECONDS = 30.0  # for a writer to come up, at the first save
_OVERLAP_SECONDS = 5.0  # this rank's writer may still be at a save that has landed on rank 0
_WAIT_SECONDS = 0.5
_GPU_SECONDS = 0.002
_PATIENCE_SECONDS = 30.0  # after which whoever waits says for what
_MOST_DEATHS = 3  # of writers, one after another, in one flight


@dataclass
class _Flight:
    number: int
    report: SaveReport
    started: float  # monotonic
    message: Message | None  # not sent yet: GPUs still copy
    deaths: int = 0


class AsynchronousSaver:
    """See the head of this file. Where it can't be done, saves are synchronous, and that is said once."""

    def __init__(
        self, store: Store, ranks: Ranks, host: str, warn: Callable[[str], None], keeper: RankLink
    ) -> None:
        """``host``: rank 0's address, at which the other ranks' writers reach rank 0's.

        ``keeper``: holds the arenas of the attempt before.
        """
        self._store = store
        self._ranks = ranks
        self._host = host
        self._warn = warn
        self._synchronous: SynchronousSaver | None = None
        self._keeper = keeper
        self._snapshot = Snapshot(ranks, keeper)
        self._agreed = False
        self._said_of_ranks = ""  # what they did not hold alike
        self._process: WriterProcess | None = None
        self._up = False  # it has said that it is ready
        self._listener: socket.socket | None = None
        self._begin: Message = {}
        self._is_due = False  # no writer was started yet, and from now on one may be
        self._busy = False  # the writer is at something, and be it retention
        self._saves = 0
        self._flight: _Flight | None = None
        self._copies = Copies(self._snapshot)  # between saves
        self._stands_by = False  # the writer has their letter, and would be missed by that of rank 0
        self._plan_is_due = False  # what was copied was planned anew, and the writer does not know
        self._last: SaveReport | None = None
        self._superseded: str | None = None

    # Before the first step ----------------------------------------------------------------------------

    def offer(self) -> Offer:
        """A secret of this attempt's writers, and the port at which they meet."""
        if self._ranks.world_size == 1:
            return "", 0
        if self._listener is None:
            try:
                self._listener = meeting.listen(self._host)
            except OSError as error:
                raise StorageUnavailable(
                    f"no port for checkpoint writers on {self._host}: {error}"
                ) from error
        return secrets.token_hex(16), self._listener.getsockname()[1]

    def start(self, offer: Offer) -> None:
        """Writers may start: at the first ``poll``, or save or copy if that comes earlier.

        Not yet, since an attempt's first step is to come soon, and every core is at it.
        """
        if self._begin:
            return
        secret, port = offer
        self._begin = {
            "kind": "begin",
            "rank": self._ranks.rank,
            "world_size": self._ranks.world_size,
            "store": self._store.location,
            "secret": secret,
            "host": self._host,
            "port": port,
            "listener": self._listener.fileno() if self._listener else -1,
        }
        self._is_due = True

    def _start_if_due(self) -> None:
        """This rank's writer, which gets ready in the gaps that the ranks leave it."""
        if not self._is_due:
            return
        self._is_due = False
        try:
            self._start_process()
        except (OSError, WriterDied) as error:
            self._warn(f"no checkpoint writer: {error}")

    def _require_writers(self) -> None:
        """Before the first save: each rank has a writer that has come up, or all save synchronously."""
        if not all(self._ranks.gather(self._has_writer())):
            self._fall_back("a checkpoint writer did not start")

    def _has_writer(self) -> bool:
        self._start_if_due()
        if self._up:  # one that has ended since then with nothing to do is replaced, as it would be later
            self._miss_it()
        if self._process is None:
            return False
        try:
            for message in self._process.messages(0.0 if self._up else _START_SECONDS):
                self._take(message)
        except WriterDied as error:
            self._warn(f"no checkpoint writer: {error}")
            return False
        return self._up

    def _start_process(self) -> None:
        self._up = self._stands_by = False
        self._process = WriterProcess(self._begin["listener"])
        self._process.send(self._begin)

    def _fall_back(self, why: str) -> None:
        if self._ranks.rank == 0:
            self._warn(f"{why}: each save stops training until it is stored")
        self._synchronous = SynchronousSaver(
            self._store, self._ranks, self._warn, apart=bool(self._snapshot.apart)
        )
        if self._process is not None:
            self._process.kill()
            self._process, self._busy = None, False
        self._keeper.free()
        self._snapshot.drop()

    # In the loop --------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a save now would have to wait for the one before."""
        return self._synchronous is None and (self._flight is not None or self._busy)

    @property
    def standing(self) -> bool:
        if self._process is not None and not self._up:
            with contextlib.suppress(WriterDied):  # the first save says so, on all ranks
                for message in self._process.messages():
                    self._take(message)
        return self._synchronous is not None or self._up

    def begin(self, task: SaveTask) -> SaveReport:
        started = time.monotonic()
        self._copies.forget()
        self._clear_the_way()
        self._prepare(task)
        if self._synchronous is not None:
            return self._synchronous.begin(task)
        self._saves += 1
        report = SaveReport(task.name, task.manifest.step, task.manifest.samples, durable=False)
        number = meeting.flight_number(self._saves, report.step)
        self._flight = _Flight(number, report, started, None)
        self._take_off(task)
        elapsed = round((time.monotonic() - started) * 1000)
        self._flight.report = replace(report, blocking_ms=elapsed)
        return self._flight.report

    @property
    def free_to_copy(self) -> bool:
        """Not so with a save in flight, or a copy that GPUs have not finished; one that is whole is held.

        A writer that deletes is in no copy's way.
        """
        self._copies.settle()  # before anyone copies over the one before it
        if self._flight is not None or self._copies.to_be_held:
            return False
        if self._process is None or not self._copies.began:
            return self._synchronous is None  # without a writer saves are synchronous, or one is to come
        return self._takes_copies()

    def _takes_copies(self) -> bool:
        """Whether this rank's writer would hear of a copy: else all leave it out, to stay at the same one."""
        self._miss_it()
        return self._stands_by and not (self._plan_is_due and self._busy)

    def _miss_it(self) -> None:
        """A writer that died with nothing to do. Where no other one can be started the next save says so."""
        with contextlib.suppress(StorageUnavailable):
            self._hear(0.0)

    def copy(self, task: SaveTask, durable_seconds: float | None = None) -> bool:
        """Copy the state as it is now, to be held; whether that was done.

        Not before this rank's writer stands by: until then nobody would store it. Before ranks have told
        each other what they have, all ranks' must; nobody waits for that. But one that stood by when ranks
        met, and died since, is no reason: the others make this copy, and its successor finds it.
        """
        if self._is_too_early():
            return False
        self._prepare(task)
        started = time.monotonic()
        why = self._why_no_copies()
        if why:
            if self._ranks.rank == 0:
                self._warn(f"no copies are held in memory between saves: {why}")
            return False
        stood_by = self._stands_by
        if not (self.free_to_copy or (stood_by and not self._stands_by)):
            return False
        self._copies.met()
        try:
            if not (self._has_standby() or stood_by):
                return False
            smalls, is_new = self._snapshot.take(task.content, keep=self._copies.whole_in)
        except (Unsupported, Unstorable, OSError):
            self._plan_is_due = True  # it may be another one all the same
            return False  # the next save says so, and ranks hear of it
        self._plan_is_due |= is_new
        if self._plan_is_due and self._busy:
            return False  # the writer, which deletes, hears nothing now, and a long plan would wait for it
        if self._plan_is_due:
            self._send_plan()
        number = meeting.flight_number(self._saves, task.manifest.step)
        letter = {"at": started, "durable": durable_seconds or 0.0}
        self._copies.hold({**self._message(task, number, smalls), **letter}, started)
        return True

    def _is_too_early(self) -> bool:
        """Before ranks have told each other what they have: writers are coming up, and not all stand by."""
        if self._agreed or self._synchronous is not None:  # the same on all ranks, as what follows is for all
            return False
        standing = self._ranks.gather(self._has_first_standby())
        return None not in standing and not all(standing)

    def _has_first_standby(self) -> bool | None:
        """As ``_has_standby``; None: this rank's writer has ended or never began, or nobody would keep it."""
        self._start_if_due()
        if self._process is None or self._why_no_copies():
            return None
        try:
            for message in self._process.messages():
                self._take(message)
            if not self._copies.began:
                self._send_letters()
        except WriterDied:
            return None
        except OSError:  # no memory for a letter, or to say so in
            return False
        return self._stands_by

    def _has_standby(self) -> bool:
        """Whether this rank's writer would store what is held.

        Raises:
            OSError: there is no memory to say so in.
        """
        self._miss_it()
        if not self._copies.began:
            self._send_letters()
        return self._stands_by

    def drop_held(self) -> None:
        self._copies.drop()

    @property
    def copy_seconds(self) -> float | None:
        return self._copies.seconds

    @property
    def can_copy(self) -> bool:
        return not self._why_no_copies()

    def _why_no_copies(self) -> str:
        if self._synchronous is not None:
            return "saves are not asynchronous here"
        return "" if env.KEEPER in os.environ else "no agent would keep them when a rank dies"

    def _prepare(self, task: SaveTask) -> None:
        """What the first save or copy does, and one that is planned anew; all ranks together."""
        if self._synchronous is None and not self._agreed:
            self._require_writers()
        if self._synchronous is None and (task.anew or not self._agreed):
            self._agree(task)

    def _agree(self, task: SaveTask) -> None:
        """The first save, and one after ranks were found unlike: they tell each other what they have."""
        again, self._agreed = self._agreed, False
        self._copies.drop()
        why = self._snapshot.agree(task.content)
        self._agreed = True
        now = self._snapshot.unlike or "they hold the same again"
        if again and self._ranks.rank == 0 and now != self._said_of_ranks:  # once, if it stays like that
            self._said_of_ranks = now
            self._warn(f"ranks did not hold the tensors that saves were planned for: planned anew, {now}")
        if self._snapshot.apart and self._ranks.rank == 0:
            self._warn(
                f"ranks do not hold the same values of {self._snapshot.apart}: rank 0's are saved, by rank 0"
                " alone, and a resume gives them to all ranks"
            )
        if why:
            self._fall_back(why)
            return
        self._send_plan()
        if self._snapshot.made_anew and self._ranks.rank == 0:
            self._warn(
                f"{self._snapshot.made_anew} is made anew by a state_dict() or a hook: at each save training"
                " waits until all of the state is collected, and not for its copy alone"
            )

    def _take_off(self, task: SaveTask) -> None:
        """Copy and send; or have all ranks' flights end, also where this rank's script gets an error."""
        why, unlike = f"rank {self._ranks.rank} could not take its state", False
        try:
            smalls, is_new = self._snapshot.take(task.content, keep=self._copies.needed_in)
            why = ""
        except (Unsupported, Unstorable, NoArena) as error:
            why, unlike = f"rank {self._ranks.rank}: {error}", isinstance(error, Unsupported)
            self._plan_is_due = True  # it may be another one all the same
        finally:
            if why:
                self._settle(why, unlike=unlike)
        if not why:
            self._ship(task, smalls, is_new)

    def _ship(self, task: SaveTask, smalls: list[cargo.Small], is_new: bool) -> None:
        assert self._flight is not None
        if is_new or self._plan_is_due:
            self._send_plan()
        self._flight.message = self._message(task, self._flight.number, smalls)
        self._send_when_copied()

    def _send_when_copied(self) -> None:
        flight = self._flight
        if flight is None or flight.message is None or not self._snapshot.copied():
            return
        assert self._snapshot.arena is not None
        message, flight.message = flight.message, None
        self._tell({**message, "seal": self._snapshot.arena.seal()})

    def _tell(self, message: Message) -> None:
        """Send. A writer that is found dead here had nothing to do: another one gets the message.

        Raises:
            StorageUnavailable: writers die as soon as they are started.
        """
        how = ""
        for _ in range(_MOST_DEATHS):
            assert self._process is not None
            self._busy = True
            try:
                self._process.send(message)
                return
            except WriterDied as error:
                how = str(error)
            self._renew()
        raise StorageUnavailable(f"checkpoint writers end at once: {how}")

    def _send_plan(self) -> None:
        plan = self._snapshot.plan
        assert plan is not None
        assert self._process is not None
        self._plan_is_due = False
        try:
            for number, arena in self._snapshot.arenas.items():
                message = {"kind": "arena", "number": number, "bytes": arena.bytes}
                self._process.send(message, arena.descriptor)
            items = cargo.to_plain(plan.items)
            self._process.send({"kind": "plan", "items": items, "view": plan.view})
        except WriterDied:
            return  # the next word to it tells; its successor gets the same

    def _send_letters(self) -> None:
        assert self._process is not None
        try:
            letters = self._copies.open()
            self._process.send({"kind": "letters", "letters": len(letters)}, *letters)
        except WriterDied:
            return  # as with the plan

    def _clear_the_way(self) -> None:
        """Rank 0 has landed when a save begins; this rank's writer, which hears of it last, must have too."""
        deadline = time.monotonic() + _OVERLAP_SECONDS
        while self._flight is not None and time.monotonic() < deadline:
            self._hear(_WAIT_SECONDS)
        if self._flight is not None:
            assert self._process is not None
            self._process.kill()  # it hangs in the store
            self._land({"ok": False, "message": "this rank's checkpoint writer hangs"})
            self._renew()

    def _message(self, task: SaveTask, flight: int, smalls: list[cargo.Small]) -> Message:
        """All that a writer must know of a save, but for the seal of the arena."""
        return {
            "kind": "save",
            "flight": flight,
            "name": task.name,
            "arena": self._snapshot.number,
            "manifest": to_plain(task.manifest),
            "identity": to_plain(task.fence.identity),
            "history": task.history,
            "keep_last": task.keep_last,
            "keep_every_steps": task.keep_every_steps,
            "smalls": [[one.key, one.path, one.pickled, one.at, one.bytes] for one in smalls],
        }

    # What the writer says -----------------------------------------------------------------------------

    def poll(self) -> SaveReport | None:
        """The report of a save that has landed since; never waits.

        The first call starts the writer, which without an agent ends with the thread that started it.

        Raises:
            Superseded: the writer has found that a newer attempt owns the store.
        """
        self._start_if_due()
        self._copies.settle()
        if self._flight is None and not self._busy:
            return None
        before = self._last
        self._send_when_copied()
        self._hear(0.0)
        self._raise_if_superseded()
        return self._last if self._last is not before else None

    def wait(self) -> SaveReport | None:
        if self._synchronous is not None:
            return self._synchronous.wait()
        self._snapshot.await_copied()
        self._send_when_copied()
        patience = time.monotonic() + _PATIENCE_SECONDS
        while self._flight is not None:
            self._hear(_WAIT_SECONDS)
            if self._flight is not None and time.monotonic() > patience:
                self._say_that_we_wait(self._flight)
                patience = float("inf")
        return self._ranks.first(self._outcome)  # what rank 0 knows is what happened

    def _say_that_we_wait(self, flight: _Flight) -> None:
        if self._ranks.rank == 0:
            self._warn(
                f"checkpoint {flight.report.name} is still being stored in {self._store.location}:"
                " waiting for it, since nothing else is left to do"
            )

    def _outcome(self) -> SaveReport | None:
        self._raise_if_superseded()
        return self._last

    def _raise_if_superseded(self) -> None:
        if self._superseded is not None:
            raise Superseded(self._superseded)

    def land(self, seconds: float) -> None:
        """Wait for this rank's own part of what is in flight, without the other ranks."""
        deadline = time.monotonic() + seconds
        self.hand_over(seconds)
        while self._flight is not None and self._flight.message is None and time.monotonic() < deadline:
            self._hear(_WAIT_SECONDS)

    def hand_over(self, seconds: float) -> None:
        """Until the writer has what it needs to go on alone: GPUs may still copy, or hang, or be lost."""
        deadline = time.monotonic() + seconds
        while self._copies.to_be_held or (self._flight is not None and self._flight.message is not None):
            try:
                self._copies.settle()
                self._send_when_copied()
            except RuntimeError:  # of torch: after an error on a GPU nothing that it was to copy is to be had
                return
            if time.monotonic() >= deadline:
                return
            time.sleep(_GPU_SECONDS)

    def close(self) -> None:
        self._is_due = False
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._listener is not None:
            self._listener.close()
        self._copies.close()

    def _hear(self, seconds: float) -> None:
        assert self._process is not None
        try:
            for message in self._process.messages(seconds):
                self._take(message)
        except WriterDied as error:
            self._replace(str(error))

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "ready":
            self._up = True
        elif kind == "standing by":
            self._stands_by = True
        elif kind == "idle":
            self._busy = False
        elif kind == "warning":
            self._warn(message["message"])
        elif kind == "landed":
            self._land(message)

    def _land(self, message: dict[str, Any]) -> None:
        flight = self._flight
        assert flight is not None
        at = message.get("at", time.monotonic())  # one clock for all processes of a machine
        self._flight = None
        if message.get("superseded"):
            self._superseded = message["message"]
        self._copies.landed(ok=message["ok"])
        self._last = replace(
            flight.report,
            ok=message["ok"],
            unlike=bool(message.get("unlike")),
            message=message["message"],
            bytes=message.get("bytes", 0),
            durable_ms=round((at - flight.started) * 1000),
            durable=True,
        )

    # Death of a writer --------------------------------------------------------------------------------

    def _replace(self, how: str) -> None:
        """A new writer. What was in flight is settled by it, or failed if writers die of it."""
        flight = self._flight
        if flight is not None and flight.message is None:  # the writer was at it
            flight.deaths += 1
            if flight.deaths > _MOST_DEATHS:
                self._land({"ok": False, "message": how})
        elif self._busy:
            self._warn(f"{how}; another one goes on")  # in retention
        self._start_another()
        if self._flight is not None and self._flight.message is None:
            self._settle(how)
        self._send_letters_again()  # when it knows what became of the save, which is newer

    def _settle(self, why: str, *, unlike: bool = False) -> None:
        """``unlike``: what this rank holds is of a kind that its plan can't be made for."""
        assert self._flight is not None
        number, name = self._flight.number, self._flight.report.name
        self._tell({"kind": "settle", "flight": number, "name": name, "why": why, "unlike": unlike})

    def _renew(self) -> None:
        self._start_another()
        self._send_letters_again()

    def _start_another(self) -> None:
        self._busy = False
        try:
            self._start_process()
        except (OSError, WriterDied) as error:
            raise StorageUnavailable(f"no checkpoint writer can be started: {error}") from error
        if self._snapshot.arenas:
            self._send_plan()

    def _send_letters_again(self) -> None:
        if self._copies.began:
            self._send_letters()
