"""The output of `hpd extract` as training data: what a teacher found, where it was sure, for a student to learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.examples import Labelled
from hpd_core.normal import is_one_line
from hpd_core.reading import ValueStatus, read
from hpd_core.rows import RowStatus
from hpd_core.schema import Attribute, Document, ValueType
from hpd_core.settings import Grounding
from hpd_core.writing import written
from jobs.training.labelled_table import BATCH_ROWS, output_columns
from jobs.training.tally import Known, Tally
from pipeline.compact import DataFile, data_files
from pipeline.form import as_decoded
from pipeline.job import JobError, OutputOptions, RowFault
from pipeline.manifest import OutputFolder
from pipeline.output import OUTPUT_VERSION, OutputColumns
from pipeline.reader import CatalogReader, python_rows
from pipeline.record import UnitRecord
from pipeline.resume import RUN
from pipeline.storage import Storage, explained

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Teacher:
    """An output folder opened for reading. records: its committed units; fingerprint: of the job that run.json tells.

    threshold: least confidence of what is taught; None teaches whatever was found. sources: {stored column: its name in
    the job} of those that a profile renamed. drops: values were held to their
    text, or to a threshold of the job's own, so that only a status tells what became of them.
    """

    folder: OutputFolder
    reader: CatalogReader
    columns: OutputColumns
    records: tuple[UnitRecord, ...]
    fingerprint: str
    threshold: float | None
    sources: Mapping[str, str]
    drops: bool


def read_output(
    uri: str, tally: Tally, *, threshold: float | None = None, unfinished: bool = False
) -> Iterator[Labelled]:
    """Labelled rows of an output folder, in the order of its data files and their rows; text, schemas and columns as
    run.json has them.

    Taught are values that were found, and absences that are certain, of rows that were decoded; with a threshold those
    of at least this confidence. See `Cell.known`. Raises JobError for an output that is not finished unless
    `unfinished`, has no confidence where there is a threshold, or no longer has the columns of the text.
    """
    teacher = open_output(uri, threshold=threshold, unfinished=unfinished)
    for file in data_files(teacher.records):
        foreign = []
        for record in file.units:
            if record.fingerprint != teacher.fingerprint:  # run.json does not say what these were asked
                tally.leave_row("committed under another configuration", record.object, record.unit.rows)
                foreign.append(range(record.row, record.row + record.unit.rows))
        if len(foreign) < len(file.units):
            yield from _labelled(teacher, file, tally, foreign)


def open_output(uri: str, *, threshold: float | None, unfinished: bool) -> Teacher:
    storage = Storage()
    folder = OutputFolder(storage.absolute(uri), storage)
    run = folder.read_json(RUN)
    if run is None:
        raise JobError(f"{uri}: no {RUN}: not an output of `hpd extract`")
    try:
        facts, fingerprint = run["facts"], str(run["fingerprint"])
        version = facts["output_version"]
        reader = CatalogReader.from_facts(facts["reader"])
        options = OutputOptions(**facts["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{folder.path(RUN)}: does not tell text and schemas ({error!r})") from error
    if (why := _dropping(facts)) and not options.statuses:
        raise JobError(
            f"{uri}: extracted with {why} and without statuses, so that a value that was dropped for it looks like an "
            "absence, or one that was not found in the text like one that was: extract with output.statuses"
        )
    if version != OUTPUT_VERSION:
        raise JobError(f"{folder.path(RUN)}: output version {version}; this version reads {OUTPUT_VERSION}")
    if threshold is not None and not options.confidence:
        raise JobError(f"{uri}: has no confidence columns to hold against {threshold}: extract with output.confidence")
    if not unfinished and not folder.is_finished():
        raise JobError(f"{uri}: not finished (no _SUCCESS): run `hpd extract` to its end, or give --unfinished")
    columns = output_columns(reader, options)
    sources = run.get("output_sources", {})
    return Teacher(folder, reader, columns, tuple(folder.committed()), fingerprint, threshold, sources, bool(why))


def _dropping(facts: Cells) -> str:
    """What of the job may take values away that its model wrote; run.json names both only where they are on."""
    decoder = facts.get("decoder") or {}
    if (decoder.get("settings") or {}).get("grounding", Grounding.OFF) != Grounding.OFF:
        return "grounding"
    rule = decoder.get("confidence") or {}
    least = [rule.get("threshold", 0), *rule.get("thresholds", {}).values()]
    return "a threshold of confidence" if any(number > 0 for number in least) else ""


def _labelled(teacher: Teacher, file: DataFile, tally: Tally, foreign: Sequence[range]) -> Iterator[Labelled]:
    """foreign: rows of the file that are not to be read."""
    reader, uri = teacher.reader, teacher.folder.data(file.name)
    start = 0
    for batch in _batches(teacher, file.name):
        rows = list(python_rows(batch))
        for number, (item, row) in enumerate(zip(reader.documents(batch), rows, strict=True), start):
            where = f"{uri} row {number}"
            if any(number in rows_ for rows_ in foreign):
                continue
            if isinstance(row, RowFault):
                tally.leave_row(row.reason, where)
            elif not RowStatus(row["hpd_status"]).is_ok:
                tally.leave_row(f"hpd_status {row['hpd_status']!r}", where)
            elif isinstance(item, RowFault):
                tally.leave_row(item.reason, where)
            else:
                values = _known(teacher, item, row, tally, where)
                if taught := tally.teach(item, values, where):
                    yield taught
        start += batch.num_rows


def _batches(teacher: Teacher, name: str) -> Iterator[pa.Table]:
    """Rows of a data file with the columns of the text and of the answers, as the job named them, few at a time."""
    uri, reader = teacher.folder.data(name), teacher.reader
    wanted = dict.fromkeys([*reader.columns(), *(field.name for field in teacher.columns.fields())])
    with explained(uri), teacher.folder.storage.open(uri) as source, pq.ParquetFile(source) as parquet:
        stored = parquet.schema_arrow
        try:
            reader.check(as_decoded(stored.empty_table(), name, teacher.sources, wanted).schema)
        except ValueError as error:
            raise JobError(f"{uri}: the text cannot be made again, is output.keep too narrow? {error}") from error
        columns = [column for column in stored.names if teacher.sources.get(column, column) in wanted]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
            yield as_decoded(pa.Table.from_batches([batch]), name, teacher.sources, wanted)


def _known(teacher: Teacher, document: Document, row: Cells, tally: Tally, where: str) -> dict[str, Known]:
    values: dict[str, Known] = {}
    for attribute in document.schema:
        column = teacher.columns.column_of(document.schema, attribute)
        cell = Cell.of(attribute, row, column)
        known = cell.known()
        if column is None and teacher.drops:
            known = None
            tally.leave_value("only the row asked for it, and no status tells what became of it", where)
        elif known is None:
            tally.leave_value(f"{cell.status or 'null'}, which is no value and no certain absence", where)
        elif not all(map(is_one_line, known)):
            known = None
            tally.leave_value("a value has more than one line", where)
        elif teacher.threshold is not None and (cell.confidence is None or cell.confidence < teacher.threshold):
            known = None
            tally.leave_value(f"confidence below {teacher.threshold:g}", where)
        values[attribute.name] = known
    return values


@dataclass(frozen=True, slots=True)
class Cell:
    """What an output row says of one attribute. status, raw, confidence: None where the output has no such column.

    row: its hpd_status. truncated: values of the row that were.
    """

    attribute: Attribute
    value: Any
    row: str
    truncated: int
    status: str | None = None
    raw: str | None = None
    confidence: float | None = None

    @classmethod
    def of(cls, attribute: Attribute, row: Cells, column: str | None) -> Cell:
        """column: of the attribute; None for one that only the row asked for, whose value stands in `hpd_extra`."""
        about = row["hpd_status"], row["hpd_truncated"] or 0
        if column is None:
            return cls(attribute, (row["hpd_extra"] or {}).get(attribute.name), *about)
        details = (row.get(f"{column}__{suffix}") for suffix in ("status", "raw", "confidence"))
        return cls(attribute, row[column], *about, *details)

    def known(self) -> Known:
        """The text to write, nothing for a certain absence, None where neither is sure.

        Null is an absence where status or raw text says so, or, where the output has neither, where it can be nothing
        else: an open string in a row without a truncated value. In a document that was cut, the tail may have it.
        """
        if self.value is not None:
            found = self.status in (None, ValueStatus.EXTRACTED)
            return (self._text(),) if found else None
        if self.row != RowStatus.OK:
            return None
        if self.status is not None:
            absent = self.status == ValueStatus.ABSENT
        elif self.raw is not None:
            absent = read(self.attribute, self.raw).status is ValueStatus.ABSENT
        else:
            absent = not self.attribute.values and self.attribute.type is ValueType.STRING and not self.truncated
        return () if absent else None

    def _text(self) -> str:
        """As the teacher wrote it, "42,5" rather than 42.5, without quotes; closed values as in the list, several as
        `written` has them."""
        closed = bool(self.attribute.values)
        return written(self.attribute, self.value if closed or self.raw is None else self.raw)
