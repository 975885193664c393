"""What is tracked is found once, and a module with a way of its own to load is left to that way."""

from typing import Any

import pytest
import torch
from rank_programs import make_state
from torch import nn

from resumable_training.checkpoint.inventory import Inventory, is_plain


class WithExtra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_load_state_dict_post_hook(lambda module, incompatible: None)
    return module


def patched() -> nn.Module:
    module = nn.Linear(2, 2)
    module.state_dict = lambda *args, **kwargs: {"weight": torch.zeros(2, 2)}  # type: ignore[method-assign]
    return nn.Sequential(module)


@pytest.mark.parametrize(
    ("module", "plain"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2)), True),
        (nn.TransformerEncoderLayer(4, 2), True),
        (nn.BatchNorm1d(3), False),  # looks at the version of what it loads
        (nn.Sequential(WithExtra(2, 2)), False),
        (hooked(), False),
        (patched(), False),
    ],
)
def test_only_modules_without_a_way_of_their_own_are_plain(module: nn.Module, plain: bool) -> None:
    """A hook, an override or an extra state anywhere in it: PyTorch's own load is called."""
    assert is_plain(module) == plain


@pytest.mark.parametrize("kind", ["plain", "compiled"])
def test_names_are_those_of_the_state_dict(kind: str) -> None:
    """Values are the live ones; each parameter of an optimizer is found by name, group by group."""
    state = make_state(kind, 1, 1)
    there = Inventory.of(state)
    live = dict(state.modules["model"].named_parameters())
    found = there.parameters("optimizer")
    assert [len(group) for group in there.groups["optimizer"]] == [2, 0, 5]
    assert len(found) == len(live)
    for name, parameter in found.items():
        assert parameter.data_ptr() == there.values[f"model.{name}"].data_ptr()
    assert all(one.grad is None for one in live.values())
    assert not state.optimizers["optimizer"].state
