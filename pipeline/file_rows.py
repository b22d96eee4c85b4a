"""Row ranges of one Parquet file, decoded in small batches: what lies before a range is passed over, never held."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows and uncompressed bytes decoded at once; they bound memory, not the result.
STRIDE = 4096
STRIDE_BYTES = 32 * 2**20


def stride_of(rows: int, size: int) -> int:
    """Rows decoded at once of so many that have `size` uncompressed bytes together."""
    return max(1, min(STRIDE, STRIDE_BYTES * rows // max(1, size)))


def digest_of(file: IO[bytes]) -> tuple[int, str]:
    """(bytes, SHA-256) of an open file, read in pieces; it stands at its beginning afterwards."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    file.seek(0)
    return size, digest.hexdigest()


def edges_of(metadata: pq.FileMetaData) -> list[int]:
    """First row of each row group, and the end."""
    sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return list(itertools.accumulate(sizes, initial=0))


class FileRows:
    """Rows of an open Parquet file. Ranges asked for in ascending order decode each row group once.

    columns: names of those to read, all of which the file has; None for all. edges: first row of each row group, and
    the end.
    """

    def __init__(self, parquet: pq.ParquetFile, columns: Sequence[str] | None = None) -> None:
        self._parquet = parquet
        self._columns = None if columns is None else list(columns)
        self.edges = edges_of(parquet.metadata)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._stop = 0  # first row behind the open row group
        self._batch: pa.RecordBatch | None = None
        self._at = 0  # first row of `_batch`

    @property
    def rows(self) -> int:
        return self.edges[-1]

    @property
    def names(self) -> list[str]:
        """Of the file's columns."""
        return list(self._parquet.schema_arrow.names)

    @property
    def bytes(self) -> int:
        """Uncompressed, as the footer says."""
        metadata = self._parquet.metadata
        return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))

    def take(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop) under the file's own schema; raises `ValueError` where the file has fewer, and `KeyError`
        where it lacks a column."""
        if stop > self.rows:
            raise ValueError(f"rows {start}..{stop} of a file that has only {self.rows} rows")
        parts = []
        while start < stop:
            batch = self._holding(start)
            first = start - self._at
            part = batch.slice(first, min(stop - start, batch.num_rows - first))
            parts.append(part)
            start += part.num_rows
        schema = parts[0].schema if parts else self._parquet.schema_arrow
        table = pa.Table.from_batches(parts, schema=schema)
        # Parquet knows columns by dotted paths: the name "a.b" also brings the field b of a struct a.
        return table if self._columns is None else table.select(self._columns)

    def _holding(self, row: int) -> pa.RecordBatch:
        """The batch that `row` is in."""
        if self._batch is None or not self._at <= row < self._stop:
            self._open(row)
        assert self._batch is not None
        while row >= self._at + self._batch.num_rows:
            self._at += self._batch.num_rows
            self._batch = self._next()
        return self._batch

    def _open(self, row: int) -> None:
        """Begins the row group that `row` is in."""
        group = bisect_right(self.edges, row) - 1
        facts = self._parquet.metadata.row_group(group)
        stride = stride_of(facts.num_rows, facts.total_byte_size)
        self._batches = self._parquet.iter_batches(
            batch_size=stride, row_groups=[group], columns=self._columns, use_threads=False
        )
        self._at, self._stop = self.edges[group], self.edges[group + 1]
        self._batch = self._next()

    def _next(self) -> pa.RecordBatch:
        batch = next(self._batches, None)
        if batch is None:
            raise ValueError(f"a row group ends at row {self._at}, before its {self._stop}")
        return batch
