"""Reads a job's YAML as Kubernetes would: every key once, and a date is a string."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from resumable_operator.cli.exitcodes import UsageProblem

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML that becomes JSON."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Of a key that is given twice, PyYAML would drop the first value in silence."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_document(path: Path) -> Any:
    """The one document in a file.

    Raises:
        UsageProblem: it can't be read, or is not YAML.
    """
    try:
        return yaml.load(path.read_bytes(), _Loader)  # noqa: S506  a SafeLoader
    except OSError as error:
        raise unreadable(path, error) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a malformed number
        raise UsageProblem(f"{path} is not YAML: {error}") from error


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> UsageProblem:
    """A file that the command line names and that can't be read, in a sentence."""
    if isinstance(error, FileNotFoundError):
        return UsageProblem(f"{path}: no such file")
    why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
    return UsageProblem(f"cannot read {path}: {why}")
