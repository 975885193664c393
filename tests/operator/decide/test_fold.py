"""Agents' events into status: each once, in order, whatever is repeated, late or malformed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.actions import EmitEvent
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.failure import judge
from resumable_operator.decide.fold import fold_events, in_order
from resumable_operator.decide.ledger import open_ledger
from resumable_operator.decide.observation import Agent, Job, Observation, TimedEvent, Worker
from resumable_operator.model import (
    AttemptStatus,
    BudgetStatus,
    CheckpointStatus,
    Interruption,
    JobStatus,
    parse_spec,
)
from resumable_training.contract import events, exitcodes
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import AgentState, Event, ProgressReport

BASE = JobStatus(
    started_at=100.0,
    ledger=open_ledger(100_000),
    attempt=AttemptStatus(number=2, state="running", reserved_at=100.0, running_at=101.0),
)


def event(
    kind: str, seq: int, at: float = 110.0, attempt: int = 2, boot: str = "b", **data: Any
) -> TimedEvent:
    return TimedEvent("w-0-1", at, Event(seq, int(at * 1000), kind, attempt, boot, data))


def progress(
    seq: int, step: int, at: float = 110.0, rank: int = 0, attempt: int = 2, **more: Any
) -> TimedEvent:
    values = {"phase": "productive", "phase_ms": {"productive": 1000}, **more}
    report = ProgressReport(rank, 100_000, int(at * 1000), step=step, samples=step * 8, **values)
    return event(events.PROGRESS, seq, at, attempt, **to_plain(report))


def fold(found: list[TimedEvent], status: JobStatus = BASE, spec: dict[str, Any] | None = None) -> Draft:
    job = Job("local", "w", "uid", 1, parse_spec(spec or {"workers": {"replicas": 1}}), status)
    draft = Draft(Observation(job, events=tuple(found)), 120.0, status)
    fold_events(draft)
    return draft


def test_progress_moves_step_and_high_water() -> None:
    """Rank 0 tells the step; any rank moves the high-water mark, which never falls."""
    status = BASE.model_copy(update={"high_water_step": 50, "high_water_samples": 400})
    folded = fold([progress(1, 30), progress(2, 60, rank=3)], status).status
    assert (folded.step, folded.samples) == (30, 240)
    assert (folded.high_water_step, folded.high_water_samples) == (60, 480)
    assert folded.uses_library is True


def test_the_slowest_of_all_workers() -> None:
    """Whoever has the slowest rank; when it has become faster, the next slower one is one report away."""

    def told(seq: int, worker: str, seconds: float, **more: Any) -> TimedEvent:
        seen = progress(seq, 30, rank=8, slowest_step_seconds=seconds, step_seconds=0.1, **more)
        event = replace(seen.event, boot_id=worker)
        return replace(seen, worker=worker, event=event)

    def slowest(*found: TimedEvent, status: JobStatus = BASE) -> tuple[str, float]:
        attempt = fold(list(found), status).status.attempt
        return attempt.slowest_worker, attempt.slowest_step_seconds

    assert slowest(told(1, "a", 0.5), told(1, "b", 0.7), told(1, "c", 0.6)) == ("b", 0.7)
    before = fold([told(1, "a", 0.5), told(1, "b", 0.7)]).status
    assert slowest(told(2, "b", 0.4), status=before) == ("b", 0.4)
    assert slowest(told(2, "b", 0.4), told(2, "a", 0.5, at=111.0), status=before) == ("a", 0.5)
    assert slowest(told(1, "old", 0.0)) == ("old", 0.1), "an older agent tells of one rank only"
    assert slowest(told(1, "a", 0.5, phase="setup"), told(2, "a", float(2**60))) == ("", 0.0)


def test_setup_does_not_reset_the_step() -> None:
    """Before it has restored, a rank knows no step."""
    status = BASE.model_copy(update={"step": 40})
    assert fold([progress(1, 0, phase="setup", phase_ms={})], status).status.step == 40


def test_each_event_once() -> None:
    """An event at or below the cursor changes nothing."""
    once = fold([event(events.CHECKPOINT_FAILED, 1, step=3, message="disk full")])
    assert [action.reason for action in once.actions] == ["CheckpointFailed"]  # type: ignore[union-attr]
    assert once.must_write, "a warning is told once"
    again = fold([event(events.CHECKPOINT_FAILED, 1, step=3, message="disk full")], once.status)
    assert again.actions == []
    assert again.status == once.status


def test_other_attempts_are_passed_over() -> None:
    """What an older attempt still reports is no news of this one."""
    folded = fold([progress(1, 99, attempt=1), event(events.HANG, 2, attempt=1, rank=0)]).status
    assert folded.high_water_step == 0
    assert folded.attempt.evidence == ()
    assert folded.cursors == {"b": 2}


def test_a_new_checkpoint_gives_budgets_back() -> None:
    """Only one beyond the last: a checkpoint made again is no progress."""
    spent = BudgetStatus(user_error=(105.0,), without_progress=1, last_causes=("crash",))
    old = CheckpointStatus(name="step-10", step=10, samples=80, at=101.0)
    status = BASE.model_copy(update={"budgets": spent, "checkpoint": old})
    made = {"checkpoint": "x", "bytes": 5, "blocking_ms": 6, "durable_ms": 7}
    made |= {"interval_seconds": 8.5, "interval_bound": "durable"}
    assert fold([event(events.CHECKPOINT, 1, step=10, samples=80, **made)], status).status.budgets == spent
    folded = fold([event(events.CHECKPOINT, 1, step=11, samples=88, **made)], status)
    assert folded.status.budgets == BudgetStatus()
    assert folded.status.checkpoint == CheckpointStatus(
        name="x",
        step=11,
        samples=88,
        at=110.0,
        bytes=5,
        blocking_ms=6,
        durable_ms=7,
        interval_seconds=8.5,
        interval_bound="durable",
    )
    assert folded.must_write


def _saves(status: JobStatus, samples: list[int]) -> tuple[JobStatus, list[bool]]:
    """After saves of so many samples, one by one; which of them gave budgets back."""
    given_back = []
    for seq, count in enumerate(samples, 1):
        spent = status.model_copy(update={"budgets": BudgetStatus(user_error=(105.0,))})
        told = event(events.CHECKPOINT, seq, checkpoint=f"step-{count}", step=count // 8, samples=count)
        status = fold([told], spent).status
        given_back.append(status.budgets == BudgetStatus())
    return status, given_back


@given(st.lists(st.integers(0, 9), max_size=8))
def test_what_was_saved_before_is_no_progress(samples: list[int]) -> None:
    """Whatever proved damaged in between, only what goes beyond all that was saved gives budgets back."""
    status, given_back = _saves(BASE, samples)
    assert given_back == [count > max(samples[:at], default=-1) for at, count in enumerate(samples)]
    assert status.saved_samples == max(samples, default=None)


def test_a_status_without_the_most_samples_saved() -> None:
    """An older operator kept none: the newest checkpoint that it knew of has been counted."""
    made = CheckpointStatus(name="step-10", step=10, samples=80, at=101.0)
    status = BASE.model_copy(update={"checkpoint": made})
    assert _saves(status, [72, 80, 88, 80])[1] == [False, False, True, False]


def test_the_most_samples_saved_begin_anew_where_the_user_says() -> None:
    """Who goes back on purpose makes progress from there. It holds once, and not for later falls behind."""
    before, _ = _saves(BASE, [800])
    spec = {"workers": {"replicas": 1}, "checkpoint": {"resumeFrom": "step-00000010.1"}}
    back = fold([event(events.RESTORED, 9, step=10, samples=80)], before, spec).status
    assert back.saved_samples == 80
    again = fold([event(events.RESTORED, 10, step=5, samples=40)], back, spec).status
    assert again.saved_samples == 80
    forgotten = again.model_copy(update={"cursors": {}})
    assert _saves(forgotten, [80, 88])[1] == [False, True]


def _goes_on(status: JobStatus, samples: int, spec: dict[str, Any], **told: Any) -> JobStatus:
    """After a restore of so many, by an attempt whose events are numbered from 1 again."""
    found = event(events.RESTORED, 1, step=samples // 8, samples=samples, **told)
    fresh = status.model_copy(update={"cursors": {}})
    return fold([found], fresh, {"workers": {"replicas": 1}, **spec}).status.model_copy(
        update={"cursors": {}}
    )


def test_starting_over_on_purpose_counts_once() -> None:
    """startFresh stays in the spec: only the first start from nothing begins the count anew, until the word
    is taken back. Without the word, and where nothing was saved yet, none does."""
    word = {"checkpoint": {"startFresh": True}}
    first = _goes_on(BASE, 0, word, checkpoint="")
    assert (first.saved_samples, first.started_fresh) == (None, False)
    before, _ = _saves(first, [800])
    assert _goes_on(before, 0, {}, checkpoint="").saved_samples == 800
    assert _goes_on(before, 80, word, checkpoint="step-00000010.1").saved_samples == 800
    over = _goes_on(before, 0, word, checkpoint="")
    assert over.started_fresh
    saved, given_back = _saves(over, [80, 160, 240])
    assert given_back == [True, True, True]
    again = _goes_on(saved, 0, word, checkpoint="")
    assert _saves(again, [80, 160, 240, 320])[1] == [False, False, False, True]
    taken_back = _goes_on(saved, 240, {}, checkpoint="step-00000030.1")
    assert not taken_back.started_fresh
    assert _goes_on(taken_back, 0, word, checkpoint="").saved_samples == 0


def test_a_roll_back_begins_the_count_anew() -> None:
    """Rank 0 says that a person chose; a later fall back to the same point, and an older agent, do not."""
    before, _ = _saves(BASE, [800])
    assert _goes_on(before, 80, {}, checkpoint="step-00000010.1").saved_samples == 800
    back = _goes_on(before, 80, {}, checkpoint="step-00000010.1", deliberate=True)
    saved, given_back = _saves(back, [80, 160, 240, 320])
    assert given_back == [False, True, True, True]
    again = _goes_on(saved, 80, {}, checkpoint="step-00000010.1", deliberate=False)
    assert _saves(again, [160, 240, 320])[1] == [False, False, False]


def test_a_checkpoint_told_after_the_end_still_counts() -> None:
    """The attempt is over when its last save is told."""
    ended = BASE.model_copy(update={"attempt": BASE.attempt.model_copy(update={"state": "ended"})})
    folded = fold([event(events.CHECKPOINT, 1, checkpoint="x", step=5, samples=40)], ended).status
    assert folded.checkpoint is not None
    assert folded.checkpoint.step == 5


def test_first_step_completes_the_interruption() -> None:
    """Recovery lasts from the declared end to the next attempt's first step; the restart cost is learnt."""
    ending = Interruption(attempt=1, cause="crash", at=98.0)
    status = BASE.model_copy(update={"interruptions": (ending,), "last_interruption": ending})
    restored = event(events.RESTORED, 1, 103.0, step=20, samples=160, checkpoint="c")
    warm = progress(2, 20, 104.0, phase="warmup", phase_ms={"restoring": 1})
    before = fold([restored, warm], status).status
    assert before.interruptions[0].recover_seconds is None
    assert (before.step, before.attempt.start_step) == (20, 20)
    after = fold([restored, warm, progress(3, 21, 106.0)], status).status
    assert after.interruptions[0].recover_seconds == 8.0
    assert after.last_interruption == after.interruptions[0]
    assert after.restart_seconds == 8.0  # half of the prior 10, half of the measured 6


def _resumes(step: int, attempt: int) -> TimedEvent:
    return event(events.RESTORED, 1, 120.0, attempt=attempt, step=step, samples=step * 8, checkpoint="c")


def test_lost_steps_are_charged_to_the_ending_that_lost_them() -> None:
    """Killed at 33, back to 20, drained at 28, back to 28: the drain lost nothing, the kill 13 steps."""
    killed = Interruption(attempt=1, cause="crash", at=98.0)
    status = BASE.model_copy(update={"interruptions": (killed,), "step": 33})
    second = fold([_resumes(20, 2)], status).status
    assert [ending.rework_steps for ending in second.interruptions] == [13]
    drained = Interruption(attempt=2, cause="preempted", at=111.0)
    third = BASE.attempt.model_copy(update={"number": 3, "restored": False})
    both = (*second.interruptions, drained)
    status = second.model_copy(update={"interruptions": both, "attempt": third, "cursors": {}, "step": 28})
    assert [ending.rework_steps for ending in fold([_resumes(28, 3)], status).status.interruptions] == [13, 0]


def test_an_attempt_that_never_began_lost_nothing() -> None:
    """Killed at 33, the next one dies while it loads, the third resumes at 20: 13 steps, once."""
    endings = (
        Interruption(attempt=1, cause="crash", at=98.0),
        Interruption(attempt=2, cause="crash", at=99.0, restored=False),
    )
    third = BASE.attempt.model_copy(update={"number": 3, "restored": False})
    status = BASE.model_copy(update={"interruptions": endings, "attempt": third, "step": 33})
    assert [ending.rework_steps for ending in fold([_resumes(20, 3)], status).status.interruptions] == [13, 0]


def test_without_checkpoints_the_first_report_says_where_it_starts() -> None:
    """A script that never restores begins again from nothing: all it had done is lost."""
    status = BASE.model_copy(
        update={"interruptions": (Interruption(attempt=1, cause="crash", at=98.0),), "step": 9}
    )
    after = fold([progress(1, 0, phase="warmup", phase_ms={"setup": 5})], status).status
    assert after.interruptions[0].rework_steps == 9


def test_a_fallback_is_said() -> None:
    """A checkpoint that was passed over is told, with the reason."""
    found = event(
        events.RESTORED, 1, step=1, samples=8, fallback=[{"checkpoint": "c9", "why": "hash differs"}]
    )
    assert "c9 was not resumed: hash differs" in fold([found]).actions[0].message  # type: ignore[union-attr]


def test_resume_from_holds_for_one_restore() -> None:
    """A deliberate resume point is used once, not at every later attempt."""
    spec = {"workers": {"replicas": 1}, "checkpoint": {"resumeFrom": "step-00000010.1"}}
    folded = fold([event(events.RESTORED, 1, step=10, samples=80)], spec=spec)
    assert folded.status.resumed_from == "step-00000010.1"
    assert folded.must_write


@pytest.mark.parametrize(
    "nonsense",
    [
        event(events.PROGRESS, 1, rank="zero"),
        progress(1, 2**60),
        progress(1, -5),
        progress(1, 3, phase_ms={"productive": 10**30}),
        event(events.RESTORED, 1, step="twelve", samples=0),
        event(events.RESTORED, 1, step=1, samples=8, fallback=["step-1"]),
        event(events.CHECKPOINT, 1, step=1, samples=None, checkpoint="step-1"),
        event(events.CHECKPOINT, 1, step=10**400, samples=8, checkpoint="step-1"),
        event(events.RANK_EXITED, 1, rank=0, code="one", own=True),
        event(events.HANG, 1, rank="one", silent_ms=3),
        event(events.HANG, 1, rank=1, silent_ms=float("nan")),
        event(events.ATTEMPT_ENDED, 1, outcome="splendid"),
        event(events.ATTEMPT_ENDED, 1, outcome=["drained"]),
    ],
)
def test_malformed_events_do_not_stop_the_job(nonsense: TimedEvent) -> None:
    """An event that says nothing sensible is passed over and noted; those after it count."""
    draft = fold([nonsense, progress(2, 7)])
    assert draft.status.step == 7
    assert "not understood" in draft.notes[0]
    assert draft.attempt.evidence == ()
    assert draft.attempt.outcomes == {}


def test_numbers_that_json_lacks_are_not_kept() -> None:
    """A loss that became NaN is no loss, and the status stays JSON."""
    draft = fold([progress(1, 7, loss=float("nan"), step_seconds=float("inf"))])
    assert draft.status.loss is None
    json.dumps(draft.status.plain(), allow_nan=False)


def test_a_report_from_the_future_moves_no_clock() -> None:
    """An agent with nonsense in its times can't push the ledger beyond now."""
    late = ProgressReport(0, 0, 10**12, "productive", 7, 56, {"productive": 10**12})
    draft = fold([event(events.PROGRESS, 1, **to_plain(late))])
    assert draft.status.ledger.settled_at <= 120_000
    assert draft.attempt.last_progress_at is not None
    assert draft.attempt.last_progress_at <= 120.0


def test_dropped_events_are_stepped_over_and_said() -> None:
    """An agent that was alone for so long that its log ran over: what is left is folded, with one warning."""
    state = AgentState("b", "w-0-1", attempt=2, state="running", last_seq=50, first_seq=41)
    job = Job("local", "w", "uid", 1, parse_spec({"workers": {"replicas": 1}}), BASE)
    agents = {"w-0-1": Agent("w-0-1", True, state, 119.0)}
    draft = Draft(Observation(job, agents=agents, events=(progress(45, 7),)), 120.0, BASE)
    fold_events(draft)
    assert draft.status.step == 7
    assert draft.status.cursors == {"b": 45}
    told = [action for action in draft.actions if isinstance(action, EmitEvent)]
    assert [(item.reason, item.message) for item in told] == [
        ("EventsLost", "w-0-1 dropped its events 1 to 40 before they could be read")
    ]
    again = Draft(Observation(replace(job, status=draft.status), agents=agents), 121.0, draft.status)
    fold_events(again)
    assert again.actions == []


def test_cursors_of_dead_boots_go_when_all_living_are_known() -> None:
    """Status stays small, but no cursor is dropped while an agent could still replay."""
    status = BASE.model_copy(update={"cursors": {"dead": 5}})
    assert fold([], status).status.cursors == {}


def test_a_worker_that_waits_for_a_node_keeps_no_cursors() -> None:
    """It has said nothing, and may wait for months; one that runs may have spoken."""
    status = BASE.model_copy(update={"cursors": {"dead": 5}})
    job = Job("local", "w", "uid", 1, parse_spec({"workers": {"replicas": 1}}), status)
    for phase, cursors in (("pending", {}), ("running", {"dead": 5})):
        draft = Draft(Observation(job, workers=(Worker("w-0-1", 0, 1, phase),)), 120.0, status)  # type: ignore[arg-type]
        fold_events(draft)
        assert draft.status.cursors == cursors


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.floats(0, 10)), max_size=30))
def test_one_agents_events_stay_in_order(found: list[tuple[str, int, float]]) -> None:
    """However times were mapped, events of one boot are folded by number, and times do not run backwards."""
    ordered = in_order(event("x", seq, at, boot=boot) for boot, seq, at in found)
    assert [item.at for item in ordered] == sorted(item.at for item in ordered)
    for boot in "ab":
        numbers = [item.event.seq for item in ordered if item.event.boot_id == boot]
        assert numbers == sorted(numbers)


def _exit(seq: int, rank: int, code: int, at: float) -> TimedEvent:
    return event(events.RANK_EXITED, seq, at, rank=rank, code=code, own=True, tail=["last words"])


def test_a_rank_that_leaves_early_is_the_cause() -> None:
    """Rank 2 returns 0 in mid-training and its peers lose a peer: it is to blame, and the script pays."""
    found = [_exit(1, 2, 0, 110.0), _exit(2, 1, exitcodes.PEER_LOST, 110.1), _exit(3, 0, 86, 110.2)]
    verdict = judge(fold(found).status.attempt, committed=False, trained=True)
    assert (verdict.cause, verdict.paying) == ("crash", "user_error")
    assert verdict.evidence is not None
    assert (verdict.evidence.rank, verdict.evidence.code) == (2, 0)
    assert "rank 2 on w-0-1 returned 0 while others trained on" in verdict.message


def test_a_rank_that_returns_0_beside_a_real_failure_is_not() -> None:
    """A primary witness counts for more than a rank that had finished."""
    found = [_exit(1, 2, 0, 110.0), _exit(2, 1, 1, 110.1)]
    verdict = judge(fold(found).status.attempt, committed=False, trained=True)
    assert verdict.evidence is not None
    assert (verdict.evidence.rank, verdict.evidence.code) == (1, 1)


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ({"reason": "r", "asked_by": "operator"}, True),
        ({"reason": "sigterm", "asked_by": "agent"}, True),
        ({"reason": "r", "asked_by": "ranks"}, False),
        ({"reason": "r", "asked_by": "what a newer one knows"}, True),
        ({"reason": "r"}, True),  # an older agent, asked by an operator that wrote nothing down
        ({"reason": "r", "asked_by": None}, True),  # or one that an older operator asked
        ({"reason": "autonomy"}, True),
        ({"reason": "w-1-1 began to drain by itself"}, False),  # as status has it
    ],
)
def test_who_asked_for_a_drain(told: dict[str, Any], asked: bool) -> None:
    """Others that are told to follow ranks which drain are no sign that anybody had asked those."""
    attempt = BASE.attempt.model_copy(update={"drain_reason": "w-1-1 began to drain by itself"})
    status = BASE.model_copy(update={"attempt": attempt})
    assert fold([event(events.DRAIN_REQUESTED, 1, seconds=5.0, **told)], status).attempt.asked is asked


def _found(step: int, name: str = "step-00000020.1") -> TimedEvent:
    return event(events.RESTORED, 1, 112.0, step=step, samples=8 * step, checkpoint=name)


@pytest.mark.parametrize(
    ("known", "found", "newest"),
    [
        (10, _found(20), "step-00000020.1"),  # it landed when nobody was there to tell
        (None, _found(20), "step-00000020.1"),  # nor of any before
        (20, _found(20), "known"),
        (30, _found(20), "known"),  # a later one was damaged, say
        (10, _found(20, "/elsewhere/step-00000020.1"), "known"),
        (None, _found(0, ""), None),
    ],
)
def test_what_is_resumed_is_there(known: int | None, found: TimedEvent, newest: str | None) -> None:
    """A resume point beyond the newest checkpoint that was told becomes that, and is progress like any."""
    made = (
        None
        if known is None
        else CheckpointStatus(name="known", step=known, samples=8 * known, at=90.0, durable_ms=7)
    )
    spent = BudgetStatus(user_error=(99.0,), without_progress=1)
    folded = fold([found], BASE.model_copy(update={"checkpoint": made, "budgets": spent})).status
    assert (folded.checkpoint.name if folded.checkpoint else None) == newest
    gets_on = newest not in ("known", None)
    assert folded.budgets == (BudgetStatus() if gets_on else spent)
    if gets_on and made is not None and folded.checkpoint is not None:
        assert (folded.checkpoint.step, folded.checkpoint.durable_ms) == (20, 7)


def test_a_resume_point_chosen_by_hand_is_no_progress() -> None:
    """Whatever it holds, this job has not made it."""
    spec = {"workers": {"replicas": 1}, "checkpoint": {"resumeFrom": "step-00000020.1"}}
    assert fold([_found(20)], spec=spec).status.checkpoint is None


def test_an_agent_tells_of_what_landed_without_its_rank() -> None:
    """After the attempt's end, too; what it can't know stays as the save before had it."""
    made = CheckpointStatus(
        name="step-00000010.1",
        step=10,
        samples=80,
        at=90.0,
        blocking_ms=5,
        durable_ms=7,
        interval_seconds=9.0,
    )
    ended = BASE.attempt.model_copy(update={"state": "ended"})
    told = {"step": 20, "samples": 160, "checkpoint": "step-00000020.1", "bytes": 3, "durable_ms": 11}
    status = BASE.model_copy(update={"checkpoint": made, "attempt": ended})
    folded = fold([event(events.CHECKPOINT, 1, **told)], status).status.checkpoint
    assert folded is not None
    assert (folded.name, folded.samples, folded.durable_ms) == ("step-00000020.1", 160, 11)
    assert (folded.blocking_ms, folded.interval_seconds) == (5, 9.0)


@pytest.mark.parametrize(("done", "step"), [(11, 15), (18, 18)])
def test_no_checkpoint_is_ahead_of_the_steps_done(done: int, step: int) -> None:
    """What it holds has been done; a report from before it, or from after it, may be the newest."""
    made = event(events.CHECKPOINT, 2, 111.0, step=15, samples=120, checkpoint="step-00000015.1")
    status = fold([progress(1, done), made]).status
    assert (status.step, status.samples) == (step, 8 * step)
    assert (status.high_water_step, status.high_water_samples) == (step, 8 * step)
    later = fold([progress(3, 20, 112.0)], status).status
    assert later.step == 20
