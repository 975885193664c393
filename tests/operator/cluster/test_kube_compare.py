"""How the cache is compared, and how often; what comparing finds is tested in ``test_kube_cluster``, too."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kube_samples import job, node, pod

from resumable_operator.cluster import kube_compare
from resumable_operator.cluster.kube_api import KubeApi, Page, Resource
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.kube_compare import Comparison, pause_seconds
from resumable_operator.cluster.kube_errors import Expired
from resumable_operator.errors import FatalError

Raw = dict[str, Any]


@pytest.mark.parametrize(
    ("usual", "taken", "pause"),
    [(30.0, 0.1, 30.0), (30.0, 1.5, 30.0), (30.0, 2.0, 40.0), (30.0, 20.0, 60.0), (5.0, 0.3, 6.0)],
)
def test_long_comparisons_are_rarer(usual: float, taken: float, pause: float) -> None:
    """As usual while they are quick, then a twentieth of the time, but never less than half as often."""
    assert pause_seconds(usual, taken) == pytest.approx(pause)


class FakeClock:
    def now(self) -> float:
        return 1000.0


class Lists:
    """An API server that lists two objects at a time, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.version = 1000
        self.pods = [pod(place, version=100 + place) for place in range(5)]
        self.others = {"resumabletrainingjobs": [job()], "nodes": [node("node-1")]}
        self.asked: list[tuple[str, str, bool]] = []  # plural, token, metadata only
        self.expire = False

    async def page(
        self,
        resource: Resource,
        namespace: str | None = None,
        token: str = "",
        *,
        labels: str = "",
        metadata_only: bool = False,
    ) -> Page:
        self.asked.append((resource.plural, token, metadata_only))
        if self.expire and token:
            self.expire = False
            raise Expired("too old")
        found = self.pods if resource.plural == "pods" else self.others[resource.plural]
        begin = int(token or 0)
        items = [{"metadata": obj["metadata"]} if metadata_only else obj for obj in found[begin : begin + 2]]
        more = str(begin + 2) if begin + 2 < len(found) else ""
        return Page(items, str(self.version), more)

    def parts(self) -> list[tuple[str, bool]]:
        """Of pods since the last call: token, metadata only."""
        asked, self.asked = self.asked, []
        return [(token, metadata_only) for plural, token, metadata_only in asked if plural == "pods"]


class SlowTime(Lists):
    """Lists of which each part takes a while, and a clock that shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.part_seconds = 0.0, 0.01
        self.rests: list[float] = []

    async def page(self, *args: Any, **options: Any) -> Page:
        self.now += self.part_seconds
        return await super().page(*args, **options)

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
def cache() -> KubeCache:
    return KubeCache(FakeClock())


@pytest.fixture
def comparison(lists: Lists, cache: KubeCache, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.setattr(kube_compare, "LONGEST_REST_SECONDS", 0.0)
    return Comparison(cast(KubeApi, lists), cache, (), nodes=True)


async def test_first_comparison_reads_all(lists: Lists, cache: KubeCache, comparison: Comparison) -> None:
    """Nothing is known yet: every part in full, none of it twice."""
    await comparison.run()
    assert lists.parts() == [("", False), ("2", False), ("4", False)]
    assert cache.pod("team", "train-4-1") is not None


async def test_what_is_known_is_not_read_again(
    lists: Lists, cache: KubeCache, comparison: Comparison
) -> None:
    """Metadata shows that all is as it was, and nobody is told of a change."""
    await comparison.run()
    lists.parts()
    told: list[object] = []
    cache.subscribe(told.append)
    lists.version += 1
    await comparison.run()
    assert lists.parts() == [("", True), ("2", True), ("4", True)]
    assert told == []
    assert cache.listed_version("pod") == lists.version


@pytest.mark.parametrize("place", [0, 3, 4, 5])
async def test_a_part_with_news_is_read_in_full(
    lists: Lists, cache: KubeCache, comparison: Comparison, place: int
) -> None:
    """Changed or new: that part alone, and what is in it counts as much as a word of the watch."""
    await comparison.run()
    lists.parts()
    lists.version += 2
    lists.pods[place : place + 1] = [pod(place, version=lists.version - 1, phase="Failed")]
    await comparison.run()
    begin = str(place // 2 * 2) if place > 1 else ""
    assert [token for token, metadata_only in lists.parts() if not metadata_only] == [begin]
    entry = cache.pod("team", f"train-{place}-1")
    assert entry is not None
    assert entry.worker.phase == "failed"
    assert len(cache.workers(cache.job_entries()[0].read())) == len(lists.pods)


async def test_what_vanished_is_dropped(lists: Lists, cache: KubeCache, comparison: Comparison) -> None:
    """Metadata alone shows that an object is no more."""
    await comparison.run()
    lists.version += 1
    del lists.pods[2]
    await comparison.run()
    assert cache.pod("team", "train-2-1") is None
    assert cache.pod("team", "train-3-1") is not None


async def test_what_the_watch_told_first_is_no_news(
    lists: Lists, cache: KubeCache, comparison: Comparison
) -> None:
    """A list is older than the newest word of the watch: changed or deleted since, nothing is read again."""
    await comparison.run()
    lists.parts()
    lists.version += 1
    cache.apply("pod", "MODIFIED", pod(0, version=2000, phase="Failed"))
    cache.apply("pod", "DELETED", pod(1, version=2001))
    await comparison.run()
    assert all(metadata_only for _, metadata_only in lists.parts())
    entry = cache.pod("team", "train-0-1")
    assert entry is not None
    assert entry.worker.phase == "failed"
    assert cache.pod("team", "train-1-1") is None


async def test_list_that_expires_under_way(lists: Lists, cache: KubeCache, comparison: Comparison) -> None:
    """It begins anew, and nothing is taken for vanished meanwhile."""
    await comparison.run()
    lists.parts()
    lists.expire, lists.version = True, lists.version + 1
    await comparison.run()
    assert [token for token, _ in lists.parts()] == ["", "2", "", "2", "4"]
    assert all(cache.pod("team", f"train-{place}-1") for place in range(5))


async def test_history_that_has_gone_back(lists: Lists, comparison: Comparison) -> None:
    """A store restored from a backup is seen from the version of the list, though no object differs."""
    await comparison.run()
    lists.version -= 1
    with pytest.raises(FatalError, match="gone back"):
        await comparison.run()


async def test_others_have_their_turn(cache: KubeCache) -> None:
    """Later comparisons rest between two parts, which does not count as time taken; the first one hurries."""
    time = SlowTime()
    comparison = Comparison(
        cast(KubeApi, time), cache, (), nodes=True, monotonic=lambda: time.now, sleep=time.sleep
    )
    assert await comparison.run() == pytest.approx(0.05)
    assert time.rests == []
    assert await comparison.run() == pytest.approx(0.05)
    assert time.rests == pytest.approx([0.03, 0.03])  # between the parts of pods; other kinds have one
    time.part_seconds = 10.0
    await comparison.run()
    assert time.rests[2:] == [kube_compare.LONGEST_REST_SECONDS] * 2
