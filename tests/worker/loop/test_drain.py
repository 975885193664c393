"""The drain agreement under every order of events: one stop, reached by all, and nobody waits for ever."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.drain import END, Agreement, Boundary, Participant, Watcher
from resumable_training.errors import PeerLost


class MemoryStore:
    """Store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


class FakeLoop:
    """A rank's loop: boundary after boundary; a step is done only when all ranks have started it.

    ``polls[step]``: how many polls this rank has after that step. ``meets``: steps after which ranks meet.
    """

    def __init__(self, agreement: Agreement, steps: int, polls: dict[int, int], meets: set[int]) -> None:
        self.agreement = agreement
        self.plan: list[Boundary] = []
        for step in range(1, steps + 1):
            self.plan.append((step, 0))
            self.plan += [(step, poll) for poll in range(1, polls.get(step, 0) + 1)]
            self.plan += [(step, END)] if step in meets else []
        self.started: list[Boundary] = []
        self.stopped = False

    @property
    def state(self) -> int:
        """The last step that is done when the loop stops or ends here."""
        return self.started[-1][0] if self.started else 0

    def advance(self, everyone: "list[FakeLoop]") -> bool:
        """One boundary if possible; returns whether anything happened."""
        if self.stopped or len(self.started) == len(self.plan):
            return False
        if self.started and self.started[-1][1] in (0, END):
            together = self.started[-1]
            if not all(together in loop.started for loop in everyone):
                return False  # in the step's collective, or where ranks meet after it
        answer = self.agreement.try_start(self.plan[len(self.started)])
        if answer is None:
            return False
        if answer:
            self.started.append(self.plan[len(self.started)])
        else:
            self.stopped = True
        return True


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_all_ranks_stop_at_one_state(data: st.DataObject) -> None:
    """For any interleaving of loops and watchers, any requester, and any evaluations (the same on all ranks,
    as long as each likes, or by rank 0 alone): all ranks end, with the state after the same step, and no step
    is half done, nor is a meeting after one left by some before it is over."""
    world_size = data.draw(st.integers(1, 4))
    steps = data.draw(st.integers(1, 5))
    polls = st.dictionaries(st.integers(1, steps), st.integers(1, 3))
    common = data.draw(polls)
    how = data.draw(st.sampled_from(["alike", "unlike", "alone"]))
    meets = data.draw(st.sets(st.integers(1, steps)))
    store = MemoryStore()
    agreements = [Agreement() for _ in range(world_size)]
    loops = [
        FakeLoop(
            agreement,
            steps,
            common if how == "alike" or rank == 0 else data.draw(polls) if how == "unlike" else {},
            meets,
        )
        for rank, agreement in enumerate(agreements)
    ]
    participants = [Participant(store, rank, world_size, agreements[rank]) for rank in range(world_size)]
    requester = data.draw(st.integers(0, world_size - 1))
    moves = [("loop", rank) for rank in range(world_size)] + [("watch", rank) for rank in range(world_size)]
    order = data.draw(st.lists(st.sampled_from([*moves, ("request", requester)]), max_size=60))
    for kind, rank in [*order, ("request", requester)]:
        if kind == "loop":
            loops[rank].advance(loops)
        elif kind == "watch":
            participants[rank].advance()
        else:
            participants[rank].request("test")
    for _ in range(200):  # then everything gets its turn
        for participant in participants:
            participant.advance()
        for loop in loops:
            loop.advance(loops)
    assert all(loop.stopped or len(loop.started) == len(loop.plan) for loop in loops)
    assert len({loop.state for loop in loops}) == 1
    assert len({tuple(b for b in loop.started if b[1] in (0, END)) for loop in loops}) == 1


def test_nothing_is_started_between_acknowledging_and_naming() -> None:
    """A rank that has acknowledged starts nothing until the stop is named, then up to it."""
    agreement = Agreement()
    assert agreement.try_start((1, 0)) is True
    assert agreement.acknowledge("test") == (1, 0)
    assert agreement.try_start((2, 0)) is None
    agreement.name_stop((2, 0))
    assert agreement.try_start((2, 0)) is True
    assert agreement.try_start((2, 1)) is False
    assert agreement.stops_before((3, 0))


def test_a_lost_store_ends_the_wait() -> None:
    """A rank that waits for the stop to be named learns that it never will."""
    agreement = Agreement()
    agreement.acknowledge("test")
    agreement.fail("gone")
    with pytest.raises(PeerLost, match="gone"):
        agreement.start((1, 0))


def test_one_rank_needs_no_store() -> None:
    """Alone, a request takes effect at the next boundary."""
    agreement = Agreement()
    watcher = Watcher(agreement, None, 0, 1, lambda _: None)
    assert agreement.start((1, 0))
    watcher.request("test")
    assert not agreement.start((2, 0))
    assert agreement.reason == "test"
    watcher.close()


@pytest.fixture
def stores() -> list[dist.TCPStore]:
    """Three clients of a real store, the first of which hosts it."""
    host = dist.TCPStore("127.0.0.1", 0, 3, True, timeout=timedelta(seconds=30), wait_for_workers=False)
    return [host, host.clone(), host.clone()]


def test_threads_over_a_real_store_agree(stores: list[dist.TCPStore]) -> None:
    """Three loops that run freely, with a barrier in each step, stop after the same one."""
    agreements = [Agreement() for _ in stores]
    watchers = [
        Watcher(agreement, dist.PrefixStore("test", store.clone()), rank, 3, lambda _: None)
        for rank, (agreement, store) in enumerate(zip(agreements, stores, strict=True))
    ]
    collective = threading.Barrier(3)
    ends = [0, 0, 0]

    def loop(rank: int) -> None:
        step = 0
        while agreements[rank].start((step + 1, 0)):
            step += 1
            collective.wait(30)
            if step == 20 and rank == 1:
                watchers[1].request("test")
        ends[rank] = step

    threads = [threading.Thread(target=loop, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(ends)) == 1
    assert ends[0] >= 20
    for watcher in watchers:
        watcher.close()


def test_an_idle_watcher_can_be_closed(stores: list[dist.TCPStore]) -> None:
    """Without a request the thread ends when it is told to."""
    before = threading.active_count()
    watcher = Watcher(Agreement(), dist.PrefixStore("test", stores[1]), 1, 3, lambda _: None)
    watcher.close()
    assert threading.active_count() == before


def test_rank_0_says_that_it_evaluates(stores: list[dist.TCPStore]) -> None:
    """Other ranks are told of the beginning and the end, even when both come at once."""
    told = threading.Event()
    heard: list[bool] = []

    def tell(yes: bool) -> None:
        heard.append(yes)
        told.set()

    first = Watcher(Agreement(), dist.PrefixStore("test", stores[0].clone()), 0, 2, lambda _: None)
    second = Watcher(Agreement(), dist.PrefixStore("test", stores[1]), 1, 2, tell)
    first.evaluating()
    assert told.wait(10)
    told.clear()
    first.evaluating()
    assert told.wait(10)
    assert heard == [True, False]
    first.close()
    second.close()
