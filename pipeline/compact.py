"""The committed files of a finished output -> few large ones with the same rows in the same order.

Merged files are created beside the others, then one write of job.json makes them the listing, then the files that they
replace are removed. Until that write the old listing is whole, from it on the new one; what lies beside it is removed
by the next run of this or of the job. Whoever reads every file below data/ while this runs finds rows twice.

A merged file has the rows of many units; its footer says which, and where each begins. Units stay what they are to
resume and to verify.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import unit_table
from pipeline.commit import FACTS, commit
from pipeline.file_rows import FileRows, digest_of, stride_of
from pipeline.job import JobError
from pipeline.lease import Lease, held
from pipeline.manifest import JOB, OutputFolder
from pipeline.published import published_files, read_published
from pipeline.record import MERGED, UnitRecord
from pipeline.resume import RUN, output_schema_of
from pipeline.storage import StorageError, explained
from pipeline.summary import UNIT_METRICS_FILE

#: Uncompressed bytes of one row group, and what is in memory at once.
ROW_GROUP_BYTES = 64 * 2**20
#: In the listing of a job, what a merge leaves alone: the units.
_LISTS = ("objects", "segments")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file and the units in it, in the order of their rows."""

    name: str
    units: tuple[UnitRecord, ...]

    @property
    def size(self) -> int:
        return self.units[0].size

    @property
    def rows(self) -> int:
        return sum(record.unit.rows for record in self.units)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What `compact` did. files_before, files_after: data files; bytes alike. merged: how many files were written.
    published: files that stay as they are, since a table points to them."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    merged: int
    published: int


def data_files(records: Sequence[UnitRecord]) -> list[DataFile]:
    """The files that hold `records`, in the order of their names, which is that of readers."""
    ordered = sorted(records, key=lambda r: (r.data, r.row, r.object))
    return [DataFile(name, tuple(units)) for name, units in itertools.groupby(ordered, key=lambda r: r.data)]


def groups(files: Sequence[DataFile], most: int, fixed: Collection[str] = ()) -> list[list[DataFile]]:
    """Neighbours that become one file each: as even as they come, at most about `most` bytes, at least half of it where
    there are as many. Folders are never mixed. One of half of it or more stays alone, and so does one that was merged
    before and came out smaller than it was to: a second run in a row has nothing to do. fixed: names of files that stay
    alone whatever their size."""

    def stays(file: DataFile) -> bool:
        return file.name in fixed or file.size >= (most / 8 if file.units[0].is_merged else most / 2)

    made: list[list[DataFile]] = []
    for _, run in itertools.groupby(files, key=lambda f: (posixpath.dirname(f.name), f.name * stays(f))):
        small = list(run)
        count = max(1, -(-sum(f.size for f in small) // most))
        share = sum(f.size for f in small) / count
        filled = 0
        parts: list[list[DataFile]] = [[]]
        for file in small:
            if parts[-1] and filled + file.size / 2 > share * len(parts):
                parts.append([])
            parts[-1].append(file)
            filled += file.size
        made += parts
    return made


def compact(
    output: OutputFolder,
    *,
    most: int,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Compaction:
    """Merges the data files of a finished output into files of about half of `most` to `most` bytes.

    Files that a table points to (see pipeline.published) stay as they are. progress: called with files merged and files
    to merge. tell: is told of those, and when another driver is waited for. Raises
    `JobError` for an output that is not finished, `LeaseError` where a driver is at work on it, `StorageError` where a
    file is not what its record says or the store fails: the listing is whole all the same.
    """
    finished(output)  # before a lease is written into the folder of somebody else
    with held(output, tell) as lease:
        return _compact(output, lease, most, progress, tell)


def finished(output: OutputFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """run.json and job.json of a finished output; raises `JobError` for another."""
    run, listing = output.read_json(RUN), output.read_json(JOB)
    if run is None or listing is None or not output.is_finished():
        raise JobError(f"{output.uri}: not a finished output (no _SUCCESS): run `hpd extract` to its end first")
    return run, listing


def _compact(
    output: OutputFolder,
    lease: Lease,
    most: int,
    progress: Callable[[int, int], None] | None,
    tell: Callable[[str], None],
) -> Compaction:
    run, listing = finished(output)
    schema = output_schema_of(run)
    listed = output.listed(listing)
    files = data_files(listed)
    tables = read_published(output)
    fixed = published_files(tables).keys() & {file.name for file in files}
    for table in tables:
        tell(
            f"{len(fixed.intersection(table.files))} file(s) stay as they are: the Iceberg table {table} points to "
            "them. Once it does not, `hpd publish --withdraw` lets them go"
        )
    planned = groups(files, most, fixed)
    work = [group for group in planned if len(group) > 1]
    there = output.data_names() if work else set()  # also what a run that was cut off has left
    done = 0
    moved: dict[str, UnitRecord] = {}
    for group in work:
        moved |= {record.object: record for record in _merge(output, group, schema, there)}
        done += len(group)
        lease.check()
        if progress is not None:
            progress(done, sum(map(len, work)))
    now = [moved.get(record.object, record) for record in listed]
    output.list_units(now, {k: v for k, v in listing.items() if k not in _LISTS}, lease.confirm)
    lease.check()
    output.storage.replace(output.path(UNIT_METRICS_FILE), unit_table.to_parquet(unit_table.unit_table(now)))
    after = data_files(now)
    return Compaction(
        len(files), len(after), sum(f.size for f in files), sum(f.size for f in after), len(work), len(fixed)
    )


def _merge(
    output: OutputFolder, group: Sequence[DataFile], schema: pa.Schema, there: Collection[str]
) -> list[UnitRecord]:
    """Writes the rows of a group as one file; returns the records of its units as they are now.

    One that is there already, of a run that was cut off, is taken where it is that of these units.
    """
    units = [record for file in group for record in file.units]
    starts = list(itertools.accumulate((record.unit.rows for record in units[:-1]), initial=0))
    content = hashlib.sha256("\n".join(f"{file.name} {file.units[0].sha256}" for file in group).encode()).hexdigest()
    # Where the first of its units was in the order of names, there the file is.
    name = posixpath.join(posixpath.dirname(group[0].name), f"{units[0].unit.name}{MERGED}{content[:12]}")
    facts = {"units": [_facts(record, row) for record, row in zip(units, starts, strict=True)]}
    if name not in there:
        output.storage.create_file(output.data(name), lambda sink: _write(output, group, schema, facts, sink))
    size, digest = _measured(output, name, facts, schema)
    return [
        replace(record, file=name, row=row, size=size, sha256=digest) for record, row in zip(units, starts, strict=True)
    ]


def _facts(record: UnitRecord, row: int) -> dict[str, Any]:
    facts = record.as_dict()
    return {name: facts[name] for name in ("unit", "object", "fingerprint", "metrics")} | {"row": row}


def _write(
    output: OutputFolder, group: Sequence[DataFile], schema: pa.Schema, facts: dict[str, Any], sink: IO[bytes]
) -> None:
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for table in itertools.chain.from_iterable(_rows(output, file, schema) for file in group):
            waiting.append(table)
            if sum(part.nbytes for part in waiting) >= ROW_GROUP_BYTES:
                _write_group(writer, waiting)
        _write_group(writer, waiting)
        writer.add_key_value_metadata({FACTS: json.dumps(facts)})


def _write_group(writer: pq.ParquetWriter, waiting: list[pa.Table]) -> None:
    if waiting:
        table = pa.concat_tables(waiting)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        waiting.clear()


def _rows(output: OutputFolder, file: DataFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a data file, some at a time. Raises `StorageError` where the file is not the one of its records."""
    uri = output.data(file.name)
    # With the store's read-ahead, unlike a unit's input: all of it is read, in order, and what the checksum has fetched
    # of a file below 50 MiB is there for the rows.
    with explained(uri), output.storage.open(uri) as raw:
        _check_digest(file, raw, uri)
        with pq.ParquetFile(raw) as parquet:
            if parquet.metadata.num_rows != file.rows or not parquet.schema_arrow.equals(schema):
                raise StorageError(f"{uri}: has other rows or columns than its job committed: see `hpd verify`")
            rows = FileRows(parquet)
            step = stride_of(rows.rows, rows.bytes)
            for start in range(0, rows.rows, step):
                yield rows.take(start, min(start + step, rows.rows))


def _check_digest(file: DataFile, raw: IO[bytes], uri: str) -> None:
    if digest_of(raw) != (file.size, file.units[0].sha256):
        raise StorageError(f"{uri}: is not the file that its job committed: see `hpd verify`")


def _measured(output: OutputFolder, name: str, facts: dict[str, Any], schema: pa.Schema) -> tuple[int, str]:
    """(bytes, SHA-256) of a merged file that is there. Raises `StorageError` where it is not that of these units."""
    uri = output.data(name)
    with explained(uri), output.storage.open(uri) as raw:
        size, digest = digest_of(raw)
        with pq.ParquetFile(raw) as parquet:
            there = json.loads(parquet.metadata.metadata[FACTS])
            rows = sum(unit["unit"]["stop"] - unit["unit"]["start"] for unit in facts["units"])
            same = there == json.loads(json.dumps(facts)) and parquet.metadata.num_rows == rows
            if not same or not parquet.schema_arrow.equals(schema):
                raise StorageError(f"{uri}: is there, and is not the merged file of its units")
    return size, digest


def split_out(
    output: OutputFolder, kept: Sequence[UnitRecord], dropped: Sequence[UnitRecord], schema: pa.Schema
) -> list[UnitRecord]:
    """`kept`, with files of their own for those whose merged file holds units that are `dropped` as well.

    Such files are removed then: of an output that is not finished. Raises `StorageError` where one is not what its
    records say: what is damaged gets no new checksums.
    """
    gone = {record.data for record in dropped if record.is_merged}
    alone = {}
    for file in data_files([record for record in kept if record.data in gone]):
        uri = output.data(file.name)
        with explained(uri), output.storage.open(uri) as raw:
            _check_digest(file, raw, uri)
            with pq.ParquetFile(raw) as parquet:
                if not parquet.schema_arrow.equals(schema):
                    raise StorageError(f"{uri}: has other columns than its job committed: see `hpd verify`")
                rows = FileRows(parquet)
                for record in file.units:
                    part = rows.take(record.row, record.row + record.unit.rows).combine_chunks()
                    receipt = commit(
                        output,
                        record.unit,
                        # Under the job's schema: the file's own carries the facts of all its units.
                        pa.Table.from_arrays(part.columns, schema=schema),
                        record.metrics,
                        schema=schema,
                        fingerprint=record.fingerprint,
                        folder=posixpath.dirname(file.name),
                    )
                    assert receipt.record is not None
                    alone[record.object] = receipt.record
    output.remove(output.data(name) for name in sorted(gone))
    return [alone.get(record.object, record) for record in kept]
