"""The gradient after a step is that of the whole global batch, however it was divided."""

from collections.abc import Callable

import pytest
from loop_ranks import Ranks


def gradient(ranks: Ranks) -> dict[str, list[float]]:
    assert set(ranks.codes()) == {0}, ranks.output()
    found = ranks.results()
    assert len({result["micro_batches"] for result in found}) == 1
    for result in found:
        assert result["gradients"] == found[0]["gradients"]
    return found[0]["gradients"]


@pytest.mark.parametrize(
    ("world_size", "global_batch", "micro_batch", "wrap", "reduction"),
    [
        (2, 7, 2, "ddp", "mean"),  # shares 3 and 4
        (3, 64, 8, "ddp", "mean"),  # shares 21, 21, 22
        (3, 7, 1, "ddp", "mean"),  # a rank has one micro-batch of padding
        (4, 9, 2, "ddp", "sum"),
        (3, 7, 1, "fsdp", "mean"),
        (2, 9, 2, "fsdp", "sum"),
        (1, 7, 3, "none", "sum"),
    ],
)
def test_gradient_is_that_of_the_global_batch(
    start_ranks: Callable[..., Ranks],
    world_size: int,
    global_batch: int,
    micro_batch: int,
    wrap: str,
    reduction: str,
) -> None:
    """Uneven shares, accumulation and padding leave the gradient of one process with one batch."""
    plain = {"checkpoints": None, "global_batch": global_batch}
    expected = gradient(
        start_ranks("gradients", 1, micro_batch=global_batch, wrap="none", reduction="mean", **plain)
    )
    found = gradient(
        start_ranks("gradients", world_size, micro_batch=micro_batch, wrap=wrap, reduction=reduction, **plain)
    )
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-6), name


def test_places_come_from_a_mesh(start_ranks: Callable[..., Ranks]) -> None:
    """One dimension of a device mesh gives the same shares as all ranks."""
    options = {"checkpoints": None, "global_batch": 7, "micro_batch": 2, "wrap": "ddp", "reduction": "mean"}
    plain = gradient(start_ranks("gradients", 2, **options))
    assert gradient(start_ranks("gradients", 2, mesh=True, **options)) == plain


def test_a_batch_smaller_than_the_ranks_is_refused(start_ranks: Callable[..., Ranks]) -> None:
    """Two samples for three ranks: USER_ERROR, and the text says what to raise."""
    ranks = start_ranks(
        "gradients", 3, checkpoints=None, global_batch=2, micro_batch=1, wrap="ddp", reduction="mean"
    )
    assert ranks.codes() == [81] * 3
    assert "global_batch_size 2 is smaller than the 3 ranks" in ranks.output()
