"""Rows of a catalog -> documents: the text by a template, the schema by category or by the row's own list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from hpd_core.rows import RowStatus
from hpd_core.schema import Attribute, Document, Schema, SchemaError
from pipeline.job import RowFault
from pipeline.text import TextTemplate


@dataclass(frozen=True)
class CatalogReader:
    """The `RowReader` of a configured job; see pipeline.job.

    schemas: {value of the category column: schema}.
    default: schema of rows whose category is null, blank or not in `schemas`; None makes them rows in error.
    category_column: None asks `default` of every row.
    attributes_column: list<string> column in which a row may name the attributes it asks for; null or empty means all.
    """

    template: TextTemplate
    schemas: Mapping[str, Schema]
    default: Schema | None = None
    category_column: str | None = None
    attributes_column: str | None = None
    _narrowed: dict[tuple[str, tuple[str, ...]], Schema] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.category_column is None and self.default is None:
            raise ValueError(
                "text.category_column or schemas.default must be set: nothing says which schema a row gets"
            )

    def columns(self) -> tuple[str, ...]:
        """Input columns that `documents` reads, each once."""
        extra = (c for c in (self.category_column, self.attributes_column) if c)
        return tuple(dict.fromkeys((*self.template.columns, *extra)))

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        """One `Document` or `RowFault` per row of `table`, in order; no row's content makes it raise."""
        return [item for _, item in self.categorized(table)]

    def categorized(self, table: pa.Table) -> list[tuple[str, Document | RowFault]]:
        """`documents`, each with the category that decided its schema: the default schema's name where that one was
        taken, the row's own word, "" for none, where there is no schema or the row cannot be read."""
        return [self.of_row(row) for row in python_rows(table.select(self.columns()))]

    def of_row(self, row: Mapping[str, Any] | RowFault) -> tuple[str, Document | RowFault]:
        """`categorized` of one row, as `python_rows` gives it; it may have further columns."""
        return ("", row) if isinstance(row, RowFault) else (self._category(row)[0], self._document(row))

    def check(self, schema: pa.Schema) -> None:
        """Raises ValueError naming what the input `schema` lacks: a column, a struct field, or a list type."""
        _check_columns(self.columns(), schema)
        _check_fields(self.template, schema)
        if self.attributes_column and not _is_string_list(schema.field(self.attributes_column).type):
            kind = schema.field(self.attributes_column).type
            raise ValueError(
                f"column {self.attributes_column!r} is {kind}: a row's own attributes must be a list of strings"
            )

    def facts(self) -> dict[str, Any]:
        """What decides the text and the schema of a row, JSON-able."""
        schemas = {category: asdict(schema) for category, schema in self.schemas.items()}
        return {
            "template": self.template.source,
            "schemas": schemas,
            "default": asdict(self.default) if self.default else None,
            "category_column": self.category_column,
            "attributes_column": self.attributes_column,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> CatalogReader:
        """The reader whose `facts()` these are, as run.json keeps them. Raises ValueError, KeyError or TypeError."""
        return cls(
            template=TextTemplate(facts["template"]),
            schemas={category: _schema_of(schema) for category, schema in facts["schemas"].items()},
            default=_schema_of(facts["default"]) if facts["default"] else None,
            category_column=facts["category_column"],
            attributes_column=facts["attributes_column"],
        )

    def declared(self) -> dict[str, Schema]:
        """{name: schema}, the default one last."""
        schemas = [*self.schemas.values(), *([self.default] if self.default else [])]
        return {schema.name: schema for schema in schemas}

    def _document(self, row: Mapping[str, Any]) -> Document | RowFault:
        try:
            schema = self._schema(row)
            text = self.template.render(row)
        except Exception as error:  # whatever a template does with a row's values must not take its neighbours down
            return RowFault(RowStatus.ERROR, f"{type(error).__name__}: {error}")
        if isinstance(schema, RowFault):
            return schema
        return Document(text, schema) if text else RowFault(RowStatus.NO_TEXT, "the text columns of this row are empty")

    def _category(self, row: Mapping[str, Any]) -> tuple[str, Schema | None]:
        value = row[self.category_column] if self.category_column else None
        category = str(value).strip() if value is not None else ""
        if category in self.schemas or self.default is None:
            return category, self.schemas.get(category)
        return self.default.name, self.default

    def _schema(self, row: Mapping[str, Any]) -> Schema | RowFault:
        category, schema = self._category(row)
        if schema is None:
            reason = f"no schema for category {category!r}" if category else "no category, and no default schema"
            return RowFault(RowStatus.ERROR, reason)
        wanted = row[self.attributes_column] if self.attributes_column else None
        names = tuple(dict.fromkeys(n.strip() for n in wanted or () if n and n.strip()))
        if not names:
            return schema
        key = (schema.name, names)
        if key not in self._narrowed:
            try:
                self._narrowed[key] = schema.select(names)
            except SchemaError as error:
                return RowFault(RowStatus.ERROR, f"column {self.attributes_column!r}: {error}")
        return self._narrowed[key]


def check_template(template: TextTemplate, schema: pa.Schema) -> None:
    """Raises ValueError naming the column or the struct field that `template` reads and the input `schema` lacks."""
    _check_columns(template.columns, schema)
    _check_fields(template, schema)


def _check_columns(names: Sequence[str], schema: pa.Schema) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            raise ValueError(f"column {name!r} is not in the input, which has {_names(schema.names)}")


def _check_fields(template: TextTemplate, schema: pa.Schema) -> None:
    for path in template.fields:
        kind = schema.field(path[0]).type
        for depth, step in enumerate(path[1:], 1):
            if not pa.types.is_struct(kind):
                break
            if kind.get_field_index(step) < 0:
                fields = _names(f.name for f in kind.fields)
                raise ValueError(f"column {'.'.join(path[:depth])!r} has no field {step!r}, only {fields}")
            kind = kind.field(step).type


def python_rows(table: pa.Table) -> Iterator[dict[str, Any] | RowFault]:
    """Rows as Python values. A value that Python cannot hold (no UTF-8, the year 20000) spoils its row only."""
    try:
        yield from table.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, pa.ArrowException):
        for index in range(table.num_rows):
            yield _row(table, index)


def _row(table: pa.Table, index: int) -> dict[str, Any] | RowFault:
    row: dict[str, Any] = {}
    for name in table.column_names:
        try:
            row[name] = table.column(name)[index].as_py(maps_as_pydicts="lossy")
        except (ValueError, OverflowError, pa.ArrowException) as error:
            return RowFault(RowStatus.ERROR, f"column {name!r}: {error}")
    return row


def _schema_of(facts: Mapping[str, Any]) -> Schema:
    return Schema(facts["name"], tuple(Attribute(**attribute) for attribute in facts["attributes"]))


def _is_string_list(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return pa.types.is_null(kind)
    item = kind.value_type
    return pa.types.is_string(item) or pa.types.is_large_string(item) or pa.types.is_null(item)


def _names(names: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(repr(name) for name in names)
