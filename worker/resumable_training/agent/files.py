"""The agent's small run files: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from resumable_training.contract.codec import to_json


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by the JSON of ``value``; readers see the old one or the new one.

    Raises:
        OSError: it can't be written; the old one is still there.
    """
    partial = path.with_name(path.name + ".tmp")
    partial.write_bytes(to_json(value) + b"\n")
    os.replace(partial, path)
