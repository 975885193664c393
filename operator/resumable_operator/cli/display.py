"""How a running job is shown: a live table on a terminal, one plain line per change when piped.

``rtj run``, ``rtj status --watch`` and the demo use it. What a row holds is decided by pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from resumable_operator.cli.lately import Lately, Looks
from resumable_operator.cli.units import percent
from resumable_operator.decide.goodput import goodput
from resumable_operator.decide.ledger import milliseconds
from resumable_operator.model import JobStatus
from resumable_training.contract.manifest import parse_checkpoint_name

PLAIN_SECONDS = 5.0  # between two plain lines when only step, loss and goodput have changed
REASON_SECONDS = 1.0  # or only the reason
LIVE_SECONDS = 0.1
ATTEMPTS_SHOWN = 8

COLUMNS = ("attempt", "size", "step", "loss", "checkpoint", "phase", "goodput")
_LEAST_NEEDED_FIRST = ("loss", "attempt", "size", "goodput")
_WIDTHS = {"attempt": 7, "size": 4, "step": 7, "loss": 7, "checkpoint": 13, "phase": 10, "goodput": 8}
_RIGHT = ("attempt", "size", "step", "loss", "goodput")
_STYLES = {"Running": "green", "Succeeded": "bold green", "Failed": "bold red", "Recovering": "yellow"}
_WORTH_A_LINE = ("attempt", "size", "checkpoint", "phase")

Row = dict[str, Any]


def row(status: JobStatus, now: float) -> Row:
    """What one line about a job tells; ``now`` in seconds. Numbers are numbers, unknown ones None."""
    started = status.ledger.started_at
    return {
        "age_seconds": max(0.0, now - started / 1000) if started else 0.0,
        "attempt": status.attempt.number,
        "size": status.size,
        "step": status.step,
        "loss": status.loss,
        "checkpoint": status.checkpoint.name if status.checkpoint else None,
        "phase": _phase(status),
        "reason": status.reason.partition("\n")[0],
        "goodput": _goodput(status, now) if started else None,
    }


def _phase(status: JobStatus) -> str:
    """The job's phase; ``Starting`` while ranks of a running attempt have not done a step yet."""
    waits = status.phase == "Running" and status.attempt.first_step_at is None
    return "Starting" if waits and status.uses_library is not False else status.phase


def _goodput(status: JobStatus, now: float) -> float | None:
    """None for a script that reports no steps: nobody knows what it produced."""
    result = goodput(status.ledger, milliseconds(now))
    return None if result.opaque_seconds and not result.productive_seconds else result.goodput


def cells(row: Row) -> dict[str, str]:
    """A row as text, column by column; ``-`` for what is not known."""
    step = parse_checkpoint_name(row["checkpoint"]) if row["checkpoint"] else None
    return {
        "attempt": str(row["attempt"] or "-"),
        "size": str(row["size"] or "-"),
        "step": str(row["step"]),
        "loss": "-" if row["loss"] is None else f"{row['loss']:.4g}",
        "checkpoint": f"step {step[0]}" if step else row["checkpoint"] or "-",
        "phase": row["phase"],
        "goodput": percent(row["goodput"]),
    }


def ended(row: Row, status: JobStatus) -> Row:
    """The row of an attempt that is over shows its cause where the newest shows the job's phase."""
    if row["attempt"] == status.attempt.number:
        return row
    causes = [ending.cause for ending in status.interruptions if ending.attempt == row["attempt"]]
    return {**row, "phase": causes[-1] if causes else "ended"}


def plain_line(row: Row, lately: Lately | None = None) -> str:
    """One line for a log file: fixed words, so that it can be searched."""
    text = cells(row)
    parts = [
        f"[{row['age_seconds']:8.1f} s]",
        f"{text['phase']:<10}",
        f"attempt {text['attempt']}",
        f"size {text['size']}",
        f"step {text['step']}",
        f"loss {text['loss']}",
        f"checkpoint {text['checkpoint']}",
        f"goodput {text['goodput']}",
        *([lately.words] if lately is not None and lately.words else []),
    ]
    return "  ".join(parts) + (f"  ({row['reason']})" if row["reason"] else "")


def columns_for(width: int) -> tuple[str, ...]:
    """The columns that fit into ``width`` characters; phase, step and checkpoint are always among them."""
    shown = list(COLUMNS)
    for name in _LEAST_NEEDED_FIRST:
        if sum(_WIDTHS[column] + 3 for column in shown) + 1 <= width:
            break
        shown.remove(name)
    return tuple(shown)


def table(rows: Iterable[Row], width: int) -> Table:
    """One line per attempt, the newest last."""
    shown = columns_for(width)
    result = Table(show_edge=True, pad_edge=True)
    for name in shown:
        result.add_column(
            name, justify="right" if name in _RIGHT else "left", no_wrap=True, overflow="ellipsis"
        )
    for line in rows:
        text = cells(line)
        result.add_row(*[_styled(name, text[name]) for name in shown])
    return result


def _styled(column: str, text: str) -> Text:
    return Text(text, style=_STYLES.get(text, "") if column == "phase" else "")


class Display:
    """Shows one job as it goes. Call ``update`` at each change or second; use it as a context manager.

    Args:
        console: where to; its width decides which columns fit.
        live: redraw a table in place. False: plain lines, one per change and at most every few seconds for
            steps alone.
    """

    def __init__(self, console: Console, live: bool) -> None:
        self._console = console
        self._rows: dict[int, Row] = {}  # by attempt
        self._shown: Row | None = None
        self._shown_at = float("-inf")
        self._looks = Looks()
        self._live = Live(console=console, auto_refresh=False, transient=False) if live else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.stop()

    def update(self, status: JobStatus, now: float, warning_lines: Iterable[str] = ()) -> None:
        """Show ``status``. ``warning_lines`` are new since the last call; each is printed once."""
        for line in warning_lines:
            self._print(line)
        new, lately = row(status, now), self._looks.look(status.ledger)
        if not self._is_worth_showing(new, now):
            return
        if self._live:
            self._draw(self._live, new, status, lately)
        else:
            self._print(plain_line(new, lately if new["phase"] == "Running" else None))
        self._shown, self._shown_at = new, now

    def _is_worth_showing(self, new: Row, now: float) -> bool:
        if self._shown is None or any(new[name] != self._shown[name] for name in _WORTH_A_LINE):
            return True
        waited = now - self._shown_at
        if self._live:
            return waited >= LIVE_SECONDS
        if new["reason"] != self._shown["reason"]:
            return waited >= REASON_SECONDS
        return waited >= PLAIN_SECONDS and new["step"] != self._shown["step"]

    def _draw(self, live: Live, new: Row, status: JobStatus, lately: Lately) -> None:
        self._rows[new["attempt"]] = new
        for attempt in sorted(self._rows)[:-ATTEMPTS_SHOWN]:
            del self._rows[attempt]
        if new["attempt"]:
            self._rows.pop(0, None)  # the time before the first attempt
        rows = [ended(old, status) for old in self._rows.values()]
        doing = f"{lately.words}  " if lately.words and status.finished_at is None else ""
        words = f"{new['age_seconds']:.1f} s  {doing}{new['reason']}"
        note = Text(words, overflow="ellipsis", no_wrap=True)
        live.update(Group(table(rows, self._console.width), note), refresh=True)

    def _print(self, line: str) -> None:
        """Colours that a rank wrote are kept on a terminal and dropped elsewhere."""
        self._console.print(Text.from_ansi(line), soft_wrap=True)
