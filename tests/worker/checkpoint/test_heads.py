"""Where a tensor's bytes begin in what torch wrote of it; and that nothing which torch wrote is run."""

import dataclasses
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.heads import NotPlain, parse_head, tensor_of

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.float8_e4m3fn,
]


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_found(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """For every type that can be saved: dtype, shape, and the very bytes."""
    tensor = torch.randint(0, 100, shape).to(dtype)
    item = saved(tensor)
    head = parse_head(item)
    assert (head.dtype, head.shape, head.in_rows) == (dtype, shape, True)
    assert item[head.at : head.at + tensor.nbytes] == raw(tensor)
    assert raw(tensor_of(bytearray(item))) == raw(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(12.0)[2:9],
        torch.arange(12.0)[::3],
        torch.ones(1, 4).expand(3, 4),
    ],
    ids=["transposed", "channels last", "a part", "every third", "expanded"],
)
def test_values_in_another_order_are_known_as_such(tensor: torch.Tensor) -> None:
    """They are not taken for rows, and come back right as a whole."""
    item = saved(tensor)
    assert not parse_head(item).in_rows
    assert torch.equal(tensor_of(bytearray(item)), tensor)


def test_a_tensor_longer_than_its_item_is_not_plain() -> None:
    """What an archive says of itself is compared with the bytes there are, before one is used."""
    item = saved(torch.arange(100.0))
    head = parse_head(item)
    head.require_room(len(item))
    with pytest.raises(NotPlain, match="shorter"):
        head.require_room(head.at + 399)
    with pytest.raises(NotPlain, match="shorter"):
        tensor_of(bytearray(item[: head.at + 399]))
    with pytest.raises(NotPlain, match="shorter"):
        dataclasses.replace(head, shape=(101,)).require_room(len(item))


def test_an_empty_tensor_has_a_head() -> None:
    """It has no bytes, and comes back with its shape."""
    item = saved(torch.empty(3, 0, 2))
    assert parse_head(item).shape == (3, 0, 2)
    assert tensor_of(bytearray(item)).shape == (3, 0, 2)


ITEM = saved(torch.arange(100.0))


@given(st.data())
def test_rubbish_is_not_plain(data: st.DataObject) -> None:
    """Cut or changed anywhere before the values: NotPlain, or a head; never another error."""
    at = parse_head(ITEM).at
    changed = bytearray(ITEM[: data.draw(st.integers(0, at + 10))])
    for _ in range(data.draw(st.integers(0, 3)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for content in (bytes(changed), data.draw(st.binary(max_size=80))):
        try:
            parse_head(content)
        except NotPlain:
            continue


class Evil:
    def __init__(self, call: tuple[Any, ...]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize(
    "call",
    [(os.system, ("touch evil",)), (eval, ("open('evil', 'w')",)), (torch.load, ("evil",))],
    ids=["system", "eval", "load"],
)
def test_nothing_is_run(call: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in the place of a tensor's description is refused before a call is made."""
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil(call)))
    with pytest.raises(NotPlain, match="made by"):
        parse_head(buffer.getvalue())
    assert not list(tmp_path.iterdir())


def test_compressed_archives_are_refused() -> None:
    """Their bytes are not those of the tensor."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
    with pytest.raises(NotPlain, match="compressed"):
        parse_head(buffer.getvalue())


@pytest.mark.parametrize("value", [{"a": 1}, [torch.ones(2)], torch.ones(2, dtype=torch.complex64).conj()])
def test_other_things_are_not_plain(value: Any) -> None:
    """A dictionary, a list, a lazily conjugated tensor: not one tensor's values as they are."""
    with pytest.raises(NotPlain):
        parse_head(saved(value))
