"""Hive partitions: `…/colour=red/size=007/part-0.parquet` says in its path what is not in the file.

Each becomes a column of text, as it is written: "007" stays "007". A file that has a column of that name keeps its own.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa

#: What Hive and Spark call the folder of the rows whose value is null.
NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_values(uri: str) -> dict[str, str | None]:
    """{key: value} of the folders `key=value` on the path of a file, the deepest last; %XX is read as they write it."""
    pairs = (folder.partition("=") for folder in uri.split("/")[:-1])
    found = {unquote(key): unquote(value) for key, equals, value in pairs if key and equals}
    return {key: None if value == NULL else value for key, value in found.items()}


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
