"""Parquet with attribute columns as training data: the columns are the gold, a job file says what the text is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.examples import Labelled
from hpd_core.normal import is_one_line
from hpd_core.reading import ValueStatus, read
from hpd_core.schema import Attribute, Schema, ValueType
from hpd_core.writing import written
from jobs.training.tally import Known, Tally
from pipeline.compose import catalog_reader
from pipeline.config import load_config
from pipeline.job import JobError, OutputOptions, RowFault, UnitCaps
from pipeline.output import OutputColumns
from pipeline.partitions import partitioned, with_partitions
from pipeline.plan import make_plan
from pipeline.reader import CatalogReader, python_rows
from pipeline.schema import conform
from pipeline.storage import Storage, explained
from pipeline.text import plain

#: Rows that are Python objects at once.
BATCH_ROWS = 1024


def read_table(dataset: str, job: Path, tally: Tally) -> Iterator[Labelled]:
    """Labelled rows of a Parquet file, folder or glob, in the order of its files and rows.

    job: the YAML of a job, whose `text` and `schemas` decide what is asked and `input.storage` how files are reached.
    An attribute is read from the column that its schema names. Null, NaN and null markers are known absences; a file
    without the column knows nothing of the attribute. A list holds several accepted values, or, where an attribute may
    have several, all of them. Raises JobError naming file and column for what is no Parquet, lacks a column of the
    text, or has attribute columns of another kind.
    """
    reader = job_reader(job)
    storage = Storage(load_config(job).input.storage)
    plan = make_plan([dataset], storage, UnitCaps(), None)
    if plan.bad:
        raise JobError("\n".join(map(str, plan.bad)))
    if "hpd_status" in plan.schema.names:
        raise JobError(f"{dataset}: has hpd_status, so `hpd extract` wrote it: give its output folder, with run.json")
    columns = output_columns(reader, OutputOptions())
    try:
        reader.check(plan.schema)
    except ValueError as error:
        raise JobError(f"{dataset}: {error}") from error
    _check_labels(dataset, plan.schema, columns)
    for file in plan.files:
        start = 0
        for batch, there in batches(storage, file.uri, [*reader.columns(), *columns.attributes], plan.schema):
            rows = list(python_rows(_readable(batch)))
            for number, (item, row) in enumerate(zip(reader.documents(batch), rows, strict=True), start):
                where = f"{file.uri} row {number}"
                if isinstance(item, RowFault):
                    tally.leave_row(item.reason, where)
                elif isinstance(row, RowFault):
                    tally.leave_row(row.reason, where)
                elif taught := tally.teach(item, _known(item.schema, columns, row, there, tally, where), where):
                    yield taught
            start += batch.num_rows


def _known(
    schema: Schema, columns: OutputColumns, row: Mapping[str, Any], there: frozenset[str], tally: Tally, where: str
) -> dict[str, Known]:
    """What a row says of each attribute. there: columns of its file; the row has null for others of the folder."""
    values: dict[str, Known] = {}
    for attribute in schema:
        column = columns.column_of(schema, attribute)
        if column is None or column not in there:
            values[attribute.name] = None
            tally.leave_value(f"there is no column of {attribute.name!r}", where)
        else:
            values[attribute.name] = cell_texts(attribute, row[column], tally, f"{where} column {column!r}")
    return values


def job_reader(job: Path) -> CatalogReader:
    """The row reader of a job file. Raises JobError naming file and key."""
    try:
        return catalog_reader(load_config(job), job)
    except JobError:
        raise
    except ValueError as error:
        raise JobError(f"{job}: {error}") from error


def output_columns(reader: CatalogReader, options: OutputOptions) -> OutputColumns:
    """The columns in which a job with this reader writes what it finds."""
    declared = reader.declared()
    return OutputColumns({a.column: a for schema in declared.values() for a in schema}, declared, options)


def batches(
    storage: Storage, uri: str, wanted: Sequence[str], schema: pa.Schema
) -> Iterator[tuple[pa.Table, frozenset[str]]]:
    """(rows with the wanted columns that `schema` has, columns that the file or its path has), few rows at a time."""
    names = [name for name in dict.fromkeys(wanted) if name in schema.names]
    target = pa.schema([schema.field(name) for name in names])
    with explained(uri), storage.open(uri) as file, pq.ParquetFile(file) as parquet:
        there = frozenset(partitioned(parquet.schema_arrow, uri).names)
        columns = [name for name in names if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
            yield conform(with_partitions(pa.Table.from_batches([batch]), uri), target), there


def cell_texts(attribute: Attribute, cell: object, tally: Tally, where: str) -> Known:
    """What a cell says of its attribute. A value that the model could not be asked for is left out and counted."""
    texts, wrong = [], False
    items = [i for i in (cell if isinstance(cell, list) else [cell]) if i is not None and i == i]  # i != i: NaN
    for item in [items] if attribute.many and items else items:
        try:
            text = written(attribute, item if isinstance(item, str | int | float | date | list | dict) else plain(item))
        except ValueError as error:
            wrong = True
            tally.leave_value(f"an item of {attribute.name!r} holds the separator", f"{where}: {error}")
            continue
        status = read(attribute, text).status
        if status is ValueStatus.EXTRACTED and is_one_line(text):
            texts.append(text)
        elif status is not ValueStatus.ABSENT:
            wrong = True
            tally.leave_value(_complaint(attribute, text), f"{where}: {text[:40]!r}")
    return tuple(dict.fromkeys(texts)) if texts or not wrong else None


def _complaint(attribute: Attribute, text: str) -> str:
    if not is_one_line(text):
        return f"a value of {attribute.name!r} has more than one line"
    if attribute.values:
        return f"a value of {attribute.name!r} is not in its closed list"
    return f"a value of {attribute.name!r} is no {attribute.type.value}"


def _check_labels(dataset: str, schema: pa.Schema, columns: OutputColumns) -> None:
    found = [name for name in columns.attributes if name in schema.names]
    if not found:
        asked, has = (", ".join(map(repr, names)) for names in (columns.attributes, schema.names))
        raise JobError(f"{dataset}: has none of the attribute columns {asked}; it has {has}")
    for name in found:
        kind = schema.field(name).type
        attribute = columns.attributes[name]
        kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
        is_quantity = attribute.type is ValueType.QUANTITY and pa.types.is_struct(kind)
        if is_quantity and {field.name for field in kind} == {"value", "unit"}:
            continue
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise JobError(
                f"{dataset}: column {name!r} is {schema.field(name).type}: an attribute column holds texts, numbers, "
                "booleans, dates or lists of them, a quantity also a struct of value and unit"
            )


def _readable(table: pa.Table) -> pa.Table:
    """Floats of 32 bits as the shortest double that reads the same: 42.1 is not 42.099998474121094."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float32(field.type) or pa.types.is_float16(field.type):
            values = (None if v is None else float(str(np.float32(v))) for v in table.column(place).to_pylist())
            table = table.set_column(place, field.name, pa.array(values, pa.float64()))
    return table
