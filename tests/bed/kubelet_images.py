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

    `user`, `entrypoint`, `command` and `directory` are what a Dockerfile would set (USER, ENTRYPOINT, CMD,
    WORKDIR); `files` maps a path in the image to one of the host's, for what the image has and the host has
    elsewhere.
    """

    pattern: str
    user: int = 0
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    directory: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return {**self.__dict__, "files": dict(self.files)}

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
