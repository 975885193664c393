"""Numbers on a command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """As ``FloatRange``, without the word ``nan``: no comparison refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number to calculate with", param, ctx)
        return number
