"""One data file of an output: bytes, schema and rows as its manifest says, statuses sound, input columns those of the
source, value by value."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpd_core.rows import RowStatus
from pipeline.block import explain
from pipeline.books import Books
from pipeline.commit import FACTS
from pipeline.equality import first_difference, shown
from pipeline.file_rows import FileRows, digest_of, stride_of
from pipeline.findings import Extent, Finding, FindingKind
from pipeline.form import cast
from pipeline.partitions import with_partitions
from pipeline.record import UnitRecord
from pipeline.units import Unit


@dataclass(frozen=True, slots=True)
class Source:
    """The input file of a unit, open. changed: it is another version than the job read."""

    uri: str
    rows: FileRows
    changed: bool


def check_data_file(books: Books, record: UnitRecord, source: Source | None) -> tuple[list[Finding], Extent]:
    """What is wrong with the data file of `record`. source: None leaves the comparison out."""
    check = _Check(books, record, source)
    check.run()
    return check.findings, check.extent


def check_merged_file(books: Books, records: Sequence[UnitRecord]) -> tuple[list[Finding], Extent]:
    """What is wrong with a file that holds the rows of many units, apart from these rows. records: of all of them."""
    check = _Check(books, records[0], None)
    check.whole(records)
    return [replace(finding, unit="") for finding in check.findings], check.extent


def check_merged_unit(
    books: Books, record: UnitRecord, rows: FileRows, source: Source | None
) -> tuple[list[Finding], Extent]:
    """What is wrong with the `rows` of one unit in such a file."""
    check = _Check(books, record, source)
    check.unit(rows)
    return check.findings, check.extent


@dataclass(slots=True)
class _Check:
    books: Books
    record: UnitRecord
    source: Source | None
    findings: list[Finding] = field(default_factory=list)
    extent: Extent = field(default_factory=Extent)
    statuses: Counter[str] = field(default_factory=Counter)
    values: int = 0
    named: set[str] = field(default_factory=set)  # what has been told of this unit: once is enough

    @property
    def uri(self) -> str:
        return self.books.output.data(self.record.data)

    def tell(
        self, message: str, row: int | None = None, column: str | None = None, kind: FindingKind = FindingKind.DAMAGE
    ) -> None:
        self.findings.append(Finding(kind, self.uri, message, str(self.record.unit), row, column))

    def once(self, what: str, message: str, row: int, column: str, kind: FindingKind = FindingKind.DAMAGE) -> None:
        if what not in self.named:
            self.named.add(what)
            self.tell(message, row, column, kind)

    def run(self) -> None:
        raw = self.books.output.storage.read(self.uri)
        if raw is None:
            self.tell("is missing")
            return
        self.extent.units_read, self.extent.bytes_read = 1, len(raw)
        digest = hashlib.sha256(raw).hexdigest()
        if digest != self.record.sha256:
            self.tell(f"its checksum is {digest[:12]}…, not the {self.record.sha256[:12]}… of its manifest")
        try:
            with pq.ParquetFile(io.BytesIO(raw)) as parquet:
                self._footer(parquet)
                rows = FileRows(parquet)
                if rows.rows != self.record.unit.rows:
                    self.tell(f"has {rows.rows} rows for {self.record.unit.rows}")
                self._rows(rows, 0, rows.rows)
        except Exception as e:  # whatever a damaged file makes the reader do is damage of that file
            self.tell(f"cannot be read: {explain(e)}")

    def whole(self, records: Sequence[UnitRecord]) -> None:
        """A merged file: its bytes, schema, footer and number of rows."""
        try:
            with self.books.output.storage.open(self.uri) as raw:
                size, digest = digest_of(raw)
                self.extent.bytes_read = size
                if digest != self.record.sha256:
                    self.tell(f"its checksum is {digest[:12]}…, not the {self.record.sha256[:12]}… of its manifest")
                with pq.ParquetFile(raw) as parquet:
                    self._schema(parquet.schema_arrow)
                    if parquet.metadata.num_rows != (rows := sum(r.unit.rows for r in records)):
                        self.tell(f"has {parquet.metadata.num_rows} rows for {rows}")
                    facts = json.loads(parquet.metadata.metadata[FACTS])["units"]
                    there = [(Unit.from_json(json.dumps(f["unit"])).key, f["fingerprint"], f["row"]) for f in facts]
                    if sorted(there) != sorted((r.unit.key, r.fingerprint, r.row) for r in records):
                        self.tell("its footer names other units than the manifest has in it")
        except Exception as e:  # see `run`
            self.tell(f"cannot be read: {explain(e)}")

    def unit(self, rows: FileRows) -> None:
        """The rows of the unit in a merged file that is open."""
        self.extent.units_read = 1
        try:
            self._rows(rows, self.record.row, self.record.unit.rows)
        except Exception as e:  # see `run`
            self.tell(f"cannot be read: {explain(e)}")

    def _schema(self, found: pa.Schema) -> None:
        if self.books.schema is not None:
            for column, message in _schema_differences(self.books.schema, found):
                self.tell(message, column=column)

    def _footer(self, parquet: pq.ParquetFile) -> None:
        self._schema(parquet.schema_arrow)
        try:
            facts = json.loads(parquet.metadata.metadata[FACTS])
            unit, fingerprint = Unit.from_json(json.dumps(facts["unit"])), facts["fingerprint"]
        except (KeyError, TypeError, ValueError) as e:
            self.tell(f"its footer does not say which unit it is: {explain(e)}")
            return
        if (unit.key, fingerprint) != (self.record.unit.key, self.record.fingerprint):
            self.tell(f"its footer says that it is {unit}, with the fingerprint {fingerprint}")

    def _rows(self, rows: FileRows, at: int, count: int) -> None:
        """`count` rows from row `at` of the file on."""
        step = stride_of(rows.rows, rows.bytes)
        for start in range(at, at + count, step):
            table = rows.take(start, min(start + step, at + count))
            self._status(table, self.record.unit.start + start - at)
            if self.source is not None:
                self._compare(self.source, table, self.record.unit.start + start - at)
        if count == self.record.unit.rows and "hpd_status" in rows.names:
            self._totals(rows.names)
        if self.source is not None:
            self.extent.units_compared = 1

    def _status(self, table: pa.Table, first: int) -> None:
        """A row is ok without an error, or in error with a reason and without a value."""
        if not {"hpd_status", "hpd_error"} <= set(table.column_names):
            return  # told with the schema
        good = []
        pairs = zip(table.column("hpd_status").to_pylist(), table.column("hpd_error").to_pylist(), strict=True)
        for row, (status, error) in enumerate(pairs, first):
            self.statuses[str(status)] += 1
            known = status in set(RowStatus)
            good.append(known and RowStatus(status).is_ok)
            if not known:
                self.once("status", f"is {status!r}, which is no status", row, "hpd_status")
            elif good[-1] and error is not None:
                self.once("error", f"the row is {status}, and has the error {error[:80]!r}", row, "hpd_error")
            elif not good[-1] and not error:
                self.once("reason", f"the row has the status {status}, and no reason", row, "hpd_error")
        if "hpd_values" in table.column_names:
            self.values += pc.sum(table.column("hpd_values")).as_py() or 0
        for column in self._attributes(table):
            wrong = pc.index(pc.and_(table.column(column).is_valid(), pc.invert(pa.array(good, pa.bool_()))), True)
            if wrong.as_py() >= 0:
                self.once(f"value {column}", "the row is in error, and has a value", first + wrong.as_py(), column)

    def _attributes(self, table: pa.Table) -> list[str]:
        """Columns of attributes, and what is told of each."""
        if self.books.schema is None:
            return []
        added = self.books.schema.names[self.books.input_columns :]
        return [name for name in added if not name.startswith("hpd_") and name in table.column_names]

    def _totals(self, names: Sequence[str]) -> None:
        metrics = self.record.metrics
        counted = {status: n for status, n in metrics.rows.items() if n}
        if dict(self.statuses) != counted:
            self.tell(f"its rows are {dict(self.statuses)}, and its manifest counts {counted}", column="hpd_status")
        if "hpd_values" in names and self.values != metrics.values.total():
            message = f"its rows have {self.values} values, and its manifest counts {metrics.values.total()}"
            self.tell(message, column="hpd_values")

    def _compare(self, source: Source, table: pa.Table, first: int) -> None:
        """The input columns of `table` against rows `first`… of the source."""
        if self.books.schema is None or "input" in self.named:
            return
        stop = min(first + table.num_rows, self.record.unit.stop)
        table = table.slice(0, max(0, stop - first))
        kind = FindingKind.INCOMPLETE if source.changed else FindingKind.DAMAGE
        changed = " (the input file has changed since it was read: run the job again)" if source.changed else ""
        try:
            wanted = with_partitions(source.rows.take(first, stop), self.record.unit.file.uri)
        except (ValueError, OSError, pa.ArrowException) as e:
            self.named.add("input")
            less = stop > source.rows.rows
            message = f"cannot be compared with {source.uri}: {explain(e)}{changed}"
            self.tell(message, kind=kind if less else FindingKind.INPUT)
            return
        self.extent.rows_compared += table.num_rows
        for column in self.books.schema.names[: self.books.input_columns]:
            where = table.schema.get_field_index(column)
            if where < 0 or column in self.named:
                continue
            try:
                there = _one(self._as_stored(wanted, table.schema.field(where)))
            except (ValueError, pa.ArrowException) as e:
                self.once(column, f"the source does not fit it: {explain(e)}{changed}", first, column, kind)
                continue
            here = _one(table.column(where))
            at = first_difference(here, there)
            if at is not None:
                message = f"is {shown(here[at])}, and {shown(there[at])} in {source.uri}{changed}"
                self.once(column, message, first + at, column, kind)

    def _as_stored(self, wanted: pa.Table, field_: pa.Field) -> pa.ChunkedArray:
        """A column of the source as the output is to have it."""
        name = self.books.source_of(field_.name)
        if name in wanted.column_names:
            return cast(wanted.column(name), field_.type)
        return pa.chunked_array([pa.nulls(wanted.num_rows, field_.type)])


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _schema_differences(wanted: pa.Schema, found: pa.Schema) -> list[tuple[str | None, str]]:
    """(column, what is wrong with it) for each difference; none where both are the same."""
    if found.equals(wanted):
        return []
    wrong: list[tuple[str | None, str]] = []
    for field_ in wanted:
        index = found.get_field_index(field_.name)
        if index < 0:
            wrong.append((field_.name, "is missing, and the output's schema has it"))
        elif not found.field(index).equals(field_):
            wrong.append((field_.name, f"is {found.field(index)}, not the output's {field_}"))
    wrong += [(name, "is not in the output's schema") for name in found.names if name not in wanted.names]
    return wrong or [(None, f"its columns are in another order than the output's: {found.names}")]
