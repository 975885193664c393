"""How a process was started, from its environment alone."""

import pytest

from resumable_training.errors import UserError
from resumable_training.launch import SINGLE, SUPERVISED, TORCHRUN, read_launch

TORCHRUN_ENVIRONMENT = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SUPERVISED_ENVIRONMENT = TORCHRUN_ENVIRONMENT | {
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "RESUMABLE_SOCKET": "/tmp/s",
    "RESUMABLE_JOB": "ns/name",
    "RESUMABLE_JOB_UID": "uid",
    "RESUMABLE_ATTEMPT": "7",
    "RESUMABLE_HIGH_WATER_SAMPLES": "640",
    "RESUMABLE_CHECKPOINT_DIR": "/ckpt",
    "RESUMABLE_CHECKPOINT_CONFIG": '{"every_steps": 5}',
}


def test_plain_python_is_one_rank() -> None:
    """No variables: one rank, named after the script."""
    launch = read_launch({}, "dir/train.py")
    assert (launch.mode, launch.rank, launch.world_size, launch.job) == (SINGLE, 0, 1, "local/train")


def test_torchrun() -> None:
    """Torchrun's variables; a restart is another attempt, and the agent hosts the store."""
    launch = read_launch(TORCHRUN_ENVIRONMENT, "train.py")
    assert (launch.mode, launch.rank, launch.world_size, launch.local_rank) == (TORCHRUN, 2, 4, 1)
    assert (launch.attempt, launch.agent_store, launch.store_prefix) == (4, True, "resumable/abc/4")


def test_supervised() -> None:
    """An agent's variables win over torchrun's."""
    launch = read_launch(SUPERVISED_ENVIRONMENT, "train.py")
    assert (launch.mode, launch.job, launch.attempt) == (SUPERVISED, "ns/name", 7)
    assert (launch.store_prefix, launch.high_water_samples) == ("resumable/uid/7", 640)
    assert (launch.checkpoint.directory, launch.checkpoint.every_steps) == ("/ckpt", 5)
    assert not launch.agent_store


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        ({"RANK": "4"}, "ranks go from 0"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number"),
        ({"RESUMABLE_CHECKPOINT_CONFIG": '{"every_steps": "x"}'}, "every_steps must be"),
    ],
)
def test_a_wrong_variable_is_named(change: dict[str, str], text: str) -> None:
    """The error says which variable."""
    with pytest.raises(UserError, match=text):
        read_launch(TORCHRUN_ENVIRONMENT | change, "train.py")
