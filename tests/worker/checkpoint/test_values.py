"""Plain values survive as what they were; nothing is pickled."""

import math
from collections import Counter, OrderedDict, deque

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.errors import CheckpointUserError, NotPlain
from resumable_training.checkpoint.values import from_text, to_text

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.text() | st.integers() | st.just("$")
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.lists(inner).map(deque)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.dictionaries(st.integers(), st.integers()).map(Counter)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(VALUES)
def test_round_trip(value: object) -> None:
    """Equal, and of the same type, at every depth that equality sees."""
    back = from_text(to_text(value))
    assert back == value
    assert type(back) is type(value)


def test_integer_keys_and_infinity_survive() -> None:
    """What JSON itself would turn into strings or refuse: a MultiStepLR and a ReduceLROnPlateau have them."""
    back = from_text(to_text({"milestones": Counter({30: 1}), "best": math.inf, "worst": math.nan}))
    assert back["milestones"] == Counter({30: 1})
    assert back["best"] == math.inf
    assert math.isnan(back["worst"])


def test_numpy_and_tensors() -> None:
    """Arrays are written in the text; tensors are handed over and put back in place."""
    tensors: list[torch.Tensor] = []
    text = to_text({"a": numpy.arange(3, dtype="f4"), "s": numpy.float64(2.5), "t": [torch.ones(2)]}, tensors)
    back = from_text(text, tensors)
    assert back["a"].tolist() == [0, 1, 2]
    assert back["a"].dtype == numpy.float32
    assert back["s"] == 2.5
    assert isinstance(back["s"], numpy.float64)
    assert back["t"][0] is tensors[0]
    assert from_text(to_text(torch.bfloat16)) is torch.bfloat16


def test_other_objects_are_named() -> None:
    """An object of a class is a user error that says where it is."""
    with pytest.raises(NotPlain, match=r"scheduler\.hooks\[1\] is a builtins\.object"):
        to_text({"hooks": [1, object()]}, where="scheduler")
    assert issubclass(NotPlain, CheckpointUserError)
