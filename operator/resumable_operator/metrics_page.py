"""The text of the metrics page, made so that a scrape of thousands of jobs holds up nothing else.

prometheus_client writes each kind of line once; it is kept with holes for the job and the value, and filled
in for every job. A job's part is filled in anew only when the job was stored anew, but for the few values
that move while nothing is stored. That is done in the event loop, in slices: a thread would hold the
interpreter for longer, each time that the loop wants it back. ``metrics`` says what is exported and is the
only caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from resumable_operator.decide.observation import Job
from resumable_training.contract import metrics as names

SLICE_SECONDS = 0.0005  # of work between two looks at what else there is to do: a recovery takes dozens
MOST_FORMATS = 3
_END = b"# EOF\n"  # of OpenMetrics
_NAMESPACE, _JOB, _VALUE = "namespace-hole", "job-hole", 7_777_777.5
LABELS = (names.NAMESPACE, names.JOB)

Encoder = Callable[[Any], bytes]
Values = Mapping[str, float] | float | None  # by the extra label's value; one; or nothing to say


@dataclass(frozen=True)
class Family:
    """One metric of jobs. ``label``: its extra label, if it has one. ``moves``: as time goes by, while
    nothing is stored."""

    name: str
    text: str
    values: Callable[[Job, float], Values]
    label: str = ""
    moves: bool = False

    def metric(self) -> CounterMetricFamily | GaugeMetricFamily:
        """With no job in it."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(self.name, self.text, labels=(*LABELS, self.label) if self.label else LABELS)


@dataclass(frozen=True)
class _Part:
    """What is written of a job as it was stored, by family; nothing of those whose values move."""

    job: Job
    texts: tuple[bytes, ...]


class JobsPage:
    """Pages of the same process, one after the other. Use within one event loop."""

    def __init__(self, families: tuple[Family, ...]) -> None:
        self._families = families
        self._formats: dict[str, _Format] = {}  # by content type, the one that was asked for last at the end

    async def render_in_slices(
        self, own: CollectorRegistry, jobs: Iterable[Job], now: float, accept: str
    ) -> tuple[bytes, str]:
        """As ``render``, with pauses."""
        form, content_type = self._form(accept)
        rows, until = [], time.monotonic() + SLICE_SECONDS
        for row in form.rows(list(jobs), now):
            rows.append(row)
            if time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE_SECONDS
        return form.whole(own, rows), content_type

    def render(
        self, own: CollectorRegistry, jobs: Iterable[Job], now: float, accept: str
    ) -> tuple[bytes, str]:
        """Everything in the format that ``accept`` asks for, with its content type."""
        form, content_type = self._form(accept)
        return form.whole(own, list(form.rows(list(jobs), now))), content_type

    def _form(self, accept: str) -> tuple[_Format, str]:
        """A fleet has one Prometheus, or a few: their formats are kept, however many others are asked for."""
        encoder, content_type = choose_encoder(accept)
        form = self._formats.pop(content_type, None) or _Format(encoder, self._families)
        self._formats[content_type] = form
        if len(self._formats) > MOST_FORMATS:
            del self._formats[next(iter(self._formats))]
        return form, content_type


class _Format:
    """Lines in one format, and what was written of each job."""

    def __init__(self, encoder: Encoder, families: tuple[Family, ...]) -> None:
        self._encoder, self._families = encoder, families
        self._heads = [self._text(family.metric()) for family in families]
        self._lines: dict[tuple[str, str], str] = {}  # by family and word of its extra label
        self._parts: dict[str, _Part] = {}

    def rows(self, jobs: list[Job], now: float) -> Iterator[tuple[bytes, ...]]:
        """Of each job its lines by family."""
        known, self._parts = self._parts, {}
        for job in jobs:
            part = known.get(job.key)
            if part is None or part.job is not job:
                texts = (b"" if family.moves else self._filled(family, job, now) for family in self._families)
                part = _Part(job, tuple(texts))
            self._parts[job.key] = part
            yield tuple(
                self._filled(family, job, now) if family.moves else text
                for family, text in zip(self._families, part.texts, strict=True)
            )

    def whole(self, own: CollectorRegistry, rows: list[tuple[bytes, ...]]) -> bytes:
        """The page: the process's own metrics, then those of jobs."""
        body = self._encoder(own)
        pieces, end = [body.removesuffix(_END)], _END if body.endswith(_END) else b""
        for number, head in enumerate(self._heads):
            pieces.append(head)
            pieces += [row[number] for row in rows]
        return b"".join([*pieces, end])

    def _filled(self, family: Family, job: Job, now: float) -> bytes:
        values: Values = family.values(job, now)
        if values is None:
            return b""
        by_word = values if isinstance(values, Mapping) else {"": values}
        lines = [
            self._line(family, word) % {"namespace": job.namespace, "job": job.name, "value": _number(value)}
            for word, value in by_word.items()
        ]
        return "".join(lines).encode()

    def _line(self, family: Family, word: str) -> str:
        """With holes; names of jobs and namespaces hold nothing that would have to be escaped."""
        known = self._lines.get((family.name, word))
        if known is not None:
            return known
        metric = family.metric()
        metric.add_metric((_NAMESPACE, _JOB, word) if family.label else (_NAMESPACE, _JOB), _VALUE)
        text = self._text(metric).decode().splitlines(keepends=True)[-1].replace("%", "%%")
        for hole, what in ((_NAMESPACE, "namespace"), (_JOB, "job"), (_number(_VALUE), "value")):
            text = text.replace(hole, f"%({what})s")
        return self._lines.setdefault((family.name, word), text)

    def _text(self, metric: Metric) -> bytes:
        return self._encoder(_Only(metric)).removesuffix(_END)


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)
