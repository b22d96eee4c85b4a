"""How the decoded rows of a unit are stored: under which names and types, and in which folder.

Without a profile and in a flat layout they are stored as they are. `athena` makes names and types what Athena, Hive and
Presto read from Parquet, or refuses the job. `hive` mirrors the folders `key=value` that the input files lie in, and
leaves out of the files what the folders say, as Spark and Hive write and expect it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.block import BlockError
from pipeline.job import JobError, OutputOptions
from pipeline.partitions import partition_folder, partition_keys, partition_values, with_partitions
from pipeline.schema import renamed
from pipeline.units import InputFile
from pipeline.uris import has_line_break

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,254}")
#: What a type that readers of Hive tables lack is stored as; None where nothing holds all its values.
_ATHENA: dict[pa.DataType, pa.DataType | None] = {
    pa.null(): pa.string(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): None,
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    **{kind: kind for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())},
    **{kind: kind for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32())},
}
_REMEDY = "rename or convert it in the input, or leave it out by output.keep"


@dataclass(frozen=True, slots=True)
class StoredForm:
    """schema: of every data file. sources: the decoded column behind each of its fields. layout: `flat` | `hive`."""

    schema: pa.Schema = field(repr=False)
    sources: tuple[str, ...]
    layout: str = "flat"
    profile: str = ""

    def folder(self, uri: str) -> str:
        """Where below data/ the rows of the input file at `uri` are stored; empty for data/ itself."""
        folder = partition_folder(uri) if self.layout == "hive" else ""
        return "/".join(_lowered_key(part) for part in folder.split("/")) if self.profile else folder

    def stored(self, table: pa.Table, uri: str) -> pa.Table:
        """Decoded rows of the input file at `uri` as they are stored.

        Raises `BlockError` where a column holds something else than the folder says, ArrowInvalid where a value does
        not fit its type.
        """
        for key, value in partition_values(uri).items() if self.layout == "hive" else ():
            if key in table.column_names and set(table.column(key).unique().to_pylist()) - {value}:
                raise BlockError(f"{uri}: its column {key!r} is not {value!r} in every row, as its folder says")
        columns = [cast(table.column(s), f.type) for s, f in zip(self.sources, self.schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=self.schema)


def cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """`column` as `type_`: what is finer than the unit of a time is cut off, what overflows raises ArrowInvalid."""
    if column.type == type_:
        return column
    # Arrow casts structs by the names of their fields: one that is named anew would come out null, without a word.
    named = renamed(column.type, type_)
    column = pa.chunked_array([chunk.view(named) for chunk in column.chunks], named)
    return column.cast(options=pc.CastOptions(target_type=type_, allow_time_truncate=True))


def as_decoded(table: pa.Table, name: str, sources: Mapping[str, str], wanted: Collection[str]) -> pa.Table:
    """Stored rows of the data file `name` (below data/) under the names that they were decoded with, and with the
    columns that its folders hold.

    sources: `output_sources` of run.json. wanted: decoded columns that are looked for; a profile lowers a folder's key.
    """
    table = with_partitions(table.rename_columns([sources.get(c, c) for c in table.column_names]), name)
    named = {column.lower(): column for column in wanted}
    lowered = {key: named[key] for key in partition_values(name) if key not in wanted and key in named}
    return table.rename_columns([lowered.get(c, c) for c in table.column_names])


def stored_form(
    decoded: pa.Schema,
    options: OutputOptions,
    files: Iterable[InputFile],
    *,
    added: Mapping[str, str] = MappingProxyType({}),
    contradicted: Iterable[tuple[str, str]] = (),
) -> StoredForm:
    """The form of a job whose decoded rows have the schema `decoded`, over input `files`.

    added: {output column: what it is} of what decoding adds. contradicted: (URI, key) of folders that the rows of a
    file are known to contradict. Raises `JobError` naming the column that the profile cannot store, or the file or
    column that its folders do not go with. What only the values tell, `StoredForm.stored` finds.
    """
    keys = _keys(files) if options.layout == "hive" else ()
    _check_added(keys, added)
    for uri, key in contradicted:
        if key in keys and key in decoded.names:
            raise JobError(
                f"output.layout hive: {uri}: its column {key!r} does not hold what its folder says in every row, and "
                "only the folder would be left of it: take the layout flat, or leave the column out by output.keep"
            )
    for key in keys:
        if key in decoded.names and decoded.field(key).type != pa.string():
            raise JobError(
                f"output.layout hive: the input column {key!r} is {decoded.field(key).type} in a file and the name of "
                "a folder as well: take the layout flat"
            )
    fields = [f for f in decoded if f.name not in keys]
    if options.profile != "athena":
        return StoredForm(pa.schema(fields), tuple(f.name for f in fields), options.layout)
    taken: dict[str, str] = {}
    for name in [*(f.name for f in fields), *keys]:
        other = taken.setdefault(_name(name, f"column {name!r}"), name)
        if other != name:
            raise JobError(
                f"output.profile athena: the columns {other!r} and {name!r} would both be {name.lower()!r}: {_REMEDY}"
            )
    stored = [f.with_name(f.name.lower()).with_type(_type(f.type, f"column {f.name!r}")) for f in fields]
    return StoredForm(pa.schema(stored), tuple(f.name for f in fields), options.layout, options.profile)


def _check_added(keys: Iterable[str], added: Mapping[str, str]) -> None:
    """A folder's column is in no file: one that decoding adds would be lost, or be two to readers that ignore case."""
    taken = {name.lower(): name for name in added}
    for key in keys:
        if (column := taken.get(key.lower())) is not None:
            raise JobError(
                f"output.layout hive: {added[column]} would be the output column {column!r}, and a folder is called "
                f"{key}=…: set another 'column' where it is an attribute's, or take the layout flat"
            )


def _keys(files: Iterable[InputFile]) -> tuple[str, ...]:
    found: dict[tuple[str, ...], str] = {}
    for file in files:
        keys = partition_keys(file.uri)
        if len({key.lower() for key in keys}) < len(keys):
            raise JobError(
                f"output.layout hive: {file.uri} lies in folders of {list(keys)}, two of which are one to readers: "
                "take the layout flat"
            )
        if has_line_break(partition_folder(file.uri)):
            raise JobError(f"output.layout hive: {file.uri!r} lies in a folder with a line break: take the layout flat")
        found.setdefault(keys, file.uri)
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        raise JobError(
            f"output.layout hive: {one} lies in folders of {list(first)}, {other} in folders of {list(second)}: all "
            "files must have the same; take the layout flat"
        )
    [keys] = found or [()]
    hidden = next((key for key in keys if key.startswith(("_", "."))), None)
    if hidden is not None:
        raise JobError(f"output.layout hive: readers pass over folders like {hidden}=…: take the layout flat")
    if not keys:
        raise JobError("output.layout hive: no input file lies in a folder like colour=red: take the layout flat")
    return keys


def _name(name: str, where: str) -> str:
    if not _NAME.fullmatch(name.lower()):
        raise JobError(
            f"output.profile athena: {where}: a name there has only a to z, 0 to 9 and _, begins with no digit and is "
            f"not longer than 255: {_REMEDY}, or set another 'column' where it is an attribute's"
        )
    return name.lower()


def _type(type_: pa.DataType, where: str) -> pa.DataType:
    """What `type_` is stored as; raises `JobError` naming where it stands."""
    types = pa.types
    known: pa.DataType | None = _ATHENA.get(type_)
    if types.is_timestamp(type_):
        known = pa.timestamp({"s": "ms", "ns": "us"}.get(type_.unit, type_.unit), type_.tz)
    elif types.is_decimal(type_) and type_.precision <= 38:
        known = pa.decimal128(type_.precision, type_.scale)
    elif types.is_fixed_size_binary(type_):
        known = pa.binary()
    elif types.is_map(type_):
        known = pa.map_(_type(type_.key_type, f"{where}, its keys"), _type(type_.item_type, f"{where}, its values"))
    elif types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        known = pa.list_(type_.value_field.with_type(_type(type_.value_type, f"{where}, its items")))
    elif types.is_struct(type_) and type_.num_fields:
        places = [(f, f"{where}, its field {f.name!r}") for f in type_]
        inner = [f.with_name(_name(f.name, place)).with_type(_type(f.type, place)) for f, place in places]
        if len({f.name for f in inner}) < len(inner):
            raise JobError(f"output.profile athena: {where}: two of its fields differ in case alone: {_REMEDY}")
        known = pa.struct(inner)
    if known is None:
        raise JobError(f"output.profile athena: {where} is {type_}, which readers of Hive tables lack: {_REMEDY}")
    return known


def _lowered_key(part: str) -> str:
    key, equals, value = part.partition("=")
    return unquote(key).lower() + equals + value  # of letters that need no %XX, or the profile refuses it
