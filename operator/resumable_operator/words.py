"""Small things about words in messages that people read."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``; ``plural`` where that is not the noun with an s: ``2 lives``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def workers_are(number: int) -> str:
    """``1 worker is``, ``2 workers are``."""
    return f"{counted(number, 'worker')} {'is' if number == 1 else 'are'}"


def span(seconds: float) -> str:
    """A length of time that somebody has chosen: ``a day``, ``2 hours``, ``90 s``."""
    for unit, article, noun in ((86400, "a", "day"), (3600, "an", "hour"), (60, "a", "minute")):
        if seconds == unit:
            return f"{article} {noun}"
        if seconds > unit and seconds % unit == 0:
            return counted(int(seconds // unit), noun)
    return f"{seconds:g} s"
