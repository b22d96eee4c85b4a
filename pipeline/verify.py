"""A committed output, checked against its manifest and its input: bookkeeping, coverage, then file by file. Reads only,
needs no model, and holds one unit per thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import pyarrow.parquet as pq

from pipeline.block import explain
from pipeline.books import Books, read_books
from pipeline.compact import data_files
from pipeline.coverage import Inputs, check_coverage, check_inputs, current_inputs, derived_plan
from pipeline.cross_check import cross_check
from pipeline.data_file import Source, check_data_file, check_merged_file, check_merged_unit
from pipeline.file_rows import FileRows
from pipeline.findings import Extent, Finding, FindingKind, Verification
from pipeline.manifest import OutputFolder
from pipeline.record import UnitRecord
from pipeline.storage import Storage
from pipeline.units import InputFile

_UnitCheck = Callable[[UnitRecord, Source | None], tuple[list[Finding], Extent]]
#: Input files worked on at once.
_THREADS = 4
#: Bytes read at once of a column: a row group of a million rows is not loaded whole.
_BUFFER = 1 << 20


def verify(
    output: OutputFolder,
    source: Storage,
    *,
    inputs: Sequence[str] = (),
    compare: bool = True,
    sample: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Checks the output. What is wrong is a finding, never an exception.

    inputs: where the job's inputs lie now, in its order; none where they lie where they did. compare: False leaves the
    input alone. sample: open only so many data files, spread evenly, and those of changed inputs; names and sizes of
    all are checked all the same. progress: called with units done and units to do.
    Raises `JobError` where the folder is not a job's output, `StorageError` where the store cannot be read.
    """
    started = time.monotonic()
    books = read_books(output)
    cross_check(books)
    findings = books.findings
    now: Inputs | None = None
    if compare:
        now = current_inputs(books, inputs, source)
        findings += now.findings
        plan = books.plan if books.plan is not None else derived_plan(books, now, source)
        findings += check_inputs(books, plan, now, source)
    else:
        plan = books.plan or []
    findings += check_coverage(books, plan)
    chosen = _chosen(books, sample, now)
    extent, done = Extent(), 0

    def check(records: list[UnitRecord]) -> list[tuple[list[Finding], Extent]]:
        return _check_file(books, records, now, source)

    # Units of one input file, and, where files hold many units, of one of them.
    groups = [list(records) for _, records in groupby(chosen, key=_place)]
    with ThreadPoolExecutor(_THREADS) as threads:
        merged = data_files([r for r in books.records if r.is_merged and r.object in books.present])
        opened = {r.data for r in chosen}
        for found, counts in threads.map(
            lambda file: check_merged_file(books, file.units), [file for file in merged if file.name in opened]
        ):
            findings += found
            extent += counts
        for records, results in zip(groups, threads.map(check, groups), strict=True):
            for found, counts in results:
                findings += found
                extent += counts
            done += len(records)
            if progress is not None:
                progress(done, len(chosen))
    metrics = books.metrics
    return Verification(
        output.uri,
        tuple(findings),
        len(books.records),
        metrics.rows_in,
        metrics.rows_ok,
        metrics.rows_error,
        extent,
        time.monotonic() - started,
    )


def _place(record: UnitRecord) -> tuple[InputFile, str]:
    return record.unit.file, record.data if record.is_merged else ""


def _chosen(books: Books, sample: int | None, now: Inputs | None) -> list[UnitRecord]:
    """Units whose data files are opened, in the order of the input."""
    records = sorted((r for r in books.records if r.object in books.present), key=lambda r: (r.unit.key, r.object))
    if sample is None or sample >= len(records):
        return records
    picked = {len(records) * i // sample for i in range(sample)}
    return [r for i, r in enumerate(records) if i in picked or (now is not None and now.is_changed(r.unit.file))]


def _check_file(
    books: Books, records: Sequence[UnitRecord], now: Inputs | None, source: Storage
) -> list[tuple[list[Finding], Extent]]:
    """The units of one `_place`: input file and merged file are opened once."""
    if not records[0].is_merged:
        return _check_units(books, records, now, source, lambda record, of: check_data_file(books, record, of))
    uri = books.output.data(records[0].data)
    try:
        with books.output.storage.open(uri, ahead=False) as raw, pq.ParquetFile(raw, buffer_size=_BUFFER) as parquet:
            rows = FileRows(parquet)
            return _check_units(
                books, records, now, source, lambda record, of: check_merged_unit(books, record, rows, of)
            )
    except Exception:  # told of the file as a whole
        return []


def _check_units(
    books: Books, records: Sequence[UnitRecord], now: Inputs | None, source: Storage, check: _UnitCheck
) -> list[tuple[list[Finding], Extent]]:
    """`check` of the units of one input file, which is opened once."""
    file = records[0].unit.file
    here = now.now.get(file.uri) if now is not None else None
    if now is None or here is None or books.schema is None:
        return [check(record, None) for record in records]
    kept = [books.source_of(name) for name in books.schema.names[: books.input_columns]]
    try:
        with source.open(here.uri, ahead=False) as raw, pq.ParquetFile(raw, buffer_size=_BUFFER) as parquet:
            changed = now.is_changed(file)
            there = set(parquet.schema_arrow.names)
            lost = [] if there <= set(kept) else sorted(there - set(kept))
            rows = FileRows(parquet, [name for name in kept if name in there] if lost else None)
            results = [check(record, Source(here.uri, rows, changed)) for record in records]
    except Exception as e:  # whatever a broken input makes the reader do: its output is checked without it
        failed = Finding(FindingKind.INPUT, here.uri, f"cannot be read: {explain(e)}")
        return [([failed], Extent()), *(check(record, None) for record in records)]
    if changed and lost:
        message = (
            f"has changed since it was read, and its columns {', '.join(lost)}, which the output lacks, cannot be "
        )
        results.append(([Finding(FindingKind.INCOMPLETE, here.uri, f"{message}compared: run the job again")], Extent()))
    return results
