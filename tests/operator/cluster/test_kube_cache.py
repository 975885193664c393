"""The cache converges to the truth in whatever order it is told, and never runs backwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_samples import at, deleting, disrupted, ended, job, node, pod, taint

from resumable_operator.cluster.kube_cache import MOST_TOMBSTONES, TOMBSTONE_SECONDS, KubeCache
from resumable_operator.cluster.port import Change
from resumable_operator.decide.observation import Job, Worker
from resumable_operator.errors import SpecError
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus
from resumable_operator.stored import to_stored


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


class Told:
    """A cache and what it tells."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cache = KubeCache(self.clock)
        self.changes: list[Change] = []
        self.cache.subscribe(self.changes.append)

    def job(self, key: str = "team/train") -> Job:
        entry = self.cache.job_entry(key)
        assert entry is not None
        return entry.read()

    def workers(self) -> dict[str, Worker]:
        return {worker.name: worker for worker in self.cache.workers(self.job())}


def running_attempt(*workers: str, state: str = "running") -> dict[str, Any]:
    members = tuple(
        MemberStatus(
            worker=name, place=index, incarnation=1, address="a", agent_port=1, first_rank=index, ranks=1
        )
        for index, name in enumerate(workers)
    )
    return to_stored(JobStatus(attempt=AttemptStatus(number=1, members=members, state=state)))  # type: ignore[arg-type]


@pytest.fixture
def told() -> Told:
    told = Told()
    told.cache.apply("job", "ADDED", job(status=running_attempt("train-0-1", "train-1-1")))
    return told


# ---- order of versions -------------------------------------------------------------------------------


def test_older_versions_are_ignored(told: Told) -> None:
    """The answer to an own write is not undone by an older watch event that comes after it."""
    told.cache.apply("job", None, job(version=12, meta_generation=2))
    told.cache.apply("job", "MODIFIED", job(version=11))
    assert told.job().resource_version == "12"
    told.cache.apply("pod", None, pod(version=102, state=ended(1)))
    told.cache.apply("pod", "MODIFIED", pod(version=101))
    assert told.workers()["train-0-1"].phase == "failed"


def test_equal_versions_are_told_once(told: Told) -> None:
    """The watch event of an own write changes nothing more."""
    told.cache.apply("pod", None, pod())
    told.cache.apply("pod", "ADDED", pod())
    assert [change.what for change in told.changes if change.what == "worker"] == ["worker"]


def test_deleted_objects_never_come_back(told: Told) -> None:
    """A late list page or answer does not bring a deleted object back."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.apply("pod", None, pod(version=103))
    told.cache.replace("pod", [pod(version=104)], "104")
    assert told.cache.pod("team", "train-0-1") is None
    told.cache.apply("job", "DELETED", job(version=20))
    told.cache.apply("job", "MODIFIED", job(version=19))
    assert told.cache.job_entry("team/train") is None


def test_a_pod_that_gets_its_labels_back(told: Told) -> None:
    """Without the label of the watch a pod seems deleted; it is one of the job's again when it has it."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.apply("pod", "ADDED", pod(version=107))
    assert [worker.phase for worker in told.workers().values()] == ["running"]
    told.cache.replace("pod", [], "110")
    told.cache.apply("pod", "MODIFIED", pod(version=109))
    assert told.cache.pod("team", "train-0-1") is None
    told.cache.apply("pod", "ADDED", pod(version=112))
    assert told.cache.pod("team", "train-0-1") is not None


def test_pods_of_another_namespace_are_nobodys(told: Told) -> None:
    """Whoever writes a job's uid on a pod elsewhere neither adds to the job nor displaces its pods."""
    told.cache.apply("pod", "ADDED", pod())
    told.changes.clear()
    told.cache.apply("pod", "ADDED", pod(namespace="mallory", version=120, uid="foreign", phase="Failed"))
    told.cache.apply("pod", "ADDED", pod(place=7, namespace="mallory", version=121, uid="seventh"))
    assert [(worker.place, worker.phase) for worker in told.workers().values()] == [(0, "running")]
    assert "team/train" not in {change.job_key for change in told.changes}
    assert {entry.namespace for entry in told.cache.orphans()} == {"mallory"}
    told.cache.apply("pod", "DELETED", pod(namespace="mallory", version=130, uid="foreign"))
    assert [worker.phase for worker in told.workers().values()] == ["running"]


def test_deletion_before_creation(told: Told) -> None:
    """A deletion that is told before the creation wins."""
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.apply("pod", "ADDED", pod())
    assert told.cache.pod("team", "train-0-1") is None


def test_recreated_under_its_name(told: Told) -> None:
    """A new object of a name takes the old one's place, and late words about the old one are ignored."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "ADDED", pod(version=110, uid="second", phase="Pending", state={"waiting": {}}))
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.apply("pod", "MODIFIED", pod(version=104))
    entry = told.cache.pod("team", "train-0-1")
    assert entry is not None
    assert (entry.uid, entry.worker.phase) == ("second", "pending")
    told.cache.apply("job", "ADDED", job(version=30, uid="second"))
    told.cache.apply("job", "DELETED", job(version=25))
    assert told.job().uid == "second"
    assert not told.cache.has_job("uid-train")


# ---- lists -------------------------------------------------------------------------------------------


def test_list_prunes_ghosts(told: Told) -> None:
    """What a list lacks is gone, and told so."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "ADDED", pod(place=1))
    told.cache.replace("pod", [pod(place=1)], "104")
    assert set(told.workers()) == {"train-0-1", "train-1-1"}
    assert told.workers()["train-0-1"].phase == "failed"
    assert [change.worker.name for change in told.changes if change.gone and change.worker] == ["train-0-1"]


def test_list_keeps_what_is_newer(told: Told) -> None:
    """A pod that was created while the list was made is not a ghost."""
    told.cache.apply("pod", None, pod(version=201))
    told.cache.replace("pod", [], "200")
    assert told.workers()["train-0-1"].phase == "running"


def test_list_of_one_namespace(told: Told) -> None:
    """A list of one namespace says nothing about the others."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.replace("pod", [], "200", namespace="other")
    assert told.workers()["train-0-1"].phase == "running"
    told.cache.replace("job", [], "200", namespace="other")
    assert told.cache.job_entry("team/train") is not None
    told.cache.replace("job", [], "200", namespace="team")
    assert told.cache.job_entry("team/train") is None


def test_late_word_of_what_was_gone_before_a_list(told: Told) -> None:
    """A pod that came and went unseen before a list is not taken for a living one afterwards."""
    told.cache.replace("pod", [], "200")
    told.cache.apply("pod", "ADDED", pod())
    assert told.cache.pod("team", "train-0-1") is None
    told.cache.apply("pod", "ADDED", pod(version=201))
    assert told.cache.pod("team", "train-0-1") is not None


# ---- jobs --------------------------------------------------------------------------------------------


def test_spec_is_read_once_for_a_generation(told: Told) -> None:
    """A new status does not make the spec be read again; a new generation does."""
    before = told.job().spec
    told.cache.apply("job", "MODIFIED", job(version=11))
    assert told.job().spec is before
    told.cache.apply("job", "MODIFIED", job(version=12, meta_generation=2, workers={"replicas": 3}))
    assert told.job().spec.workers.replicas == 3


def test_unreadable_job(told: Told) -> None:
    """A job that can't be read raises each time, until it is mended."""
    told.cache.apply("job", "MODIFIED", job(version=11, meta_generation=2, workers={}))
    for _ in range(2):
        with pytest.raises(SpecError):
            told.job()
    told.cache.apply("job", "MODIFIED", job(version=12, meta_generation=3))
    assert told.job().generation == 3


def test_object_is_not_kept(told: Told) -> None:
    """Changing an object after it was applied changes nothing here."""
    obj = job(name="other")
    told.cache.apply("job", "ADDED", obj)
    obj["metadata"]["generation"] = 99
    assert told.job("team/other").generation == 1


def test_sharers(told: Told) -> None:
    """Jobs with one store are found by it, until their spec names another or they are gone."""
    on_claim = {"persistentVolumeClaim": {"claimName": "c"}}
    store = ("claim", "team", "c", "")
    for name in ("a", "b"):
        told.cache.apply("job", "ADDED", job(name=name, checkpoint=on_claim))
    assert [entry.key for entry in told.cache.sharers(store)] == ["team/a", "team/b"]
    told.cache.apply("job", "MODIFIED", job(name="a", version=11))
    told.cache.apply("job", "DELETED", job(name="b", version=12))
    assert told.cache.sharers(store) == []


# ---- pods that vanish --------------------------------------------------------------------------------


def test_last_words_of_a_vanished_pod(told: Told) -> None:
    """What only the deletion's event shows stays visible while the worker is a member of the attempt."""
    told.cache.apply("pod", "ADDED", pod())
    last = pod(version=105, conditions=disrupted("PreemptionByScheduler"), meta=deleting(), state=ended(143))
    told.cache.apply("pod", "DELETED", {**last, "metadata": {**pod(version=105)["metadata"], **deleting()}})
    worker = told.workers()["train-0-1"]
    assert (worker.phase, worker.exit_code, worker.deleting) == ("failed", 143, True)
    assert worker.disruption is not None
    assert worker.disruption.cause == "preempted"
    change = told.changes[-1]
    assert (change.gone, change.worker) == (True, worker)
    assert told.cache.is_tombstone(("team", "uid-train"), "train-0-1")


def test_vanished_pod_that_has_no_part(told: Told) -> None:
    """Once its attempt is over, or if it had no part in it, a vanished worker is gone."""
    told.cache.apply("pod", "ADDED", pod(place=2))
    told.cache.apply("pod", "DELETED", pod(place=2, version=105))
    assert told.workers() == {}
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "DELETED", pod(version=105))
    assert set(told.workers()) == {"train-0-1"}
    told.cache.apply("job", None, job(version=11, status=running_attempt("train-0-1", state="ended")))
    assert told.workers() == {}


def test_pod_in_place_of_a_vanished_one(told: Told) -> None:
    """A tombstone does not hide or double a new pod of its name."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.apply("pod", "ADDED", pod(version=110, uid="second"))
    assert [worker.phase for worker in told.cache.workers(told.job())] == ["running"]
    assert not told.cache.is_tombstone(("team", "uid-train"), "train-0-1")


def test_tombstones_are_bounded(told: Told) -> None:
    """They are forgotten after a while, with their job, and beyond a number."""
    for place in range(MOST_TOMBSTONES + 5):
        told.cache.apply("pod", "ADDED", pod(place=place))
        told.cache.apply("pod", "DELETED", pod(place=place, version=105))
    assert not told.cache.is_tombstone(("team", "uid-train"), "train-4-1")
    assert told.cache.is_tombstone(("team", "uid-train"), "train-5-1")
    told.clock.seconds += TOMBSTONE_SECONDS + 1
    told.cache.expire()
    assert not told.cache.is_tombstone(("team", "uid-train"), "train-9-1")


def test_relabelled_pod(told: Told) -> None:
    """A pod whose ties to the job somebody has cut is none of its workers any more."""
    told.cache.apply("pod", "ADDED", pod(place=2))
    cut = {"labels": {}, "ownerReferences": [], "name": "train-2-1"}
    told.cache.apply("pod", "MODIFIED", pod(place=2, version=101, meta=cut))
    assert told.workers() == {}


def test_orphans(told: Told) -> None:
    """Pods whose job is not known by its uid are orphans."""
    told.cache.apply("pod", "ADDED", pod())
    assert told.cache.orphans() == []
    told.cache.apply("job", "DELETED", job(version=20))
    told.cache.apply("job", "ADDED", job(version=21, uid="second"))
    assert [entry.worker.name for entry in told.cache.orphans()] == ["train-0-1"]


# ---- nodes -------------------------------------------------------------------------------------------


def test_node_changes_are_told_to_jobs_on_it(told: Told) -> None:
    """Only the jobs with a pod there look again, and only when what they see of it has changed."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("pod", "ADDED", pod(job="other", node="node-2"))
    told.cache.apply("node", "ADDED", node())
    told.cache.apply("node", "ADDED", node("node-2"))
    told.changes.clear()
    told.cache.apply("node", "MODIFIED", node(version=51))
    told.cache.apply("node", "MODIFIED", node(version=52, ready="Unknown"))
    assert told.changes == [Change("team/train", "node")]


def test_cause_follows_the_node(told: Told) -> None:
    """A deletion by the taint manager is a preemption once the node's notice is known, in whatever order."""
    told.cache.apply("pod", "ADDED", pod(conditions=disrupted("DeletionByTaintManager")))

    def cause() -> str:
        disruption = told.workers()["train-0-1"].disruption
        assert disruption is not None
        return disruption.cause

    assert cause() == "node_lost"
    told.cache.apply("node", "ADDED", node(taints=[taint("aws-node-termination-handler/spot-itn")]))
    assert cause() == "preempted"
    told.cache.apply("node", "DELETED", node(version=60))
    told.cache.apply("pod", "DELETED", pod(version=105, conditions=disrupted("DeletionByTaintManager")))
    assert cause() == "preempted"


def test_gone_node(told: Told) -> None:
    """A node that is deleted stays known as gone while pods are on it, then is forgotten."""
    told.cache.apply("pod", "ADDED", pod())
    told.cache.apply("node", "ADDED", node())
    told.cache.apply("node", "DELETED", node(version=60))
    gone = told.cache.node("node-1")
    assert gone is not None
    assert (gone.exists, gone.ready, told.cache.node_count) == (False, False, 0)
    told.cache.apply("node", "ADDED", node(version=70, uid="second"))
    back = told.cache.node("node-1")
    assert back is not None
    assert back.exists
    told.cache.apply("node", "DELETED", node(version=71, uid="second"))
    told.cache.apply("pod", "DELETED", pod(version=105))
    told.cache.expire()
    assert told.cache.node("node-1") is None


def test_unknown_nodes(told: Told) -> None:
    """A node that was never seen is not gone until a list that began later has lacked it."""
    told.cache.apply("pod", "ADDED", pod())
    assert told.cache.node("node-1") is None
    unknown = told.cache.unknown_nodes()
    told.cache.replace("node", [node("node-2")], "60")
    assert unknown == {"node-1"}
    told.cache.mark_gone("node-1")
    gone = told.cache.node("node-1")
    assert gone is not None
    assert not gone.exists
    assert told.changes[-1] == Change("team/train", "node")
    told.cache.apply("node", "ADDED", node(version=61))
    assert told.cache.unknown_nodes() == set()
    back = told.cache.node("node-1")
    assert back is not None
    assert back.exists


def test_notice_is_counted_from_when_it_was_seen_first(told: Told) -> None:
    """Further changes of a node do not push its deadline away."""
    notice = [taint("aws-node-termination-handler/spot-itn")]
    told.cache.apply("node", "ADDED", node(taints=notice))
    told.clock.seconds += 60
    told.cache.apply("node", "MODIFIED", node(version=51, taints=notice, cordoned=True))
    found = told.cache.node("node-1")
    assert found is not None
    assert found.notice_deadline == 1000.0 + 120


def test_unsubscribe(told: Told) -> None:
    """A listener that left hears nothing."""
    heard: list[Change] = []
    told.cache.subscribe(heard.append)()
    told.cache.apply("pod", "ADDED", pod())
    assert heard == []


# ---- any order ---------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, dict[str, Any]]], list[dict[str, Any]], int]:
    """What happened to three pod names, in true order; what is there at the end; the version at the end."""
    events: list[tuple[str, dict[str, Any]]] = []
    living: dict[int, str] = {}
    version = 100
    for number in range(draw(st.integers(1, 20))):
        place = draw(st.integers(0, 2))
        version += draw(st.integers(1, 3))
        if place not in living:
            living[place] = f"uid-{place}-{number}"
            events.append(("ADDED", pod(place=place, version=version, uid=living[place])))
        elif draw(st.booleans()):
            shown = pod(place=place, version=version, uid=living[place], status={"podIP": f"10.0.0.{number}"})
            events.append(("MODIFIED", shown))
        else:
            events.append(("DELETED", pod(place=place, version=version, uid=living.pop(place))))
    newest = {obj["metadata"]["uid"]: obj for _, obj in events}
    return events, [newest[uid] for uid in living.values()], version


@given(history=histories(), data=st.data())
def test_any_order_then_a_list(history: Any, data: st.DataObject) -> None:
    """Events lost, doubled and in any order: after a list the cache is the truth, and stays it."""
    events, truth, version = history
    delivered = data.draw(st.lists(st.sampled_from(events), max_size=30))
    cache = KubeCache(FakeClock())
    versions: dict[str, int] = {}
    dead: set[str] = set()
    for kind, obj in delivered:
        cache.apply("pod", kind, obj)
        if kind == "DELETED":
            dead.add(obj["metadata"]["uid"])
        entry = cache.pod("team", obj["metadata"]["name"])
        if entry is not None:
            assert entry.uid not in dead
            assert entry.version >= versions.get(entry.uid, 0)
            versions[entry.uid] = entry.version
    cache.replace("pod", truth, str(version))
    late = data.draw(st.lists(st.sampled_from(events), max_size=5))
    for kind, obj in late:
        cache.apply("pod", kind, obj)
    found = {
        (entry.uid, entry.version) for entry in map(cache.pod, ["team"] * 3, _names()) if entry is not None
    }
    assert found == {(obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"])) for obj in truth}
    assert {entry.uid for entry in cache.orphans()} == {uid for uid, _ in found}


def _names() -> list[str]:
    return [f"train-{place}-1" for place in range(3)]


def test_times_are_read(told: Told) -> None:
    """A pod's times are on the clock of the API server, in seconds."""
    told.cache.apply("pod", "ADDED", pod(meta={"creationTimestamp": at(9)}))
    assert told.workers()["train-0-1"].created_at == 1795982409.0
