"""What a snapshot takes: the values that a state dict built at that moment has, whatever has changed."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snapshot_programs
import torch
from rank_programs import run_ranks
from snapshot_programs import Taken, same_as_built, taken
from torch import nn

from resumable_training.checkpoint import TrainingState, snapshot
from resumable_training.checkpoint.arena import Arena
from resumable_training.checkpoint.cargo import Small
from resumable_training.checkpoint.state import Content


class Kinds(nn.Module):
    """Tied weights, a shared layer, frozen, turned, 0-d and empty parameters, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.again = self.layers[0]
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)
        self.turned = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        self.scalar = nn.Parameter(torch.tensor(2.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("seen", torch.arange(5))
        self.register_buffer("passing", torch.zeros(2), persistent=False)


def trained() -> TrainingState:
    torch.manual_seed(0)
    model = Kinds()
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(wanted)})
    step(state)
    return state


def step(state: TrainingState) -> None:
    for parameter in state.modules["model"].parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.5)
    for optimizer in state.optimizers.values():
        optimizer.step()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TrainingState, Taken, list[None]]]:
    """A state, its snapshot after two saves, and a list that grows when a state dict is built."""
    state = trained()
    with taken(state) as one:
        built: list[None] = []
        real = snapshot.collect
        monkeypatch.setattr(snapshot, "collect", lambda *given: (built.append(None), real(*given))[1])
        assert same_as_built(one.take(), state)
        assert built == []
        yield state, one, built


def no_change(state: TrainingState) -> None:
    """Values alone."""


def other_data(state: TrainingState) -> None:
    state.modules["model"].scalar.data = torch.tensor(9.0)


def buffer_replaced(state: TrainingState) -> None:
    state.modules["model"].seen = torch.arange(5) * 3


def state_replaced(state: TrainingState) -> None:
    kept = state.optimizers["optimizer"].state[state.modules["model"].turned]
    kept["exp_avg"] = torch.full((4, 3), 8.0)


def state_loaded(state: TrainingState) -> None:
    optimizer = state.optimizers["optimizer"]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def rate_changed(state: TrainingState) -> None:
    state.optimizers["optimizer"].param_groups[0]["lr"] = 1


def turned_back(state: TrainingState) -> None:
    turned = state.modules["model"].turned
    turned.data = turned.detach().contiguous()


FOUND = [no_change, other_data, buffer_replaced, state_replaced, state_loaded, rate_changed, turned_back]


def parameter_replaced(state: TrainingState) -> None:
    """And the optimizer goes on with the new one, as after a surgery."""
    model, optimizer = state.modules["model"], state.optimizers["optimizer"]
    old, new = model.scalar, nn.Parameter(torch.tensor(4.0))
    model.scalar = new
    wanted = [new if one is old else one for one in optimizer.param_groups[0]["params"]]
    optimizer.param_groups[0]["params"] = wanted
    optimizer.state[new] = optimizer.state.pop(old)


def group_added(state: TrainingState) -> None:
    model = state.modules["model"]
    model.extra = nn.Parameter(torch.ones(6))
    state.optimizers["optimizer"].add_param_group({"params": [model.extra], "lr": 0.3})
    step(state)


def group_split(state: TrainingState) -> None:
    optimizer = state.optimizers["optimizer"]
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.7})


def resized(state: TrainingState) -> None:
    state.modules["model"].seen.resize_(3, 2).fill_(4)


def one_more_dimension(state: TrainingState) -> None:
    """Which a copy would take without a word, since it spreads."""
    state.modules["model"].seen = torch.arange(5).view(1, 5) + 1


def other_type(state: TrainingState) -> None:
    state.modules["model"].seen = torch.arange(5.0)


def frozen_more(state: TrainingState) -> None:
    model, optimizer = state.modules["model"], state.optimizers["optimizer"]
    model.turned.requires_grad_(False)
    del optimizer.state[model.turned]
    optimizer.param_groups[0]["params"] = [
        one for one in optimizer.param_groups[0]["params"] if one is not model.turned
    ]


def frozen_less(state: TrainingState) -> None:
    frozen = state.modules["model"].frozen.requires_grad_()
    state.optimizers["optimizer"].add_param_group({"params": [frozen]})
    frozen.grad = torch.ones_like(frozen)
    state.optimizers["optimizer"].step()


def untied(state: TrainingState) -> None:
    model = state.modules["model"]
    model.head.weight = nn.Parameter(model.embedding.weight.detach() + 1, requires_grad=False)


def layer_replaced(state: TrainingState) -> None:
    model = state.modules["model"]
    other = nn.Linear(4, 4)
    other.weight, other.bias = (model.layers[1].weight, model.layers[1].bias)
    model.layers[1] = nn.Sequential(other)


def layers_swapped(state: TrainingState) -> None:
    """Each has the other's name then, and nothing else is new."""
    layers = state.modules["model"].layers
    layers[0], layers[1] = layers[1], layers[0]


def buffer_renamed(state: TrainingState) -> None:
    buffers = state.modules["model"]._buffers
    seen, passing = buffers.pop("seen"), buffers.pop("passing")
    buffers.update(looked=seen, passing=passing)


def optimizer_replaced(state: TrainingState) -> None:
    old = state.optimizers["optimizer"]
    state.optimizers["optimizer"] = torch.optim.SGD(old.param_groups[0]["params"], lr=0.1, momentum=0.9)
    step(state)


def module_replaced(state: TrainingState) -> None:
    fresh = trained()
    state.modules["model"] = fresh.modules["model"]
    state.optimizers["optimizer"] = fresh.optimizers["optimizer"]


def rate_of_a_tensor(state: TrainingState) -> None:
    """Which is stored as one."""
    state.optimizers["optimizer"].param_groups[0]["lr"] = torch.tensor(0.25)


def state_of_a_number(state: TrainingState) -> None:
    for kept in state.optimizers["optimizer"].state.values():
        kept["step"] = 3.0


def state_dropped(state: TrainingState) -> None:
    state.optimizers["optimizer"].state.clear()
    step(state)


def state_in_other_order(state: TrainingState) -> None:
    kept = state.optimizers["optimizer"].state
    pairs = list(kept.items())
    kept.clear()
    kept.update(reversed(pairs))


BUILT = [
    parameter_replaced,
    group_added,
    group_split,
    resized,
    one_more_dimension,
    other_type,
    frozen_more,
    frozen_less,
    untied,
    layer_replaced,
    layers_swapped,
    buffer_renamed,
    optimizer_replaced,
    module_replaced,
    rate_of_a_tensor,
    state_dropped,
    state_in_other_order,
]


@pytest.mark.parametrize("change", FOUND, ids=lambda change: change.__name__)
def test_what_is_replaced_is_taken_where_it_lies_now(
    running: tuple[TrainingState, Taken, list[None]], change: Callable[[TrainingState], None]
) -> None:
    """Without building a state dict: one value that is new costs no more than its copy."""
    state, one, built = running
    change(state)
    assert same_as_built(one.take(), state)
    step(state)
    assert same_as_built(one.take(), state)
    assert built == []


@pytest.mark.parametrize("change", BUILT, ids=lambda change: change.__name__)
def test_another_structure_is_noticed(
    running: tuple[TrainingState, Taken, list[None]], change: Callable[[TrainingState], None]
) -> None:
    """By the first save after it; the ones after that are cheap again."""
    state, one, built = running
    change(state)
    assert same_as_built(one.take(), state)
    times = len(built)
    step(state)
    assert same_as_built(one.take(), state)
    assert len(built) == times <= 1


def test_a_tensor_that_is_a_number_now_is_one(running: tuple[TrainingState, Taken, list[None]]) -> None:
    """It is pickled like other numbers, and no tensor any more."""
    state, one, _ = running
    state_of_a_number(state)
    assert same_as_built(one.take(), state)


def test_small_values_lie_one_after_another(running: tuple[TrainingState, Taken, list[None]]) -> None:
    """Texts and pickles, each where it is said to be; pickled anew only what has changed."""
    state, one, _ = running
    first, again = one.take(), one.take()
    assert first.smalls == again.smalls
    assert first.bytes_of("model-text") == b"text"
    rate_changed(state)
    changed = one.take()
    different = [
        a.key for a, b in zip(first.smalls, changed.smalls, strict=True) if first.of(a) != changed.of(b)
    ]
    assert different == ["optimizer.param_groups.0.lr"]
    assert all(isinstance(small, Small) for small in changed.smalls)


@pytest.mark.parametrize("act", ["drop", "grow"])
def test_memory_is_given_back_when_gpus_have_copied(
    running: tuple[TrainingState, Taken, list[None]], act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a larger one takes its place: they write into it until then."""
    state, one, _ = running
    told: list[str] = []
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: told.append("copied"))
    one._snapshot._done.append(event)
    free = Arena.free
    monkeypatch.setattr(Arena, "free", lambda arena: (told.append("freed"), free(arena))[1])
    if act == "drop":
        one.close()
    else:
        state.modules["model"].register_buffer("large", torch.zeros(1 << 20))
        one.take()
    assert told == ["copied", "freed"]


class Stored(nn.Module):
    """Its state dict has a view of the parameter, of the same shape at the same place."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.view = view

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {key: self.view(value) for key, value in super().state_dict(*args, **kwargs).items()}


@pytest.mark.parametrize(
    ("view", "is_live"),
    [
        (torch.Tensor.detach, True),
        (torch.Tensor.t, False),
        (torch.Tensor.conj, False),
        (torch._neg_view, False),
    ],
)
def test_a_view_that_reads_the_same_memory_in_another_way_is_not_the_live_value(
    view: Callable[[torch.Tensor], torch.Tensor], is_live: bool
) -> None:
    """The state dict is asked each time."""
    state = TrainingState({"model": Stored(view)}, {})
    values, finder, lost = snapshot.collect(Content(state, {}, {}), 0)
    assert (finder is not None, lost) == ((True, "") if is_live else (False, "model.weight"))
    if finder is not None:
        found = dict(zip(finder.keys, finder.find(state), strict=True))
        assert torch.equal(found["model.weight"], values.tensors["model.weight"])


class Hooked(nn.Module):
    """Its hook leaves the state dict alone, until it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))
        self.act: Callable[[dict[str, Any], str], None] = lambda state_dict, prefix: None
        self.calls = 0
        self.add_hook()

    def add_hook(self) -> None:
        def hook(_: nn.Module, state_dict: dict[str, Any], prefix: str, __: Any) -> None:
            self.calls += 1
            self.act(state_dict, prefix)

        self.register_state_dict_post_hook(hook)


def another_value(state_dict: dict[str, Any], prefix: str) -> None:
    state_dict[prefix + "seen"] = torch.full((4,), 9.0)


def one_key_less(state_dict: dict[str, Any], prefix: str) -> None:
    del state_dict[prefix + "seen"]


@pytest.mark.parametrize("act", [another_value, one_key_less], ids=lambda act: act.__name__)
def test_a_hook_may_change_its_mind(act: Callable[[dict[str, Any], str], None]) -> None:
    """What a state dict has at that moment is stored, also where it was the live values before, and after."""
    model = nn.Sequential(Hooked())
    state = TrainingState({"model": model}, {})
    with taken(state) as one:
        for what in (model[0].act, act, act, model[0].act):
            model[0].act = what
            assert same_as_built(one.take(), state)


def test_a_hook_that_comes_later_is_asked(running: tuple[TrainingState, Taken, list[None]]) -> None:
    """Once it is there the state dict is built anew, and from then on its module is asked each time."""
    state, one, built = running
    model = state.modules["model"]
    model.register_state_dict_post_hook(
        lambda module, found, prefix, _: found.update({prefix + "scalar": torch.tensor(7.0)})
    )
    assert same_as_built(one.take(), state)
    assert same_as_built(one.take(), state)
    assert len(built) == 2


def test_only_those_are_asked_whose_answer_may_change(
    running: tuple[TrainingState, Taken, list[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state dict is made of a module that only says what it keeps; torch's own hooks do no more."""
    _, one, _ = running
    asked: list[nn.Module] = []
    real = nn.Module.state_dict
    hooked = Hooked()
    with taken(TrainingState({"model": nn.Sequential(hooked)}, {})) as other:
        monkeypatch.setattr(
            nn.Module, "state_dict", lambda module, *a, **k: (asked.append(module), real(module, *a, **k))[1]
        )
        monkeypatch.setattr(snapshot, "collect", lambda *given: pytest.fail("built"))
        before = hooked.calls
        one.take()
        assert asked == []
        other.take()
        assert hooked.calls == before + 1


def test_sharded_tensors_that_change(tmp_path: Path) -> None:
    """Of FSDP2: another local tensor, state that was replaced; and another placement, planned anew."""
    found: list[Any] = run_ranks(2, snapshot_programs.sharded_run, tmp_path)
    assert found == [[(True, 0), (True, 0), (True, 0), (True, 1), (True, 0)]] * 2
