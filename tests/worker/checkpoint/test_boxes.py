"""Boxes against NumPy: overlaps, and which of them are one stretch of another's elements."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.boxes import Box, box, inside, overlap, run

EXTENTS = st.lists(st.integers(0, 4), min_size=0, max_size=4)


@st.composite
def parts(draw: st.DrawFn, shape: list[int]) -> Box:
    """A box in a tensor of that shape, perhaps an empty one."""
    offsets = [draw(st.integers(0, extent)) for extent in shape]
    sizes = [draw(st.integers(0, extent - at)) for extent, at in zip(shape, offsets, strict=True)]
    return box(offsets, sizes)


@given(data=st.data(), shape=EXTENTS)
def test_overlap_is_what_both_have(data: st.DataObject, shape: list[int]) -> None:
    """Exactly the elements that lie in both, or None."""
    one, other = data.draw(parts(shape)), data.draw(parts(shape))
    whole = box([0] * len(shape), shape)
    marks = np.zeros(shape, dtype=int)
    marks[inside(one, whole)] += 1
    marks[inside(other, whole)] += 1
    found = overlap(one, other)
    assert (found.elements if found else 0) == int((marks == 2).sum())
    if found:
        assert (marks[inside(found, whole)] == 2).all()


@given(data=st.data(), shape=EXTENTS)
def test_run_is_the_stretch_that_a_part_is(data: st.DataObject, shape: list[int]) -> None:
    """If its elements follow one another, the stretch is right; if they do not, there is none."""
    whole = data.draw(parts(shape))
    part = overlap(whole, data.draw(parts(shape)))
    if part is None:
        return
    numbers = np.arange(whole.elements).reshape(whole.sizes)[inside(part, whole)].ravel()
    stretch = run(part, whole)
    if (np.diff(numbers) == 1).all():
        assert stretch == (numbers[0], numbers[-1] + 1)
    else:
        assert stretch is None
