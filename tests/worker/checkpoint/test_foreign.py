"""What is recognised in the keys of another program's checkpoint, and what is said where it does not fit."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from engine_job import Job, make_state, weight

from resumable_training.checkpoint import TrainingState
from resumable_training.checkpoint.errors import NoResumePoint, NotPlain, StateMismatch
from resumable_training.checkpoint.foreign import Saved, recognise, summary
from resumable_training.contract import env

MODULES = {"model": {"fc.weight": (2, 3), "fc.bias": (2,), "out.weight": (1, 2)}}
GROUPS = {"optimizer": [["fc.weight", "fc.bias"], ["out.weight"]]}


def nested(*paths: tuple[Any, ...]) -> dict[str, Saved]:
    """Keys as DCP makes them of nested dictionaries; shapes are those of the tracked keys that end alike."""
    shapes = MODULES["model"]
    return {
        ".".join(map(str, path)): Saved(
            path, next((s for k, s in shapes.items() if path[-1].endswith(k)), None)
        )
        for path in paths
    }


@pytest.mark.parametrize("prefix", [(), ("model",), ("app", "net"), ("state_dict",), ("model", "module")])
def test_weights_are_found_wherever_they_lie(prefix: tuple[str, ...]) -> None:
    """At the top level, under any names, and in a wrapper's names; what lies beside them stays apart."""
    saved = nested(*[(*prefix, key) for key in MODULES["model"]], ("epoch",), ("model_args", "fc.width"))
    layout = recognise(saved, MODULES, {})
    for key in MODULES["model"]:
        assert layout.stored[f"model.{key}"] == ".".join((*prefix, key))
        assert layout.paths[f"model.{key}"] == ("model", key)
    assert layout.stored["epoch"] == "epoch"
    assert layout.notes == []


def test_one_prefix_of_several_is_the_tracked_name() -> None:
    """A moving average beside the weights is no reason to guess: the tracked name decides, or it is said."""
    both = nested(*[(name, key) for name in ("ema", "model") for key in MODULES["model"]])
    assert recognise(both, MODULES, {}).stored["model.fc.weight"] == "model.fc.weight"
    (note,) = recognise(both, {"net": MODULES["model"]}, {}).notes
    assert "'ema' or 'model'" in note


def test_more_layers_than_tracked_are_not_dropped() -> None:
    """At the top level, what begins like the weights belongs to them and is reported as unexpected."""
    saved = nested(*[(key,) for key in MODULES["model"]], ("fc.more.weight",), ("iteration",))
    layout = recognise(saved, MODULES, {})
    assert layout.stored["model.fc.more.weight"] == "fc.more.weight"
    assert layout.stored["iteration"] == "iteration"


OPTIMIZERS = {
    "by name": nested(
        ("optim", "state", "fc.weight", "step"),
        ("optim", "param_groups", 0, "lr"),
        ("optim", "param_groups", 0, "params"),
    ),
    "wrapped": nested(("optim", "state", "module.fc.weight", "step"), ("optim", "param_groups", 0, "lr")),
    "flat": nested(
        ("optim", "state.fc.weight.step"),
        ("optim", "param_groups.fc.weight.lr"),
        ("optim", "param_groups.fc.bias.lr"),
        ("optim", "param_groups.out.weight.lr"),
    ),
    "by number": nested(("optim", "state", 0, "step"), ("optim", "param_groups", 0, "lr")),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_are_found_in_every_layout(kind: str) -> None:
    """State by name, in a wrapper's names, flattened or by number; options by group or by parameter."""
    layout = recognise(OPTIMIZERS[kind], MODULES, GROUPS)
    assert layout.places["optimizer"] == "optim."
    assert layout.paths["optimizer.state.fc.weight.step"] == ("optimizer", "state", "fc.weight", "step")
    assert layout.paths["optimizer.param_groups.0.lr"] == ("optimizer", "param_groups", 0, "lr")
    if kind == "flat":
        assert layout.named("optimizer", [{"lr": 1}, {"lr": 2}]) == [
            {"lr": 1, "params": ["fc.weight", "fc.bias"]},
            {"lr": 2, "params": ["out.weight"]},
        ]
    if kind == "by number":
        assert layout.named("optimizer", [{"lr": 1, "params": [0, 1]}, {"lr": 2, "params": [2, 3]}]) == [
            {"lr": 1, "params": ["fc.weight", "fc.bias"]},
            {"lr": 2, "params": ["out.weight", "number 3"]},
        ]


def test_summary_counts_by_first_part() -> None:
    """Thousands of keys become a line."""
    assert summary([]) == "nothing"
    assert summary(["epoch", "data.a", "data.b"]) == "data (2 keys), epoch"
    assert summary(f"k{number:02d}" for number in range(20)).endswith("k11 and 8 more")


# One rank, real files ---------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


def test_what_does_not_fit_is_all_in_one_message(job: Job, tmp_path: Path) -> None:
    """Keys, shapes, where things were found, and what to do; nothing is changed."""
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    dcp.save({"net": theirs.state_dict()}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    state = make_state(3.0)
    state.modules["model"] = torch.nn.Sequential(torch.nn.Linear(4, 2))
    state.optimizers.clear()
    before = {key: value.clone() for key, value in state.modules["model"].state_dict().items()}
    with pytest.raises(StateMismatch) as caught:
        job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(state)
    text = str(caught.value)
    assert "model.0.weight: saved [2, 3], now [2, 4]" in text
    assert "model.1.weight [2, 2]" in text
    assert "Found in it: model under 'net.'" in text
    assert all(torch.equal(value, before[key]) for key, value in state.modules["model"].state_dict().items())


def test_numbers_of_other_parameters_do_not_fit(job: Job, tmp_path: Path) -> None:
    """State by number goes to the parameter with that number only if it has its shape."""
    state = make_state(5.0)
    model = state.modules["model"]
    optimizer = torch.optim.AdamW([model.bias, model.weight])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    whole = torch.nn.Linear(3, 3)
    theirs = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    theirs["optimizer"]["state"][0]["exp_avg"] = whole.weight.detach()
    dcp.save(theirs, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    with pytest.raises(StateMismatch, match=r"optimizer.state.0.exp_avg has shape \[3, 3\]"):
        job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(make_state())


@pytest.mark.parametrize("left_out", ["0.weight", "1.weight"])
def test_tied_weights_need_one_of_their_names(job: Job, tmp_path: Path, left_out: str) -> None:
    """Some programs save only one; which one does not matter."""
    theirs = torch.randn(3, 3)
    saved = {key: theirs for key in ("0.weight", "1.weight") if key != left_out}
    dcp.save({"model": saved}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(TrainingState({"model": model}))
    assert torch.equal(model[0].weight, theirs)
    assert model[1].weight is model[0].weight


def test_a_directory_of_checkpoints_is_none(job: Job, tmp_path: Path) -> None:
    """Named by mistake instead of one in it: said, with the newest ones."""
    model = make_state(5.0).modules["model"].state_dict()
    for step in ("step-900", "step-1000"):
        dcp.save({"model": model}, checkpoint_id=tmp_path / "outputs" / step, no_dist=True)
    (tmp_path / "outputs" / "step-1100").mkdir()
    with pytest.raises(NoResumePoint, match=r"name one, such as .*outputs/step-1000, .*outputs/step-900"):
        job.engine(1, resume_from=str(tmp_path / "outputs")).restore(make_state())


class Counter:
    """Something that only pickle can keep."""

    def __init__(self, count: int) -> None:
        self.count = count


class Tracked:
    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


def test_pickled_extras_need_the_users_word(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignored with a word by default; with the variable set they go to the tracked object of that name."""
    model = make_state(5.0).modules["model"]
    extras = {"loader": {"at": Counter(7), "blob": pickle.dumps([1]), "seen": torch.arange(3)}}
    path = str(tmp_path / "ckpt")
    dcp.save({"model": model.state_dict(), **extras}, checkpoint_id=path, no_dist=True)
    state = make_state()
    state.stateful["loader"] = tracked = Tracked()
    job.engine(1, resume_from=path).restore(state)
    assert weight(state) == 5
    assert tracked.loaded == {}
    assert "used: loader (3 keys). Not in it, so it starts fresh: loader, optimizer." in job.warnings[-1]
    monkeypatch.setenv(env.TRUST_PICKLES, "1")
    Job(tmp_path / "other").engine(1, resume_from=path).restore(state)
    assert tracked.loaded["at"].count == 7
    assert tracked.loaded["blob"] == pickle.dumps([1])
    assert torch.equal(tracked.loaded["seen"], torch.arange(3))


def test_a_damaged_value_is_named(job: Job, tmp_path: Path) -> None:
    """Without a manifest a cut archive is seen where it is read: with its key, its file and its place."""
    state = make_state(5.0)
    dcp.save({"model": state.modules["model"].state_dict()}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    shard = tmp_path / "ckpt" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[:4] = b"junk"
    shard.write_bytes(data)
    with pytest.raises(NotPlain, match=r"model.\w+ \(in __0_0.distcp from 0 on\)"):
        job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(make_state())
