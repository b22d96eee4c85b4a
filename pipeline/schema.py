"""One Arrow schema for all input files, and the cast of a file's rows to it. Values stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipeline.job import JobError


def unify(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """The schema that all (URI, schema) share: columns in order of first appearance, one type each.

    null joins any type, a dictionary becomes its values, strings of any layout become large_string, bytes of any layout
    large_binary (also inside lists and structs); a column that a file lacks is null there. Anything else raises
    `JobError` that names both files.
    """
    fields: dict[str, tuple[pa.Field, str]] = {}
    seen: set[pa.Schema] = set()
    count: Counter[str] = Counter()
    files = 0
    for uri, schema in schemas:
        files += 1
        count.update(schema.names)
        if schema in seen:  # thousands of files of one catalog share a handful of schemas
            continue
        seen.add(schema)
        repeated = [name for name, n in Counter(schema.names).items() if n > 1]
        if repeated:
            raise JobError(f"input column {repeated[0]!r} stands twice in {uri}: rename one of them")
        for field in schema:
            field = field.with_type(plain(field.type)).remove_metadata()
            known, where = fields.setdefault(field.name, (field, uri))
            joined = _join(known.type, field.type)
            if joined is None:
                raise JobError(
                    f"input column {field.name!r} is {known.type} in {where} but {field.type} in {uri}: no common type"
                )
            if joined != known.type:  # the file that fixed the type is the one to name in a later clash
                where = uri if pa.types.is_null(known.type) else where
            fields[field.name] = (pa.field(field.name, joined, known.nullable or field.nullable), where)
    return pa.schema([f.with_nullable(f.nullable or count[name] < files) for name, (f, _) in fields.items()])


def plain(type_: pa.DataType) -> pa.DataType:
    """`type_` with every dictionary in it replaced by the type of its values."""
    if pa.types.is_dictionary(type_):
        return plain(type_.value_type)
    return _rebuild(type_, [plain(child.type) for child in _children(type_)])


def replaced(type_: pa.DataType, by: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    """`type_` with every type in it that is a key of `by` replaced."""
    if type_ in by:
        return by[type_]
    return _rebuild(type_, [replaced(child.type, by) for child in _children(type_)])


def renamed(type_: pa.DataType, like: pa.DataType) -> pa.DataType:
    """`type_` with the names that struct fields have in `like`, place by place; both are nested alike."""
    pairs = list(zip(_children(type_), _children(like), strict=True))
    fields = [child.with_type(renamed(child.type, other.type)) for child, other in pairs]
    if pa.types.is_struct(type_):
        fields = [field.with_name(other.name) for field, (_, other) in zip(fields, pairs, strict=True)]
    return _with_children(type_, fields)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` (one file's rows) under the unified `schema`: columns ordered, missing ones null, types joined."""
    columns = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _join(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Common type of two plain types, None where there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if _is_string(a) and _is_string(b):
        return pa.large_string()
    if _is_binary(a) and _is_binary(b):
        return pa.large_binary()
    if _is_list(a) and _is_list(b):
        item = _join(a.value_type, b.value_type)
        large = pa.types.is_large_list(a) or pa.types.is_large_list(b)
        return None if item is None else (pa.large_list(item) if large else pa.list_(item))
    if pa.types.is_struct(a) and pa.types.is_struct(b) and [f.name for f in a] == [f.name for f in b]:
        items = [_join(x.type, y.type) for x, y in zip(a, b, strict=True)]
        return (
            None
            if None in items
            else pa.struct([pa.field(x.name, t, x.nullable or y.nullable) for x, y, t in zip(a, b, items, strict=True)])
        )
    if pa.types.is_map(a) and pa.types.is_map(b):
        key, item = _join(a.key_type, b.key_type), _join(a.item_type, b.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _is_string(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def _is_binary(type_: pa.DataType) -> bool:
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_)


def _children(type_: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    if _is_list(type_) or pa.types.is_fixed_size_list(type_):
        return [type_.value_field]
    return [type_.field(i) for i in range(type_.num_fields)] if pa.types.is_struct(type_) else []


def _rebuild(type_: pa.DataType, inner: list[pa.DataType]) -> pa.DataType:
    """`type_` with the types of its children replaced; itself where nothing changes."""
    return _with_children(type_, [c.with_type(t) for c, t in zip(_children(type_), inner, strict=True)])


def _with_children(type_: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if _children(type_) == fields:
        return type_
    if pa.types.is_map(type_):
        return pa.map_(fields[0], fields[1], keys_sorted=type_.keys_sorted)
    if pa.types.is_large_list(type_):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(fields[0], type_.list_size)
    return pa.list_(fields[0]) if pa.types.is_list(type_) else pa.struct(fields)
