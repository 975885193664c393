"""The three ways to start, and what is said when the group does not form or breaks."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from loop_ranks import FAKES, Nursery, Ranks, eventually, free_port

from resumable_training.contract import exitcodes

MASTER_BIND, PEER_LOST, START_TIMEOUT, NUMERIC = 83, 86, 87, 82


def test_a_taken_master_port(start_ranks: Callable[..., Ranks]) -> None:
    """Rank 0 exits with the code that repeats the attempt for free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ranks = start_ranks("start_only", 2, port=taken.getsockname()[1])
        assert ranks.wait_one(0) == MASTER_BIND, ranks.output()
        ranks.kill_all()
    assert "is taken" in ranks.output()


def test_a_rank_that_never_comes(start_ranks: Callable[..., Ranks]) -> None:
    """Rank 0 names who is missing, and the code is START_TIMEOUT on all that came."""
    ranks = start_ranks("start_only", 3, absent=(2,), start_timeout_seconds=1.0)
    codes = ranks.codes()
    assert codes[0] == START_TIMEOUT, ranks.output()
    assert codes[1] in (START_TIMEOUT, PEER_LOST)
    assert "ranks [2] of 3 did not come in time" in ranks.output()


def test_a_rank_without_rank_0(nursery: Nursery, tmp_path: Path) -> None:
    """A rank that finds no store says where it looked."""
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    log = tmp_path / "log"
    pid = nursery.ask(
        do="start",
        scenario="start_only",
        options={"result": str(tmp_path / "r"), "start_timeout_seconds": 0.5},
        environment=environment,
        output=str(log),
    )["pid"]
    assert nursery.ask(do="wait", pid=pid, seconds=30)["code"] == START_TIMEOUT
    assert f"127.0.0.1:{environment['MASTER_PORT']} did not answer" in log.read_text()


def test_another_attempts_rank_cannot_join(nursery: Nursery, tmp_path: Path) -> None:
    """Two ranks with the same port and different attempts never meet."""
    port = str(free_port())
    pids = []
    for rank in (0, 1):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": str(rank),
        }
        options = {"result": str(tmp_path / "r"), "start_timeout_seconds": 2.0}
        pids.append(
            nursery.ask(
                do="start",
                scenario="start_only",
                options=options,
                environment=environment,
                output=str(tmp_path / f"log-{rank}"),
            )["pid"]
        )
    codes = [nursery.ask(do="wait", pid=pid, seconds=30)["code"] for pid in pids]
    assert codes[0] == START_TIMEOUT
    assert codes[1] in (START_TIMEOUT, PEER_LOST)


def test_a_directory_on_some_machines_only(nursery: Nursery, tmp_path: Path) -> None:
    """Those that have it would wait for the others for ever: all end, and are told who lacks it."""
    port, pids = str(free_port()), []
    for rank in range(3):
        environment = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if rank != 1:
            environment["RESUMABLE_CHECKPOINT_DIR"] = str(tmp_path / "checkpoints")
        pids.append(
            nursery.ask(
                do="start",
                scenario="start_only",
                options={"result": str(tmp_path / "r")},
                environment=environment,
                output=str(tmp_path / f"log-{rank}"),
            )["pid"]
        )
    assert [nursery.ask(do="wait", pid=pid, seconds=30)["code"] for pid in pids] == [exitcodes.USER_ERROR] * 3
    for rank in range(3):
        assert "1 of 3 ranks (1) have no checkpoint directory" in (tmp_path / f"log-{rank}").read_text()


def test_a_peers_death_is_told_from_an_own_error(start_ranks: Callable[..., Ranks]) -> None:
    """The rank that raised exits with 1 and its traceback, the one in the collective with PEER_LOST."""
    ranks = start_ranks("start_only", 2, fail="my own mistake")
    assert ranks.codes() == [PEER_LOST, 1], ranks.output()
    assert "ValueError: my own mistake" in ranks.output()


def test_a_nonfinite_loss_ends_the_attempt(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """The rank that sees it exits with NUMERIC before the step is applied; the checkpoint before it stays."""
    ranks = start_ranks("train", 2, until=9, config='{"every_steps": 2}', nonfinite={"step": 4, "rank": 1})
    assert ranks.wait_one(1) == NUMERIC, ranks.output()
    ranks.kill_all()
    ranks.codes()
    assert "the loss of step 4 is nan" in ranks.output()
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000002.1"]


def test_stacks_on_request(start_ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """SIGUSR1 writes the stacks of a busy rank to its file and harms nothing."""
    go = tmp_path / "go"
    ranks = start_ranks("train", 1, until=3, step_seconds={"2": 1.0}, signal_file=str(go), signal_step=2)
    eventually(go.exists)
    os.kill(ranks.pids[0], signal.SIGUSR1)
    stacks = ranks.directory / "stacks-0"
    eventually(lambda: "loop_scenarios.py" in stacks.read_text())
    assert ranks.codes() == [0]


def test_progress_and_reports(start_ranks: Callable[..., Ranks]) -> None:
    """The page holds totals and phases of the whole run, and survives the rank; checkpoints are reported."""
    ranks = start_ranks(
        "train", 2, until=6, config='{"every_steps": 3}', environment={"RESUMABLE_HIGH_WATER_SAMPLES": "30"}
    )
    assert ranks.codes() == [0, 0], ranks.output()
    progress = ranks.progress(0)
    assert (progress.step, progress.samples, progress.rework_steps, progress.phase) == (6, 60, 3, "closing")
    assert progress.phase_ns["rework"] > 0
    assert progress.phase_ns["productive"] > 0
    assert sum(progress.phase_ns.values()) == progress.phase_since_ns - progress.started_ns
    events = ranks.agents[0].kinds("checkpoint")
    assert [event["step"] for event in events] == [3, 6]
    assert events[0]["checkpoint"] == "step-00000003.1"
    assert ranks.agents[1].kinds("checkpoint") == []


SCRIPT = """
    import sys, torch
    import resumable_training as rt

    run = rt.start(checkpoint_dir=sys.argv[1], save_every_steps=2, seed=0)
    model = run.ddp(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(torch.randn(50, 4), global_batch_size=10, micro_batch_size=4, seed=0)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=int(sys.argv[2])):
        for batch in step:
            step.backward(model(batch).square().mean())
        optimizer.step(); optimizer.zero_grad()
    print(f"rank {run.rank} of {run.world_size} at step {run.step}")
"""


@pytest.mark.parametrize(
    "starter",
    [
        [sys.executable],
        [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2"],
    ],
    ids=["python", "torchrun"],
)
def test_the_same_script_by_other_starters(tmp_path: Path, starter: list[str]) -> None:
    """Plain python and torchrun run it with checkpoints and resume."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for until, restored in (("3", False), ("5", True)):
        result = subprocess.run(
            [*starter, str(script), str(tmp_path / "checkpoints"), until],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        assert f"at step {until}" in result.stdout
        assert ("restored step 3 from step-00000003.1" in result.stderr) == restored


def test_importing_the_library_is_cheap() -> None:
    """No torch, no numpy; every public name is there."""
    code = (
        "import sys, resumable_training as rt; print({'torch', 'numpy'} & set(sys.modules));"
        "print(len(rt.__all__), all(name in dir(rt) for name in rt.__all__), rt.UserError.__name__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines() == ["set()", "8 True UserError"]
    assert FAKES.exists()
