"""Restored state is what an uninterrupted run would have; what can't be restored is said, never dropped."""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import Job
from torch import nn

from resumable_training.checkpoint import Reached, TrainingState
from resumable_training.checkpoint.errors import NotPlain, StateMismatch


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


def step(state: TrainingState, times: int = 1) -> None:
    """Train on a fixed input, with every optimizer and schedule there is."""
    for _ in range(times):
        sum(module(torch.ones(2, 3)).square().sum() for module in state.modules.values()).backward()
        for thing in (*state.optimizers.values(), *state.stateful.values()):
            thing.step()
        for optimizer in state.optimizers.values():
            optimizer.zero_grad()


def through_a_checkpoint(job: Job, saved: TrainingState, fresh: TrainingState) -> None:
    """Save one state and restore it into the other."""
    first = job.engine(1)
    first.restore(saved)
    assert first.save(saved, Reached(1, 1)).ok
    assert job.engine(2).restore(fresh) is not None


def same(left: TrainingState, right: TrainingState) -> bool:
    """Equal in every tracked value, also in which optimizer state exists."""

    def values(state: TrainingState) -> list[Any]:
        things = (*state.modules.values(), *state.optimizers.values(), *state.stateful.values())
        return [copy.deepcopy(thing.state_dict()) for thing in things]

    return _equal(values(left), values(right))


def _equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW amsgrad, tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum with dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adafactor, state of another shape": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "RMSprop centered": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2])
def test_resumed_equals_uninterrupted(job: Job, name: str, steps: int) -> None:
    """Bit-equal after the restore and after more steps; also when saved before the first step was made."""

    def make(seed: int) -> TrainingState:
        torch.manual_seed(seed)
        model = layers()
        optimizer = OPTIMIZERS[name](model.parameters())
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=7)
        return TrainingState({"model": model}, {"optimizer": optimizer}, {"schedule": schedule})

    saved, fresh = make(0), make(1)
    step(saved, steps)
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)
    step(saved, 3)
    step(fresh, 3)
    assert same(saved, fresh)
    assert not [text for text in job.warnings if "learning rate" in text]


def test_saving_does_not_step_a_fresh_optimizer(job: Job) -> None:
    """PyTorch's own function would make it believe that it has stepped once."""
    model = layers()
    state = TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})
    engine = job.engine(1)
    engine.restore(state)
    engine.save(state, Reached(0, 0))
    assert not state.optimizers["optimizer"].state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_state_of_frozen_parameters_is_kept(job: Job) -> None:
    """A parameter that was trained and then frozen keeps its moments, for when it is thawed."""

    def make() -> TrainingState:
        model = layers()
        return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})

    saved, fresh = make(), make()
    step(saved, 2)
    for state in (saved, fresh):
        state.modules["model"].get_parameter("0.weight").requires_grad_(False)
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)
    assert len(fresh.optimizers["optimizer"].state) == 4


def test_parameters_that_had_no_state_are_named(job: Job) -> None:
    """An optimizer entry that is missing in the checkpoint is said; the others are restored."""

    def make() -> TrainingState:
        model = layers()
        return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})

    saved, fresh = make(), make()
    saved.modules["model"].get_parameter("0.weight").requires_grad_(False)
    step(saved)
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)
    (warning,) = [text for text in job.warnings if "no state" in text]
    assert "0.weight" in warning
    assert "0.bias" not in warning


def test_live_gradients_and_state_do_not_disturb(job: Job) -> None:
    """Warm-up steps and backward passes before the restore leave no trace."""

    def make() -> TrainingState:
        model = layers()
        return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})

    saved, fresh = make(), make()
    step(saved, 2)
    step(fresh, 5)
    fresh.modules["model"](torch.ones(2, 3)).sum().backward()
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)


def test_moments_keep_their_dtype(job: Job) -> None:
    """fp32 moments of bf16 weights are not rounded on the way."""

    def make() -> TrainingState:
        model = nn.Linear(3, 2, dtype=torch.bfloat16)
        return TrainingState(
            {"model": model}, {"optimizer": torch.optim.AdamW(model.parameters(), foreach=False)}
        )

    saved, fresh = make(), make()
    saved.modules["model"](torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    saved.optimizers["optimizer"].step()
    for values in saved.optimizers["optimizer"].state.values():
        values["exp_avg"] = torch.full_like(values["exp_avg"], 1 / 3, dtype=torch.float32)
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)


def test_two_optimizers_and_one_over_two_modules(job: Job) -> None:
    """An optimizer may own a part of a module, or parts of several."""

    def make() -> TrainingState:
        one, two = layers(), layers()
        first = torch.optim.SGD([*one[0].parameters(), *two[0].parameters()], lr=0.1, momentum=0.9)
        second = torch.optim.AdamW(two[2].parameters())
        return TrainingState({"one": one, "two": two}, {"first": first, "second": second})

    saved, fresh = make(), make()
    step(saved, 2)
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)


def test_optimizer_of_strangers_is_refused(job: Job) -> None:
    """Parameters of a module that is not tracked would be lost; said before the first step."""
    state = TrainingState({"model": layers()}, {"optimizer": torch.optim.SGD(layers().parameters(), lr=1.0)})
    with pytest.raises(StateMismatch, match="no tracked module"):
        job.engine(1).restore(state)


def saved_with(job: Job, groups: Callable[[nn.Sequential], list[Any]]) -> None:
    model = layers()
    state = TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(groups(model))})
    engine = job.engine(1)
    engine.restore(state)
    step(state)
    engine.save(state, Reached(1, 1))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            lambda m: [{"params": [*m.parameters()]}, {"params": [nn.Parameter(torch.ones(1))]}],
            "optimizer: parameter extra.weight",
        ),
        (lambda m: [{"params": m[0].parameters()}], "optimizer: parameter 2.weight"),
        (
            lambda m: [{"params": m[0].parameters()}, {"params": m[2].parameters()}],
            "had 1 parameter groups, has 2",
        ),
    ],
    ids=["added", "removed", "regrouped"],
)
def test_changed_parameters_of_an_optimizer_are_loud(
    job: Job, groups: Callable[[nn.Sequential], list[Any]], said: str
) -> None:
    """Added, removed or regrouped parameters: a mismatch that names them."""
    saved_with(job, lambda model: [{"params": model.parameters()}])
    model, extra = layers(), nn.Module()
    param_groups = groups(model)
    if len(param_groups) == 2 and "extra" in said:
        extra.weight = param_groups[1]["params"][0]
        model.add_module("extra", extra)
    with pytest.raises(StateMismatch, match=said):
        job.engine(2).restore(TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(param_groups)}))


def test_a_parameter_moved_to_another_group_is_loud(job: Job) -> None:
    """Its learning rate would silently be another's."""
    saved_with(job, lambda m: [{"params": m[0].parameters()}, {"params": m[2].parameters()}])
    model = layers()
    groups = [{"params": [*model[0].parameters(), model[2].bias]}, {"params": [model[2].weight]}]
    with pytest.raises(StateMismatch, match=r"2\.bias was in parameter group 1, is in 0"):
        job.engine(2).restore(TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(groups)}))


class Average:
    """A user's own object: tensors, and types that JSON does not know."""

    def __init__(self, value: float) -> None:
        self.values: dict[Any, Any] = {"shadow": [torch.full((3, 2), value)], 3: (1, 2), "best": float("inf")}

    def state_dict(self) -> dict[Any, Any]:
        return self.values

    def load_state_dict(self, values: dict[Any, Any]) -> None:
        self.values = values


def test_users_objects_with_tensors(job: Job) -> None:
    """Their tensors are stored as tensors, the rest as tagged JSON; both come back as they were."""
    saved = TrainingState({"model": layers()}, {}, {"average": Average(1.5)})
    fresh = TrainingState({"model": layers()}, {}, {"average": Average(0.0)})
    through_a_checkpoint(job, saved, fresh)
    assert same(saved, fresh)


def test_what_only_pickle_could_keep_is_refused(job: Job) -> None:
    """At the first save or before the first step, with the place, and as a user error."""
    average = Average(1.0)
    average.values["hook"] = {"f": object()}
    state = TrainingState({"model": layers()}, {}, {"average": average})
    with pytest.raises(NotPlain, match=r"average\['hook'\]\.f is a builtins\.object"):
        job.engine(1).restore(state)
    average.values["hook"] = None
    engine = job.engine(1)
    engine.restore(state)
    average.values["hook"] = {"f": object()}
    with pytest.raises(NotPlain, match=r"average\['hook'\]\.f is a builtins\.object"):
        engine.save(state, Reached(1, 1))


class Unreadable:
    """Pickle writes it; a resume, which lets plain values through only, would refuse it."""


@pytest.mark.parametrize(
    "value", [Unreadable(), {"in": [Unreadable()]}, time.gmtime(0)], ids=["own", "nested", "time"]
)
def test_what_only_pickle_could_read_is_refused_in_modules(job: Job, value: object) -> None:
    """A checkpoint that no resume could read is worse than none."""
    model = nn.Sequential(Counting(3, 2))
    model[0].get_extra_state = lambda: value  # type: ignore[method-assign]
    with pytest.raises(NotPlain, match=r"model\.0\._extra_state\S* is a "):
        job.engine(1).restore(TrainingState({"model": model}))


def test_what_only_pickle_could_read_is_refused_in_optimizers(job: Job) -> None:
    """Their state is not known before they have stepped, so at the save."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState({"model": model}, {"optimizer": optimizer})
    engine = job.engine(1)
    engine.restore(state)
    optimizer.state[model[0].weight]["plan"] = Unreadable()
    with pytest.raises(NotPlain, match=r"optimizer\.state\.0\.weight\.plan is a .*Unreadable"):
        engine.save(state, Reached(1, 1))


class Counting(nn.Linear):
    """A module with extra state that is no tensor."""

    count = 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count, "list": [1, 2]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_extra_state_of_modules(job: Job) -> None:
    """get_extra_state and set_extra_state are honoured."""
    saved, fresh = (TrainingState({"model": nn.Sequential(Counting(3, 2))}) for _ in range(2))
    saved.modules["model"][0].count = 5  # type: ignore[index]
    through_a_checkpoint(job, saved, fresh)
    assert fresh.modules["model"][0].count == 5  # type: ignore[index]


class Remembering(nn.Linear):
    """A module whose extra state grows, and changes what it is made of."""

    def __init__(self, seen: Any) -> None:
        super().__init__(3, 2)
        self.seen = [seen]

    def get_extra_state(self) -> Any:
        return self.seen[0]

    def set_extra_state(self, state: Any) -> None:
        self.seen = [state]


@pytest.mark.parametrize(
    ("saved", "fresh"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"a": 0}),
        ({"a": 1}, {"a": 0, "b": 2}),
        ({"rows": [torch.ones(2), torch.ones(3)]}, {"rows": [torch.zeros(2)]}),
        ({"rows": torch.ones(3)}, {"rows": torch.zeros(2)}),
        ({"rows": torch.ones(3)}, {"rows": None}),
        ({"rows": None}, {"rows": torch.zeros(2)}),
        (torch.ones(3, dtype=torch.float64), {"a": 1}),
        (7, {"a": 1}),
    ],
)
def test_extra_state_of_another_structure(job: Job, saved: Any, fresh: Any) -> None:
    """What was saved comes back, whatever a fresh module has: nobody else knows what it may hold."""
    models = [nn.Sequential(Remembering(value)) for value in (saved, fresh)]
    through_a_checkpoint(job, *(TrainingState({"model": model}) for model in models))
    assert _equal(models[1][0].seen[0], saved)


@pytest.mark.parametrize("saved", [Remembering(1), nn.Linear(3, 2)], ids=["dropped", "new"])
def test_extra_state_that_only_one_has_is_a_mismatch(job: Job, saved: nn.Module) -> None:
    """A module that keeps more, or less, is another one."""
    fresh = nn.Linear(3, 2) if isinstance(saved, Remembering) else Remembering(1)
    with pytest.raises(StateMismatch, match=r"model\._extra_state"):
        through_a_checkpoint(job, TrainingState({"model": saved}), TrainingState({"model": fresh}))


def test_conversion_to_another_dtype_is_said(job: Job) -> None:
    """Loading fp32 weights into a bf16 model works, and is not silent."""
    saved = TrainingState({"model": nn.Linear(3, 2)})
    through_a_checkpoint(job, saved, TrainingState({"model": nn.Linear(3, 2, dtype=torch.bfloat16)}))
    (warning,) = [text for text in job.warnings if "dtype" in text]
    assert "model.weight (saved torch.float32, now torch.bfloat16)" in warning


def test_schedule_and_optimizer_that_disagree_are_said(job: Job) -> None:
    """A learning rate changed behind the schedule's back shows after the load."""

    def make() -> TrainingState:
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return TrainingState(
            {"model": model}, {"optimizer": optimizer}, {"s": torch.optim.lr_scheduler.StepLR(optimizer, 2)}
        )

    saved = make()
    saved.optimizers["optimizer"].param_groups[0]["lr"] = 0.7
    through_a_checkpoint(job, saved, make())
    assert any("s says learning rate [0.1], its optimizer [0.7]" in text for text in job.warnings)


@pytest.mark.parametrize("names", [("a.b",), ("a/b",), ("",), ("a", "a")])
def test_names_must_be_keys(names: tuple[str, ...]) -> None:
    """A name with a dot or slash, an empty one, or one for two things can't be a key."""
    with pytest.raises(ValueError, match="must be unique"):
        TrainingState({names[0]: layers()}, {}, {names[-1]: Average(0)} if len(names) > 1 else {})


def test_nothing_tracked_is_said(job: Job) -> None:
    """A restore before anything is tracked is a mistake of the script."""
    with pytest.raises(StateMismatch, match=r"run\.track"):
        job.engine(1).restore(TrainingState({}))


def test_options_that_the_checkpoint_overrules_are_said(job: Job) -> None:
    """A longer schedule or another decay in the script has no effect after a load, so it is not silent."""

    def make(decay: float, length: int) -> TrainingState:
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
        return TrainingState({"model": model}, {"optimizer": optimizer}, {"schedule": schedule})

    through_a_checkpoint(job, make(0.1, 20), make(0.1, 20))
    assert not [text for text in job.warnings if "the script says" in text]
    job.engine(3).restore(make(0.3, 50))
    said = [text for text in job.warnings if "the script says" in text]
    assert any(
        "optimizer goes on as saved, with weight_decay 0.1 (the script says 0.3)" in text for text in said
    )
    assert any("schedule goes on as saved, with T_max 20 (the script says 50)" in text for text in said)
