"""PURE: the parts of a pod template that are read here have the shape that Kubernetes wants.

All else in it is passed on as it is. Strings are strings as there: YAML makes 8 of ``010`` and true of
``on``, so a number among the arguments is rather refused than guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
