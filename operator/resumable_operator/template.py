"""PURE: the parts of a pod template that are read here have the shape that Kubernetes wants.

All else in it is passed on as it is. Strings are strings as there: YAML makes 8 of ``010`` and true of
``on``, so a number among the arguments is rather refused than guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MOST_GPUS = 10_000  # of a container; more is a slip of the hand
_QUANTITY = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?"
)  # as Kubernetes reads it
_COUNT = re.compile(r"[0-9]{1,18}")


def check_template(template: Mapping[str, Any]) -> None:
    """Look at everything that ``JobSpec.command`` and the environment of ranks are made from.

    Raises:
        ValueError: names the place, and what must be there.
    """
    try:
        json.dumps(template, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"holds what JSON cannot: {error}") from error
    spec = template.get("spec")
    containers = _mapping(spec, "spec").get("containers") if spec is not None else None
    for number, container in enumerate(_list(containers, "spec.containers")):
        _check_container(container, f"spec.containers[{number}]")


def _check_container(value: Any, where: str) -> None:
    container = _mapping(value, where)
    for name in ("command", "args"):
        for number, word in enumerate(_list(container.get(name), f"{where}.{name}")):
            _string(word, f"{where}.{name}[{number}]")
    for name in ("name", "workingDir"):
        if container.get(name) is not None:
            _string(container[name], f"{where}.{name}")
    for number, entry in enumerate(_list(container.get("env"), f"{where}.env")):
        _check_variable(entry, f"{where}.env[{number}]")
    if container.get("resources") is not None:
        _check_resources(_mapping(container["resources"], f"{where}.resources"), f"{where}.resources")


def _check_resources(resources: Mapping[str, Any], where: str) -> None:
    for kind in ("requests", "limits"):
        wanted = resources.get(kind)
        for name, quantity in _mapping({} if wanted is None else wanted, f"{where}.{kind}").items():
            place = f"{where}.{kind}[{name}]"
            is_number = isinstance(quantity, (int, float)) and not isinstance(quantity, bool)
            if not is_number and not (isinstance(quantity, str) and _QUANTITY.fullmatch(quantity)):
                raise ValueError(f"{place} must be a quantity, not {quantity!r:.60}")
            if gpu_count(name, quantity) > MOST_GPUS:
                raise ValueError(f"{place} must be at most {MOST_GPUS}, not {quantity!r:.60}")


def gpu_count(name: str, quantity: Any) -> int:
    """GPUs that a quantity of the resource stands for; 0: it is no GPU, or not counted in whole ones."""
    text = str(quantity)
    return int(text) if name.endswith("/gpu") and _COUNT.fullmatch(text) else 0


def _check_variable(value: Any, where: str) -> None:
    entry = _mapping(value, where)
    name = _string(entry.get("name"), f"{where}.name")
    if not name or "=" in name:
        raise ValueError(f"{where}.name: {name!r} is no name of a variable")
    if entry.get("value") is not None:
        _string(entry["value"], f"{where}.value")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a mapping, not {value!r:.60}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    """Null is the same as nothing, as in Kubernetes."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, not {value!r:.60}")
    return value


def _string(value: Any, where: str) -> str:
    if isinstance(value, (int, float)):
        raise ValueError(f"{where} must be a string: put {json.dumps(value)} into quotes")
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a string, not {value!r:.60}")
    if "\0" in value:
        raise ValueError(f"{where} holds a zero byte, which no process can be given")
    return value
