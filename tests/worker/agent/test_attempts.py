"""An agent and its ranks, as real processes: start, finish, failure, replacement, refusal."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from agent_process import (
    KEY,
    AgentProcess,
    fake_command,
    process_exists,
    script,
    wait_until,
)

from resumable_training.contract import env, events, exitcodes
from resumable_training.contract.assignment import CheckpointConfig, Limits, Member
from resumable_training.contract.progress import PHASES

LONG = fake_command("--steps", "100000", "--step-seconds", "0.02")


def exits(agent: AgentProcess, attempt: int = 1) -> dict[int, dict[str, object]]:
    """RankExit by rank."""
    found = [event for event in agent.events() if event.kind == events.RANK_EXITED]
    return {event.data["rank"]: event.data for event in found if event.attempt == attempt}


def test_ranks_finish(tmp_path: Path) -> None:
    """From assignment to success: the events in order, the last progress whole, the log and nothing left."""
    with AgentProcess(tmp_path, fake_command("--steps", "12", "--checkpoint-every", "5")) as agent:
        agent.begin(ranks=2)
        assert agent.ended() == events.SUCCEEDED
        found = agent.events()
        kinds = [event.kind for event in found]
        assert kinds[:3] == [events.AGENT_STARTED, events.ASSIGNED, events.RANKS_STARTED]
        assert kinds[-1] == events.ATTEMPT_ENDED
        assert kinds.count(events.RANK_CONNECTED) == kinds.count(events.RANK_EXITED) == 2
        assert [e.data["step"] for e in found if e.kind == events.CHECKPOINT] == [5, 10]
        last = [event for event in found if event.kind == events.PROGRESS][-1]
        assert (last.data["step"], last.data["samples"], last.data["rank"]) == (12, 12 * 64, 0)
        assert set(last.data["phase_ms"]) <= set(PHASES)
        assert kinds.index(events.RANK_EXITED) > kinds.index(events.PROGRESS)
        state = agent.state()
        assert (state.state, state.outcome, state.ranks_alive) == ("ended", events.SUCCEEDED, 0)
        assert agent.rank_pids() == {}


def test_environment_of_a_rank(tmp_path: Path) -> None:
    """torchrun's names, ours, the user's; the working directory; and nothing of the agent's own."""
    dump = tmp_path / "dump"
    dump.mkdir()
    command = script(
        "import json, os\n"
        "json.dump(dict(os.environ, cwd=os.getcwd(), sid=str(os.getsid(0)), pid=str(os.getpid())),"
        f" open('{dump}/' + os.environ['RANK'], 'w'))"
    )
    with AgentProcess(
        tmp_path / "agent", command, working_directory=str(dump), environment={"MINE": "1", "RANK": "no"}
    ) as agent:
        other = Member("train-1-1", 1, 1, "127.0.0.1", 1, 2, 3)
        own = Member(agent.spec.worker, 0, 1, "127.0.0.1", agent.port, 0, 2)
        agent.begin(
            members=(own, other),
            attempt=3,
            env={"TOO": "2"},
            high_water_samples=640,
            checkpoint=CheckpointConfig(directory="/store"),
        )
        assert agent.ended(3) == events.SUCCEEDED
        port = agent.state().master_port
    seen = [json.loads((dump / name).read_text()) for name in ("0", "1")]
    assert [entry["LOCAL_RANK"] for entry in seen] == ["0", "1"]
    wanted = {
        "RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "5",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "uid-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "MINE": "1",
        "TOO": "2",
        "cwd": str(dump),
        env.ATTEMPT: "3",
        env.JOB: "local/train",
        env.WORKER: "train-0-1",
        env.HIGH_WATER_SAMPLES: "640",
        env.CHECKPOINT_DIR: "/store",
    }
    assert {name: seen[1].get(name) for name in wanted} == wanted
    assert env.AGENT_SPEC not in seen[1]
    assert all(entry["sid"] == entry["pid"] for entry in seen)


def test_first_failure_ends_the_others_and_is_kept(tmp_path: Path) -> None:
    """The rank that failed is its own witness, with its last words; the others were killed by the agent."""
    command = fake_command(
        "--steps", "1000", "--exit-at", "4", "--exit-code", "3", "--only-rank", "1", "--message", "boom: why"
    )
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=3)
        assert agent.ended() == events.FAILED
        found = exits(agent)
        assert (found[1]["code"], found[1]["own"], found[1]["early"]) == (3, True, False)
        assert found[1]["tail"] == ["boom: why"]
        assert [(found[rank]["code"], found[rank]["own"]) for rank in (0, 2)] == [(-9, False)] * 2
        assert not found[1]["peer_suspect"]
        assert "boom: why" in agent.rank_log(rank=1)


@pytest.mark.parametrize(
    ("options", "code", "early", "suspect"),
    [
        (("--exit-at", "0", "--exit-code", "81"), 81, True, False),
        (("--exit-at", "2", "--exit-code", "86"), 86, False, True),
        (("--exit-at", "2", "--message", "Connection closed by peer"), 1, False, True),
    ],
)
def test_how_a_rank_failed(
    tmp_path: Path, options: tuple[str, ...], code: int, early: bool, suspect: bool
) -> None:
    """Before or after its first step, by itself or for a peer's sake."""
    with AgentProcess(tmp_path, fake_command(*options)) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.FAILED
        found = exits(agent)[0]
        assert (found["code"], found["early"], found["peer_suspect"]) == (code, early, suspect)


def test_a_killed_rank(tmp_path: Path) -> None:
    """SIGKILL from outside is seen as such, and what was done until then is told before the exit."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        agent.wait_event(events.PROGRESS, where=lambda event: event.data["step"] >= 3)
        os.kill(agent.rank_pids()[0], signal.SIGKILL)
        assert agent.ended() == events.FAILED
        found = agent.events()
        assert exits(agent)[0]["own"]
        assert exits(agent)[0]["code"] == -9
        exited = next(e for e in found if e.kind == events.RANK_EXITED and e.data["rank"] == 0)
        before = [e for e in found if e.kind == events.PROGRESS and e.seq < exited.seq]
        assert before[-1].data["step"] >= 3


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    """The user's error, since nothing could differ next time, with a sentence; the agent lives on."""
    with AgentProcess(tmp_path, ("/no/such/command",)) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.FAILED
        found = exits(agent)[0]
        assert found["code"] == exitcodes.USER_ERROR
        assert "/no/such/command" in str(found["tail"])
        assert agent.state().state == "ended"


def test_ranks_that_cannot_be_started(tmp_path: Path) -> None:
    """The machine's fault is told as a failed attempt of infrastructure, and nothing is left half started."""
    with AgentProcess(tmp_path, LONG) as agent:
        Path(agent.spec.directory, "progress-1-1").mkdir()
        agent.begin(ranks=2)
        assert agent.ended() == events.FAILED
        assert exits(agent)[1]["code"] == 87
        assert agent.state().ranks_alive == 0


def test_a_new_attempt_replaces_the_old_in_place(tmp_path: Path) -> None:
    """Old ranks are gone before new ones start; the agent is the same process; logs are kept apart."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(attempt=1, ranks=2)
        agent.wait_event(events.RANK_CONNECTED)
        old = agent.rank_pids()
        first_port = agent.state().master_port
        agent.begin(attempt=2, ranks=3)
        assert not any(process_exists(pid) for pid in old.values())
        new = agent.rank_pids()
        assert set(new) == {0, 1, 2}
        state = agent.state()
        assert (state.attempt, state.state, state.ranks_alive) == (2, "running", 3)
        assert state.master_port != first_port
        found = agent.events()
        ended = next(event for event in found if event.kind == events.ATTEMPT_ENDED)
        started = [event for event in found if event.kind == events.RANKS_STARTED]
        assert (ended.attempt, ended.data["outcome"]) == (1, events.STOPPED)
        assert started[0].seq < ended.seq < started[1].seq


def test_assignments_that_are_refused(tmp_path: Path) -> None:
    """Older, other members, other job, malformed: each with its code, and the ranks go on untouched."""
    with AgentProcess(tmp_path, LONG) as agent:
        wanted = agent.begin(attempt=2, ranks=1)
        pids = agent.rank_pids()
        assert agent.assign(wanted)[0] == 200
        refused = [
            (agent.assignment(1), "older_attempt"),
            (agent.assignment(2, ranks=2), "other_membership"),
            (agent.assignment(3, job_uid="uid-0"), "other_job"),
            (agent.assignment(3, contract_version=99), "contract"),
        ]
        for assignment, code in refused:
            status, answer = agent.assign(assignment)
            assert (status, answer["code"]) == (409, code)
        status, answer = agent.call("PUT", "/v1/assignment", b"{}")
        assert (status, answer["code"]) == (409, "contract")
        assert agent.rank_pids() == pids
        assert all(process_exists(pid) for pid in pids.values())


def test_stop_request(tmp_path: Path) -> None:
    """Ranks are killed at once; asking again, or for an attempt that is over, changes nothing."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        assert agent.request("stop", attempt=7)[0] == 200
        assert agent.state().ranks_alive == 2
        assert agent.request("stop", attempt=1)[0] == 200
        assert agent.ended() == events.STOPPED
        assert not any(found["own"] for found in exits(agent).values())
        assert agent.request("stop", attempt=1)[0] == 200
        status, answer = agent.request("dance")
        assert (status, answer["code"]) == (409, "contract")


def test_shutdown_request(tmp_path: Path) -> None:
    """Ranks first, then the agent with 0."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=1)
        pids = agent.rank_pids()
        agent.request("shutdown")
        assert agent.process is not None
        assert agent.process.wait(20) == 0
        assert not any(process_exists(pid) for pid in pids.values())


def test_settings_reach_agent_and_ranks(tmp_path: Path) -> None:
    """New limits hold at once: here the autonomy of an agent that nobody listens to. Ranks get theirs."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=1)
        agent.wait_event(events.RANK_CONNECTED)
        agent.request(
            "settings",
            limits=Limits(autonomy_seconds=0.5, drain_seconds=20.0),
            checkpoint=CheckpointConfig(every_steps=7),
        )
        wait_until(lambda: "drain_requested" in agent.own_log(), "a drain without an operator")
        assert agent.ended() == events.DRAINED
        asked = agent.wait_event(events.DRAIN_REQUESTED)
        assert (asked.data["reason"], asked.data["asked_by"]) == ("autonomy", "agent")


def test_scripts_without_the_library_are_reported_as_such(tmp_path: Path) -> None:
    """Their progress is only that they run."""
    with AgentProcess(tmp_path, script("import time; time.sleep(6.5)")) as agent:
        agent.begin(ranks=1)
        found = agent.wait_event(events.PROGRESS)
        assert not found.data["uses_library"]
        assert agent.ended() == events.SUCCEEDED


def test_unwritable_logs_do_not_end_training(tmp_path: Path) -> None:
    """A warning, once, and success."""
    (tmp_path / "nothing").write_text("")
    command = fake_command("--flood", "5", "--steps", "5")
    with AgentProcess(tmp_path, command, log_directory=str(tmp_path / "nothing" / "logs")) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED
        warnings = [event for event in agent.events() if event.kind == events.WARNING]
        assert len(warnings) == 1
        assert "can't be written" in warnings[0].data["message"]


def test_a_worker_whose_rank_cannot_be_ended_is_unfit(tmp_path: Path) -> None:
    """It says so, ends the attempt all the same, and takes no other."""
    launcher = (LONG[0], str(Path(__file__).parents[2] / "fakes" / "unfit_agent.py"))
    with AgentProcess(tmp_path, LONG, launcher=launcher) as agent:
        agent.begin(ranks=1)
        pid = agent.rank_pids()[0]
        agent.request("stop")
        assert agent.wait_event(events.UNFIT).data == {"rank": 0, "pid": pid}
        assert agent.ended() == events.STOPPED
        assert agent.state().unfit
        status, answer = agent.assign(agent.assignment(2))
        assert (status, answer["code"]) == (409, "unfit")
    wait_until(lambda: not process_exists(pid), "the rank's end with its agent")


def test_bad_configuration(tmp_path: Path) -> None:
    """Said in one line, exit code 2."""
    agent = AgentProcess(tmp_path, ())
    with pytest.raises(AssertionError, match=r"ended with 2.*command is missing"):
        agent.start()
    agent.cut_lifeline()
    assert KEY.hex() not in agent.own_log()
