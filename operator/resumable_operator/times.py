"""Times as Kubernetes writes them, exact to the last bit of the seconds that we compute with. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

LAST_SECOND = 253402300799.0  # of the year 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def rfc3339(seconds: float) -> str:
    """``2026-11-29T21:10:23.25Z`` for seconds since 1970.

    With as many digits as it takes to read the same number back (7 in this century): a status that is stored
    and read again must equal itself, or it would be written for ever.

    Raises:
        ValueError: no time of this calendar.
    """
    try:
        whole, fraction = divmod(Decimal(repr(seconds)), 1)
        if fraction < 0:
            whole, fraction = whole - 1, fraction + 1
        moment = _EPOCH + timedelta(seconds=int(whole))
    except (ArithmeticError, OverflowError, ValueError) as error:
        raise ValueError(f"{seconds!r} seconds is no time") from error
    digits = format(fraction, "f").partition(".")[2].rstrip("0")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{'.' if digits else ''}{digits}Z"


def seconds_of(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time.

    Raises:
        ValueError: it is none.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is no RFC 3339 time, such as 2026-11-29T21:10:23Z")
    day_time, fraction, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    whole = datetime.fromisoformat(day_time.upper() + offset) - _EPOCH
    return float(Decimal(whole.days * 86400 + whole.seconds) + Decimal(fraction or 0))
