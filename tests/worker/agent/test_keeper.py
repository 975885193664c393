"""The agent's keeper: who is let in, what may outlive its rank and for how long, who waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from resumable_training.agent import landing
from resumable_training.agent.keeper import Keeper
from resumable_training.contract import env, keeping
from resumable_training.contract.framing import Inbox, Message, send

NAME = "step-00000010.1"
SECONDS = 20.0


class Home:
    """A keeper of attempt 1, whose only rank 0 leads the session of ``sleep``, its writer is in it."""

    def __init__(self, directory: str, rank: asyncio.subprocess.Process) -> None:
        self.rank = rank
        self.let_go: list[int] = []
        self.said: list[str] = []
        self.landed: list[tuple[int, int]] = []  # attempt, samples
        self.keeper = Keeper(str(Path(directory, "k")), self.let_go.append, self.said.append)
        self.keeper.on_landed = lambda attempt, told: self.landed.append((attempt, told["samples"]))

    def begin(self, attempt: int = 1) -> None:
        self.keeper.begin(attempt, lambda: {0: self.rank.pid})

    def end(self, attempt: int = 1) -> set[int]:
        return self.keeper.end(attempt, {self.rank.pid})

    def hello(self, **changes: Any) -> Message:
        told = {"role": keeping.WRITER, "attempt": 1, "rank": 0, "slot": 0, "slots": 1, "pid": self.rank.pid}
        return {"kind": keeping.HELLO, **told, **changes}


class Client:
    """A process that speaks to it; here it is this one."""

    def __init__(self, home: Home) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(home.keeper.environment()[env.KEEPER])
        self.socket.setblocking(False)
        self.inbox = Inbox(self.socket)
        self._got: list[Message] = []

    def say(self, kind: str, *descriptors: int, **fields: Any) -> None:
        send(self.socket, {"kind": kind, **fields}, descriptors)

    async def hear(self) -> Message:
        def one() -> Message | None:
            self._got += self.inbox.waiting()
            return self._got.pop(0) if self._got else None

        message: Message = await eventually(one)
        return message

    async def ended(self) -> None:
        await eventually(lambda: self.inbox.waiting() == [] and self.inbox.closed)


async def eventually(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        while not (value := condition()):
            await asyncio.sleep(0.005)
    return value


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    rank = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    with tempfile.TemporaryDirectory(prefix="rtj-", dir="/tmp") as directory:
        home = Home(directory, rank)
        home.begin()
        yield home
        home.keeper.close()
        assert os.listdir(directory) == []
    if rank.returncode is None:
        rank.kill()
    await rank.wait()


async def writer(home: Home, **changes: Any) -> Client:
    client = Client(home)
    send(client.socket, home.hello(**changes))
    assert await client.hear() == {"kind": keeping.WELCOME}
    return client


def memory(text: str = "") -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, text.encode())
    return descriptor


def takes_off(client: Client, durable: float = 0.0, worth: float = 600.0, **more: Any) -> None:
    """A copy is complete."""
    arena, content = memory("values"), memory("content")
    client.say(keeping.ARENA, arena, bytes=6)
    client.say(keeping.FLIGHT, content, checkpoint=NAME, step=10, durable=durable, worth=worth, **more)
    os.close(arena)
    os.close(content)


async def rank_of_the_next(home: Home) -> Client:
    home.begin(2)
    return await writer(home, role=keeping.RANK, attempt=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": keeping.FLIGHT},
        {"attempt": 2},
        {"rank": 1},
        {"pid": 1},
        {"pid": 2**22 + 1},
        {"role": "agent"},
        {"slot": "x"},
    ],
)
async def test_strangers_are_turned_away(home: Home, changes: dict[str, Any]) -> None:
    """No hello, another attempt, a process of no rank of it: nothing of them is kept."""
    client = Client(home)
    send(client.socket, {**home.hello(), **changes})
    await client.ended()
    assert home.keeper.pids() == []


async def test_nonsense_is_turned_away(home: Home) -> None:
    """Bytes that are no message, an endless one before hello, and numbers that are none."""
    numbers = (b'"pid": 1e999', b'"pid": %s' % (b"9" * 30), b'"pid": NaN')
    hellos = [json.dumps(home.hello()).encode().replace(b'"pid": %d' % home.rank.pid, one) for one in numbers]
    for data in (b"[]", b"[" * 100_000, *hellos):
        client = Client(home)
        client.socket.setblocking(True)
        client.socket.sendall(len(data).to_bytes(4, "big") + data)
        client.socket.setblocking(False)
        await client.ended()
    client = Client(home)
    client.socket.send(b"\xff" * 8000)
    await client.ended()
    assert home.keeper.pids() == []


async def test_what_is_in_flight_may_land(home: Home) -> None:
    """Its writer is no leftover; who comes after it waits, and is told; the guard is told last."""
    client = await writer(home)
    takes_off(client)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    assert home.end() == {home.rank.pid}
    assert home.keeper.pids() == [home.rank.pid]
    following = await rank_of_the_next(home)
    following.say(keeping.AWAIT)
    client.say(keeping.LANDED, checkpoint=NAME, ok=True, message="", bytes=70, seconds=0.5)
    await eventually(lambda: any("has landed" in line for line in home.said))
    assert following.inbox.waiting() == []  # its writer still lives
    client.socket.close()
    settled = await following.hear()
    (flight,) = settled["flights"]
    told = {name: flight[name] for name in ("checkpoint", "step", "ok", "message", "bytes", "seconds")}
    assert told == {"checkpoint": NAME, "step": 10, "ok": True, "message": "", "bytes": 70, "seconds": 0.5}
    assert home.let_go == [home.rank.pid]


async def test_what_landed_just_before_the_end(home: Home) -> None:
    """Told to the next attempt if rank 0 did not live to tell it; once it has, nothing is left to tell."""
    for attempt, heard, wanted in ((1, None, [NAME]), (3, 9, [NAME]), (5, 10, [])):
        home.begin(attempt)
        client = await writer(home, attempt=attempt)
        takes_off(client)
        client.say(keeping.LANDED, checkpoint=NAME, ok=True, message="", bytes=70, seconds=0.5)
        await eventually(lambda: home.keeper._untold)
        if heard is not None:
            home.keeper.heard(heard)
        client.socket.close()
        await eventually(lambda: home.keeper.pids() == [])
        home.end(attempt)
        home.begin(attempt + 1)
        following = await writer(home, role=keeping.RANK, attempt=attempt + 1)
        following.say(keeping.AWAIT)
        flights = (await following.hear())["flights"]
        assert [flight["checkpoint"] for flight in flights] == wanted


async def test_what_was_held_has_longer(home: Home) -> None:
    """Nothing of it was stored while its rank lived: its writer says so, be it before the end or after it."""
    client = await writer(home)
    takes_off(client, durable=40.0, held=True)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    home.end()
    takes_off(client, durable=40.0, held=True)
    lines = await eventually(lambda: home.said[1:] and home.said)
    assert ["(saves took 40.0 s lately)" in line for line in lines] == [True, True]  # not "that is the most"


@pytest.mark.parametrize(("ago", "left"), [(50.0, 30.5), (81.0, 0.0)])
async def test_another_flight_has_what_is_left_of_the_time(home: Home, ago: float, left: float) -> None:
    """The next attempt waits since the ranks died, however often a writer then says what it stores."""
    client = await writer(home)
    await eventually(home.keeper.pids)
    home.end()
    takes_off(client, durable=50.0, held=True)
    await eventually(lambda: home.said)
    home.keeper._ended[1].at -= ago
    takes_off(client, durable=40.0, held=True)
    if left == 0.0:
        await client.ended()
        assert await home.rank.wait() == -9
        assert "not stored within 80.5 s (saves took 40.0 s lately)" in home.said[-1]
        return
    await eventually(lambda: home.said[1:])
    (peer,) = home.keeper._writers()
    assert peer.deadline is not None
    assert peer.deadline.when() - asyncio.get_running_loop().time() <= left


async def test_what_takes_too_long_is_given_up(home: Home) -> None:
    """Its writer is killed, and the reason told."""
    client = await writer(home)
    takes_off(client, worth=0.01)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    home.end()
    following = await rank_of_the_next(home)
    following.say(keeping.AWAIT)
    (flight,) = (await following.hear())["flights"]
    assert (flight["ok"], flight["checkpoint"]) == (False, NAME)
    assert "its steps took 0.0 s" in flight["message"]
    assert await home.rank.wait() == -9
    await client.ended()


async def test_one_without_a_flight_is_not_waited_for_long(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word of a flight may still come, a moment after the rank's end; else it is killed."""
    monkeypatch.setattr(landing, "IDLE_SECONDS", 0.3)
    client = await writer(home)
    assert home.end() == {home.rank.pid}
    takes_off(client)
    await eventually(lambda: any("may land within" in line for line in home.said))
    following = await rank_of_the_next(home)
    following.say(keeping.AWAIT)
    client.socket.close()  # it dies
    (flight,) = (await following.hear())["flights"]
    assert (flight["ok"], flight["message"]) == (False, "its writer was lost")
    assert home.rank.returncode is None
    idle = await writer(home, attempt=2)
    home.end(2)
    await idle.ended()
    assert await home.rank.wait() == -9


async def test_nobody_waits_where_nothing_flies(home: Home) -> None:
    """At once, also for the first attempt; and what was told of attempts before the last is forgotten."""
    client = await writer(home)
    takes_off(client)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    home.end()
    client.socket.close()
    second = await rank_of_the_next(home)
    second.say(keeping.AWAIT)
    assert len((await second.hear())["flights"]) == 1
    home.end(2)
    home.begin(3)
    third = await writer(home, role=keeping.RANK, attempt=3)
    third.say(keeping.AWAIT)
    assert (await third.hear())["flights"] == []


async def test_memory_is_found_and_taken(home: Home) -> None:
    """By name, with what lies in it; and then for the next copies, or freed."""
    client = await writer(home)
    takes_off(client)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    home.end()
    client.socket.close()
    following = await rank_of_the_next(home)
    following.say(keeping.FIND, checkpoint="step-00000009.1")
    assert await following.hear() == {"kind": keeping.END}
    following.say(keeping.FIND, checkpoint=NAME)
    assert await following.hear() == {"kind": keeping.FOUND, "bytes": 6}
    assert await following.hear() == {"kind": keeping.END}
    assert [os.pread(one, 100, 0) for one in following.inbox.descriptors] == [b"values", b"content"]
    following.say(keeping.TAKE, bytes=4)
    assert await following.hear() == {"kind": keeping.TAKEN, "bytes": 6}
    assert os.path.sameopenfile(following.inbox.descriptors[0], following.inbox.descriptors[2])
    following.say(keeping.TAKE, bytes=7)
    assert await following.hear() == {"kind": keeping.TAKEN, "bytes": -1}
    for descriptor in following.inbox.descriptors:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("before", "ok", "more", "told"),
    [
        (False, True, {"samples": 80}, [(1, 80)]),  # after its rank's death
        (True, True, {"samples": 80}, [(1, 80)]),  # just before it
        (False, False, {"samples": 80}, []),
        (False, True, {}, []),  # of a library that does not tell how much is in it
    ],
)
async def test_what_landed_without_its_rank_is_told(
    home: Home, before: bool, ok: bool, more: dict[str, int], told: list[tuple[int, int]]
) -> None:
    """At once, for the attempt that is over: perhaps none follows that could."""
    client = await writer(home)
    takes_off(client, **more)
    await eventually(lambda: home.keeper._arenas.find(NAME))
    assert home.keeper.stores(1)
    if not before:
        home.end()
    client.say(keeping.LANDED, checkpoint=NAME, ok=ok, message="", bytes=70, seconds=0.5)
    await eventually(lambda: home.keeper._untold or home.keeper._outcomes)
    assert home.landed == ([] if before else told)
    if before:
        home.end()
    assert home.landed == told
    client.socket.close()
    await eventually(lambda: not home.keeper.stores(1))
