"""What images the fake nodes can pull, and what is in them.

Always the host's files, with the settings given here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Image:
    """Images whose reference matches `pattern` (shell style).

    The rest is what a Dockerfile would set: USER, ENTRYPOINT, CMD, WORKDIR, ENV.
    """

    pattern: str
    user: int = 0
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    directory: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return {**self.__dict__, "env": dict(self.env)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Image:
        """What `to_json` made, after a way through JSON."""
        return cls(**{**data, "entrypoint": tuple(data["entrypoint"]), "command": tuple(data["command"])})


class Images:
    """Those that can be pulled; the first match counts."""

    def __init__(self, images: Iterable[Image]) -> None:
        self._images = list(images)

    def find(self, reference: str) -> Image | None:
        """None: no such image in the registry."""
        return next((image for image in self._images if fnmatchcase(reference, image.pattern)), None)


_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

# Ours as the Dockerfile makes them, and some for tests, which run as root.
DEFAULT_IMAGES = (
    Image("resumable-training/operator:*", 1000, ("python", "-m", "resumable_operator"), env=_PYTHON),
    Image("resumable-training/worker:*", 1000, env=_PYTHON),
    Image("bed/*"),
    Image("python:*"),
    Image("busybox*"),
)
