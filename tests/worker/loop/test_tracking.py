"""What run.track accepts, and what it checks after a load."""

import pytest
import torch

from resumable_training.errors import UserError
from resumable_training.tracking import (
    GradientSync,
    check_learning_rates,
    disagreeing_schedulers,
    learning_rates,
    sort_out,
)


def trio(lr: float = 0.1) -> dict:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    }


def test_objects_are_sorted_by_kind() -> None:
    """Modules, optimizers, and everything else that has a state."""
    tracked = sort_out(trio())
    assert (list(tracked.modules), list(tracked.optimizers), list(tracked.stateful)) == (
        ["model"],
        ["optimizer"],
        ["scheduler"],
    )


def test_objects_without_state_are_refused_together() -> None:
    """Every object that can't be saved is named, and where plain values go."""
    with pytest.raises(UserError, match=r"best \(float\), name \(str\).*run\.extras"):
        sort_out({"best": 0.5, "name": "x", **trio()})


def test_learning_rates_that_came_back_wrong_are_an_error() -> None:
    """An optimizer that lost its rate, and a scheduler that disagrees with it, are both named."""
    objects = trio()
    tracked = sort_out(objects)
    saved = {"rates": learning_rates(tracked), "disagreeing": disagreeing_schedulers(tracked)}
    check_learning_rates(tracked, saved)
    objects["optimizer"].param_groups[0]["lr"] = 0.7
    with pytest.raises(UserError, match=r"saved with learning rates \[0.1\].*'scheduler' and its optimizer"):
        check_learning_rates(tracked, saved)


def test_a_rate_that_the_script_sets_itself_is_no_error() -> None:
    """A scheduler that disagreed when it was saved may disagree afterwards."""
    objects = trio()
    objects["optimizer"].param_groups[0]["lr"] = 0.7
    tracked = sort_out(objects)
    saved = {"rates": learning_rates(tracked), "disagreeing": disagreeing_schedulers(tracked)}
    assert saved["disagreeing"] == ["scheduler"]
    check_learning_rates(tracked, saved)


def test_unwrapped_modules_do_not_synchronise() -> None:
    """Nothing to switch where there is no DDP and no FSDP2."""
    sync = GradientSync(sort_out(trio()))
    assert not sync.found
    sync.set(False)
