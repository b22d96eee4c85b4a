"""What an output folder says of itself, and whether its parts agree: run.json, job manifest, unit manifests,
metrics.json and the listing of data/. Nothing in data/ is opened here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hpd_core.rows import RowStatus
from pipeline.block import explain
from pipeline.findings import Finding, FindingKind
from pipeline.job import JobError
from pipeline.manifest import JOB, SEGMENTS, UNITS, OutputFolder
from pipeline.metrics import Metrics, total
from pipeline.plan import PlannedFile
from pipeline.record import Segment, UnitRecord
from pipeline.resume import RUN, differences, marks, output_schema_of

_THREADS = 16
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(slots=True)
class Books:
    """What the bookkeeping of an output says, as far as it can be read.

    finished: whether `_SUCCESS` is there. run: run.json. records: the units that make up the output, by object name.
    present: objects of them whose data file is there (see `cross_check`). plan: None where the output is older than
    recorded plans. schema: of every data file; input_columns: so many of it, the first, are the input's. sources:
    {column: its name in the input} of those that were renamed.
    """

    output: OutputFolder
    finished: bool
    run: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    records: list[UnitRecord] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    plan: list[PlannedFile] | None = None
    schema: pa.Schema | None = None
    input_columns: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def source_of(self, column: str) -> str:
        """Name of an input column as the input has it."""
        return self.sources.get(column, column)

    @property
    def metrics(self) -> Metrics:
        return total(record.metrics for record in self.records)

    @property
    def limit(self) -> int | None:
        """Of the run, as its configuration says."""
        limit = self.job.get("limit", (self.run.get("config") or {}).get("input", {}).get("limit"))
        return int(limit) if limit is not None else None

    def damage(self, file: str, message: str, unit: object = "") -> None:
        self.findings.append(Finding(FindingKind.DAMAGE, self.output.path(file), message, str(unit)))

    def incomplete(self, file: str, message: str, unit: object = "") -> None:
        self.findings.append(Finding(FindingKind.INCOMPLETE, self.output.path(file), message, str(unit)))


def read_books(output: OutputFolder) -> Books:
    """Reads and checks the bookkeeping of the output. Raises `JobError` where the folder is not a job's output, and
    `StorageError` where the store cannot be read."""
    books = Books(output, output.is_finished())
    names, parts = output.record_names(), output.segment_names()
    run, job = (output.storage.read(output.path(name)) for name in (RUN, JOB))
    if run is None and job is None and not names and not parts:
        raise JobError(f"{output.uri}: not the output of a job: it has neither {RUN} nor _manifest")
    books.run = read_json(books, RUN, run)
    _read_schema(books)
    manifests, folded = _manifests(books, names), _folded(books, parts)
    if books.finished:
        books.job = read_json(books, JOB, job)
        if "segments" in books.job:
            _listed_by_segments(books, folded, manifests)
        else:
            _finished(books, manifests, names)
        _read_plan(books)
    else:
        known = marks(books.run) if books.run.get("fingerprint") else None
        # Of another job: a worker's that outlived a run which had committed nothing. It never counts.
        records = [manifests[name] for name in sorted(manifests)]
        if parts:
            records = _counting(folded, manifests, _named(books, job), output.data_names())
        books.records = [record for record in records if known is None or record.fingerprint in known]
        books.incomplete("_SUCCESS", "is not there: the job has not ended; run it again to complete the output")
    return books


def read_json(books: Books, name: str, raw: bytes | None) -> dict[str, Any]:
    """A bookkeeping file; empty, with a finding, where it is missing or no JSON object."""
    if raw is None:
        books.damage(name, "is missing")
        return {}
    try:
        facts = json.loads(raw)
        if not isinstance(facts, dict):
            raise ValueError("no object")
        return facts
    except ValueError as e:
        books.damage(name, f"cannot be read: not a JSON object ({e})")
        return {}


def _read_schema(books: Books) -> None:
    if not books.run:
        return
    try:
        schema = output_schema_of(books.run)
        # What decoding adds begins with the column of the first attribute.
        first = books.run["facts"]["schemas"][0]["attributes"][0]["column"]
        books.input_columns, books.schema = schema.names.index(first), schema
        books.sources = dict(books.run.get("output_sources", {}))
    except (KeyError, IndexError, TypeError, ValueError, pa.ArrowException) as e:
        books.damage(RUN, f"cannot be read: {explain(e)}")


def _manifests(books: Books, names: Iterable[str]) -> dict[str, UnitRecord]:
    """The unit manifests that can be read, by object name."""

    def read(name: str) -> UnitRecord | Exception | None:
        raw = books.output.storage.read(books.output.record(name))
        try:
            return None if raw is None else _record(json.loads(raw))
        except _UNREADABLE as e:
            return e

    names = sorted(names)
    found: dict[str, UnitRecord] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for name, record in zip(names, threads.map(read, names), strict=True):
            where = f"{UNITS}/{name}.json"
            if isinstance(record, Exception):
                books.damage(where, f"cannot be read: {explain(record)}")
            elif record is not None:
                if record.object != name:
                    books.damage(where, f"is the manifest of another object, {record.object}", record.unit)
                found[name] = record
    return found


def _folded(books: Books, names: Iterable[str]) -> dict[str, Segment]:
    """The segments that can be read, by name."""
    found: dict[str, Segment] = {}
    for name in sorted(names):
        raw = books.output.storage.read(books.output.segment(name))
        try:
            if raw is not None:
                found[name] = Segment.from_parquet(name, raw)
        except (*_UNREADABLE, pa.ArrowException) as e:
            books.damage(f"{SEGMENTS}/{name}.parquet", f"cannot be read: {explain(e)}")
    return found


def _named(books: Books, job: bytes | None) -> set[str]:
    """Names of the segments that the job manifest lists, where there is one: of an output that is not finished."""
    parts = read_json(books, JOB, job).get("segments", ()) if job is not None else ()
    try:
        return {str(part["name"]) for part in parts}
    except _UNREADABLE as e:
        books.damage(JOB, f"segments cannot be read: {explain(e)}")
        return set()


def _counting(
    folded: Mapping[str, Segment], manifests: Mapping[str, UnitRecord], named: Collection[str], there: Collection[str]
) -> list[UnitRecord]:
    """The records that `OutputFolder.read_records` would find, out of what could be read."""
    parts = [folded[name] for name in sorted(folded, key=lambda name: (name not in named, name))]
    merged = [r for part in parts if part.name in named for r in part.records if r.is_merged]
    rest = [r for part in parts for r in part.records if not r.is_merged]
    found: dict[str, UnitRecord] = {}
    for record in (*merged, *manifests.values(), *rest):
        if record.data in there:
            found.setdefault(record.object, record)
    return [found[name] for name in sorted(found)]


def _listed_by_segments(books: Books, folded: Mapping[str, Segment], manifests: Mapping[str, UnitRecord]) -> None:
    """Fills in the records of the segments that the job manifest names. A unit's own manifest, which a late worker may
    have left beside one, must speak of the same data."""
    for number, facts in enumerate(books.job["segments"]):
        try:
            name, units = str(facts["name"]), int(facts["units"])
        except _UNREADABLE as e:
            books.damage(JOB, f"segments[{number}] cannot be read: {explain(e)}")
            continue
        where, segment = f"{SEGMENTS}/{name}.parquet", folded.get(name)
        if segment is None:
            if not any(f.file == books.output.path(where) for f in books.findings):
                books.damage(where, "is missing, and the job manifest lists it")
            continue
        if Segment.of(segment.records).name != name or len(segment.records) != units:
            books.damage(where, "holds other records than it was written with")
        books.records += segment.records
    listed = {r.object: r for r in books.records}
    for name, own in sorted(manifests.items()):
        other = listed.get(name)
        if other is None:
            books.damage(f"{UNITS}/{name}.json", "is not in the job manifest", own.unit)
        elif not other.is_merged and (own.unit.key, own.sha256) != (other.unit.key, other.sha256):
            books.damage(f"{UNITS}/{name}.json", "is of other data than the job manifest lists", own.unit)


def _record(facts: Any) -> UnitRecord:
    """One unit's manifest, its numbers looked at as well; raises one of `_UNREADABLE`."""
    record = UnitRecord.from_dict({k: v for k, v in facts.items() if k != "data"})
    metrics = record.metrics
    counted = (metrics.rows, metrics.values, metrics.lengths, metrics.devices, metrics.models)
    counters: list[Mapping[str, Any]] = [*counted, metrics.decode.as_dict(), metrics.peak_memory, metrics.spent]
    counts = [number for counter in counters for number in counter.values()]
    numbers = [record.size, record.unit.start, record.unit.stop, *counts, *metrics.seconds.values()]
    if not all(isinstance(n, int | float) for n in numbers):
        raise ValueError("a count is no number")
    for status in record.metrics.rows:
        RowStatus(status)
    return record


def _finished(books: Books, manifests: Mapping[str, UnitRecord], names: Collection[str]) -> None:
    """Fills in the records that the job manifest lists, each of which must have an equal manifest of its own.

    names: of the unit manifests that are there, readable or not.
    """
    for number, facts in enumerate(books.job.get("objects", ())):
        try:
            listed = _record(facts)
        except _UNREADABLE as e:
            books.damage(JOB, f"objects[{number}] cannot be read: {explain(e)}")
            continue
        books.records.append(listed)
        where = f"{UNITS}/{listed.object}.json"
        if facts.get("data") != f"data/{listed.data}.parquet":
            books.damage(JOB, f"objects[{number}] names the data file {facts.get('data')!r}", listed.unit)
        own = manifests.get(listed.object)
        if own is None and listed.object not in names:  # one that cannot be read is told already
            books.damage(where, "is missing, and the job manifest lists it", listed.unit)
        elif own is not None and own != listed:
            changes = "; ".join(line.strip() for line in differences(listed.as_dict(), own.as_dict()))
            books.damage(where, f"differs from the job manifest: {changes}", listed.unit)
    if not books.job:
        books.records = [manifests[name] for name in sorted(manifests)]
        return
    if "objects" not in books.job:
        books.damage(JOB, "has no list of objects")
    for name in sorted(set(manifests) - {r.object for r in books.records}):
        books.damage(f"{UNITS}/{name}.json", "is not in the job manifest", manifests[name].unit)


def _read_plan(books: Books) -> None:
    if "plan" in books.job:
        try:
            books.plan = [PlannedFile.from_dict(facts) for facts in books.job["plan"]]
        except (KeyError, TypeError, ValueError) as e:
            books.damage(JOB, f"its plan cannot be read: {explain(e)}")
