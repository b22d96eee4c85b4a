"""Unit -> its rows as one Arrow table; units of one row group that one reader gets in order are one pass over it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.file_rows import FileRows, edges_of
from pipeline.partitions import with_partitions
from pipeline.storage import Storage
from pipeline.units import InputFile, Unit

#: Bytes read at once of a column, where a row group is streamed: one of a million rows is never in memory whole.
_BUFFER = 1 << 20


class InputChangedError(ValueError):
    """The object is not the version that was planned: nothing is wrong with it, and the next run takes it."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file that is being read. opened: what is to be closed."""

    file: InputFile
    rows: FileRows
    opened: ExitStack


class UnitReader:
    """Reads units, one at a time.

    Parquet has no seek inside a row group: what stands before a unit there is decoded and dropped. So a file stays open
    behind a unit that ends inside a row group, and a later unit of that file goes on from there. Which reader gets
    which unit decides how much is decoded, never what comes out.

    columns: names of the input columns that are wanted, None for all. A file that has none of them is read by its first
    column, for the rows to be counted.
    """

    def __init__(self, storage: Storage, columns: Sequence[str] | None = None) -> None:
        self._storage = storage
        self._columns = None if columns is None else frozenset(columns)
        self._held: _Opened | None = None

    def is_for(self, storage: Storage, columns: Sequence[str] | None) -> bool:
        """Whether it reads these columns from there."""
        return self._storage == storage and self._columns == (None if columns is None else frozenset(columns))

    def close(self) -> None:
        """Lets go of the file that is held, if any; the reader can be used further."""
        held, self._held = self._held, None
        if held is not None:
            held.opened.close()

    def read(self, unit: Unit) -> pa.Table:
        """The rows of `unit` under the file's own schema, with the columns that its path adds.

        Raises where the object is not, or no longer after the read, the version that was planned.
        """
        if self._held is not None and self._held.file != unit.file:
            self.close()
        try:
            self._check_version(unit)
            if self._held is None:
                self._held = self._open(unit)
            table = self._held.rows.take(unit.start, unit.stop)
            self._check_version(unit)
        except BaseException:
            self.close()  # whatever is wrong with it, the next try begins anew
            raise
        if unit.stop in self._held.rows.edges:
            self.close()
        return with_partitions(table, unit.file.uri)

    def _open(self, unit: Unit) -> _Opened:
        with ExitStack() as stack:
            raw = stack.enter_context(self._storage.open(unit.file.uri, ahead=False))
            metadata = pq.read_metadata(raw)
            # Whole row groups are fetched in few large requests; one that is cut into units could be of any size.
            is_whole = {unit.start, unit.stop} <= set(edges_of(metadata))
            buffering = {"pre_buffer": True} if is_whole else {"pre_buffer": False, "buffer_size": _BUFFER}
            parquet = stack.enter_context(pq.ParquetFile(raw, metadata=metadata, **buffering))
            names = parquet.schema_arrow.names
            columns = None if self._columns is None else [n for n in names if n in self._columns] or names[:1]
            return _Opened(unit.file, FileRows(parquet, columns), stack.pop_all())

    def _check_version(self, unit: Unit) -> None:
        now = self._storage.stat(unit.file.uri)
        if now != unit.file:
            raise InputChangedError(
                f"{unit.file.uri} changed since it was planned: {unit.file.size} bytes, {unit.file.version} -> "
                f"{now.size} bytes, {now.version}"
            )
