"""Budgets: windowed, three classes, given back by progress; the last message says what spent them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.budget import BudgetClass, budget_class, charge, exhausted, give_back
from resumable_operator.model import Budget, Budgets, BudgetStatus, Interruption
from resumable_operator.words import span
from resumable_training.contract import exitcodes
from resumable_training.contract.metrics import INTERRUPTION_CAUSES

BUDGETS = Budgets(
    user_error=Budget(limit=2, window_seconds=100),
    infrastructure=Budget(limit=3, window_seconds=100),
    preemption=Budget(limit=0, window_seconds=100),
    without_progress=4,
)


@pytest.mark.parametrize(
    ("cause", "code", "paying"),
    [
        ("crash", 1, "user_error"),
        ("crash", exitcodes.USER_ERROR, "user_error"),
        ("crash", -11, "user_error"),
        ("crash", -9, "infrastructure"),
        ("numeric", exitcodes.NUMERIC, "user_error"),
        ("oom", 137, "infrastructure"),
        ("hang", None, "infrastructure"),
        ("node_lost", None, "infrastructure"),
        ("unknown", exitcodes.STORAGE, "infrastructure"),
        ("preempted", 137, "preemption"),
        ("evicted", None, "preemption"),
    ],
)
def test_who_pays(cause: str, code: int | None, paying: BudgetClass) -> None:
    """Each cause is charged to one budget; a rank killed from outside is not the user's doing."""
    assert budget_class(cause, code) == paying


def crashes(count: int) -> tuple[Interruption, ...]:
    return tuple(
        Interruption(
            attempt=n, cause="crash", code=1, message="rank 0 on w: exit code 1", tail=("ValueError: x",)
        )
        for n in range(1, count + 1)
    )


def spend(count: int, seconds_apart: float) -> tuple[BudgetStatus, float]:
    spent, now = BudgetStatus(), 0.0
    for _ in range(count):
        now += seconds_apart
        spent = charge(spent, BUDGETS, "user_error", "crash", now)
    return spent, now


def test_limit_and_message() -> None:
    """One ending more than the limit ends the job; the message names budget, causes and traceback, once."""
    spent, now = spend(2, 1.0)
    assert exhausted(spent, BUDGETS, crashes(2), now) is None
    spent, now = spend(3, 1.0)
    found = exhausted(spent, BUDGETS, crashes(3), now)
    assert found is not None
    paying, message = found
    assert paying == "user_error"
    assert "recovery.budgets.userError" in message
    assert f"3 endings in {span(BUDGETS.user_error.window_seconds)}, limit 2" in message
    assert "3 x crash" in message
    assert message.count("ValueError: x") == 1


def test_window() -> None:
    """Endings older than the window no longer count."""
    spent, now = spend(3, 60.0)
    assert exhausted(spent, BUDGETS, crashes(3), now) is None


def test_without_progress() -> None:
    """Endings of all kinds that need no new checkpoint between them stop the job, however far apart."""
    spent, now = spend(4, 1000.0)
    found = exhausted(spent, BUDGETS, crashes(4), now)
    assert found is not None
    assert found[0] is None
    assert "withoutProgress 4" in found[1]


def test_progress_gives_back() -> None:
    """A new checkpoint clears everything."""
    spent, now = spend(3, 1.0)
    assert give_back(spent) == BudgetStatus()
    assert exhausted(give_back(spent), BUDGETS, crashes(3), now) is None


def test_zero_limit() -> None:
    """A limit of 0 allows no ending of that class."""
    spent = charge(BudgetStatus(), BUDGETS, "preemption", "preempted", 1.0)
    assert exhausted(spent, BUDGETS, (), 1.0) is not None


@given(st.lists(st.tuples(st.sampled_from(INTERRUPTION_CAUSES), st.floats(0, 50)), max_size=30))
def test_never_negative_and_bounded(endings: list[tuple[str, float]]) -> None:
    """Counts never fall by charging, and status keeps only what is inside the windows."""
    spent, now = BudgetStatus(), 0.0
    for cause, pause in endings:
        now += pause
        before = spent.without_progress
        spent = charge(spent, BUDGETS, budget_class(cause, None), cause, now)
        assert before <= spent.without_progress <= before + 1
        for times in (spent.user_error, spent.infrastructure, spent.preemption):
            assert all(now - at < 100 for at in times)
