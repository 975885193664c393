"""DCP's ``.metadata`` as DCP's own object. Reading it without torch is in ``contract.marker``."""

from __future__ import annotations

import importlib
from typing import Any

from resumable_training.contract import marker


def load_real(data: bytes) -> Any:
    """DCP's own ``Metadata`` object (needs torch).

    Raises:
        DamagedMarker: as for ``contract.marker.parse_marker``.
    """
    return marker.load(data, _real)


def _real(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
