"""What the commands ask of a job and of its checkpoints, wherever they are.

A run directory (``run_source``) and a cluster (``cluster_source``, ``reader``) answer alike, so that each
view is built and rendered once. ``place`` says which is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

from resumable_operator.cli.report_model import Report
from resumable_operator.cli.status_model import StatusView
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.verify import Verdict
from resumable_training.contract.codec import to_plain


@dataclass(frozen=True)
class Wanted:
    """Whose output: one rank's or all (None), of one attempt or of the newest (None)."""

    rank: int | None = None
    attempt: int | None = None


class JobSource(Protocol):
    """One job."""

    def view(self) -> StatusView:
        """What it is doing now."""

    def views(self) -> Iterator[StatusView]:
        """The same again and again, at its own pace, until nothing more will happen."""

    def report(self) -> Report:
        """Where its time went so far."""

    def show_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        """Write what its ranks have printed.

        Raises:
            UsageProblem: there is no such output; names what there is.
        """

    def follow_logs(self, wanted: Wanted, output: IO[bytes]) -> None:
        """Also what comes, and later attempts unless one is wanted, until the job (or that attempt) ends."""


@dataclass(frozen=True)
class Listing:
    """What a store holds: checkpoints of ours, and names of another program's; newest first.

    ``offered``: that of the others which a job would be offered to resume from; None where it goes on from
    one of ours, or none of the others is whole.
    """

    ours: tuple[CheckpointInfo, ...]
    others: tuple[str, ...]
    offered: str | None = None

    def plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        others = ({"name": name, "foreign": True, "offered": name == self.offered} for name in self.others)
        return [*map(to_plain, self.ours), *others]


@dataclass(frozen=True)
class Checked:
    """A complete checkpoint and what its bytes say. ``foreign``: another program's, without our manifest."""

    name: str
    step: int | None
    foreign: bool
    verdict: Verdict

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "step": self.step,
            "foreign": self.foreign,
            "outcome": self.verdict.outcome,
            "reason": self.verdict.reason,
        }


class CheckpointSource(Protocol):
    """One checkpoint store."""

    @property
    def title(self) -> str:
        """What people know it by."""

    def listing(self) -> Listing:
        """Names, sizes and manifests; no shard is read."""

    def verify(self, step: int | None, tell: Callable[[Checked], None]) -> list[Checked]:
        """Read every byte of the complete checkpoints (of one step), newest first.

        Args:
            tell: called with each as soon as it is known.

        Raises:
            UsageProblem: there is none.
        """
