"""Outputs of `hpd extract` as measurements: what their units took, where they ran, and what they stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from jobs.costs.fit import IntArray, UnitWork
from jobs.options import short_name
from pipeline.job import JobError
from pipeline.manifest import JOB, OutputFolder
from pipeline.metrics import Metrics, device_of, total
from pipeline.record import UnitRecord
from pipeline.resume import RUN
from pipeline.storage import Storage
from pipeline.summary import METRICS_FILE


class Drawn(StrEnum):
    """What the committed units of an output are of its input."""

    #: Drawn at random: `hpd extract --sample-units`.
    RANDOM = "random"
    #: All of them: a sample of other catalogs as far as those are like this one.
    WHOLE = "whole"
    #: The first rows (`--limit`): they tell nothing about the others.
    FIRST = "first"
    #: A random sample and something else beside it.
    MIXED = "mixed"
    #: The job has not ended.
    UNFINISHED = "unfinished"

    @property
    def holds(self) -> bool:
        """Whether an interval over the units speaks of the whole input."""
        return self in (Drawn.RANDOM, Drawn.WHOLE)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One output.

    name: of its folder. units: the committed ones with rows. run: the content of run.json. last: what metrics.json says
    of the run that wrote it. sample: what the manifest says of the draw, empty where there was none.
    """

    name: str
    units: tuple[UnitRecord, ...]
    run: Mapping[str, Any]
    last: Mapping[str, Any]
    sampling: Drawn
    sample: Mapping[str, Any]

    @property
    def metrics(self) -> Metrics:
        return total(record.metrics for record in self.units)

    @property
    def actors(self) -> int:
        """Actors of the pool at its largest, as configured."""
        return int(self.run.get("config", {}).get("pool", {}).get("max_size", 1))

    @property
    def rows_per_unit(self) -> float:
        return self.metrics.rows_in / len(self.units)

    @property
    def in_one_go(self) -> bool:
        """Whether the run that wrote metrics.json did all of the units itself, so that its clock speaks of them."""
        return int(self.last["rows"]) == self.metrics.rows_in

    @property
    def rest_seconds(self) -> float | None:
        """Wall seconds in which no actor worked on what was committed, waited between units or loaded: start of Ray and
        its workers, first read, tail, finishing, tries that came to nothing. None where the run was resumed."""
        if not self.in_one_go:
            return None
        seconds = self.metrics.seconds
        busy = seconds["decode"] + seconds["idle"] + seconds["load"]
        return max(0.0, float(self.last["seconds"]) - busy / self.actors)

    @property
    def wasted_seconds(self) -> float:
        """Wall seconds of tries that came to nothing, had they gone as fast as the others; 0 where none is known."""
        fed = self.metrics.decode.prompt_tokens
        share = (self.last.get("wasted_tokens") or 0) / fed if fed else 0.0
        return share * self.metrics.seconds["decode"] / self.actors

    def as_dict(self) -> dict[str, Any]:
        metrics, seconds = self.metrics, self.metrics.seconds
        return {
            "name": self.name,
            "fingerprint": self.run["fingerprint"],
            "sampling": self.sampling.value,
            "sample": dict(self.sample) or None,
            "units": len(self.units),
            "rows": metrics.rows_in,
            "rows_error": metrics.rows_error,
            "actors": self.actors,
            "wall_seconds": self.last["seconds"] if self.in_one_go else None,
            "actor_seconds": seconds["decode"],
            "idle_seconds": seconds["idle"],
            "load_seconds": seconds["load"],
            "rest_seconds": self.rest_seconds,
            "retries": self.last.get("retries"),
            "wasted_tokens": self.last.get("wasted_tokens"),
        }


def read_run(uri: str, storage: Storage) -> MeasuredRun:
    """The output at `uri`. Raises `JobError` where it is none, or has no unit that was decoded; `StorageError` where
    its bookkeeping cannot be read."""
    folder = OutputFolder(storage.absolute(uri), storage)
    run, facts, job = (folder.read_json(name) for name in (RUN, METRICS_FILE, JOB))
    if run is None or facts is None:
        missing = RUN if run is None else METRICS_FILE
        raise JobError(f"{uri}: not the output of a run that ended: it has no {missing}")
    units = tuple(record for record in folder.committed() if record.unit.rows)
    if not any(record.metrics.decode.documents for record in units):
        raise JobError(f"{uri}: no unit of it was decoded: nothing was measured")
    finished, job = folder.is_finished(), job or {}
    sample = job.get("sample", {}) if finished else {}
    return MeasuredRun(
        name=short_name(uri),
        units=units,
        run=run,
        last=facts["run"],
        sampling=_sampling(finished, job, sum(record.metrics.rows_in for record in units)),
        sample=sample,
    )


def read_runs(uris: Sequence[str], storage: Storage) -> list[MeasuredRun]:
    """Outputs that measure one thing. Raises `JobError` naming two that differ in fingerprint, device or pool."""
    runs = [read_run(uri, storage) for uri in dict.fromkeys(uris)]
    first = runs[0]
    for other in runs[1:]:
        for what, a, b in (
            ("another job", first.run["fingerprint"], other.run["fingerprint"]),
            ("another device", device(first), device(other)),
            ("another number of actors", first.actors, other.actors),
        ):
            if a != b:
                raise JobError(f"{other.name} measured {what} than {first.name}: {b}, not {a}")
    return runs


def device(run: MeasuredRun) -> tuple[str, str]:
    """(device, dtype) of a run; raises `JobError` where its units ran on several."""
    places = sorted(device_of(key) for key in run.metrics.devices)
    if len(places) > 1:
        raise JobError(
            f"{run.name}: its units ran on several devices ({'; '.join(map(', '.join, places))}): a cost of theirs "
            "together is the cost of none"
        )
    if places:
        return places[0]
    return "not recorded", str(run.run["facts"]["resolved"]["dtype"])


def work(runs: Sequence[MeasuredRun]) -> UnitWork:
    """All units of all runs, in order."""
    records = [record for run in runs for record in run.units]
    units = [record.metrics for record in records]

    def column(name: str) -> Any:
        return np.array([getattr(unit.decode, name) for unit in units], dtype=np.float64)

    return UnitWork(
        rows=np.array([unit.rows_in for unit in units], dtype=np.float64),
        documents=column("documents"),
        copied=column("duplicates"),
        slots=column("slots"),
        prompt_tokens=column("prompt_tokens"),
        prefix_tokens=column("prefix_tokens"),
        cached_tokens=column("cached_tokens"),
        value_tokens=column("decode_rows"),
        seconds=np.array([unit.seconds["decode"] for unit in units], dtype=np.float64),
        group=groups(records),
    )


def groups(records: Sequence[UnitRecord]) -> IntArray:
    """[units] the same number for units that share rows of a file, as those of several runs over one catalog do. Runs
    may have cut it differently, and a run halves a unit that fails: whatever overlaps is of one group."""
    found = np.empty(len(records), dtype=np.int64)
    places = [(record.unit.file.uri, record.unit.start, record.unit.stop, n) for n, record in enumerate(records)]
    number, file, end = -1, "", 0
    for uri, start, stop, n in sorted(places):
        if uri != file or start >= end:
            number, file, end = number + 1, uri, stop
        found[n], end = number, max(end, stop)
    return found


def dollars_per_1000(metrics: Metrics, actors: int, hour: float, *stages: str) -> float:
    """Dollars that 1,000 rows cost for what actors spent on `stages` of `Metrics.seconds`. Those are summed over the
    actors; `hour` is the price of an hour of all of them together."""
    seconds = sum(metrics.seconds[stage] for stage in stages) / actors
    return seconds * hour / 3600 * 1000 / metrics.rows_in


def lengths(runs: Sequence[MeasuredRun]) -> Counter[str]:
    """Decoded rows by the bin of their document's length."""
    return Counter(total(run.metrics for run in runs).lengths)


def _sampling(finished: bool, job: Mapping[str, Any], rows: int) -> Drawn:
    if not finished:
        return Drawn.UNFINISHED
    sample = job.get("sample")
    if sample:
        return Drawn.RANDOM if sample["rows"] == rows else Drawn.MIXED
    limit = job.get("limit")
    # As many rows as the limit: whether it cut any off is not recorded.
    return Drawn.WHOLE if limit is None or rows < limit else Drawn.FIRST
