"""How long to train between saves when the user says ``auto``. Pure; torch-free.

The library measures what a save costs, the operator estimates how often the job is interrupted; Daly's
interval follows, within what is possible and what the user allows (``contract.formulas``).
"""

from __future__ import annotations

from resumable_training.contract.formulas import (
    CAP,
    DURABLE,
    FIRST,
    FIRST_SAVE_SECONDS,
    OPTIMUM,
    AutoInterval,
    auto_interval,
    daly_interval,
    young_interval,
)

__all__ = [
    "CAP",
    "DURABLE",
    "FIRST",
    "FIRST_SAVE_SECONDS",
    "OPTIMUM",
    "AutoInterval",
    "auto_interval",
    "daly_interval",
    "young_interval",
]
