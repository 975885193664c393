"""The report's page: complete by itself, with the ledger's numbers, and harmless whatever it is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from job_objects import stored_job
from run_samples import BEGIN as RUN_BEGIN
from run_samples import HISTORY, STATUS
from story_samples import BEGIN, UID, Life, eventful

from resumable_operator.cli.html.page import page
from resumable_operator.cli.html.verdict import verdict
from resumable_operator.cli.report_model import Report, build_report
from resumable_operator.cli.report_story import Story, tell
from resumable_operator.cli.rundir import JobFile
from resumable_operator.errors import RetryableError
from resumable_operator.model import JobStatus, LedgerStatus
from resumable_training.checkpoint.history import Begin, Committing, Journal, Step, write_history
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.codec import to_plain

JOB = JobFile("team", "gpt", UID, BEGIN, {})
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror=alert(1)> & \"'"


def story_of(life: Life, job: JobFile = JOB, **changes: Any) -> Story:
    return tell(job, life.status(**changes), life.wall, None, life.histories)


def rendered(story: Story) -> str:
    return page(story.report, story.course, "Written today", story.notes)


class Reader(HTMLParser):
    """Tags that were opened and not closed, and what a page would load or run."""

    VOID = frozenset({"meta", "link", "br", "path", "col"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.scripts = 0
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "xlink:href")
        ]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def test_what_is_not_reported_yet_has_a_row() -> None:
    """Of a job that trains: so the rows sum to its age; of one that has ended there is none."""
    life = eventful()
    status = life.status(finished_at=None, phase="Running")
    running = status.model_copy(
        update={"ledger": status.ledger.model_copy(update={"open_phase": "unaccounted"})}
    )
    later = rendered(tell(JOB, running, life.wall + 7.25, None, life.histories))
    assert re.search(r"Not reported yet.*?>7\.250<", later, re.DOTALL)
    assert "Not reported yet" not in rendered(story_of(life))


def test_a_page_is_well_formed_and_asks_for_nothing() -> None:
    """One file: no address but places in itself, no handler, two scripts of its own."""
    found = read(rendered(story_of(eventful())))
    assert (found.open, found.wrong) == ([], [])
    assert [address for address in found.addresses if not address.startswith("#")] == ["data:,"]
    assert (found.handlers, found.scripts) == ([], 2)


def test_its_policy_allows_its_own_script_alone() -> None:
    """By hash, so that not even a mistake of ours in escaping would run anything."""
    html = rendered(story_of(eventful()))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert len(re.findall(r"sha256-[A-Za-z0-9+/=]{44}", policy[1])) == 1
    assert "unsafe-inline" not in policy[1].partition("style-src")[0]


def test_whatever_a_job_says_stays_text() -> None:
    """Names, reasons, evidence, log lines, names of logged values: none becomes markup."""
    life = eventful()
    first = life.interruptions[0]
    life.interruptions[0] = first.model_copy(
        update={"message": EVIL, "worker": EVIL, "cause": EVIL, "tail": (EVIL,)}
    )
    job = JobFile(EVIL, EVIL, UID, BEGIN, {})
    plain = rendered(story_of(eventful()))
    found = read(rendered(story_of(life, job, reason=EVIL)))
    assert (found.open, found.wrong, found.handlers) == ([], [], [])
    assert found.scripts == read(plain).scripts
    assert "".join(found.text).count("window.hacked = 1") >= 6


def test_the_table_of_phases_has_the_ledger_s_milliseconds() -> None:
    """The numbers of the page are those of `rtj report`, which are the ledger's."""
    story = story_of(eventful())
    html = rendered(story)
    for item in story.report.phases:
        assert f">{item.seconds:,.3f}<" in html
    assert f">{story.report.goodput.age_seconds:,.3f}<" in html


def test_every_part_is_there() -> None:
    """Charts along the time, where it went, recoveries by stage, endings, saves, the interval."""
    html = rendered(story_of(eventful()))
    for words in (
        "What the job was doing",
        "Workers that train",
        "<h3>Steps",
        "<h3>Loss",
        "share of time that made new steps",
        "What else the script logged",
        "Where the time went",
        "What recoveries were made of",
        "mean of 2",
        "node machine-3 of gpt-2-1 is gone",
        "last lines of its log",
        "Time of a save",
        "Size of a checkpoint",
        "Daly's optimum".replace("'", "&#x27;"),
        "recommended",
    ):
        assert words in html, words


def test_what_the_script_reads_is_json() -> None:
    """Bounded, finite, and in order of time."""
    html = rendered(story_of(eventful()))
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert found is not None
    data = json.loads(found[1])
    assert data["age"] > 0
    assert [row[0] for row in data["segments"]] == sorted(row[0] for row in data["segments"])
    assert len(html) < 400_000


def opaque() -> JobStatus:
    phases = {"starting": 1000, "running_opaque": 9000}
    ledger = LedgerStatus(
        started_at=round(BEGIN * 1000), settled_at=round(BEGIN * 1000) + 10_000, phases=phases
    )
    return JobStatus(phase="Succeeded", uses_library=False, ledger=ledger)


@pytest.mark.parametrize(
    "status",
    [JobStatus(), opaque(), JobStatus(phase="Failed", reason="no luck"), STATUS],
    ids=["nothing yet", "without the library", "failed at once", "no histories"],
)
def test_a_job_of_which_little_is_known_has_a_page_too(status: JobStatus) -> None:
    """Nothing is invented, and nothing breaks."""
    story = tell(JOB, status, BEGIN + 10.0, None, ())
    found = read(rendered(story))
    assert (found.open, found.wrong) == ([], [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "80.0 % of 1 min 40 s made new steps; 1 interruption cost 10.0 s; starting took 9.0 %."),
        ({"interruptions": (), "interruption_counts": {}}, "nothing interrupted it"),
        ({"ledger": LedgerStatus()}, "The job has not begun."),
    ],
)
def test_the_verdict_says_the_most_important(changes: dict[str, Any], told: str) -> None:
    """One sentence: how much of the time counted, and what took most of the rest."""
    status = STATUS.model_copy(update=changes)
    now = status.ledger.settled_at / 1000
    assert told in verdict(build_report(JOB, status, None, now))


def test_the_verdict_of_a_script_without_the_library_claims_nothing() -> None:
    """Nobody knows what it produced."""
    report: Report = build_report(JOB, opaque(), None, BEGIN + 10.0)
    assert verdict(report) == "It ran for 9.0 s without the library, so nobody knows how well."


def test_rtj_report_html_writes_one_file(run: Any, rtj: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Beside the caller under the job's name, or where it is told, or to standard output."""
    monkeypatch.chdir(tmp_path)
    assert rtj("report", run.path, "--html").exit_code == 0
    written = (tmp_path / "train-report.html").read_text()
    assert rtj("report", run.path, "--html", "-").stdout.startswith("<!doctype html>")
    assert rtj("report", run.path, "--html", tmp_path / "other.html").exit_code == 0
    assert "80.0 % of 1 min 40 s made new steps" in written
    assert (tmp_path / "other.html").exists()
    assert rtj("report", run.path, "--html", tmp_path / "none" / "x.html").exit_code == 2
    assert rtj("report", run.path, "--html", "--json").exit_code == 2
    swallowed = rtj("report", "--html", run.path)
    assert swallowed.exit_code == 2
    assert f"rtj report {run.path} --html" in swallowed.stderr
    assert rtj("report").exit_code == 2
    assert rtj("report", run.path, "--image", "x").exit_code == 2


def test_a_run_s_page_has_what_lies_beside_its_checkpoints(run: Any, rtj: Any) -> None:
    """Agents' events and rank 0's history tell of the same run: the logged values only the latter has."""
    journal = Journal(Begin(RUN_BEGIN + 10, 0, 1, 3, "local/train", "u-1"))
    for number in range(1, 9):
        phases = {"setup": 4000, "warmup": 1000, "productive": 500 * number}
        journal.step(
            Step(
                RUN_BEGIN + 15 + number / 2,
                5000 + 500 * number,
                number,
                number * 16,
                4.0 - number / 4,
                values={"accuracy": number / 10},
                phase_ms=phases,
            )
        )
    store = run.path / "checkpoints"
    store.mkdir()
    assert write_history(LocalStore(store), 1, journal.lines(Committing(RUN_BEGIN + 20, 9000, 8))) == ""
    html = rtj("report", run.path, "--html", "-").stdout
    assert "<h3>accuracy" in html
    assert "<h3>Loss" in html
    assert "Passed over" in html
    assert len(HISTORY) > 3


class Reading:
    """Stands for what reads beside the checkpoints of a job in a cluster."""

    found: tuple[Any, ...] | Exception = ()

    def __init__(self, *_: object) -> None: ...

    def histories(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_page_of_a_job_in_a_cluster_comes_from_status_and_histories(
    cluster: Any, rtj: Any, monkeypatch: Any
) -> None:
    """Also when its pods are gone; without the histories from the status alone, and it says so."""
    life = eventful()
    cluster((stored_job(life.status(), name="gpt"), []))
    monkeypatch.setattr("resumable_operator.cli.cluster_source.ReaderStore", Reading)
    found = [replace(item, begin=replace(item.begin, job_uid="uid-1")) for item in life.histories]
    monkeypatch.setattr(Reading, "found", tuple(found))
    whole = rtj("report", "gpt", "-n", "team", "--html", "-")
    assert whole.exit_code == 0, whole.output
    assert "<h3>Loss" in whole.stdout
    monkeypatch.setattr(Reading, "found", RetryableError("pod gpt-reader can't start: no image"))
    less = rtj("report", "gpt", "-n", "team", "--html", "-")
    assert less.exit_code == 0
    assert "<h3>Loss" not in less.stdout
    assert "could not be read: pod gpt-reader can&#x27;t start" in less.stdout
    assert "without the history" in less.stderr


def test_no_pod_is_started_for_a_script_without_the_library(cluster: Any, rtj: Any, monkeypatch: Any) -> None:
    """It leaves no history, so there is nothing to read."""
    monkeypatch.setattr("resumable_operator.cli.cluster_source.ReaderStore", Reading)
    monkeypatch.setattr(Reading, "found", RetryableError("must not be asked"))
    cluster((stored_job(opaque(), name="gpt"), []))
    result = rtj("report", "gpt", "-n", "team", "--html", "-")
    assert "nobody knows how well" in result.stdout
    assert result.stderr == ""


def test_object_storage_is_read_from_here_where_there_are_credentials(
    cluster: Any, rtj: Any, monkeypatch: Any
) -> None:
    """With the job's endpoint and without a pod; what can't be reached from here is read by one after all."""
    opened: list[tuple[str, dict[str, str]]] = []

    class Bucket(Reading):
        def __init__(self, url: str, environment: dict[str, str]) -> None:
            opened.append((url, environment))

    life = eventful()
    mine = tuple(replace(item, begin=replace(item.begin, job_uid="uid-1")) for item in life.histories)
    bucket = {"bucket": "models", "prefix": "gpt", "endpoint": "https://s3.example"}
    cluster((stored_job(life.status(), name="gpt", checkpoint={"s3": bucket}), []))
    monkeypatch.setattr("resumable_operator.cli.cluster_source.BucketStore", Bucket)
    monkeypatch.setattr("resumable_operator.cli.cluster_source.ReaderStore", Reading)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setattr(Bucket, "found", mine)
    assert "<h3>Loss" in rtj("report", "gpt", "-n", "team", "--html", "-").stdout
    assert opened == [("s3://models/gpt", {"AWS_ENDPOINT_URL": "https://s3.example"})]
    monkeypatch.setattr(Bucket, "found", RetryableError("no route to s3.example"))
    monkeypatch.setattr(Reading, "found", mine)
    by_pod = rtj("report", "gpt", "-n", "team", "--html", "-")
    assert "<h3>Loss" in by_pod.stdout
    assert "no route to s3.example; asking a pod of the cluster" in by_pod.stderr
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    rtj("report", "gpt", "-n", "team", "--html", "-")
    assert len(opened) == 2


def test_histories_travel_through_a_reader_s_log(run: Any, rtj: Any) -> None:
    """`rtj checkpoints history --json` prints what the other end understands, an attempt on each line."""
    store = run.path / "checkpoints"
    store.mkdir()
    life = eventful()
    for item in life.histories:
        lines = [json.dumps({"kind": "begin", **to_plain(item.begin)})]
        lines += [json.dumps({"kind": "step", **to_plain(step)}) for step in item.steps]
        write_history(LocalStore(store), item.record, lines)
    told = rtj("checkpoints", "history", run.path, "--json").stdout
    assert len(told.splitlines()) == len(life.histories) + 2
    assert [item["begin"]["attempt"] for item in json.loads(told)] == [1, 2, 3, 4]
    shown = rtj("checkpoints", "history", run.path).stdout
    assert "record" in shown
    assert rtj("checkpoints", "history", store.parent / "logs").exit_code == 2
