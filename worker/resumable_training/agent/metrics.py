"""Worker metrics in Prometheus' text format, folded from the agent's own events.

Only the agent that runs rank 0 shows them: one target per job.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from resumable_training.agent.hang import BEFORE_FIRST_STEP
from resumable_training.contract import events, metrics

_STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 100.0)
_SAVE_BUCKETS = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts by upper bound, cumulative when written."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        index = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[index] += times
        self.total += value * times

    def lines(self, name: str, labels: Mapping[str, str]) -> List[str]:
        result, running = [], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts):
            running += count
            result.append(_line(name + "_bucket", dict(labels, le=bound), running))
        result.append(_line(name + "_sum", labels, self.total))
        result.append(_line(name + "_count", labels, running))
        return result


class WorkerMetrics:
    """Fold events of rank 0 (``fold``), show the result (``render``)."""

    def __init__(self, job: str) -> None:
        namespace, _, name = job.rpartition("/")
        self._labels = {"namespace": namespace, "training_job": name}
        self._step = 0
        self._samples = 0
        self._data_wait_ms = 0
        self._bytes = 0
        self._attempt = 0
        self._done = (0, 0)  # step and samples that are counted
        self._waited_ms = 0  # of the attempt
        self._restored: Dict[int, Tuple[int, int]] = {}  # attempt -> step and samples that it began with
        self._step_seconds = Histogram(_STEP_BUCKETS)
        self._blocking = {name: Histogram(_SAVE_BUCKETS) for name in metrics.OPERATIONS}
        self._durable = Histogram(_SAVE_BUCKETS)

    def fold(self, kind: str, attempt: int, data: Mapping[str, Any]) -> None:
        """Take in one event as it is logged; all but rank 0's are ignored."""
        if data.get("rank") != 0:
            return
        if kind == events.PROGRESS and data.get("uses_library"):
            self._fold_progress(attempt, data)
        elif kind == events.CHECKPOINT:
            self._bytes = int(_number(data, "bytes"))
            self._blocking["save"].observe(_number(data, "blocking_ms") / 1000)
            self._durable.observe(_number(data, "durable_ms") / 1000)
        elif kind == events.RESTORED:
            self._blocking["restore"].observe(_number(data, "seconds"))
            self._restored = {attempt: (int(_number(data, "step")), int(_number(data, "samples")))}
            if attempt == self._attempt:
                self._done = self._restored[attempt]

    def _fold_progress(self, attempt: int, data: Mapping[str, Any]) -> None:
        """Credit what was done since the last report; what a restore brought was not done."""
        if self._attempt != attempt:
            self._attempt, self._waited_ms = attempt, 0
            self._done = self._restored.get(attempt, (0, 0))
        waited = data["phase_ms"].get("data_stall", 0)
        self._data_wait_ms += max(0, waited - self._waited_ms)
        self._waited_ms = max(waited, self._waited_ms)
        self._step = data["step"]
        if data["phase"] not in BEFORE_FIRST_STEP:
            self._count(data["step"], data["samples"], data["step_seconds"])

    def _count(self, step: int, samples: int, step_seconds: float) -> None:
        steps = max(0, step - self._done[0])
        self._samples += max(0, samples - self._done[1])
        self._done = (step, samples)
        if steps and step_seconds > 0:
            self._step_seconds.observe(step_seconds, steps)

    def render(self, has_rank_0: bool, preloaded_bytes: int = 0) -> str:
        """The page; without rank 0 it is empty. ``preloaded_bytes``: of the process that ranks come from."""
        if not has_rank_0:
            return ""
        labels = self._labels
        parts = [
            self._gauge(metrics.AGENT_STEP, "Steps done, as rank 0 has told.", self._step),
            self._counter(metrics.SAMPLES_TOTAL, "Samples trained, repeated ones too.", self._samples),
            self._counter(
                metrics.DATA_WAIT_SECONDS_TOTAL, "Seconds waited for the loader.", self._data_wait_ms / 1000
            ),
            _family(
                metrics.STEP_SECONDS,
                "histogram",
                "Step time.",
                self._step_seconds.lines(metrics.STEP_SECONDS, labels),
            ),
            _family(
                metrics.CHECKPOINT_BLOCKING_SECONDS,
                "histogram",
                "Training stood still for a save or a restore.",
                [
                    line
                    for name, histogram in self._blocking.items()
                    for line in histogram.lines(
                        metrics.CHECKPOINT_BLOCKING_SECONDS, dict(labels, operation=name)
                    )
                ],
            ),
            _family(
                metrics.CHECKPOINT_DURABLE_SECONDS,
                "histogram",
                "From the start of a save until it is committed.",
                self._durable.lines(metrics.CHECKPOINT_DURABLE_SECONDS, dict(labels, operation="save")),
            ),
            self._gauge(metrics.CHECKPOINT_BYTES, "Size of the newest checkpoint.", self._bytes),
            self._gauge(
                metrics.PRELOADED_BYTES, "Memory of the process that ranks are forked from.", preloaded_bytes
            ),
        ]
        return "".join(parts)

    def _gauge(self, name: str, text: str, value: float) -> str:
        return _family(name, "gauge", text, [_line(name, self._labels, value)])

    def _counter(self, name: str, text: str, value: float) -> str:
        return _family(name, "counter", text, [_line(name, self._labels, value)])


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _family(name: str, kind: str, text: str, lines: Sequence[str]) -> str:
    return "# HELP %s %s\n# TYPE %s %s\n%s\n" % (name, text, name, kind, "\n".join(lines))


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join('%s="%s"' % (key, _escape(text)) for key, text in labels.items())
    return "%s{%s} %s" % (name, inner, repr(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
