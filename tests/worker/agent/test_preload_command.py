"""Which commands are Python programs that can be preloaded, and how a rank's variables differ."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent.preload_command import (
    FORCED,
    MODULE,
    REQUEST_BYTES,
    SCRIPT,
    TEXT,
    PythonProgram,
    difference,
    fits,
    odd_count,
    parent_environment,
    read_command,
    request,
    sets_variable,
    uses_torch,
)
from resumable_training.contract import env

PYTHON = "/venv/bin/python3.12"

PROGRAMS = {
    "a script": (("python", "train.py", "-m"), ("python",), SCRIPT, "train.py"),
    "options": (
        (PYTHON, "-uB", "-W", "error", "-Xdev", "t.py"),
        (PYTHON, "-uB", "-W", "error", "-Xdev"),
        SCRIPT,
        "t.py",
    ),
    "a long option": (
        ("python3", "--check-hash-based-pycs", "never", "a"),
        ("python3", "--check-hash-based-pycs", "never"),
        SCRIPT,
        "a",
    ),
    "a module": (("python3", "-m", "my.train", "-c"), ("python3",), MODULE, "my.train"),
    "a module in one word": (("python3.13t", "-OOmtrain"), ("python3.13t", "-OO"), MODULE, "train"),
    "a text": (("python", "-u", "-c", "import torch"), ("python", "-u"), TEXT, "import torch"),
}
SHEBANGS = {
    "#!/venv/bin/python\nimport x": ("/venv/bin/python",),
    "#! /usr/bin/python3 -u\n": ("/usr/bin/python3", "-u"),
    "#!/usr/bin/env python3\r\n": ("/usr/bin/env", "python3"),
    "#!/bin/sh\n'''exec' \"/a/very/long/bin/python\" \"$0\" \"$@\"\n' '''": ("/a/very/long/bin/python",),
}
NO_PROGRAMS = (
    ("sh", "-c", "python train.py"),
    ("./train",),
    ("python",),
    ("python", "-"),
    ("python", "-u"),
    ("python", "--version"),
    ("python", "-I", "train.py"),
    ("python", "-uE", "train.py"),
    ("python", "-S", "-m", "x"),
    ("python", "-i", "x.py"),
    ("pythonista", "x.py"),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """What runs Python ends where the program begins."""
    command, interpreter, way, target = PROGRAMS[name]
    assert read_command(command, "") == PythonProgram(interpreter, way, target)


@pytest.mark.parametrize("head", SHEBANGS)
def test_scripts_that_name_their_interpreter(head: str) -> None:
    """As the kernel would start them."""
    assert read_command(("/bin/train", "-I"), head) == PythonProgram(SHEBANGS[head], SCRIPT, "/bin/train")


@pytest.mark.parametrize("head", ["", "#!/bin/bash\npython", "#!/usr/bin/env -S python3 -u", "#!/bin/sh\nx"])
def test_scripts_of_others(head: str) -> None:
    """They are told by their name."""
    assert "'train'" in str(read_command(("train",), head))


@pytest.mark.parametrize("command", NO_PROGRAMS)
def test_no_programs(command: tuple[str, ...]) -> None:
    """What is no script, or would not let us in, has a reason."""
    assert isinstance(read_command(command, ""), str)


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "x = 1\nimport os, torch.nn as nn",
        "def f():\n    from torch.nn import x",
        "import resumable_training as rt",
        "from transformers import Trainer",
    ],
)
def test_programs_that_use_torch(text: str) -> None:
    """Whatever the form of the import, and for what is built on it."""
    assert uses_torch(text)


@pytest.mark.parametrize(
    "text",
    ["", "print('import torch')", "# import torch", "import torchy", "import resumable_training.contract"],
)
def test_programs_without_torch(text: str) -> None:
    """A word in a text is no import."""
    assert not uses_torch(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '4'", "OMP_NUM_THREADS"),
        ('os.environ.setdefault("TORCH_LOGS", "x")', "TORCH_LOGS"),
        ("environ.update({'PYTORCH_X': '1'})", "PYTORCH_X"),
        ("os.environ.update(KMP_AFFINITY='x')", "KMP_AFFINITY"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", ""),  # read when a device is first used
        ("print(os.environ.get('OMP_NUM_THREADS'))", ""),
    ],
)
def test_variables_that_programs_set(text: str, name: str) -> None:
    """Those that are read when modules are imported."""
    assert sets_variable(text) == name


NAMES = st.sampled_from(["A", "B", "PYTHONPATH", "MKL_NUM_THREADS", *FORCED, *env.TORCHRUN, env.ATTEMPT])
ENVIRONMENTS = st.dictionaries(NAMES, st.sampled_from(["1", "2", ""]))


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_a_request_turns_the_parents_variables_into_the_ranks(
    first: dict[str, str], rank: dict[str, str]
) -> None:
    """Whatever both are, what is set and unset leaves exactly the rank's."""
    parents, forced = parent_environment(first)
    asked = request(rank, parents, forced)
    made = {name: value for name, value in parents.items() if name not in asked["unset"]}
    made.update(asked["set"])
    assert made == rank


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_only_what_is_a_ranks_own_may_differ(first: dict[str, str], rank: dict[str, str]) -> None:
    """A parent is fit for a rank exactly if all other variables are the same, but for numbers of threads."""
    parents, forced = parent_environment(first)
    own = set(env.TORCHRUN) | {env.ATTEMPT} | set(forced)
    differ = {name for name in first.keys() | rank.keys() if first.get(name) != rank.get(name)} - own
    if ("MKL_NUM_THREADS" in first) == ("MKL_NUM_THREADS" in rank):
        assert bool(difference(rank, parents)) == bool(differ - {"MKL_NUM_THREADS"})
    else:
        assert difference(rank, parents)


@pytest.mark.parametrize(
    ("value", "odd"), [("1", False), ("64", False), ("", False), ("4,2", True), ("0", True), ("all", True)]
)
def test_numbers_of_threads(value: str, odd: bool) -> None:
    """A plain number can be set after the fork; what else libraries understand can't."""
    assert bool(odd_count({"OMP_NUM_THREADS": value})) == odd


@pytest.mark.parametrize(("size", "told"), [(0, True), (REQUEST_BYTES - 40, True), (REQUEST_BYTES, False)])
def test_what_a_rank_can_be_told(size: int, told: bool) -> None:
    """What its gate holds while nobody reads, with much to spare."""
    one = request({"RANK": "x" * size}, {}, {})
    assert fits(one) == told
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert not told or ours.send(json.dumps(one).encode()) > size
