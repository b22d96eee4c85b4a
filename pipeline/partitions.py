"""Hive partitions: `…/colour=red/size=007/part-0.parquet` says in its path what is not in the file.

Each becomes a column of text, as it is written: "007" stays "007". A file that has a column of that name keeps its own.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

#: What Hive and Spark call the folder of the rows whose value is null.
NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(uri: str) -> dict[str, str | None]:
    """{key: value} of the folders `key=value` on the path of a file, the deepest last; %XX is read as they write it."""
    return {key: None if value == NULL else value for key, value in _pairs(uri)}


def partition_keys(uri: str) -> tuple[str, ...]:
    """The keys of these folders in their order, repeated ones too."""
    return tuple(key for key, _ in _pairs(uri))


def _pairs(uri: str) -> list[tuple[str, str]]:
    pairs = (folder.partition("=") for folder in uri.split("/")[:-1])
    return [(unquote(key), unquote(value)) for key, equals, value in pairs if key and equals]


def partition_folder(uri: str) -> str:
    """The folders `key=value` on the path of a file as they are written, joined; empty where there is none."""
    return "/".join(part for part in uri.split("/")[:-1] if part.partition("=")[0] and "=" in part)


def with_partitions(table: pa.Table, uri: str) -> pa.Table:
    """`table` (rows of the file at `uri`) with the columns that its path adds."""
    for key, value in partition_values(uri).items():
        if key not in table.column_names:
            table = table.append_column(
                pa.field(key, pa.string()), pa.repeat(pa.scalar(value, pa.string()), len(table))
            )
    return table


def partitioned(schema: pa.Schema, uri: str) -> pa.Schema:
    """The schema of `with_partitions`."""
    return with_partitions(schema.empty_table(), uri).schema


def contradicted(metadata: pq.FileMetaData, schema: pa.Schema, uri: str) -> tuple[str, ...]:
    """The keys on the path of a file whose text column of that name is known, by the statistics in its footer, not to
    hold the folder's value in every row. Where they leave a doubt, a key is not among them."""
    found = []
    for key, value in partition_values(uri).items():
        if key not in schema.names or not _is_text(schema.field(key).type):
            continue
        places = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == key]
        if len(places) != 1:  # a field of a struct may have the path of a column with a dot
            continue
        groups = (metadata.row_group(g) for g in range(metadata.num_row_groups))
        if any(group.num_rows and _differs(group.column(places[0]).statistics, value) for group in groups):
            found.append(key)
    return tuple(found)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _differs(statistics: pq.Statistics | None, value: str | None) -> bool:
    if statistics is None:
        return False
    if value is None:
        return bool(statistics.has_min_max)
    if statistics.has_null_count and statistics.null_count:
        return True
    if not statistics.has_min_max:
        return False
    try:
        least, most = statistics.min, statistics.max
    except UnicodeDecodeError:
        return False
    if not isinstance(least, str) or not isinstance(most, str):
        return False
    # Writers may cut long ones: the least to its beginning, the greatest to something greater.
    return not value.startswith(least) or most < value or (least == value != most)
