"""PURE: from what a user writes (a step, or a name) to the checkpoint that is meant.

Used by the commands, and for ``spec.checkpoint.resumeFrom``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from resumable_training.checkpoint.errors import NoResumePoint
from resumable_training.contract.manifest import parse_checkpoint_name

_AGAIN = re.compile(r"#[0-9]{1,9}")
_STEP = re.compile(r"[0-9]{1,18}")
_MOST_NAMED = 12
_LONGEST = 100  # of what was asked for, in a message


class Names(Protocol):
    """What a store holds, newest first; a ``listing.Survey`` is one."""

    @property
    def complete(self) -> Sequence[str]: ...

    @property
    def incomplete(self) -> Sequence[str]: ...

    @property
    def resume_points(self) -> Sequence[str]:
        """Complete and on the chain."""
        ...


def without_serial(wish: str) -> str:
    """``1200#2`` is the wish for ``1200``, made a second time: the same wish is granted once."""
    body, mark, rest = wish.rpartition("#")
    return body if mark and _AGAIN.fullmatch(mark + rest) and is_own(body) else wish


def made_again(name: str, earlier: Sequence[str | None]) -> str:
    """A wish for ``name`` that is none of the earlier ones."""
    serials = [_serial(wish) for wish in earlier if wish is not None and without_serial(wish) == name]
    return f"{name}#{max(serials) + 1}" if serials else name


def _serial(wish: str) -> int:
    return int(wish.rpartition("#")[2]) if without_serial(wish) != wish else 1


def is_own(text: str) -> bool:
    """Whether that is a step, or a name in the job's own store; else it is a path or an URL."""
    return is_step(text) or parse_checkpoint_name(text) is not None


def is_step(text: str) -> bool:
    return _STEP.fullmatch(text) is not None


def find(seen: Names, text: str) -> str:
    """Name of the complete checkpoint with that name, or of that step on the chain.

    A step may have been trained on several branches: only the one on the chain is meant by its number.

    Raises:
        NoResumePoint: there is none; says which there are.
    """
    if is_step(text):
        return _of_step(seen, int(text))
    if text in seen.complete:
        return text
    if text in seen.incomplete:
        raise NoResumePoint(f"{text} is incomplete: it was never committed. {choices(seen)}")
    what = "is not there" if parse_checkpoint_name(text) else "is neither a step nor a checkpoint's name"
    shown = text if text and text.isprintable() and len(text) < _LONGEST else repr(text[:_LONGEST])
    raise NoResumePoint(f"{shown} {what}. {choices(seen)}")


def _of_step(seen: Names, step: int) -> str:
    on_chain = next((name for name in seen.resume_points if _step(name) == step), None)
    if on_chain is not None:
        return on_chain
    elsewhere = [name for name in seen.complete if _step(name) == step]
    if elsewhere:
        raise NoResumePoint(
            f"step {step} is off the chain: attempts have gone on from an older checkpoint. To mean it all"
            f" the same, give its name: {', '.join(elsewhere)}. {choices(seen)}"
        )
    raise NoResumePoint(f"there is no complete checkpoint of step {step}. {choices(seen)}")


def choices(seen: Names) -> str:
    """What could have been meant, as a sentence."""
    steps = [str(_step(name)) for name in seen.resume_points]
    if not steps:
        return "There is none on the chain."
    more = f" and {len(steps) - _MOST_NAMED} older" if len(steps) > _MOST_NAMED else ""
    return f"On the chain are steps {', '.join(steps[:_MOST_NAMED])}{more}."


def _step(name: str) -> int:
    return (parse_checkpoint_name(name) or (-1, 0))[0]
