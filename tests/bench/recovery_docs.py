"""What the recovery benchmarks put into docs/: a part of the page, and their runs in a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import recovery_file
import recovery_plot
import recovery_table
from measured_page import DOCS, machine, replace_measured
from recovery_file import Measured
from recovery_table import Results

PAGE = DOCS / "recovery-time.md"


@dataclass(frozen=True)
class Published:
    """``part`` of the page is what ``section`` makes of the runs, which are in the file ``runs``.

    ``draw``: makes a picture of them, an SVG of the same name as the file.
    """

    runs: Path
    part: str
    section: Callable[[Measured], str]
    draw: Callable[[Results], str] | None = None
    page: Path = PAGE

    def write(self, measured: Measured) -> list[Path]:
        """Replace all of it; what was written."""
        replace_measured(self.page, self.section(measured), self.part)
        self.runs.write_text(recovery_file.text(measured))
        written = [self.page, self.runs]
        if self.draw is not None:
            written.append(self.runs.with_suffix(".svg"))
            written[-1].write_text(self.draw(measured.results))
        return written


def section(measured: Measured) -> str:
    """What was measured beside torchrun, in Markdown."""
    tables = "\n".join(recovery_table.tables(measured.results)).strip("\n")
    aims = "\n".join(str(aim) for aim in recovery_table.aims(measured.results))
    told = "\n".join(f"- {note}" for note in measured.told())
    return (
        f"On {machine(measured.machine)}; {runs_each(measured.results)} each, fewer where a peer waits most"
        " of a minute. Seconds.\n\n![Every run, by scenario](recovery-time.svg)\n\n"
        f"```\n{tables}\n```\n\n{told}\n\nAims:\n\n```\n{aims}\n```"
    )


def runs_each(results: Results) -> str:
    """How often contenders were struck, in words; tables may be of different runs of the benchmark."""
    tables = [sides for scenarios in results.values() for sides in scenarios.values()]
    most = [max(map(len, sides.values()), default=0) for sides in tables]
    least, largest = min(most, default=0), max(most, default=0)
    if least < largest:
        return f"{least} to {largest} runs"
    return "1 run" if largest == 1 else f"{largest} runs"


PUBLISHED = Published(DOCS / "recovery-time.json", "measured", section, recovery_plot.draw)
