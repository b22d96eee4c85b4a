"""Decoded rows -> output columns, and the one schema that every output file has.

OUTPUT_VERSION is part of the fingerprint: whoever changes a name, type or meaning here raises it (a test freezes them).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from hpd_core.numerals import Quantity
from hpd_core.reading import as_text
from hpd_core.rows import Row, Value, ValueStatus
from hpd_core.schema import Attribute, Schema, ValueType
from pipeline.block import RESERVED_PREFIX
from pipeline.job import JobError, OutputOptions, RowFault

OUTPUT_VERSION = 2

_TYPES = {
    ValueType.STRING: pa.string(),
    ValueType.INTEGER: pa.int64(),
    ValueType.NUMBER: pa.float64(),
    ValueType.BOOLEAN: pa.bool_(),
    # One column, not two: number and unit mean nothing apart, and a list of them stays a list.
    ValueType.QUANTITY: pa.struct([("value", pa.float64()), ("unit", pa.string())]),
    ValueType.DATE: pa.date32(),
}
_ROW_FIELDS = {
    "hpd_status": pa.string(),
    "hpd_error": pa.string(),
    "hpd_schema": pa.string(),
    "hpd_document_tokens": pa.int32(),
    "hpd_generated_tokens": pa.int32(),
    "hpd_values": pa.int32(),
    "hpd_truncated": pa.int32(),
    "hpd_extra": pa.map_(pa.string(), pa.string()),
}
_TEXT_FIELD = {"hpd_text": pa.string()}


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Which columns decoding adds: one per attribute, those about the row, and the chosen details of each attribute.

    attributes: {output column: attribute} over all schemas; a row whose schema lacks one has null there.
    schemas: declared schemas by name; what a row asks beyond its own goes to `hpd_extra`.
    """

    attributes: Mapping[str, Attribute]
    schemas: Mapping[str, Schema]
    options: OutputOptions

    def fields(self) -> list[pa.Field]:
        """Output fields behind the input columns, in order."""
        fields = [pa.field(column, _several(a, _TYPES[a.type])) for column, a in self.attributes.items()]
        fields += [pa.field(name, type_) for name, type_ in self._row_fields().items()]
        return fields + [pa.field(f"{c}__{s}", t) for c, a in self.attributes.items() for s, t in self._details(a)]

    def described(self) -> dict[str, str]:
        """{output column: what it is}; raises `JobError` where two of them share a name, upper and lower case aside."""
        named: dict[str, str] = {}
        taken: dict[str, str] = {}
        pairs = [(c, f"the attribute {a.name!r}") for c, a in self.attributes.items()]
        pairs += [(name, f"the row column {name!r}") for name in self._row_fields()]
        pairs += [
            (f"{c}__{suffix}", f"the {suffix} of the attribute {a.name!r}")
            for c, a in self.attributes.items()
            for suffix, _ in self._details(a)
        ]
        for name, what in pairs:
            other = taken.setdefault(name.lower(), name)
            if other in named:
                raise JobError(f"{named[other]} and {what} {_share(other, name)}: set another 'column'")
            named[name] = what
        return named

    def build(self, rows: Sequence[Row | RowFault]) -> list[pa.Array]:
        """Arrays in the order of `fields()`, one entry per row."""
        answers = [self._by_column(row) if isinstance(row, Row) else ({}, {}) for row in rows]
        columns: dict[str, list[object]] = {f.name: [] for f in self.fields()}
        for row, (declared, extra) in zip(rows, answers, strict=True):
            about = _about(row, extra)
            for name in self._row_fields():
                columns[name].append(about.get(name))
            for column, attribute in self.attributes.items():
                answer = declared.get(column)
                columns[column].append(_storable(answer.value) if answer else None)
                for suffix, _ in self._details(attribute):
                    columns[f"{column}__{suffix}"].append(_detail(suffix, answer, attribute.many))
        return [pa.array(columns[f.name], f.type) for f in self.fields()]

    def _row_fields(self) -> dict[str, pa.DataType]:
        return _ROW_FIELDS | (_TEXT_FIELD if self.options.spans else {})

    def _details(self, attribute: Attribute) -> list[tuple[str, pa.DataType]]:
        chosen = [
            ("confidence", pa.float64(), self.options.confidence),
            ("status", pa.string(), self.options.statuses),
            ("raw", pa.string(), self.options.raw),
            ("start", _several(attribute, pa.int32()), self.options.spans),
            ("end", _several(attribute, pa.int32()), self.options.spans),
        ]
        return [(suffix, type_) for suffix, type_, wanted in chosen if wanted]

    def column_of(self, schema: Schema, attribute: Attribute) -> str | None:
        """Output column of an attribute that a row of `schema` asks; None for one its schema does not declare."""
        return attribute.column if self.schemas[schema.name].declares(attribute.name) else None

    def _by_column(self, row: Row) -> tuple[dict[str, Value], dict[str, Value]]:
        """Values of declared attributes by output column, and the others' by attribute name."""
        declared: dict[str, Value] = {}
        extra: dict[str, Value] = {}
        for attribute, value in zip(row.schema if row.values else (), row.values, strict=True):
            column = self.column_of(row.schema, attribute)
            if column is None:
                extra[attribute.name] = value
            else:
                declared[column] = value
        return declared, extra


def output_schema(inputs: pa.Schema, columns: OutputColumns) -> pa.Schema:
    """The kept input columns untouched, then what decoding adds."""
    keep = columns.options.columns
    missing = [name for name in keep or () if name not in inputs.names]
    if missing:
        raise JobError(f"output column {missing[0]!r} is to be kept, but the input has only {inputs.names}")
    return pa.schema([f for f in inputs if keep is None or f.name in keep] + columns.fields())


def check_names(
    input_columns: Collection[str], kept: Collection[str] | None, output_columns: Mapping[str, str]
) -> None:
    """Raises `JobError` where an output column (name -> what it is) has the name of a kept input column (None: all are
    kept), upper and lower case aside, or an input column has a reserved one. Input columns that differ from each other
    in case alone are the user's own."""
    taken = {name.lower(): name for name in output_columns}
    row_columns = _ROW_FIELDS | _TEXT_FIELD
    # Those about the row first: they say best what is wrong with an input that was an output.
    for name in sorted(input_columns, key=lambda name: name.lower() not in row_columns):
        if name.startswith(RESERVED_PREFIX):
            raise JobError(f"input column {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved; rename it")
        output = taken.get(name.lower())
        if output is None or (kept is not None and name not in kept):
            continue
        clash = f"the input column {name!r} and {output_columns[output]} {_share(name, output)}"
        if output in row_columns:
            raise JobError(
                f"{clash}: the input looks like an output of `hpd extract`. Give the catalog that it was made from "
                "(`inputs` in its run.json), rename the column, or list the columns to keep without it in output.keep"
            )
        raise JobError(f"{clash}: set another 'column' for the attribute, or leave the input column out of output.keep")


def _share(a: str, b: str) -> str:
    if a == b:
        return f"share the output column {a!r}"
    return f"would be the output columns {a!r} and {b!r}, which are one to readers that ignore case (Spark, Hive)"


def _about(row: Row | RowFault, extra: Mapping[str, Value]) -> dict[str, object]:
    if isinstance(row, RowFault):
        return {"hpd_status": row.status.value, "hpd_error": _storable(row.reason)}
    known = {name: _storable(as_text(value.value)) for name, value in extra.items() if value.value is not None}
    return {
        "hpd_status": row.status.value,
        "hpd_error": _storable(row.error),
        "hpd_schema": row.schema.name,
        "hpd_document_tokens": row.document_tokens,
        "hpd_generated_tokens": sum(v.tokens for v in row.values) if row.status.is_ok else None,
        "hpd_values": sum(v.status is ValueStatus.EXTRACTED for v in row.values) if row.status.is_ok else None,
        "hpd_truncated": sum(v.status is ValueStatus.TRUNCATED for v in row.values) if row.status.is_ok else None,
        "hpd_extra": list(known.items()) if row.status.is_ok else None,
        "hpd_text": _storable(row.text) if row.status.is_ok else None,
    }


def _several(attribute: Attribute, kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind) if attribute.many else kind


def _detail(suffix: str, answer: Value | None, many: bool) -> object:
    if answer is None:
        return None
    if suffix == "status":
        return answer.status.value
    if suffix == "raw":
        return _storable(answer.raw)
    if suffix in ("start", "end"):
        places = [getattr(span, suffix) if span else None for span in answer.spans]
        return (places or None) if many else next(iter(places), None)
    return answer.confidence


def _storable(value: object) -> object:
    """`value` as Arrow can hold it: a lone surrogate, which a model may write, becomes '?'."""
    if isinstance(value, tuple):
        return [_storable(item) for item in value]
    if isinstance(value, Quantity):
        return asdict(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
