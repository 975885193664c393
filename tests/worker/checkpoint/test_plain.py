"""What is accepted comes back; what can't come back is refused before the first step, by its key."""

import collections
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from engine_job import Job
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resumable_training.checkpoint import Reached, TrainingState
from resumable_training.checkpoint.errors import NotPlain, Unstorable
from resumable_training.checkpoint.inventory import Inventory
from resumable_training.checkpoint.plain import load_plain, plain_of
from resumable_training.checkpoint.state import build_state_dict
from resumable_training.checkpoint.values import from_text, to_text
from resumable_training.contract import exitcodes

warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")


class Word(str, enum.Enum):  # noqa: UP042  as it is often written; StrEnum is another row
    A = "a"


class Text(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    A = 7


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int


@dataclass
class Options:
    rate: float = 0.5


class Special(torch.Tensor):
    """A subclass may keep its values anywhere."""


def in_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(3000):
        value = [value]
    return value


SCALARS = [np.dtype(code).type(1) for code in "?bhilqBHILQefdgFDG"]
VALUES: dict[str, Any] = {
    **{f"numpy {type(one).__name__} {one.dtype.char}": one for one in SCALARS},
    "numpy nan": np.float64("nan"),
    "numpy str": np.str_("é"),
    "numpy empty str": np.str_(""),
    "numpy bytes": np.bytes_(b"a\0b"),
    "numpy empty bytes": np.bytes_(b""),
    "numpy date": np.datetime64("2020-01-01"),
    "numpy nanoseconds": np.datetime64(1, "ns"),
    "numpy delta": np.timedelta64(3, "s"),
    "numpy void": np.void(b"ab"),
    "numpy record": np.zeros((), dtype=[("a", "f4")])[()],
    "array": np.arange(6).reshape(2, 3).T,
    "array 0-dim": np.array(3),
    "array empty": np.zeros((0, 3)),
    "array of texts": np.array(["a", "bb"]),
    "array of empty texts": np.array(["", ""]),
    "array big endian": np.array([1, 2], dtype=">i4"),
    "array with fields": np.zeros(2, dtype=[("a", "f4"), ("b", "i2")]),
    "array of objects": np.array([object()]),
    "array masked": np.ma.MaskedArray([1, 2], mask=[False, True]),
    "numpy dtype": np.dtype("f8"),
    "str enum": Word.A,
    "StrEnum": Text.A,
    "IntEnum": Number.A,
    "enum": Colour.RED,
    "flag": re.IGNORECASE,
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "surrogate": "\ud800",
    "infinity": float("inf"),
    "minus zero": -0.0,
    "complex": 1 - 2j,
    "large": 2**1999,
    "larger": -(3**9000),
    "none": None,
    "empty dict": {},
    "empty dict inside": {"a": {}, "b": 1},
    "empty list": [],
    "empty tuple": (),
    "list of an empty dict": [{}, 1],
    "integer keys": {1: 2},
    "tuple keys": {(1, 2): 3},
    "enum keys": {Word.A: 1},
    "dotted keys": {"a.b": 1, "": 2},
    "nested": {"a": [1, (2, {"b": [None, True]}), [[3.5]]], "c": {"d": {"e": "f"}}},
    "numbers nested": {"a": [np.float64(0.1), (np.int64(3), Word.A)]},
    "list of dicts": [{"a": 1}, {"b": (1,)}],
    "dict in a tuple": ({1: 2, None: "x"},),
    "set": {1, "a"},
    "frozenset": frozenset({1}),
    "deque": collections.deque([1, 2], maxlen=3),
    "counter": collections.Counter("aab"),
    "ordered": collections.OrderedDict(b=1, a=2),
    "defaultdict": collections.defaultdict(int, a=1),
    "named tuple": Point(1),
    "size": torch.Size([3, 4]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "range": range(3),
    "slice": slice(1, 2),
    "dataclass": Options(),
    "decimal": decimal.Decimal("0.1"),
    "fraction": fractions.Fraction(1, 3),
    "datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "path": pathlib.PurePosixPath("x"),
    "function": len,
    "class": int,
    "object": object(),
    "contains itself": in_itself(),
    "nested deep": deep(),
    "tensor": torch.arange(6.0).reshape(2, 3),
    "tensors in a list": [torch.arange(3), {"a": torch.ones(2)}, 1],
    "tensor in a tuple": (torch.arange(3), 1),
    "sparse in a tuple": (torch.eye(3).to_sparse(),),
}
TENSORS: dict[str, torch.Tensor] = {
    **{
        str(dtype): torch.arange(7).to(dtype)
        for dtype in (
            *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
            *(torch.int8, torch.int16, torch.int32, torch.int64),
            *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
            *(torch.complex32, torch.complex64, torch.complex128),
            *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
        )
    },
    "float8_e8m0fnu": torch.arange(7, dtype=torch.uint8).view(torch.float8_e8m0fnu),
    "float4": torch.arange(7, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "bits8": torch.arange(7, dtype=torch.uint8).view(torch.bits8),
    "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    "0-dim": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "empty inside": torch.zeros(2, 0, 3),
    "turned": torch.arange(12.0).reshape(3, 4).t(),
    "a part": torch.arange(100.0).reshape(10, 10)[2:5, ::3],
    "channels last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": (torch.arange(3) + 1j * torch.arange(3)).conj(),
    "negated": torch._neg_view(torch.arange(3.0)),
    "parameter": nn.Parameter(torch.ones(2)),
    "expanded": torch.zeros(1).expand(5),
    "sparse": torch.eye(3).to_sparse(),
    "sparse by rows": torch.eye(3).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
    "meta": torch.zeros(3, device="meta"),
    "subclass": torch.ones(2).as_subclass(Special),
}


class Holder(nn.Module):
    """Keeps anything as extra state."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.held = [value]  # in a list, so that a tensor is nothing else, too

    def get_extra_state(self) -> Any:
        return self.held[0]

    def set_extra_state(self, value: Any) -> None:
        self.held = [value]


class Keeper:
    """A tracked object with any state."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.values = values


def in_group(values: dict[str, Any]) -> TrainingState:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0].update(values)
    return TrainingState({"model": model}, {"optimizer": optimizer})


def of_group(state: TrainingState) -> dict[str, Any]:
    return dict(state.optimizers["optimizer"].param_groups[0])


def in_optimizer(values: dict[str, Any]) -> TrainingState:
    state = in_group({})
    if values:
        state.optimizers["optimizer"].state[state.modules["model"].weight] = values
    return state


def of_optimizer(state: TrainingState) -> dict[str, Any]:
    return dict(state.optimizers["optimizer"].state[state.modules["model"].weight])


def in_extra_state(values: dict[str, Any]) -> TrainingState:
    return TrainingState({"model": Holder(values)})


def of_extra_state(state: TrainingState) -> dict[str, Any]:
    return dict(state.modules["model"].get_extra_state())


def in_object(values: dict[str, Any]) -> TrainingState:
    return TrainingState({"model": nn.Linear(1, 1)}, {}, {"thing": Keeper(values)})


def of_object(state: TrainingState) -> dict[str, Any]:
    return dict(state.stateful["thing"].values)


def in_buffers(values: dict[str, Any]) -> TrainingState:
    model = nn.Linear(1, 1)
    for name, value in values.items():
        model.register_buffer(name, value)
    return TrainingState({"model": model})


def of_buffers(state: TrainingState) -> dict[str, Any]:
    return dict(state.modules["model"].named_buffers())


def blank(value: Any) -> Any:
    """What a fresh script has in its place: of the same structure, as it must be in a module."""
    if isinstance(value, torch.Tensor):
        bytes_ = torch.zeros(value.numel() * value.element_size(), dtype=torch.uint8)
        return torch.empty_like(value.detach()).copy_(bytes_.view(value.dtype).view(value.shape))
    if isinstance(value, Mapping):
        return {key: blank(one) for key, one in value.items()}
    return [blank(one) for one in value] if type(value) is list else 0


@dataclass(frozen=True)
class Place:
    """Where values may be kept. ``is_there``: a fresh script has them before the load, or others of them."""

    key: str
    put: Callable[[dict[str, Any]], TrainingState]
    found: Callable[[TrainingState], dict[str, Any]]
    kinds: dict[str, Any]
    is_there: bool = False

    def fresh(self, values: dict[str, Any]) -> TrainingState:
        return self.put(blank(values) if self.is_there else {})


EVERYTHING = VALUES | TENSORS
PLACES = {
    "group": Place("optimizer.param_groups.0.", in_group, of_group, EVERYTHING),
    "optimizer": Place("optimizer.state.weight.", in_optimizer, of_optimizer, EVERYTHING),
    "extra state": Place("model._extra_state.", in_extra_state, of_extra_state, EVERYTHING, is_there=True),
    "object": Place("thing.", in_object, of_object, EVERYTHING),
    "buffer": Place("model.", in_buffers, of_buffers, TENSORS, is_there=True),
}
REFUSED = {"object", "contains itself", "nested deep", "sparse", "quantized", "meta", "subclass"}  # anywhere


def same(left: Any, right: Any) -> bool:
    """Equal, and of tensors and arrays every bit; a number or text may be of another class."""
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and bits(left) == bits(right)
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (left != left and right != right)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def refusal(state: TrainingState) -> str:
    """What is said when a run begins with this; or nothing."""
    try:
        Inventory.of(state)
        build_state_dict(state, shared={}, per_rank={}, rank=0)
    except (NotPlain, Unstorable) as error:
        return str(error)
    return ""


def accepted(place: Place) -> dict[str, Any]:
    """Those that are not refused when a run begins; the others are, with their key."""
    names = {f"value{number}": kind for number, kind in enumerate(place.kinds)}
    said = {name: refusal(place.put({name: place.kinds[kind]})) for name, kind in names.items()}
    assert all(text.startswith(f"{place.key}{name}") for name, text in said.items() if text)
    assert {names[name] for name, text in said.items() if text} >= REFUSED & place.kinds.keys()
    return {name: place.kinds[kind] for name, kind in names.items() if not said[name]}


@pytest.mark.parametrize("host", [None, "127.0.0.1"], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("place", PLACES)
def test_accepted_is_brought_back(place: str, host: str | None, tmp_path: Path) -> None:
    """Of every odd kind: it is refused as the run begins, by its key, or a fresh load has an equal value."""
    where = PLACES[place]
    values = accepted(where)
    job = Job(tmp_path, host=host)
    state, engine = where.put(values), job.engine(1)
    engine.restore(state)
    for step in (1, 2):  # built, then found again
        engine.save(state, Reached(step, step))
        report = engine.wait()
        assert report is not None
        assert report.ok
    engine.close()
    fresh = where.fresh(values)
    report = job.engine(2).restore(fresh)
    assert report is not None
    assert report.step == 2
    back = where.found(fresh)
    assert [kind for name, kind in values.items() if not same(kind, back[name])] == []


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_before_the_first_step(kind: str, tmp_path: Path) -> None:
    """By the key, in one message, as the user's error that it is."""
    for number, place in enumerate(PLACES.values()):
        if kind in place.kinds:
            with pytest.raises((NotPlain, Unstorable), match=re.escape(f"{place.key}value")) as refused:
                Job(tmp_path / str(number)).engine(1).restore(place.put({"value": place.kinds[kind]}))
            assert refused.value.exit_code == exitcodes.USER_ERROR


def test_expanded_buffers_are_refused_as_the_run_begins(tmp_path: Path) -> None:
    """They could be stored, and nothing could be loaded into them; torch refuses it, too."""
    with pytest.raises(Unstorable, match=r"model\.value is expanded.*contiguous"):
        Job(tmp_path).engine(1).restore(in_buffers({"value": torch.zeros(1).expand(5)}))


@pytest.mark.parametrize("host", [None, "127.0.0.1"], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("meta", torch.zeros(3, 3, device="meta")),
        ("sparse", torch.eye(3).to_sparse()),
        ("quantized", torch.quantize_per_tensor(torch.zeros(3, 3), 0.1, 0, torch.qint8)),
        ("subclass", "Special"),
    ],
    ids=["meta", "sparse", "quantized", "subclass"],
)
def test_a_tensor_that_is_of_such_a_kind_later_fails_the_save(
    kind: str, other: torch.Tensor | str, host: str | None, tmp_path: Path
) -> None:
    """Its key is in the report, training goes on, and a save after it was mended is as good as ever."""
    other = torch.zeros(3, 3).as_subclass(Special) if isinstance(other, str) else other
    job = Job(tmp_path, host=host)
    state = in_optimizer({"value": torch.ones(3, 3)})
    (kept,) = state.optimizers["optimizer"].state.values()
    engine = job.engine(1)
    engine.restore(state)
    outcomes = []
    for step, value in enumerate((kept["value"], other, other, torch.full((3, 3), 4.0)), 1):
        kept["value"] = value
        engine.save(state, Reached(step, step))
        report = engine.wait()
        assert report is not None
        outcomes.append((report.ok, report.unlike))
        assert report.ok or "optimizer.state.weight.value is " in report.message
    engine.close()
    assert outcomes == [(True, False), (False, False), (False, False), (True, False)]
    fresh = in_optimizer({})
    job.engine(2).restore(fresh)
    assert of_optimizer(fresh)["value"].tolist() == [[4.0] * 3] * 3


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(codec=None), max_size=5),
    st.floats().map(np.float64),
    st.text(max_size=3).map(np.str_),
    st.integers(-(2**31), 2**31 - 1).map(np.int32),
    st.sampled_from([Number.A, Word.A, Text.A, np.True_, np.float16(0.5), np.complex64(1j)]),
)
NESTED = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers(0, 3), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(NESTED)
def test_what_is_stored_is_read(value: Any) -> None:
    """As a text and as a pickle; of what is stored nothing needs more than plain types to be read."""
    assert same(value, from_text(to_text(value)))
    try:
        data = pickled(plain_of(value, "value"))
    except NotPlain:
        return  # what is refused stands in the table
    assert not torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    assert same(value, load_plain(data))


# Stored before --------------------------------------------------------------------------------------------


def renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The same archive, with another name in its pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(buffer, "w") as after:
        for entry in before.namelist():
            after.writestr(entry, before.read(entry).replace(old, new))
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["numpy._core.multiarray", "numpy.core.multiarray"])
def test_scalars_of_older_checkpoints_are_read(name: str) -> None:
    """As plain numbers and texts, whichever NumPy wrote them, also in tuples and dicts."""
    for one in (*SCALARS, np.str_("é"), np.bytes_(b"a\0b"), np.dtype(">f8").type(2.5)):
        if one.dtype.itemsize > 16 or one.dtype.char in "gG":
            continue
        back = load_plain(renamed(pickled({"a": (one, [one])}), b"numpy._core.multiarray", name.encode()))
        assert back == {"a": (one.item(), [one.item()])}
        assert type(back["a"][0]) is type(one.item())


class Calls:
    """A pickle that calls something."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


SCALAR = np.float64(1).__reduce__()[0]


@pytest.mark.parametrize(
    "value",
    [
        Calls(SCALAR, np.dtype("O"), b"x"),
        Calls(SCALAR, np.dtype("f8"), b"short"),
        Calls(SCALAR, np.dtype("f8"), [1]),
        Calls(SCALAR, "f8", b"12345678"),
        Calls(np.dtype, "f8"),
        Calls(np.dtype, {"names": ["a"], "formats": ["O"]}),
        Calls(pathlib.Path.unlink, "x"),
        Calls(eval, "1"),
        np.datetime64("2020-01-01"),
        np.array([1.0]),
    ],
    ids=["objects", "short", "no bytes", "no type", "a type", "fields", "method", "eval", "date", "array"],
)
def test_nothing_else_of_numpy_is_read(value: Any) -> None:
    """Only what stands for a number or a text, and no function but ours is called."""
    with pytest.raises(Exception, match=r".") as refused:
        load_plain(pickled(value))
    assert not isinstance(refused.value, (FileNotFoundError, SystemError))
