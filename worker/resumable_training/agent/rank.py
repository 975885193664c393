"""One rank as its agent sees it: process, page, output, and the reports about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from resumable_training.agent import procfs, reports
from resumable_training.agent.drain import OPAQUE_SECONDS
from resumable_training.agent.hang import BEFORE_FIRST_STEP, RankView
from resumable_training.agent.output import RankOutput
from resumable_training.agent.ranks import RankStarter, StartedRank
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.progress import Progress, ProgressPage

RANK_0_REPORT_SECONDS = 0.25
OTHER_REPORT_SECONDS = 2.0
OPAQUE_REPORT_SECONDS = 1.0
KNOWN_OPAQUE_SECONDS = 30.0  # a script that uses the library has imported it and connected by now


@dataclass(eq=False)
class Rank:
    """A started rank. ``code`` None while it lives; ``speaker`` is the pid that uses the library."""

    number: int
    started: StartedRank
    page: ProgressPage
    page_path: Path
    stacks_path: Path
    output: RankOutput
    started_at: float
    code: Optional[int] = None
    killed: bool = False  # by the agent
    abandoned: bool = False  # could not be reaped
    speaker: Optional[int] = None
    progress: Optional[Progress] = None  # last content that was whole
    base_step: int = 0  # step count before the first step of this attempt
    stopped_since: Optional[float] = None

    @property
    def alive(self) -> bool:
        return self.code is None and not self.abandoned

    @property
    def pid(self) -> int:
        """Process to ask and to watch: the one that uses the library, else the one we started."""
        return self.speaker or self.started.pid

    def kill(self, starter: RankStarter) -> None:
        """SIGKILL. What was dying before the agent's first one ends by itself, and tells why."""
        if not procfs.is_dying(self.started.pid):
            self.killed = True
        starter.kill(self.started)

    def look(self, now: float) -> None:
        """Take in the page and the process state."""
        self.read_page()
        if not procfs.is_stopped(self.pid):
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now

    def read_page(self) -> None:
        """A page torn by its writer's death leaves what was read before."""
        progress = self.page.read()
        if progress is None:
            return
        self.progress = progress
        if progress.phase in BEFORE_FIRST_STEP:
            self.base_step = progress.step

    def view(self) -> RankView:
        return RankView(self.number, self.started_at, self.progress, self.stopped_since)

    def early(self, now: float) -> bool:
        """No step done in this attempt. Of a script without the library only its youth is known."""
        if self.progress is None:
            return now - self.started_at < OPAQUE_SECONDS
        return reports.before_first_step(self.progress, self.base_step)

    def idle(self) -> bool:
        """No step done in this attempt, as far as a script with the library goes."""
        return reports.before_first_step(self.progress, self.base_step)

    def in_loop(self) -> bool:
        """It had steps to do or to commit, as far as a script with the library goes."""
        return self.progress is not None and self.progress.in_loop

    def report(self, now: float) -> Optional[ProgressReport]:
        """What to tell the operator; None while it may be on its way to connect, or if it failed before."""
        if self.progress is not None:
            return reports.progress_report(self.number, self.progress)
        finished = self.code == 0
        if now - self.started_at < KNOWN_OPAQUE_SECONDS and not finished:
            return None
        return reports.opaque_report(self.number, int(self.started_at * 1000), int(now * 1000))


class Reporter:
    """Decides when the lowest rank of a worker is reported: on change, and not too often."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._last: Optional[ProgressReport] = None
        self._last_at = float("-inf")

    def due(self, now: float, slowest_step_seconds: float) -> Optional[ProgressReport]:
        """A report to send now, or None. ``slowest_step_seconds``: of all ranks of the worker."""
        report = self._report(now, slowest_step_seconds)
        if report is None or report == self._last or now - self._last_at < self._period(report):
            return None
        return self._note(report, now)

    def final(self, now: float, slowest_step_seconds: float) -> Optional[ProgressReport]:
        """The last report, whenever the one before was: nothing that was done is lost."""
        self._rank.read_page()
        report = self._report(now, slowest_step_seconds)
        return self._note(report, now) if report is not None and report != self._last else None

    def _report(self, now: float, slowest_step_seconds: float) -> Optional[ProgressReport]:
        report = self._rank.report(now)
        if report is None or not report.uses_library:
            return report
        return replace(report, slowest_step_seconds=slowest_step_seconds)

    def _note(self, report: ProgressReport, now: float) -> ProgressReport:
        self._last, self._last_at = report, now
        return report

    def _period(self, report: ProgressReport) -> float:
        if not report.uses_library:
            return OPAQUE_REPORT_SECONDS
        return RANK_0_REPORT_SECONDS if self._rank.number == 0 else OTHER_REPORT_SECONDS
