"""Budgets: how many endings of a class a job may have before it is given up.

Kept in status, windowed, and given back by a checkpoint of more samples than any before, so that a healthy
job survives months of preemptions while one that fails at the same step again and again stops soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from resumable_operator.model import Budget, Budgets, BudgetStatus, Interruption
from resumable_operator.words import counted, span
from resumable_training.contract import exitcodes

BudgetClass = Literal["user_error", "infrastructure", "preemption"]

_FIELD = {"user_error": "userError", "infrastructure": "infrastructure", "preemption": "preemption"}
_COUNTED_WITHOUT_PROGRESS = ("crash", "oom", "hang", "numeric")
_NOT_THE_SCRIPT = (-9, exitcodes.STORAGE, exitcodes.SUPERSEDED, exitcodes.START_TIMEOUT)


def budget_class(cause: str, code: int | None) -> BudgetClass:
    """Who pays for an ending. A rank killed by SIGKILL was killed by somebody else than the script."""
    if cause in ("preempted", "evicted"):
        return "preemption"
    if cause in ("crash", "numeric") and code not in _NOT_THE_SCRIPT:
        return "user_error"
    return "infrastructure"


def charge(
    spent: BudgetStatus, budgets: Budgets, paying: BudgetClass | None, cause: str, now: float
) -> BudgetStatus:
    """Write one ending down. ``paying`` None: it is free."""
    if paying is None:
        return spent
    kept = {name: _within(getattr(spent, name), getattr(budgets, name), now) for name in _FIELD}
    kept[paying] = (*kept[paying], now)
    counted = cause in _COUNTED_WITHOUT_PROGRESS
    causes = (*spent.last_causes, cause)[-budgets.without_progress :] if counted else spent.last_causes
    return BudgetStatus(
        user_error=kept["user_error"],
        infrastructure=kept["infrastructure"],
        preemption=kept["preemption"],
        without_progress=spent.without_progress + counted,
        last_causes=causes,
    )


def give_back(spent: BudgetStatus) -> BudgetStatus:
    """After a checkpoint beyond all earlier ones: the job gets on, nothing is held against it."""
    return spent if spent == BudgetStatus() else BudgetStatus()


def remaining(spent: BudgetStatus, budgets: Budgets, now: float) -> dict[str, int]:
    """How many more endings each budget bears; one more than its 0 ends the job."""
    left = {}
    for name in _FIELD:
        budget: Budget = getattr(budgets, name)
        left[name] = max(0, budget.limit - len(_within(getattr(spent, name), budget, now)))
    left["without_progress"] = max(0, budgets.without_progress - 1 - spent.without_progress)
    return left


def exhausted(
    spent: BudgetStatus, budgets: Budgets, endings: Iterable[Interruption], now: float
) -> tuple[BudgetClass | None, str] | None:
    """Which budget is overspent (None: endings without progress), and a message naming what spent it."""
    unplanned = [ending for ending in endings if not ending.planned]
    for name in ("user_error", "infrastructure", "preemption"):
        limit: Budget = getattr(budgets, name)
        count = len(_within(getattr(spent, name), limit, now))
        if count > limit.limit:
            paying: BudgetClass = name
            mine = [ending for ending in unplanned if budget_class(ending.cause, ending.code) == paying][
                -count:
            ]
            return paying, (
                f"recovery.budgets.{_FIELD[name]} is spent: {counted(count, 'ending')} in "
                f"{span(limit.window_seconds)}, limit {limit.limit}; {_what_spent(mine)}"
            )
    if spent.without_progress >= budgets.without_progress:
        mine = [ending for ending in unplanned if ending.cause in _COUNTED_WITHOUT_PROGRESS]
        return None, (
            f"{spent.without_progress} endings without a new checkpoint between them, "
            f"limit recovery.budgets.withoutProgress {budgets.without_progress}; "
            f"{_what_spent(mine[-spent.without_progress :])}"
        )
    return None


def _within(times: Iterable[float], budget: Budget, now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < budget.window_seconds)


def _what_spent(endings: list[Interruption]) -> str:
    """``spent by 3 x crash, 1 x oom; last: attempt 4, rank 1 ...`` with the last traceback, once."""
    counts = Counter(ending.cause for ending in endings)
    spent = ", ".join(f"{count} x {cause}" for cause, count in counts.most_common())
    if not endings:
        return "spent by endings that are no longer kept"
    last = endings[-1]
    text = f"spent by {spent}; last: attempt {last.attempt}, {last.message}"
    return "\n".join([text, *last.tail])
