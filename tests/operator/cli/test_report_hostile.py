"""Reports of run directories that nobody meant to make: garbage, torn and endless files, clocks that jump.

Whatever lies there, each kind of report comes out whole, in bounded size, or the mistake is named.
"""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_samples import BEGIN, HISTORY, STATUS

from resumable_operator.cli import jsonlines, run_history
from resumable_operator.cli.html.bounded import bounded
from resumable_operator.cli.html.page import page
from resumable_operator.cli.run_history import MOST_PROGRESS, read_history
from resumable_operator.cli.run_source import RunSource
from resumable_operator.cli.rundir import RunDir
from resumable_operator.model import Interruption, JobStatus

LINES = [json.dumps(line) for line in HISTORY]
ODD: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, -1, -1.5, 0, 10**15, 2**62, 10**30, 1e300, -1e300),
    *(math.nan, math.inf, -math.inf, "\u202e</script>\x00", "\ud800", [[[]]]),
)


class Whole(HTMLParser):
    """All tags are closed, and the data for the script is JSON."""

    VOID = frozenset({"meta", "link", "br", "path", "col"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.data = ""
        self._in_data = False
        self.feed(text)
        assert self.open == []
        json.loads(self.data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self._in_data = ("id", "data") in attrs

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_data = False

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def told(run: Any) -> tuple[Any, str]:
    """The report as JSON, and the page."""
    source = RunSource(RunDir(run.path))
    report, story = source.report(), source.story()
    plain = json.loads(json.dumps(report.plain(), allow_nan=False))
    text = page(story.report, story.course, "Written today", story.notes)
    Whole(text)
    for before, after in pairwise(story.course.segments):
        assert before.start <= before.end <= after.start + 1e-6
    return plain, text


@st.composite
def odd_lines(draw: st.DrawFn) -> list[str]:
    """Real lines: some with odd values in places of theirs, torn, doubled, or in another order."""
    found = []
    for line in LINES:
        plain = json.loads(line)
        how = draw(
            st.sampled_from(("as it is", "as it is", "odd", "odd data", "torn", "twice", "gone", "moved"))
        )
        if how == "odd":
            plain[draw(st.sampled_from(sorted(plain)))] = draw(st.sampled_from(ODD))
        elif how == "odd data" and plain["data"]:
            plain["data"][draw(st.sampled_from(sorted(plain["data"])))] = draw(st.sampled_from(ODD))
        elif how == "moved":  # a clock that was set, or is ahead
            plain["at"] += draw(st.sampled_from((-1e9, -3600.0, 3600.0, 1e9, 1e12)))
        text = json.dumps(plain)
        if how == "torn":
            text = text[: draw(st.integers(0, len(text)))]
        found += [text] * {"twice": 2, "gone": 0}.get(how, 1)
    return draw(st.permutations(found)) if draw(st.booleans()) else found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_lines(), st.sampled_from(("\n", "\r\n", "\n\0\n")))
def test_whatever_a_history_holds_a_report_comes_out(run: Any, lines: list[str], end: str) -> None:
    """Finite numbers, closed tags, segments one after the other; and the ledger's sums are the status's."""
    (run.path / "history.jsonl").write_text(end.join(lines), newline="")
    plain, _ = told(run)
    assert plain["goodput"]["ageSeconds"] == told_by_status(run)


def told_by_status(run: Any) -> float:
    ledger = STATUS.ledger
    return (ledger.settled_at - ledger.started_at) / 1000


@pytest.mark.parametrize("key", ["blocking_ms", "durable_ms"])
def test_what_a_save_cost_is_never_less_than_nothing(run: Any, key: str) -> None:
    """A history that says so does not keep a report from recommending an interval."""
    saves = [json.loads(line) for line in LINES if json.loads(line)["kind"] == "checkpoint"]
    lines = [json.dumps({**save, "data": {**save["data"], key: -1}}) for save in saves]
    (run.path / "history.jsonl").write_text("\n".join(lines) + "\n")
    plain, _ = told(run)
    assert plain["checkpoints"][key.replace("_ms", "Seconds")] == 0


GARBAGE = {
    "nothing": b"",
    "zeros": b"\0" * 5000,
    "no line ends": b'{"at": 1' * 1000,
    "a tower": b"[" * 200_000 + b"\n" + b'{"a":' * 100_000,
    "no text": bytes(range(256)) * 10,
    "numbers": b'{"at": 1e999, "worker": "w", "kind": "checkpoint", "attempt": 1, "data": {}}\n'
    b'{"at": 1, "worker": "w", "kind": "checkpoint", "attempt": Infinity, "data": {}}\n'
    + b'{"at": 1, "worker": "w", "kind": "checkpoint", "attempt": 1, "data": {"bytes": 1'
    + b"0" * 5000
    + b"}}\n",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_counted_and_passed_over(run, rtj, content: bytes) -> None:
    """In all three kinds of report."""
    (run.path / "history.jsonl").write_bytes(content)
    assert rtj("report", run.path).exit_code == 0
    plain = json.loads(rtj("report", run.path, "--json").output)
    assert (plain["damagedLines"] > 0) == bool(content)
    Whole(rtj("report", run.path, "--html", "-").output)


def test_a_line_without_end_is_one_damaged_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not held in memory, and what follows is read."""
    monkeypatch.setattr(jsonlines, "LONGEST_LINE", 1000)
    (run.path / "history.jsonl").write_bytes(b"x" * 10_500 + b"\n" + LINES[0].encode())
    found = read_history(run.path / "history.jsonl")
    assert (found.damaged, len(found.items)) == (1, 1)


def test_progress_is_thinned_evenly_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week's worth of it becomes a bounded number of moments; saves, starts and ends stay."""
    monkeypatch.setattr(run_history, "MOST_PROGRESS", 100)
    path = tmp_path / "history.jsonl"
    with path.open("w") as file:
        for attempt, count in ((1, 3000), (2, 1), (3, 900)):
            for number in range(count):
                for rank in (0, 8):
                    data = {"rank": rank, "step": number}
                    event = {
                        "at": number,
                        "worker": "w",
                        "kind": "progress",
                        "attempt": attempt,
                        "data": data,
                    }
                    file.write(json.dumps(event, separators=(",", ":")) + "\n")
                if number % 50 == 0:
                    file.write(
                        json.dumps({**event, "kind": "checkpoint", "data": {"checkpoint": "x"}}) + "\n"
                    )
    found = read_history(path)
    assert found.damaged == 0
    assert sum(event.kind == "checkpoint" for event in found.items) == 60 + 1 + 18
    steps = {
        attempt: [
            event.data["step"]
            for event in found.items
            if event.kind == "progress" and event.attempt == attempt
        ]
        for attempt in (1, 2, 3)
    }
    assert steps[2] == [0]
    assert 20 <= len(steps[1]) + len(steps[3]) <= 104
    for attempt, last in ((1, 2999), (3, 899)):
        assert (steps[attempt][0], steps[attempt][-1]) == (0, last)
        gaps = [later - earlier for earlier, later in pairwise(steps[attempt][:-1])]
        assert max(gaps) <= 4 * min(gaps)
    assert MOST_PROGRESS >= 10_000


def busy(count: int) -> tuple[JobStatus, list[str]]:
    """A job that was interrupted so many times, each time after one step and one save."""
    status, lines = STATUS, []
    for attempt in range(1, count + 1):
        at = BEGIN + attempt * 0.01
        common = {"at": at, "worker": "w", "attempt": attempt}
        phases = {"setup": 1, "productive": 4}
        progress = {"rank": 0, "started_ms": 0, "settled_ms": 5, "phase": "productive", "step": attempt}
        more: list[tuple[str, dict[str, Any]]] = [
            (
                "restored",
                {"step": attempt - 1, "samples": 0, "checkpoint": f"step-{attempt}", "fallback": []},
            ),
            ("progress", {**progress, "samples": attempt, "phase_ms": phases}),
            ("checkpoint", {"checkpoint": f"step-{attempt}", "step": attempt, "bytes": 5, "blocking_ms": 1}),
            ("checkpoint_failed", {"step": attempt, "message": "no"}),
        ]
        lines += [json.dumps({**common, "kind": kind, "data": data}) for kind, data in more]
    words = "no-space-in-it" * 20
    ending = STATUS.interruptions[0].model_copy(update={"message": words, "tail": (words,) * 20})
    endings: tuple[Interruption, ...] = tuple(
        ending.model_copy(update={"attempt": number, "at": BEGIN + number * 0.01}) for number in range(50)
    )
    counts = {"crash": count}
    return status.model_copy(update={"interruptions": endings, "interruption_counts": counts}), lines


def test_thousands_of_attempts_make_a_page_that_can_be_opened(run) -> None:
    """Its size does not follow theirs, and the drawing still has the phases in proportion."""
    sizes = []
    for count in (1500, 4500):
        status, lines = busy(count)
        run.status(status).history(*lines)
        _, text = told(run)
        sizes.append(len(text))
    assert sizes[1] < 1_200_000
    assert sizes[1] < 1.2 * sizes[0]
    course = RunSource(RunDir(run.path)).story().course
    drawn = bounded(course)
    assert len(course.segments) > len(drawn.segments) > 10
    for phase in {segment.phase for segment in course.segments}:
        exact, coarse = (
            sum(item.seconds for item in each.segments if item.phase == phase) for each in (course, drawn)
        )
        assert coarse == pytest.approx(exact, abs=0.01 * course.age)
    assert drawn.points[-1] == course.points[-1]


NAMES = {
    "empty": ("", "the name is empty"),
    "too long": ("x" * 5000, "no such directory"),
    "with a zero": ("run\0", "no such directory"),
    "written from right to left": ("\u202enur", "no such directory"),
    "a file": ("run/status.json", "no such directory"),
}


@pytest.mark.parametrize("command", ["report", "status"])
@pytest.mark.parametrize(("name", "told"), NAMES.values(), ids=NAMES)
def test_names_that_are_no_run(
    run, rtj, monkeypatch: pytest.MonkeyPatch, command: str, name: str, told: str
) -> None:
    """A usage error in words, never a trace."""
    monkeypatch.chdir(run.path.parent)
    result = rtj(command, name)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize("target", ["/", "no/such/place.html", "/dev/full", "x" * 5000])
def test_a_page_that_can_not_be_written(run, rtj, target: str) -> None:
    """Says so, and why."""
    result = rtj("report", run.path, "--html", target)
    assert result.exit_code == 2
    assert "can't write" in result.output


ODD_FILES = (
    b"",
    b"\0" * 100,
    b"{",
    b"[1]",
    b"null",
    b"\xff\xfe",
    b'{"status":null}',
    b'{"status":{"step":NaN}}',
)


@pytest.mark.parametrize("content", ODD_FILES)
@pytest.mark.parametrize("file", ["status.json", "job.json"])
def test_files_that_are_not_what_they_should_be_are_named(run, rtj, file: str, content: bytes) -> None:
    """In one line, in every way to look at a run."""
    (run.path / file).write_bytes(content)
    for words in (("report",), ("report", "--html", "-"), ("status",), ("status", "--watch")):
        result = rtj(words[0], run.path, *words[1:], columns=1000)
        assert result.exit_code == 2
        assert file in result.output
        assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("columns", [1, 5, 10_000])
def test_terminals_of_any_width(run, rtj, columns: int) -> None:
    """Something comes out."""
    for command in ("report", "status"):
        assert rtj(command, run.path, columns=columns).exit_code == 0


def test_a_name_with_markup_in_it_is_text(run, rtj, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the page it is shown; as the name of a file it is refused in words."""
    job = json.loads((run.path / "job.json").read_text())
    job["name"] = "</script><img src=x onerror=alert(1)>\"'\n\u202e" + "x" * 5000
    (run.path / "job.json").write_text(json.dumps(job))
    text = rtj("report", run.path, "--html", "-").output
    Whole(text)
    assert "<img" not in text
    assert rtj("report", run.path).exit_code == 0
    monkeypatch.chdir(run.path)
    assert rtj("report", run.path, "--html", "").exit_code == 2
