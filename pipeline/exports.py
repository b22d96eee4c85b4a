"""The numbers of metrics.json, and how far a run is, for whoever watches the cluster: through Ray's endpoint.

Watching costs no row: what Ray refuses to record is logged once and forgotten.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.util import metrics as ray_metrics

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Extraction
from pipeline import metric_names as names
from pipeline.block import Failure
from pipeline.metric_names import Exported, MetricKind
from pipeline.metrics import Metrics

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[EncodedDocument]], Extraction]


class DriverExports:
    """What the driver knows: committed units, each once, and what the run has spent. price_per_hour: in dollars."""

    def __init__(self, price_per_hour: float = 0.0) -> None:
        self._instruments = instruments(names.DRIVER)
        self._dollars_per_second = price_per_hour / 3600
        self._paid_seconds = 0.0
        self._waste = (0, 0)

    def plan(self, units: int, rows: int) -> None:
        self._instruments.tell(names.UNITS_PLANNED, units)
        self._instruments.tell(names.ROWS_PLANNED, rows)

    def done(self, units: int, rows: int, seconds: float) -> None:
        """How much of the plan is committed, `seconds` after the run began: all of them are paid for, what came before
        the first unit (planning, Ray's start, measuring) as well."""
        self._instruments.tell(names.UNITS_DONE, units)
        self._instruments.tell(names.ROWS_DONE, rows)
        self._instruments.tell(names.DOLLARS, (seconds - self._paid_seconds) * self._dollars_per_second)
        self._paid_seconds = seconds

    def add(self, metrics: Metrics) -> None:
        """A unit that this run committed."""
        tell = self._instruments.tell
        tell(names.UNITS, 1)
        for status, rows in metrics.rows.items():
            tell(names.ROWS, rows, status=status)
        for column, values in metrics.values.items():
            tell(names.VALUES, values, column=column)
        for stage, seconds in metrics.seconds.items():
            tell(names.STAGE_SECONDS, seconds, stage=stage)
        for field, number in metrics.decode.as_dict().items():
            tell(names.COUNTS[field], number)
        if "decode" in metrics.seconds:
            tell(names.UNIT_SECONDS, metrics.seconds["decode"])

    def fail(self, failure: Failure) -> None:
        """A try of a unit that came to nothing."""
        self._instruments.tell(names.FAILED, 1, stage=failure.kind.value)

    def wasted(self, waste: tuple[int, int] | None) -> None:
        """(retries, wasted tokens) of the run so far, None where nobody knows."""
        if waste is not None:
            for exported, now, before in zip((names.RETRIES, names.WASTED), waste, self._waste, strict=True):
                self._instruments.tell(exported, now - before)
            self._waste = waste


class ActorExports:
    """What an actor knows while a unit is under way."""

    def __init__(self) -> None:
        self._instruments = instruments(names.ACTOR)

    def watched(self, decode: Decode) -> Decode:
        """`decode`, with its calls counted and timed."""

        def call(documents: Sequence[EncodedDocument]) -> Extraction:
            tell, started = self._instruments.tell, time.perf_counter()
            tell(names.HANDED, sum(len(document.ids) for document in documents))
            try:
                extraction = decode(documents)
            except Exception:
                tell(names.PACKS_FAILED, 1)
                raise
            tell(names.PACK_SECONDS, time.perf_counter() - started)
            if extraction.counts.steps:
                tell(names.SLOTS_PER_STEP, extraction.counts.slots_per_step)
            return extraction

        return call

    def loaded(self, device: str, dtype: str, model: str, revision: str) -> None:
        """The actor has its decoder."""
        self._instruments.tell(names.DECODER, 1, device=device, dtype=dtype, model=model, revision=revision)

    def held(self, peak: Mapping[str, int]) -> None:
        """A unit was decoded. peak: of `pipeline.peak.peak_memory`."""
        for kind, most in peak.items():
            self._instruments.tell(names.PEAK_MEMORY, most, memory=kind)


class Instruments:
    """Ray's instruments of some metrics. job: what tells this job's series from those of others on a cluster."""

    def __init__(self, exported: Iterable[Exported], job: str) -> None:
        self._made = {metric.name: _make(metric) for metric in exported}
        self._job = {names.JOB: job}

    def tell(self, metric: Exported, number: float, **tags: str) -> None:
        """Adds to a counter, sets a gauge, observes in a histogram. Nothing where the metric is none of these."""
        instrument = self._made.get(metric.name)
        if instrument is None or (metric.kind is MetricKind.COUNTER and number <= 0):  # Ray refuses to add nothing
            return
        record = {MetricKind.COUNTER: "inc", MetricKind.GAUGE: "set", MetricKind.HISTOGRAM: "observe"}[metric.kind]
        try:
            getattr(instrument, record)(number, tags=self._job | tags)
        except Exception:
            log.warning("%s cannot be exported", metric.name, exc_info=True)
            del self._made[metric.name]


def instruments(exported: Iterable[Exported]) -> Instruments:
    """Those of this process; none where it runs outside Ray, and nobody could scrape them."""
    if not ray.is_initialized():
        return Instruments((), "")
    return Instruments(exported, ray.get_runtime_context().get_job_id())


def _make(metric: Exported) -> Any:
    name, tags = metric.name, metric.labels
    match metric.kind:
        case MetricKind.COUNTER:
            return ray_metrics.Counter(name, metric.help, tag_keys=tags)
        case MetricKind.GAUGE:
            return ray_metrics.Gauge(name, metric.help, tag_keys=tags)
        case MetricKind.HISTOGRAM:
            return ray_metrics.Histogram(name, metric.help, boundaries=list(metric.edges), tag_keys=tags)
