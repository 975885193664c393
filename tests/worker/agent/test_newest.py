"""The checkpoint that scripts without the library are offered; on real DCP directories."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from agent_process import AgentProcess, script
from pod_agent import PodAgent

from resumable_training.agent import newest
from resumable_training.agent.newest import CannotTell, Offer, in_thread, newest_checkpoint, with_offer
from resumable_training.contract import env, events, exitcodes
from resumable_training.contract.assignment import Assignment, CheckpointConfig, Member
from resumable_training.contract.manifest import MARKER_FILE

TELL = script("import os; print(os.environ.get('RESUMABLE_RESUME_FROM'))")


def checkpoint(path: Path, modified: float) -> Path:
    """What `dcp.save` leaves."""
    dcp.save({"weight": torch.ones(4)}, checkpoint_id=path, no_dist=True)
    os.utime(path / MARKER_FILE, (modified, modified))
    return path


def shard(directory: Path) -> Path:
    (found,) = directory.glob("*.distcp")
    return found


def found(root: Path) -> str:
    return newest_checkpoint(root).directory


def test_the_newest_that_is_whole(tmp_path: Path) -> None:
    """By its marker's time, down to three levels; damaged and half-deleted ones are passed over."""
    assert newest_checkpoint(tmp_path / "nowhere") == Offer()
    assert newest_checkpoint(tmp_path) == Offer()
    old = checkpoint(tmp_path / "epoch-9", 100.0)
    newer = checkpoint(tmp_path / "runs" / "a" / "epoch-10", 200.0)
    last = checkpoint(tmp_path / "epoch-11", 300.0)
    checkpoint(tmp_path / "a" / "b" / "c" / "too-deep", 400.0)
    assert newest_checkpoint(tmp_path) == Offer(str(last))
    shard(last).unlink()
    offer = newest_checkpoint(tmp_path)
    assert offer.directory == str(newer)
    assert [f"{last} is not offered" in note and "is missing" in note for note in offer.notes] == [True]
    (newer / MARKER_FILE).unlink()
    assert found(tmp_path) == str(old)
    assert found(old) == str(old)


def test_equal_times(tmp_path: Path) -> None:
    """Then the greater name is the newer one."""
    checkpoint(tmp_path / "step-1", 100.0)
    checkpoint(tmp_path / "step-2", 100.0)
    assert found(tmp_path) == str(tmp_path / "step-2")


def truncate(directory: Path) -> None:
    with shard(directory).open("rb+") as file:
        file.truncate(3)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no shard": (lambda path: shard(path).unlink(), "is missing"),
    "short shard": (truncate, "has 3 bytes"),
    "cut marker": (lambda path: (path / MARKER_FILE).write_bytes(b"\x80\x04"), "can't be parsed"),
    "another program's file": (lambda path: (path / MARKER_FILE).write_text("{}"), "can't be parsed"),
    "evil marker": (
        lambda path: (path / MARKER_FILE).write_bytes(b"cos\nsystem\n(S'exit'\ntR."),
        "os.system",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damage(tmp_path: Path, harm: str) -> None:
    """What can't be resumed from is not offered, and says why; nothing in it is run."""
    old = checkpoint(tmp_path / "old", 100.0)
    damaged = checkpoint(tmp_path / "damaged", 200.0)
    do, says = HARMS[harm]
    do(damaged)
    os.utime(damaged / MARKER_FILE, (200.0, 200.0))
    offer = newest_checkpoint(tmp_path)
    assert offer.directory == str(old)
    assert says in offer.notes[0]


def test_a_marker_that_points_outside(tmp_path: Path) -> None:
    """Shards elsewhere are none."""
    inside = checkpoint(tmp_path / "a", 100.0)
    data = (inside / MARKER_FILE).read_bytes()
    name = shard(inside).name.encode()
    outside = b"../" + name[3:]
    assert data.count(name) == 1
    (inside / MARKER_FILE).write_bytes(data.replace(name, outside))
    os.utime(inside / MARKER_FILE, (100.0, 100.0))
    offer = newest_checkpoint(tmp_path)
    assert offer.directory == ""
    assert "outside" in offer.notes[0]


@pytest.mark.parametrize("hidden", ["lost+found", ".snapshot", ".Trash-0"])
def test_copies_kept_by_file_servers(tmp_path: Path, hidden: str) -> None:
    """Snapshots and what fsck found are not the job's checkpoints, however new."""
    checkpoint(tmp_path / hidden / "step-9", 900.0)
    own = checkpoint(tmp_path / "step-1", 100.0)
    assert newest_checkpoint(tmp_path) == Offer(str(own))


def failing(monkeypatch: pytest.MonkeyPatch, name: str, path: Path, error: OSError) -> None:
    """Make ``os.<name>`` fail for one path."""
    real = getattr(os, name)

    def call(where: Any, *rest: Any, **named: Any) -> Any:
        if str(where) == str(path):
            raise error
        return real(where, *rest, **named)

    monkeypatch.setattr(os, name, call)


def test_a_directory_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's directory beside ours is passed over, and named."""
    own = checkpoint(tmp_path / "step-1", 100.0)
    (tmp_path / "theirs").mkdir()
    failing(monkeypatch, "scandir", tmp_path / "theirs", PermissionError(errno.EACCES, "Permission denied"))
    offer = newest_checkpoint(tmp_path)
    assert offer.directory == str(own)
    assert "theirs is not searched" in offer.notes[0]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), OSError(errno.ESTALE, "Stale handle")])
@pytest.mark.parametrize("where", ["root", "below", "shard"])
def test_doubt_is_no_permission_to_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: OSError
) -> None:
    """If the newest can't be read, an older one is not offered in its place."""
    checkpoint(tmp_path / "step-1", 100.0)
    last = checkpoint(tmp_path / "step-2", 200.0)
    name, path = {
        "root": ("scandir", tmp_path),
        "below": ("scandir", last),
        "shard": ("stat", shard(last)),
    }[where]
    failing(monkeypatch, name, path, error)
    with pytest.raises(CannotTell, match=str(error.strerror)):
        newest_checkpoint(tmp_path)


def test_the_root_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the store itself even a missing permission leaves it open whether there are checkpoints."""
    failing(monkeypatch, "scandir", tmp_path, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(CannotTell, match="Permission denied"):
        newest_checkpoint(tmp_path)


def test_a_shard_that_is_seen_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS a fresh marker may be seen before its shards: they are waited for."""
    last = checkpoint(tmp_path / "step-2", time.time())
    file = shard(last)
    data = file.read_bytes()
    file.unlink()
    looks: list[Path] = []
    real = newest._list_again

    def list_again(directory: Path) -> None:
        looks.append(directory)
        real(directory)
        if len(looks) == 2:
            file.write_bytes(data)

    monkeypatch.setattr(newest, "_list_again", list_again)
    assert newest_checkpoint(tmp_path) == Offer(str(last))
    assert looks == [last, last]


def test_too_much_to_search(tmp_path: Path) -> None:
    """When the time is over, what the levels above held counts, and the fix is named."""
    offer = newest_checkpoint(tmp_path, look_seconds=-1.0)
    assert offer.directory == ""
    assert "a directory of its own" in offer.notes[0]


async def test_storage_that_hangs() -> None:
    """It holds up neither the loop nor the end of the process."""
    release = threading.Event()
    with pytest.raises(CannotTell, match="/mnt gives no answer"):
        await in_thread(release.wait, "/mnt", 0.05)
    assert any(thread.name == "storage" and thread.daemon for thread in threading.enumerate())
    release.set()


# ---- in an assignment --------------------------------------------------------------------------------


def assigned(root: str, rank: int = 0, **variables: str) -> Assignment:
    """To the worker of that first rank."""
    members = tuple(Member(f"t-{n}-1", n, 1, "127.0.0.1", 1, n, 1) for n in (0, 1))
    return Assignment(
        "ns/t", "u", 1, "d", f"t-{rank}-1", members, "127.0.0.1", 1,
        checkpoint=CheckpointConfig(directory=root), env=variables,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "root", "given", "expected"),
    [
        (0, "{root}", None, "{last}"),
        (1, "{root}", None, ""),
        (0, "", None, ""),
        (0, "s3://bucket/prefix", None, ""),
        (0, "{root}/none", None, ""),
        (0, "{root}", "", ""),
        (1, "{root}", "", ""),
        (0, "{root}", "{last}", "{last}"),
        (1, "/elsewhere", "{last}", "{last}"),
    ],
)
async def test_who_looks(tmp_path: Path, rank: int, root: str, given: str | None, expected: str) -> None:
    """Rank 0's agent, when it was told nothing and the store is a directory; others do as they are told."""
    last = str(checkpoint(tmp_path / "step-2", 200.0))
    fill = {"root": str(tmp_path), "last": last}
    variables = {} if given is None else {env.RESUME_FROM: given.format(**fill)}
    wanted = assigned(root.format(**fill), rank, OTHER="kept", **variables)
    settled, notes = await with_offer(wanted)
    assert settled.env == {"OTHER": "kept", env.RESUME_FROM: expected.format(**fill)}
    assert replace(settled, env=wanted.env) == wanted
    assert notes == ()


async def test_an_offer_that_this_machine_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for; one that does not come says what is wrong with the storage."""
    monkeypatch.setattr(newest.wait_until_visible, "__defaults__", (0.0,))
    with pytest.raises(CannotTell, match="mount the same storage"):
        await with_offer(assigned("", 1, **{env.RESUME_FROM: str(tmp_path / "elsewhere")}))


# ---- by real agents ----------------------------------------------------------------------------------


def test_all_ranks_of_an_attempt_are_offered_the_same(tmp_path: Path) -> None:
    """Rank 0's agent finds it and says so; its ranks and those of another agent that is told get it."""
    root = tmp_path / "store"
    last = str(checkpoint(root / "step-2", 200.0))
    config = CheckpointConfig(directory=str(root))
    with (
        PodAgent(tmp_path / "one", TELL) as one,
        AgentProcess(tmp_path / "two", TELL, worker="train-1-1", place=1) as two,
    ):
        members = (
            Member(one.spec.worker, 0, 1, "127.0.0.1", one.port, 0, 1),
            Member(two.spec.worker, 1, 1, "127.0.0.1", two.port, 1, 1),
        )
        one.begin(members=members, checkpoint=config)
        state = one.state()
        assert state.resume_from == last
        two.begin(
            members=members,
            checkpoint=config,
            master_port=state.master_port,
            env={env.RESUME_FROM: state.resume_from},
        )
        assert (one.ended(), two.ended()) == (events.SUCCEEDED, events.SUCCEEDED)
        assert one.rank_log(rank=0) == two.rank_log(rank=1) == f"{last}\n"
        assert two.state().resume_from == last


def test_each_attempt_looks_again(tmp_path: Path) -> None:
    """A new attempt is offered what was saved since; damage is told as a warning."""
    root = tmp_path / "store"
    config = CheckpointConfig(directory=str(root))
    with AgentProcess(tmp_path, TELL) as agent:
        agent.begin(ranks=1, checkpoint=config)
        assert agent.ended() == events.SUCCEEDED
        last = checkpoint(root / "step-2", 200.0)
        (checkpoint(root / "step-3", 300.0) / MARKER_FILE).write_bytes(b"")
        os.utime(root / "step-3" / MARKER_FILE, (300.0, 300.0))
        agent.begin(attempt=2, ranks=1, checkpoint=config)
        assert agent.ended(2) == events.SUCCEEDED
        assert (agent.rank_log(1), agent.rank_log(2)) == ("None\n", f"{last}\n")
        (warning,) = [event for event in agent.events() if event.kind == events.WARNING]
        assert (warning.attempt, "step-3 is not offered" in warning.data["message"]) == (2, True)


def test_storage_that_gives_no_answer_ends_the_attempt(tmp_path: Path) -> None:
    """A start from nothing while nobody can tell would lose everything: no rank starts, and it says why."""
    blocked = tmp_path / "store"
    blocked.symlink_to(blocked)  # listing it is an error (ELOOP), for every user
    with AgentProcess(tmp_path, TELL) as agent:
        agent.begin(ranks=2, checkpoint=CheckpointConfig(directory=str(blocked)))
        assert agent.ended() == events.FAILED
        (exit_,) = [event.data for event in agent.events() if event.kind == events.RANK_EXITED]
        assert (exit_["code"], exit_["own"]) == (exitcodes.STORAGE, True)
        assert "can't be searched for checkpoints" in exit_["tail"][0]
        agent.begin(attempt=2, ranks=1)
        assert agent.ended(2) == events.SUCCEEDED
