"""What we write without torch is what torch and DCP read: archives of tensors, and the marker."""

import io
import json
import math
import pickle
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from resumable_training.checkpoint import opcodes
from resumable_training.checkpoint.frames import ALIGNMENT, DTYPES, frame
from resumable_training.checkpoint.heads import parse_head
from resumable_training.checkpoint.marking import (
    Blob,
    Piece,
    Tensor,
    Written,
    from_plain,
    join,
    marker,
    to_plain,
)
from resumable_training.contract.marker import parse_marker

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:TypedStorage")
Size = torch.Size


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (7,), (2, 3, 4, 5)], ids=str)
def test_torch_load_reads_what_lies_in_a_frame(dtype: str, shape: tuple[int, ...]) -> None:
    """Type, shape and every byte, with `weights_only`; our own reader agrees, and so does zipfile."""
    kind = getattr(torch, dtype)
    data = bytes(index % 2 for index in range(math.prod(shape) * kind.itemsize))
    head, tail = frame(dtype, shape, len(data))
    archive = head + data + tail
    found = torch.load(io.BytesIO(archive), weights_only=True)
    assert (found.dtype, tuple(found.shape)) == (kind, shape)
    assert bytes(found.untyped_storage().tolist()) == data
    assert len(head) % ALIGNMENT == 0
    parsed = parse_head(archive)
    assert (parsed.at, parsed.dtype, parsed.shape, parsed.in_rows) == (len(head), kind, shape, True)
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert [name.partition("/")[2] for name in names] == ["data.pkl", "byteorder", "data/0", "version"]


@given(
    st.recursive(
        st.one_of(st.integers(-(1 << 70), 1 << 70), st.text(max_size=5)),
        lambda inner: st.lists(inner, max_size=4).map(tuple),
        max_leaves=12,
    )
)
def test_values_come_back(value: object) -> None:
    """Integers of any size, texts and tuples, as the pickle machine reads them."""
    assert pickle.loads(opcodes.PROTOCOL + _said(value) + opcodes.STOP) == value


def _said(value: object) -> bytes:
    if isinstance(value, tuple):
        return opcodes.sequence(map(_said, value))
    return opcodes.integer(value) if isinstance(value, int) else opcodes.text(str(value))


def stored() -> Written:
    """By two ranks, as it comes over the wire."""
    large = 5_000_000_000
    parts = [
        Written(
            {
                "m.a": Tensor(
                    "bfloat16", (3, 300), ("m", "a"), (Piece((0, 0), (1, 300), "__0_0.distcp", 0, large),)
                )
            },
            {"o.g": Blob(("o", 0, "g"), "__0_0.distcp", large, 4)},
        ),
        Written(
            {
                "m.a": Tensor(
                    "bfloat16", (3, 300), ("m", "a"), (Piece((1, 0), (2, 300), "__1_0.distcp", 7, 5),)
                )
            }
        ),
    ]
    return join(from_plain(json.loads(json.dumps(to_plain(part)))) for part in parts)


def test_the_marker_is_dcps_own() -> None:
    """Unpickled it equals what DCP would have made, and the reader without torch sees the same in both."""
    first, second = "__0_0.distcp", "__1_0.distcp"
    chunks = [
        ChunkStorageMetadata(Size((0, 0)), Size((1, 300))),
        ChunkStorageMetadata(Size((1, 0)), Size((2, 300))),
    ]
    real = Metadata(
        {
            "m.a": TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), Size((3, 300)), chunks),
            "o.g": BytesStorageMetadata(),
        },
        {"m.a": ("m", "a"), "o.g": ("o", 0, "g")},
        {
            MetadataIndex("m.a", (0, 0), 0): _StorageInfo(first, 0, 5_000_000_000),
            MetadataIndex("m.a", (1, 0), 1): _StorageInfo(second, 7, 5),
            MetadataIndex("o.g"): _StorageInfo(first, 5_000_000_000, 4),
        },
        None,
        "1.0.0",
    )
    ours = marker(stored())
    found = pickle.loads(ours)
    assert found == real
    assert [index.index for index in found.storage_data] == [0, 1, None]
    assert parse_marker(ours) == parse_marker(pickle.dumps(real))


def test_ranks_that_disagree_about_a_tensor_make_no_marker() -> None:
    """Shape and type are the same everywhere, or the save fails with the name."""
    one, other = Tensor("float32", (3,), ("a",)), Tensor("float32", (4,), ("a",))
    with pytest.raises(ValueError, match=r"a is float32 \[3\] on one rank and float32 \[4\]"):
        join([Written({"a": one}), Written({"a": other})])
