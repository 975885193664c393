"""What the commands ask of a job and of its checkpoints, wherever they are.

A run directory (``run_source``) and a cluster (``cluster_source``, ``reader``) answer alike, so that each
view is built and rendered once. ``place`` says which is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from resumable_operator.cli.report_model import Report
from resumable_operator.cli.report_story import Story
from resumable_operator.cli.status_model import StatusView
from resumable_training.checkpoint.content import Content
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.prune import Plan
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

    def story(self, image: str | None = None) -> Story:
        """The same with how it went over time, from all that is left of the job.

        Args:
            image: of a pod that may be needed to read what lies beside the checkpoints.
        """

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


@dataclass(frozen=True)
class Pruned:
    """What pruning deletes. ``gone``: what it has deleted; ``acted`` False: it was only asked.

    ``failed``: name -> why it could not be deleted.
    """

    plan: Plan
    gone: tuple[str, ...] = ()
    acted: bool = False
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """A pin. The checkpoint is None where the pin can't be read: then it may hold any."""

    file: str
    checkpoint: str | None
    holder: str | None
    seconds: float | None  # it holds for so long; negative: it has expired
    counts: bool


class CheckpointSource(Protocol):
    """One checkpoint store. ``which``: a step on the chain, or the name of a complete checkpoint.

    What is not there, or not usable as it was named, raises UsageProblem; it names what there is.
    """

    @property
    def title(self) -> str:
        """What people know it by."""

    def listing(self) -> Listing:
        """Names, sizes and manifests; no shard is read."""

    def verify(
        self, step: int | None, tell: Callable[[Checked], None], jobs: int | None = None
    ) -> list[Checked]:
        """Read every byte of the complete checkpoints (of one step), newest first.

        Args:
            tell: called with each as soon as it is known.
            jobs: so many files at a time; None: as many as seem good.
        """

    def show(self, which: str | None) -> Content:
        """What one checkpoint holds; None: the next resume point."""

    def prune(
        self, keep: int | None, act: bool, every: int | None = None, protect: Sequence[str] = ()
    ) -> Pruned:
        """Delete what retention would, or only say it.

        Args:
            keep: so many; with ``every`` multiples of so many steps; None: as the job does.
            protect: steps or names that stay whatever the rules say.
        """

    def pin(self, which: str, holder: str, until: float) -> str:
        """Hold a checkpoint until then (wall clock, seconds); its name."""

    def histories(self) -> tuple[AttemptHistory, ...]:
        """What attempts left for reports, by record; long ones may be thinned."""

    def pins(self) -> list[Held]:
        """All pins."""

    def unpin(self, which: str | None, holder: str | None) -> list[Held]:
        """Give back pins of a checkpoint (of all holders: None); those that can't be read for None."""
