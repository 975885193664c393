"""What a rank's last error means to its agent."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from resumable_training import errors
from resumable_training.checkpoint.errors import StateMismatch, StorageUnavailable, Superseded
from resumable_training.health.exits import exit_code_of, is_peer_lost

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41211"
GLOO_TIMEOUT = (
    "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv"
)
NCCL = "NCCL error in: x.cpp:1, remote process exited or there was a network error"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UserError("x"), 81),
        (errors.DataChanged("x"), 81),
        (errors.NonFiniteLoss("x"), 82),
        (errors.MasterBindFailed(98, "x"), 83),
        (Superseded("x"), 84),
        (StorageUnavailable("x"), 85),
        (StateMismatch("x"), 81),
        (errors.PeerLost("x"), 86),
        (errors.StartTimeout("x"), 87),
        (RuntimeError(GLOO), 86),
        (RuntimeError(GLOO_TIMEOUT), 86),
        (RuntimeError(NCCL), 86),
        (dist.DistBackendError("x"), 86),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), 86),
        (RuntimeError("shape mismatch"), 1),
        (ConnectionResetError("a web service of the script's"), 1),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
    ],
)
def test_exit_code(error: BaseException, code: int) -> None:
    """Each error has the code that says whose fault it is."""
    assert exit_code_of(error) == code


def test_a_wrapped_loss_is_still_a_loss() -> None:
    """A library that wraps the collective's error does not hide it; a circle of causes ends."""
    wrapped = ValueError("step failed")
    wrapped.__cause__ = RuntimeError(GLOO)
    assert is_peer_lost(wrapped)
    circle = ValueError("a")
    circle.__context__ = KeyError("b")
    circle.__context__.__context__ = circle
    assert not is_peer_lost(circle)


SCRIPT = """
import atexit, sys, threading
from resumable_training.errors import StartTimeout
from resumable_training.health.exits import end_at_once_on_error
{before}
end_at_once_on_error()
threading.Thread(target=threading.Event().wait).start()  # would keep the interpreter for ever
print("out", end="")
raise StartTimeout("rank 3 is missing")
"""


@pytest.mark.parametrize("before", ["", "sys.excepthook = lambda *error: 1 / 0"])
def test_a_failing_rank_ends_at_once(before: str) -> None:
    """It prints its traceback, flushes, and waits for no thread; a broken hook of the script's is no harm."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 87
    assert result.stdout == "out"
    assert "rank 3 is missing" in result.stderr


WITH_AN_ACT = """
from resumable_training.health.exits import before_the_end, end_at_once_on_error
end_at_once_on_error()
before_the_end(lambda code: print("done, with", code))
raise {error}
"""


@pytest.mark.parametrize(
    ("error", "code", "out"), [("ValueError", 1, "done, with 1\n"), ("KeyboardInterrupt", 130, "")]
)
def test_what_is_done_before_the_end_is_not_done_at_ctrl_c(error: str, code: int, out: str) -> None:
    """It may take half a minute, and whoever presses Ctrl-C does not want to wait."""
    program = WITH_AN_ACT.format(error=error)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (code, out)


def test_the_users_error_shows_the_users_lines(tmp_path) -> None:
    """No frame of this library and no chain of causes stands between the script's line and the message."""
    (tmp_path / "mine.py").write_text(
        "from resumable_training.health.exits import end_at_once_on_error\n"
        "from resumable_training.data.split import check_sizes\n"
        "from resumable_training.errors import UserError\n"
        "import resumable_training.run as run\n"
        "end_at_once_on_error()\n"
        "try:\n"
        "    raise KeyError('inner')\n"
        "except KeyError:\n"
        "    run._loader_options({'wrong': 1})\n"
    )
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 81
    assert "mine.py" in done.stderr
    assert "run.data does not know wrong" in done.stderr
    assert "resumable_training/run.py" not in done.stderr
    assert "KeyError" not in done.stderr
