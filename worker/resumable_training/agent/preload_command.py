"""PURE: whether the command of a rank is a Python program that can be preloaded, and what is said of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from resumable_training.contract import env

SCRIPT, MODULE, TEXT = "script", "module", "text"
REQUEST_BYTES = 1 << 16  # a third of what a socket holds unread

# Imported where it is installed: what a rank would load on its way to the first step, and hardly more. Two
# modules of the library load the rest of it.
USUAL = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.utils.serialization.config",
    "torch._dynamo",
    "numpy",
    "fsspec",
    "encodings.idna",  # for addresses
    "resumable_training.run",
    "resumable_training.checkpoint.engine",
)
# Of those, what needs no library of torch's, and can be imported while they are loaded; and before that,
# modules with small libraries that it needs, since only one can be loaded at a time.
BESIDE = ("sympy",)
NATIVE = (
    *("array", "bisect", "bz2", "cmath", "decimal", "fcntl", "hashlib", "lzma", "random", "select"),
    *("subprocess", "unicodedata"),
)
# One thread, and no look for GPUs that would make a context: what a process must keep to that is forked.
FORCED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_ALSO_ONE = ("MKL_NUM_THREADS",)  # where the user sets it
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?t?(?:-\w+)?")
_SHEBANG = re.compile(r"#!\s*(\S+)(?:[ \t]+(\S[^\r\n]*?))?\s*$")
_LONG_SHEBANG = re.compile(r"'''exec' \"?([^\"\s]+)\"? \"\$0\" \"\$@\"")  # pip's, where the path is too long
_WITH_VALUE = "WX"
_REFUSED = {
    "E": "-E",
    "I": "-I",
    "S": "-S",
    "i": "-i",
    "h": "-h",
    "V": "-V",
    "?": "-?",
    "x": "-x",
}
_TORCH = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:[\w., ]+,[ \t]*)?"
    r"(?:torch|torchvision|torchaudio|torchtitan|torchtune|resumable_training(?!\.contract)|lightning|pytorch_lightning"
    r"|transformers|accelerate|deepspeed|timm|trl|peft|diffusers|composer|megatron|nemo)\b",
    re.MULTILINE,
)
_SETS = re.compile(
    r"(?:environ\s*\[\s*|environ\.setdefault\(\s*|putenv\(\s*|environ\.update\(\s*\{?\s*)"
    r"[\"']?((?:OMP_|MKL_|OPENBLAS_|KMP_|GOMP_|NUMEXPR_|TORCH|PYTORCH_|LD_)\w*)"
)


@dataclass(frozen=True)
class PythonProgram:
    """``interpreter``: what runs Python, with its options; ``target``: file, module or text, by ``way``."""

    interpreter: Tuple[str, ...]
    way: str
    target: str


def read_command(command: Sequence[str], head: str) -> Union[PythonProgram, str]:
    """The Python program that a command is, or why it can't be preloaded.

    Args:
        command: argv of a rank.
        head: first lines of the file that ``command[0]`` is, if that is a script.
    """
    if _PYTHON.fullmatch(command[0]):
        return _read_options(command)
    interpreter = _of_shebang(head)
    if interpreter is None:
        return "%r is no Python program that could be preloaded" % command[0]
    return _read_options((*interpreter, command[0]))


def _of_shebang(head: str) -> Optional[Tuple[str, ...]]:
    """Interpreter and options, as the kernel would read them; None: no Python."""
    lines = head.split("\n", 2)
    found = _SHEBANG.match(lines[0])
    if not found:
        return None
    if len(lines) > 1 and found[1].endswith("/sh"):
        long = _LONG_SHEBANG.match(lines[1])
        return (long[1],) if long and _PYTHON.fullmatch(long[1]) else None
    words = (found[1], *([found[2]] if found[2] else []))
    if found[1].endswith("/env"):
        return words if len(words) == 2 and _PYTHON.fullmatch(words[1]) else None
    return words if _PYTHON.fullmatch(found[1]) else None


def _read_options(command: Sequence[str]) -> Union[PythonProgram, str]:
    """Walk over the interpreter's options to what it runs."""
    at = 2 if command[0].endswith("/env") else 1
    while at < len(command):
        word = command[at]
        if word == "--check-hash-based-pycs":
            at += 2
            continue
        if not word.startswith("-"):
            return PythonProgram(tuple(command[:at]), SCRIPT, word)
        if word == "-" or word.startswith("--"):
            break
        found = _read_cluster(command, at)
        if not isinstance(found, int):
            return found
        at = found
    return "the command runs no Python script or module"


def _read_cluster(command: Sequence[str], at: int) -> Union[PythonProgram, str, int]:
    """One word of options, such as ``-uB``: what it runs, why not, or where the next word is."""
    word = command[at]
    for place, letter in enumerate(word[1:], 1):
        rest = word[place + 1 :]
        if letter in _REFUSED:
            return "Python's option %s keeps others out of its start" % _REFUSED[letter]
        if letter in "cm":
            value = rest or (command[at + 1] if at + 1 < len(command) else "")
            kept = (word[:place],) if place > 1 else ()
            return PythonProgram((*command[:at], *kept), TEXT if letter == "c" else MODULE, value)
        if letter in _WITH_VALUE:
            return at + (1 if rest else 2)
    return at + 1


def uses_torch(text: str) -> bool:
    """Whether the text of a program imports torch, or what is built on it."""
    return _TORCH.search(text) is not None


def sets_variable(text: str) -> str:
    """A variable that the program sets by itself and that libraries read when they are imported; or empty."""
    found = _SETS.search(text)
    return found[1] if found else ""


def parent_environment(environment: Mapping[str, str]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """That of a parent, from a rank's; and which of its variables are forced."""
    own = {name: value for name, value in environment.items() if not is_per_rank(name)}
    forced = dict(FORCED, **{name: "1" for name in _ALSO_ONE if name in own})
    own.update(forced)
    return own, forced


def is_per_rank(name: str) -> bool:
    """Whether the agent gives each rank or attempt another value."""
    return name in env.TORCHRUN or name.startswith("RESUMABLE_")


def request(
    environment: Mapping[str, str], parents: Mapping[str, str], forced: Mapping[str, str]
) -> Dict[str, Any]:
    """What turns the parent's variables into a rank's."""
    changed = {
        name: value
        for name, value in environment.items()
        if name in forced or is_per_rank(name) or parents.get(name) != value
    }
    return {"set": changed, "unset": [name for name in parents if name not in environment]}


def fits(request: Mapping[str, Any]) -> bool:
    """Whether a rank can be told it without anybody waiting for it to read."""
    return len(json.dumps(request)) <= REQUEST_BYTES


def told_of_imports(ready: Mapping[str, Any]) -> str:
    """What the agent's log says of a parent that is ready."""
    told = "preloaded %d modules in %.1f s" % (len(ready["modules"]), ready["seconds"])
    if not ready["compiled"]:
        return told
    return (
        told + "; %d files were compiled, as at each start: their bytecode can't be kept" % ready["compiled"]
    )


def difference(environment: Mapping[str, str], parents: Mapping[str, str]) -> str:
    """A variable of a rank whose value the parent can't have had when it imported; empty: none."""
    own, _ = parent_environment(environment)
    for name in sorted(own.keys() | parents.keys()):
        if own.get(name) != parents.get(name):
            return name
    return ""


def odd_count(environment: Mapping[str, str]) -> str:
    """A number of threads that only the libraries themselves can read, such as ``4,2``; empty: none."""
    values = {name: environment.get(name, "") for name in _COUNTS}
    odd = [name for name, value in values.items() if value and not re.fullmatch(r"[1-9]\d{0,3}", value)]
    return odd[0] if odd else ""
