"""One message says everything that differs."""

from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.mismatch import REMEDY, compare, likely_renames


def test_all_in_one_message() -> None:
    """Every missing, unexpected and mis-shaped key, with shapes and the likely rename."""
    text = compare(
        {"model.head.weight": (3, 8), "model.new": (1,), "model.fc.bias": (4,), "model.ok": (2,)},
        {"model.module.head.weight": (3, 8), "model.old": (9,), "model.fc.bias": (5,), "model.ok": (2,)},
        ("optimizer 'o' was SGD, is AdamW",),
    ).message("step-00000010.1")
    assert text.splitlines() == [
        "checkpoint step-00000010.1 does not fit what is tracked:",
        "  optimizer 'o' was SGD, is AdamW",
        "  missing in the checkpoint (2):",
        "    model.head.weight [3, 8]  (likely saved as model.module.head.weight)",
        "    model.new [1]",
        "  unexpected in the checkpoint (2):",
        "    model.module.head.weight [3, 8]",
        "    model.old [9]",
        "  of another shape (1):",
        "    model.fc.bias: saved [5], now [4]",
        REMEDY,
    ]


def test_wrapper_prefixes_are_recognised() -> None:
    """DDP's and torch.compile's prefixes explain a rename in either direction."""
    bare = {"model.a.weight": (1,)}
    for wrapped in ("model.module.a.weight", "model._orig_mod.a.weight", "model.module._orig_mod.a.weight"):
        assert likely_renames(bare, {wrapped: (1,)}) == {"model.a.weight": wrapped}
        assert likely_renames({wrapped: (1,)}, bare) == {wrapped: "model.a.weight"}


def test_similar_names_of_the_same_shape() -> None:
    """A renamed layer is found by similarity, never across shapes."""
    assert likely_renames({"model.classifier.weight": (3, 8)}, {"model.classifer.weight": (3, 8)}) == {
        "model.classifier.weight": "model.classifer.weight"
    }
    assert likely_renames({"model.classifier.weight": (3, 8)}, {"model.classifer.weight": (8, 3)}) == {}


SHAPES = st.dictionaries(st.text("ab.", min_size=1, max_size=6), st.none() | st.tuples(st.integers(0, 3)))


@given(SHAPES, SHAPES)
def test_complete(
    tracked: dict[str, tuple[int, ...] | None], saved: dict[str, tuple[int, ...] | None]
) -> None:
    """Every differing key is in exactly one of the lists, and equal ones are in none."""
    found = compare(tracked, saved)
    listed = [*found.missing, *found.unexpected, *found.reshaped]
    differing = {key for key in {*tracked, *saved} if tracked.get(key, "-") != saved.get(key, "-")}
    assert sorted(listed) == sorted(differing)
    assert bool(found) == bool(differing)
    message = found.message("x")
    assert all(key in message for key in differing)
