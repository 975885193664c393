"""How a run went: what is drawn is what the ledger's own code makes of what was noted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from story_samples import BEGIN, UID, Life, eventful

from resumable_operator.cli.report_course import ORDER, Course, build_course
from resumable_operator.cli.report_facts import MOST_SEEN, gather
from resumable_operator.cli.report_model import goodput_numbers
from resumable_operator.cli.run_history import HistoryEvent
from resumable_operator.decide.ledger import phases_at
from resumable_operator.model import JobStatus
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import ProgressReport


def course_of(life: Life, later: int = 0, **changes: object) -> Course:
    status = life.status(**changes)
    facts = gather(status, (), life.histories, UID)
    return build_course(status, facts, life.wall + later / 1000)


def drawn(course: Course) -> dict[str, int]:
    """Milliseconds by phase."""
    found: dict[str, int] = {}
    for item in course.segments:
        found[item.phase] = found.get(item.phase, 0) + round(item.seconds * 1000)
    return found


def ledger_of(status: JobStatus, now: float) -> dict[str, int]:
    return {phase: ms for phase, ms in phases_at(status.ledger, round(now * 1000)).items() if ms}


def assert_whole(course: Course) -> None:
    """From the first second to the last, without a gap or an overlap, in millisecond steps."""
    edges = [(round(item.start * 1000), round(item.end * 1000)) for item in course.segments]
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    assert all(start < end for start, end in edges)
    if edges:
        assert (edges[0][0], edges[-1][1]) == (0, round(course.age * 1000))
    assert {item.phase for item in course.segments} <= set(ORDER)


def test_what_was_noted_completely_is_drawn_exactly() -> None:
    """When the last commit has just been, the time line has the ledger's milliseconds, phase by phase."""
    life = Life()
    life.wait("queued", 700)
    life.wait("starting", 300)
    life.begin(2)
    for _ in range(3):
        life.train(7)
        life.spend("data_stall", 33)
        life.commit(11)
    course = course_of(life)
    assert_whole(course)
    assert drawn(course) == ledger_of(life.status(), life.wall)
    assert course.off_seconds < 0.001
    assert course.recorded


def test_what_a_dead_rank_took_along_is_filled_in_and_marked() -> None:
    """After its last commit it went on until the failure: that save, steps done before, then new ones."""
    life = Life()
    life.begin(2)
    life.train(20)
    life.commit()
    life.train(10)
    life.fail()
    life.wait("recovering", 500)
    life.begin(2)
    life.train(2)
    life.commit()
    life.train(16)  # 8 of them again
    life.fail()
    life.wait("recovering", 500)
    life.begin(2)
    life.train(5)
    life.commit()
    course = course_of(life)
    assert_whole(course)
    guessed = [item.phase for item in course.segments if item.guessed]
    first, second = ["checkpointing", "productive"], ["checkpointing", "rework", "productive"]
    assert guessed == [*first, *second, "checkpointing"]
    assert course.off_seconds < 0.2


def test_an_eventful_life_is_drawn_almost_exactly() -> None:
    """Crashes, a drain, growth: no phase is off by more than a few tenths of a second."""
    life = eventful()
    course = course_of(life)
    assert_whole(course)
    assert course.off_seconds < 0.25


def test_the_newest_time_is_that_of_the_open_phase() -> None:
    """A job that runs on without a word is shown up to now."""
    course = course_of(eventful(), later=5000)
    assert_whole(course)
    assert (course.segments[-1].phase, course.segments[-1].seconds) == ("unaccounted", pytest.approx(5.0))


def test_goodput_ends_at_the_ledger_s_word() -> None:
    """The curve's last point is the number in the header."""
    life = eventful()
    course = course_of(life, later=2000)
    numbers = goodput_numbers(life.status(), life.wall + 2.0)
    assert (course.goodput[-1].at, course.goodput[-1].goodput) == (numbers.age_seconds, numbers.goodput)
    assert all(0 <= point.goodput <= 1 for point in course.goodput)
    assert [point.at for point in course.goodput] == sorted(point.at for point in course.goodput)


def test_windows_hold_the_productive_time_once() -> None:
    """Their shares, weighted by their lengths, are the productive seconds of the time line."""
    course = course_of(eventful())
    spent = sum((item.end - item.start) * (item.share or 0.0) for item in course.windows)
    assert spent == pytest.approx(drawn(course)["productive"] / 1000, rel=1e-6)


def test_steps_fall_back_to_where_attempts_resume() -> None:
    """The saw-tooth: an attempt ends at the step that was lost, and the next begins at the checkpoint."""
    points = course_of(eventful()).points
    first = [point for point in points if point.attempt == 1]
    second = [point for point in points if point.attempt == 2]
    assert (first[-1].step, second[0].step, second[0].furthest) == (92, 80, 92)
    assert max(point.furthest for point in points) == points[-1].furthest
    assert [point.at for point in points] == sorted(point.at for point in points)


def test_workers_are_those_of_the_attempts_and_none_in_between() -> None:
    """Shrunk after the lost node, grown again at the end."""
    sizes = [point.size for point in course_of(eventful()).sizes]
    assert sizes == [3, 0, 2, 0, 2, 0, 3]


def test_values_that_a_script_logged_are_there() -> None:
    """Beside the loss, by name."""
    course = course_of(eventful())
    assert list(course.values) == ["learning_rate"]
    assert any(point.loss is not None for point in course.points)


def test_without_any_history_the_status_still_tells_the_ends() -> None:
    """Nothing is drawn as productive that nobody saw; the time line is whole all the same."""
    life = eventful()
    life.histories = []
    course = course_of(life)
    assert_whole(course)
    assert not course.recorded
    assert drawn(course)["running_opaque"] > 0
    assert [point.size for point in course.sizes] == [0, 2, 0, 2, 0, 3]
    assert course.points[-1].step == life.step


def test_another_job_s_history_in_an_adopted_store_is_left_alone() -> None:
    """The same name, deleted and made again, finds the old one's files."""
    life = eventful()
    others = [replace(item, begin=replace(item.begin, job_uid="u-0")) for item in life.histories]
    status = life.status()
    assert gather(status, (), others, UID).seen == ()


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_wrong_clock_of_rank_0_s_machine_moves_nothing_out_of_its_attempt(seconds: float) -> None:
    """The ends that the operator declared hold; an attempt's lines are moved between them as a whole."""
    life = eventful()

    def moved(item: AttemptHistory) -> AttemptHistory:
        return replace(
            item,
            begin=replace(item.begin, at=item.begin.at + seconds),
            restored=item.restored and replace(item.restored, at=item.restored.at + seconds),
            steps=tuple(replace(step, at=step.at + seconds) for step in item.steps),
        )

    life.histories = [moved(item) if item.record == 2 else item for item in life.histories]
    course = course_of(life)
    assert_whole(course)
    ends = [item.at - BEGIN for item in life.interruptions]
    inside = [point.at for point in course.points if point.attempt == 2]
    assert ends[0] - 0.001 <= min(inside)
    assert max(inside) <= ends[1] + 0.001


def test_agents_events_tell_the_same() -> None:
    """A run directory has no need of the histories: what agents told folds to the same phases."""
    life = eventful()
    told = [
        HistoryEvent(
            at=step.at + 0.2,
            worker="gpt-0-1",
            kind="progress",
            attempt=item.begin.attempt,
            data=to_plain(
                ProgressReport(
                    rank=0,
                    started_ms=7,
                    settled_ms=7 + sum(step.phase_ms.values()),
                    phase="productive",
                    step=step.step,
                    samples=step.samples,
                    phase_ms=step.phase_ms,
                    loss=step.loss,
                )
            ),
        )
        for item in life.histories
        for step in item.steps
    ]
    status = life.status()
    course = build_course(status, gather(status, told, (), UID), life.wall)
    assert_whole(course)
    assert course.off_seconds < 1.0
    assert [point.step for point in course.points][-1] == life.step


def test_nonsense_of_another_version_costs_a_point() -> None:
    """An event that can't be read is passed over."""
    life = eventful()
    bad = HistoryEvent(BEGIN + 5, "gpt-0-1", "progress", 1, {"rank": "zero"})
    odd = HistoryEvent(BEGIN + 5, "gpt-0-1", "checkpoint", 1, {"step": None, "bytes": "many"})
    facts = gather(life.status(), [bad, odd], life.histories, UID)
    assert_whole(build_course(life.status(), facts, life.wall))


def test_saves_are_told_once_with_their_cost() -> None:
    """By the histories, and of the newest by the status; one that a crash cut off has no cost."""
    life = eventful()
    saves = course_of(life).saves
    assert len({save.name for save in saves}) == len(saves) == 11
    assert saves[-1].blocking_seconds == 0.09
    assert [save.step for save in saves if save.blocking_seconds is None] == [80, 110, 130]
    assert [save.at for save in saves] == sorted(save.at for save in saves)


def test_a_long_run_is_thinned() -> None:
    """First and last moments of each attempt stay, and the time line stays whole."""
    life = Life()
    life.begin(1)
    for _ in range(60):
        life.train(50, ms=10)
        life.commit(5)
    status = life.status()
    facts = gather(status, (), life.histories, UID)
    assert len(facts.seen) <= MOST_SEEN
    course = build_course(status, facts, life.wall)
    assert_whole(course)
    assert drawn(course) == ledger_of(status, life.wall)


def test_a_job_that_has_not_begun_has_an_empty_course() -> None:
    """No status yet, no time: nothing to draw, and no error."""
    course = build_course(JobStatus(), gather(JobStatus(), (), (), UID), 0.0)
    assert (course.age, course.segments, course.points) == (0.0, (), ())


STRETCH = st.tuples(
    st.sampled_from(["train", "commit", "data_stall", "evaluating", "fail", "drain", "silent"]),
    st.integers(1, 30),
)


@settings(max_examples=60)
@given(st.lists(STRETCH, max_size=25), st.integers(0, 4000))
def test_any_life_is_drawn_whole(stretches: list[tuple[str, int]], later: int) -> None:
    """Whatever happened, was noted or was lost: no gap, no overlap, and shares between 0 and 1."""
    life = Life()
    life.wait("queued", 500)
    life.begin(2)
    life.train(1)
    for kind, amount in stretches:
        if kind in ("train", "silent"):
            life.train(amount, noted=kind == "train")
        elif kind == "commit":
            life.commit(amount)
        elif kind in ("fail", "drain"):
            life.fail("crash", silence=amount * 10) if kind == "fail" else life.drain()
            life.wait("recovering" if kind == "fail" else "resizing", amount * 20)
            life.begin(1 + amount % 3)
            life.train(1)
        else:
            life.spend(kind, amount * 5)
    course = course_of(life, later)
    assert_whole(course)
    assert all(item.share is None or 0 <= item.share <= 1 for item in course.windows)
    assert all(point.step <= point.furthest for point in course.points)
