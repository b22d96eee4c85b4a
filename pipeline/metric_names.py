"""What is exported to Prometheus: the one table that `exports`, the dashboard and docs/monitoring.md are made of.

Names as Prometheus wants them: base units, `_total` at the end of a counter. Ray puts `ray_` in front of every one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: Label of every metric: Ray's id of the job, the same in its driver and its actors.
JOB = "ray_job"


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric. tags: its label names beside `JOB`. edges: upper edges of a histogram's buckets."""

    name: str
    kind: MetricKind
    help: str
    tags: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter, and nothing else, ends with _total")

    @property
    def labels(self) -> tuple[str, ...]:
        return (JOB, *self.tags)

    @property
    def scraped(self) -> str:
        """Its name in Prometheus."""
        return f"ray_{self.name}"


def _counter(name: str, help: str, *tags: str) -> Exported:
    return Exported(f"hpd_{name}_total", MetricKind.COUNTER, help, tags)


def _gauge(name: str, help: str, *tags: str) -> Exported:
    return Exported(f"hpd_{name}", MetricKind.GAUGE, help, tags)


def _histogram(name: str, help: str) -> Exported:
    return Exported(f"hpd_{name}", MetricKind.HISTOGRAM, help, edges=_SECONDS)


_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)

#: By field of hpd_core.rows.Counts: work on committed units, each unit counted once however often it was tried.
COUNTS: Mapping[str, Exported] = {
    "documents": _counter("documents", "decoded documents, equal ones of a call counted once"),
    "duplicates": _counter("duplicates", "documents whose answer was copied from an equal one"),
    "slots": _counter("slots", "values asked: documents times their attributes"),
    "prompt_tokens": _counter("prompt_tokens", "tokens of documents, suffixes and stubs that were fed"),
    "prefix_tokens": _counter("prefix_tokens", "tokens of shared prefixes that were fed"),
    "cached_tokens": _counter("prefix_cached_tokens", "tokens of shared prefixes that were reused"),
    "decode_rows": _counter("value_tokens_fed", "value tokens fed, without rejected drafts"),
    "slot_steps": _counter("slot_steps", "slots that had work, summed over steps"),
    "generated_tokens": _counter("generated_tokens", "value tokens written, terminators included"),
    "forced_tokens": _counter("forced_tokens", "value tokens that a closed list leaves no choice for, never decoded"),
    "drafted_tokens": _counter("drafted_tokens", "value tokens guessed from the document and fed to be checked"),
    "accepted_tokens": _counter("accepted_tokens", "guessed value tokens that the model agreed with"),
    "steps": _counter("steps", "forward passes that wrote value tokens from fed ones"),
    "model_calls": _counter("model_calls", "forward passes"),
    "longest_value_tokens": _counter("longest_value_tokens", "tokens of each document's longest value"),
    "truncated": _counter("values_truncated", "values that did not end within decode.max_value_tokens"),
    "absent": _counter("values_absent", "values that the model says the text does not have"),
    "invalid": _counter("values_invalid", "values that do not read as their type or are none of the closed list"),
    "ungrounded": _counter("values_ungrounded", "values that stand nowhere in their document"),
    "unsure": _counter("values_unsure", "values below the threshold of confidence"),
    "prefill_seconds": _counter("prefill_seconds", "seconds of forward passes that prefill"),
    "decode_seconds": _counter("decode_seconds", "seconds of forward passes that decode"),
}

# Told by the driver, as units end.
ROWS = _counter("rows", "committed rows by their status", "status")
VALUES = _counter("values", "values found, by output column", "column")
STAGE_SECONDS = _counter("stage_seconds", "wall time of committed units by stage, summed over workers", "stage")
UNITS = _counter("units_committed", "units committed")
FAILED = _counter("units_failed", "tries of a unit that came to nothing, by the stage that failed", "stage")
RETRIES = _counter("retries", "tries of a unit beyond its first, told after each round")
WASTED = _counter("wasted_tokens", "prompt tokens spent on tries that came to nothing, told after each round")
DOLLARS = _counter("dollars", "price of the run's time up to its last unit; metrics.json has its finish, too")
UNIT_SECONDS = _histogram("unit_seconds", "an actor's wall time on a committed unit")
ROWS_PLANNED = _gauge("rows_planned", "rows of the plan")
ROWS_DONE = _gauge("rows_done", "rows of the plan that are committed, those of earlier runs included")
UNITS_PLANNED = _gauge("units_planned", "units of the plan")
UNITS_DONE = _gauge("units_done", "units of the plan that are committed, those of earlier runs included")

# Told by each actor while it works on a unit: what is thrown away later counts as well.
HANDED = _counter("handed_tokens", "document tokens handed to a decoder, wasted ones included")
PACKS_FAILED = _counter("packs_failed", "calls of a decoder that raised an error")
PACK_SECONDS = _histogram("pack_seconds", "wall time of a call of a decoder")
SLOTS_PER_STEP = _gauge("slots_per_step", "slots that had work in a step, mean of an actor's last call")
PEAK_MEMORY = _gauge("peak_memory_bytes", "most memory of an actor, or of its GPU, during its last unit", "memory")
DECODER = _gauge("decoder_info", "1; the labels say what an actor decodes with", "device", "dtype", "model", "revision")

DRIVER = (
    *(ROWS, VALUES, STAGE_SECONDS, UNITS, FAILED, RETRIES, WASTED, DOLLARS, UNIT_SECONDS),
    *(ROWS_PLANNED, ROWS_DONE, UNITS_PLANNED, UNITS_DONE),
    *COUNTS.values(),
)
ACTOR = (HANDED, PACKS_FAILED, PACK_SECONDS, SLOTS_PER_STEP, PEAK_MEMORY, DECODER)
ALL = (*DRIVER, *ACTOR)
