"""A process that has imported torch once and forks ranks for the tests of the loop, in milliseconds each.

Protocol: one JSON object a line on standard input, one line of JSON in answer to each. ``start``
{environment, scenario, options, output} -> {pid}; ``wait`` {pid, seconds} -> {code} (None:
still running); ``kill`` {pid, signal} -> {}. The end of its input kills what is left.
"""

import atexit
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def main() -> None:
    for module in ("torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"):
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    importlib.import_module("loop_scenarios")
    importlib.import_module("resumable_training.run")
    importlib.import_module("resumable_training.checkpoint.engine")
    children: dict[int, int | None] = {}  # pid -> exit code, None while it runs
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(answer(command, children)), flush=True)
    for pid, code in children.items():
        if code is None:
            os.kill(pid, signal.SIGKILL)


def answer(command: dict, children: dict[int, int | None]) -> dict:
    if command["do"] == "start":
        pid = os.fork()
        if pid == 0:
            become_rank(command)
        children[pid] = None
        return {"pid": pid}
    if command["do"] == "kill":
        if wait(command["pid"], 0, children) is None:
            os.kill(command["pid"], command["signal"])
        return {}
    return {"code": wait(command["pid"], command["seconds"], children)}


def wait(pid: int, seconds: float, children: dict[int, int | None]) -> int | None:
    deadline = time.monotonic() + seconds
    while children[pid] is None:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            return None
        else:
            time.sleep(0.005)
    return children[pid]


def become_rank(command: dict) -> None:
    """Never returns. Ends as the interpreter would have ended a script."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(command["environment"])
    code = 1
    try:
        module, _, name = command["scenario"].rpartition(":")
        getattr(importlib.import_module(module or "loop_scenarios"), name)(**command["options"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
