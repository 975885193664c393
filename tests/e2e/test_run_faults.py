"""``rtj run`` with real agents and fake ranks: every fault of ``rtj fault`` ends in a finished job.

The fakes need no torch, so a test takes seconds. What a fault costs and is called is checked in the status
that people see.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_run import LocalRun

from resumable_operator.model import JobStatus

FAKE = ("--steps", "150", "--step-seconds", "0.02", "--checkpoint-every", "10")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def causes(status: JobStatus) -> list[str]:
    return [ending.cause for ending in status.interruptions if not ending.planned]


def test_undisturbed(run: LocalRun) -> None:
    """A job that nothing happens to takes one attempt and no process stays behind."""
    run.start_fake("--workers", "2", "--processes-per-worker", "2", fake=("--steps", "20"))
    status = run.finish()
    assert (status.phase, status.step, status.attempt.number, status.interruptions) == (
        "Succeeded",
        20,
        1,
        (),
    )
    assert status.attempt.world_size == 4
    assert run.processes() == []


def test_killed_rank_restarts_in_place(run: LocalRun) -> None:
    """SIGKILL of one rank: a new attempt on the same workers, from the newest checkpoint, called a crash."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.fault("kill-rank", "--rank", "1")
    status = run.finish()
    assert causes(status) == ["crash"]
    failure = status.interruptions[0]
    assert (failure.rank, failure.code) == (1, -9)
    assert status.attempt.number == 2
    assert len(run.workers_created()) == 2


def test_all_ranks_end_with_the_first_that_fails(run: LocalRun) -> None:
    """Fake ranks don't notice a dead peer: whoever ended them did it because of that death, and all of them
    before anything of the next attempt was begun."""
    run.start_fake("--workers", "3", fake=FAKE)
    run.until_step(15)
    run.fault("kill-rank", "--rank", "1")
    run.finish()
    exits = [event for event in run.history("rank_exited") if event["attempt"] == 1]
    begun = [event["at"] for event in run.history("assigned") if event["attempt"] == 2]
    first, *others = sorted(exits, key=lambda event: event["at"])
    assert (first["data"]["rank"], first["data"]["own"]) == (1, True)
    assert [event["data"]["own"] for event in others] == [False, False]
    assert max(event["at"] for event in others) <= min(begun)
    ports = {event["data"]["master_port"] for event in run.history("assigned") if event["attempt"] == 2}
    assert len(begun) == 3
    assert len(ports) == 1


def test_killed_worker_shrinks(run: LocalRun) -> None:
    """SIGKILL of a worker whose machine is gone: the job goes on smaller at once."""
    run.start_fake("--workers", "1:3", "--shrink-after", "60", fake=FAKE)
    run.until_step(15)
    run.fault("kill-worker")
    status = run.finish()
    assert causes(status) == ["node_lost"]
    assert [member.place for member in status.attempt.members] == [0, 1]
    assert len(run.workers_created()) == 3


def test_killed_worker_is_replaced_when_its_machine_is_back(run: LocalRun) -> None:
    """Below min the job waits for the machine, then goes on with a new incarnation under a new name."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.fault("kill-worker", "--back-after", "0.5")
    status = run.finish()
    assert causes(status) == ["node_lost"]
    assert [member.incarnation for member in status.attempt.members] == [1, 2]


def test_first_worker_killed(run: LocalRun) -> None:
    """The worker with rank 0 is no more special than the others."""
    run.start_fake("--workers", "1:2", fake=FAKE)
    first = run.until_step(15).attempt.members[0].worker
    run.fault("kill-worker", "--worker", first)
    status = run.finish()
    assert causes(status) == ["node_lost"]
    assert first not in [member.worker for member in status.attempt.members]


def test_preemption_redoes_nothing(run: LocalRun) -> None:
    """A worker with notice drains: a checkpoint is committed, no step is done twice.

    Fake ranks do not keep in step, so rank 0's count is what can be judged; the ledger is with real ones.
    """
    run.start_fake("--workers", "1:2", fake=FAKE)
    run.until_step(15)
    run.fault("preempt", "--grace", "20")
    status = run.finish()
    assert causes(status) == ["preempted"]
    assert status.interruptions[0].rework_steps == 0
    assert len(status.attempt.members) == 1


def test_stopped_rank_is_a_hang(run: LocalRun) -> None:
    """A SIGSTOPped rank ends the attempt with cause hang within seconds."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.fault("hang", "--rank", "0")
    status = run.finish()
    assert causes(status) == ["hang"]
    assert status.interruptions[0].rank == 0


def test_grows_when_a_machine_arrives(run: LocalRun) -> None:
    """A new machine is used after the next checkpoint, in one planned ending without rework."""
    run.start_fake("--workers", "1:2", "--grow-cooldown", "0", fake=("--steps", "300", *FAKE[2:]))
    run.until_step(15)
    run.fault("kill-worker")
    run.until_step(30, attempt=2, size=1)
    run.fault("add-worker")
    status = run.finish()
    assert causes(status) == ["node_lost"]
    assert len(status.attempt.members) == 2
    planned = [ending for ending in status.interruptions if ending.planned]
    assert [ending.cause for ending in planned] == ["scale"]
    assert planned[0].rework_steps == 0


def test_no_more_machines_than_the_job_can_use(run: LocalRun) -> None:
    """add-worker beyond the maximum is refused with the reason."""
    run.start_fake("--workers", "1:2", fake=FAKE)
    run.until_step(5)
    with pytest.raises(AssertionError, match="all 2 machines"):
        run.fault("add-worker")
    run.finish()


def test_cut_from_the_operator_alone_is_no_loss(run: LocalRun) -> None:
    """An agent that only the operator can't reach, with its neighbour in touch, trains on undisturbed."""
    run.start_fake("--workers", "2", fake=("--steps", "250", *FAKE[2:]))
    run.until_step(15)
    run.fault("cut-network", "--seconds", "3", "--scope", "operator")
    status = run.finish()
    assert (causes(status), status.attempt.number) == ([], 1)


def test_cut_from_all_is_a_lost_worker(run: LocalRun) -> None:
    """An agent that neither operator nor neighbour reach is replaced, and what it still runs is killed."""
    run.start_fake("--workers", "2", fake=("--steps", "400", *FAKE[2:]))
    run.until_step(15)
    run.fault("cut-network", "--seconds", "60", "--scope", "all")
    status = run.finish()
    assert causes(status) == ["node_lost"]
    assert [member.incarnation for member in status.attempt.members] == [1, 2]
    assert run.processes() == []


def test_all_workers_at_once(run: LocalRun) -> None:
    """With every worker killed in the same moment the job starts anew when machines are back."""
    run.start_fake("--workers", "1:2", fake=FAKE)
    members = run.until_step(15).attempt.members
    for member in members:
        run.fault("kill-worker", "--worker", member.worker, "--back-after", "1")
    status = run.finish()
    assert causes(status)[0] == "node_lost"
    assert status.step == 150


def test_twice_in_a_row(run: LocalRun) -> None:
    """A second failure before the first is recovered from is one more interruption, not a stuck job."""
    run.start_fake("--workers", "2", fake=(*FAKE, "--setup-seconds", "0.5"))
    run.until_step(15)
    run.fault("kill-rank", "--rank", "0")
    run.until(lambda status: status.attempt.number == 2 and status.attempt.state == "running", "attempt 2")
    run.fault("kill-rank", "--rank", "1")
    status = run.finish()
    assert causes(status) == ["crash", "crash"]
    assert status.attempt.number == 3


def test_every_fault_is_written_down(run: LocalRun) -> None:
    """faults.jsonl says what was injected, so that a report can tell it from bad luck."""
    run.start_fake("--workers", "2", fake=FAKE)
    run.until_step(15)
    run.fault("kill-rank", "--rank", "1")
    run.finish()
    line = (run.directory / "faults.jsonl").read_text()
    assert '"fault":"kill-rank"' in line
    assert '"rank":1' in line
