"""Worker metrics: counters that only grow, names and labels as agreed."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent.metrics import WorkerMetrics
from resumable_training.contract import metrics

GROWING = re.compile(r"_(total|bucket|sum|count)\{")


def progress(step: int, phase: str = "productive", rank: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "uses_library": True,
        "step": step,
        "samples": step * 64,
        "phase": phase,
        "phase_ms": fields.get("phase_ms", {}),
        "step_seconds": 0.2,
    }


def value(text: str, name: str, label: str = "") -> float:
    """Value of the one sample with that name and label."""
    (found,) = [
        line.rsplit(" ", 1)[1]
        for line in text.splitlines()
        if re.match(re.escape(name) + r"[{ ]", line) and label in line
    ]
    return float(found)


def test_work_is_counted_across_attempts_and_restores_are_not() -> None:
    """Samples trained, repeated ones too; what a restore brought is not trained."""
    worker = WorkerMetrics("local/train")
    worker.fold("progress", 1, progress(1))
    worker.fold("progress", 1, progress(10))
    worker.fold("progress", 2, progress(0, "restoring"))
    worker.fold("restored", 2, {"rank": 0, "step": 8, "samples": 512, "seconds": 3.0})
    worker.fold("progress", 2, progress(8, "warmup"))
    worker.fold("progress", 2, progress(12, "rework", phase_ms={"data_stall": 1500}))
    worker.fold("progress", 2, progress(13, "rework", phase_ms={"data_stall": 2500}))
    text = worker.render(True)
    assert value(text, metrics.SAMPLES_TOTAL) == (10 + 5) * 64
    assert value(text, metrics.AGENT_STEP) == 13
    assert value(text, metrics.STEP_SECONDS + "_count") == 15
    assert value(text, metrics.STEP_SECONDS + "_sum") == 3.0
    assert value(text, metrics.STEP_SECONDS + "_bucket", 'le="0.1"') == 0
    assert value(text, metrics.STEP_SECONDS + "_bucket", 'le="0.25"') == 15
    assert value(text, metrics.DATA_WAIT_SECONDS_TOTAL) == 2.5
    assert value(text, metrics.CHECKPOINT_BLOCKING_SECONDS + "_sum", 'operation="restore"') == 3.0


def test_checkpoints() -> None:
    """Blocking and durable seconds are told apart, and the size is the newest one's."""
    worker = WorkerMetrics("local/train")
    for size in (10, 20):
        worker.fold(
            "checkpoint", 1, {"rank": 0, "bytes": size, "blocking_ms": 500, "durable_ms": 2000, "step": 1}
        )
    text = worker.render(True)
    assert value(text, metrics.CHECKPOINT_BYTES) == 20
    assert value(text, metrics.CHECKPOINT_BLOCKING_SECONDS + "_sum", 'operation="save"') == 1.0
    assert value(text, metrics.CHECKPOINT_DURABLE_SECONDS + "_sum") == 4.0


def test_everything_is_there_from_0_on() -> None:
    """A rate needs a counter's 0: all series are shown before anything happens, and there are no others."""
    text = WorkerMetrics("local/train").render(True)
    for operation in metrics.OPERATIONS:
        label = f'operation="{operation}"'
        assert value(text, metrics.CHECKPOINT_BLOCKING_SECONDS + "_count", label) == 0
    assert value(text, metrics.CHECKPOINT_DURABLE_SECONDS + "_count", 'operation="save"') == 0
    assert value(text, metrics.SAMPLES_TOTAL) == value(text, metrics.DATA_WAIT_SECONDS_TOTAL) == 0
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 70


reports = st.builds(
    progress,
    st.integers(0, 50),
    st.sampled_from(["setup", "restoring", "warmup", "productive", "rework"]),
    phase_ms=st.fixed_dictionaries({"data_stall": st.integers(0, 5000)}),
)
told = st.one_of(
    st.tuples(st.just("progress"), reports),
    st.tuples(
        st.just("restored"),
        st.builds(lambda step: {"rank": 0, "step": step, "seconds": 1.0}, st.integers(0, 50)),
    ),
    st.tuples(st.just("checkpoint"), st.just({"rank": 0, "bytes": 5, "blocking_ms": 7, "durable_ms": 9})),
)


@given(st.lists(st.tuples(st.integers(1, 3), told), max_size=20))
def test_counters_never_run_backwards(events: list[tuple[int, tuple[str, dict[str, Any]]]]) -> None:
    """Whatever is told of whichever attempt, no counter and no bucket shrinks while the agent lives."""
    worker, before = WorkerMetrics("local/train"), dict[str, float]()
    for attempt, (kind, data) in events:
        worker.fold(kind, attempt, data)
        lines = [line for line in worker.render(True).splitlines() if not line.startswith("#")]
        now = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
        growing = {name: number for name, number in now.items() if GROWING.search(name)}
        assert [name for name, number in before.items() if growing[name] < number] == []
        before = growing


def test_only_rank_0_is_shown() -> None:
    """Other ranks are not folded, and an agent without rank 0 shows nothing."""
    worker = WorkerMetrics("local/train")
    worker.fold("progress", 1, progress(5, rank=3))
    assert value(worker.render(True), metrics.AGENT_STEP) == 0
    assert worker.render(False) == ""


def test_names_and_labels_are_the_agreed_ones() -> None:
    """Every family is in the contract, and no label names a pod, rank or step."""
    text = WorkerMetrics('na"me/train').render(True)
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert families <= {value for value in vars(metrics).values() if isinstance(value, str)}
    labels = set(re.findall(r'[{,](\w+)="', text))
    assert labels == {"namespace", "training_job", "operation", "le"}
    assert 'namespace="na\\"me"' in text
