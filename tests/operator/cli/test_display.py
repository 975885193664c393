"""The display of a running job: a table on a terminal, a line per change when piped."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from resumable_operator.cli.display import COLUMNS, Display, cells, columns_for, ended, plain_line, row, table
from resumable_operator.model import AttemptStatus, CheckpointStatus, Interruption, JobStatus, LedgerStatus

BEGIN = 1000.0


def status(number: int = 2, **changes: object) -> JobStatus:
    base = JobStatus(
        phase="Running",
        reason="all train",
        size=3,
        step=120,
        loss=2.34567,
        attempt=AttemptStatus(number=number, first_step_at=1001.0),
        checkpoint=CheckpointStatus(name="step-00000100.2", step=100, samples=1, at=1003),
        ledger=LedgerStatus(
            started_at=1_000_000, settled_at=1_020_000, phases={"starting": 5000, "productive": 15000}
        ),
    )
    return base.model_copy(update=changes)


def console(width: int = 120, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(
        file=file, width=width, force_terminal=terminal, color_system=None, legacy_windows=False
    ), file


def shown(width: int, *rows: dict[str, object]) -> str:
    out, file = console(width)
    out.print(table(rows, width))
    return file.getvalue()


def test_a_row_holds_numbers_and_none_for_the_unknown() -> None:
    """Rows are data: the demo and tests compare them, people see cells."""
    assert row(status(), BEGIN + 20) == {
        "age_seconds": 20.0,
        "attempt": 2,
        "size": 3,
        "step": 120,
        "loss": 2.34567,
        "checkpoint": "step-00000100.2",
        "phase": "Running",
        "reason": "all train",
        "goodput": 0.75,
    }
    empty = row(JobStatus(), BEGIN)
    assert (empty["loss"], empty["checkpoint"], empty["goodput"], empty["age_seconds"]) == (
        None,
        None,
        None,
        0,
    )


def test_a_job_that_has_not_begun_is_all_dashes() -> None:
    """Nothing is invented for a job without attempt, size, loss or checkpoint."""
    text = cells(row(JobStatus(), BEGIN))
    assert text == {
        "attempt": "-",
        "size": "-",
        "step": "0",
        "loss": "-",
        "checkpoint": "-",
        "phase": "Pending",
        "goodput": "-",
    }


def test_a_script_without_the_library_has_no_goodput() -> None:
    """Its time is shown; calling it unproductive would be a guess."""
    opaque = LedgerStatus(started_at=1_000_000, settled_at=1_020_000, phases={"running_opaque": 20_000})
    assert row(status(ledger=opaque), BEGIN + 20)["goodput"] is None


def test_a_checkpoint_of_another_program_is_shown_by_its_name() -> None:
    """A resume point that is not one of ours has no step in its name."""
    other = CheckpointStatus(name="epoch-3", step=0, samples=0, at=0)
    assert cells(row(status(checkpoint=other), BEGIN))["checkpoint"] == "epoch-3"


def test_a_plain_line_names_everything_and_stays_one_line() -> None:
    """A reason with a traceback below it does not break a log of one line per change."""
    line = plain_line(row(status(reason="budget spent\nTraceback"), BEGIN + 20))
    assert line == (
        "[    20.0 s]  Running     attempt 2  size 3  step 120  loss 2.346  checkpoint step 100"
        "  goodput 75.0 %  (budget spent)"
    )


@pytest.mark.parametrize("width", [200, 80])
def test_all_columns_fit_an_ordinary_terminal(width: int) -> None:
    """80 columns show everything that a live table must show."""
    assert columns_for(width) == COLUMNS
    text = shown(width, row(status(), BEGIN + 20))
    for word in (*COLUMNS, "step 100", "2.346", "75.0 %", "Running"):
        assert word in text


@pytest.mark.parametrize("width", [1, 20, 30, 45, 60, 79])
def test_a_narrow_terminal_loses_columns_not_lines(width: int) -> None:
    """Less important columns go first; no line is longer than the terminal and none is folded."""
    text = shown(width, row(status(), BEGIN + 20), row(status(3), BEGIN + 21))
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 45:
        assert {"step", "checkpoint", "phase"} <= set(columns_for(width))
        assert "step 100" in text
        assert len(text.splitlines()) == 6


def test_an_attempt_that_is_over_shows_its_cause() -> None:
    """Only the newest attempt has the job's phase; the others say what ended them."""
    over = status(3, interruptions=(Interruption(attempt=1, cause="hang"),))
    assert ended(row(status(1), BEGIN), over)["phase"] == "hang"
    assert ended(row(status(2), BEGIN), over)["phase"] == "ended"
    assert ended(row(status(3), BEGIN), over)["phase"] == "Running"


def lines_of(*updates: tuple[float, JobStatus]) -> list[str]:
    out, file = console()
    with Display(out, live=False) as display:
        for now, told in updates:
            display.update(told, BEGIN + now)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Recovering"},
        {"size": 2},
        {"attempt": AttemptStatus(number=3)},
        {"checkpoint": CheckpointStatus(name="step-00000110.2", step=110, samples=1, at=1)},
    ],
)
def test_a_change_that_matters_is_a_line_at_once(change: dict[str, object]) -> None:
    """Phase, size, attempt and checkpoint are never late in a log."""
    assert len(lines_of((1, status()), (1.01, status(**change)))) == 2


def test_steps_alone_are_a_line_every_few_seconds() -> None:
    """A job that steps ten times a second does not flood a log."""
    told = [(tenth / 10, status(step=120 + tenth)) for tenth in range(101)]
    assert len(lines_of(*told)) == 3


def test_nothing_new_is_no_line() -> None:
    """A hung job repeats nothing."""
    assert len(lines_of((1, status()), (100, status()))) == 1


def test_a_reason_that_keeps_changing_is_a_line_a_second() -> None:
    """A reason that counts down does not flood a log either."""
    told = [(tenth / 10, status(reason=f"waits {tenth}")) for tenth in range(31)]
    assert len(lines_of(*told)) == 4


def test_piped_output_has_no_control_characters_and_does_not_fold() -> None:
    """A long reason stays on its line: logs are searched by line."""
    out, file = console(width=40)
    with Display(out, live=False) as display:
        display.update(status(reason="x" * 200), BEGIN + 1, ["[red]not markup[/red] " + "y" * 100])
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[red]not markup")
    assert "\x1b" not in file.getvalue()


def test_a_ranks_colours_are_dropped_when_piped_and_kept_on_a_terminal() -> None:
    """A log file is searched, a terminal is looked at."""
    for terminal, wanted in ((False, "red plain"), (True, "\x1b[31mred\x1b[0m plain")):
        file = io.StringIO()
        out = Console(file=file, force_terminal=terminal, color_system="standard" if terminal else None)
        with Display(out, live=False) as display:
            display.update(status(), BEGIN, ["\x1b[31mred\x1b[0m plain"])
        assert file.getvalue().splitlines()[0] == wanted


def test_warnings_are_printed_once_each() -> None:
    """They stay above the table, whether or not the row changed."""
    out, file = console()
    with Display(out, live=False) as display:
        display.update(status(), BEGIN, ["first"])
        display.update(status(), BEGIN + 1, ["second"])
        display.update(status(), BEGIN + 2)
    assert [line for line in file.getvalue().splitlines() if "goodput" not in line] == ["first", "second"]


def test_a_terminal_gets_a_table_with_a_row_per_attempt_and_the_last_state_stays() -> None:
    """What was on the screen last is what the job ended with."""
    out, file = console(width=100, terminal=True)
    with Display(out, live=True) as display:
        display.update(status(1), BEGIN + 1, ["a warning"])
        display.update(status(2, interruptions=(Interruption(attempt=1, cause="oom"),)), BEGIN + 2)
        display.update(status(2, phase="Succeeded", reason="done"), BEGIN + 3)
    text = file.getvalue()
    assert "a warning" in text
    last = text[text.rindex("┏") :]
    assert "Succeeded" in last
    assert "done" in last
    assert len([line for line in last.splitlines() if line.startswith("│")]) == 2


def test_a_long_run_keeps_the_table_short() -> None:
    """After a hundred attempts the table still fits on a screen."""
    out, file = console(width=100, terminal=True)
    with Display(out, live=True) as display:
        for attempt in range(1, 101):
            display.update(status(attempt), BEGIN + attempt)
    last = file.getvalue()[file.getvalue().rindex("┏") :]
    assert len([line for line in last.splitlines() if line.startswith("│")]) == 8
    assert "100" in last


def test_starting_until_the_first_step() -> None:
    """Ranks that load and warm up are not shown as training; a script that tells no steps just runs."""
    young = status(attempt=AttemptStatus(number=2))
    assert row(young, BEGIN)["phase"] == "Starting"
    assert row(young.model_copy(update={"uses_library": False}), BEGIN)["phase"] == "Running"


def test_the_time_before_the_first_attempt_gets_no_row_of_its_own() -> None:
    """The table shows a line an attempt; the one for "none yet" goes when there is one."""
    out, file = console(terminal=True)
    with Display(out, live=True) as display:
        display.update(status(0, phase="Pending"), BEGIN)
        assert "Pending" in file.getvalue()
        file.truncate(0)
        display.update(status(1), BEGIN + 1)
        assert "ended" not in file.getvalue()
