"""The Ray datasource with one read task per unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import local
from typing import Any

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from hpd_core.passing import is_passing
from pipeline.block import FailureKind, checked, explain, failed, label
from pipeline.storage import Storage
from pipeline.unit_reader import InputChangedError, UnitReader
from pipeline.units import Unit


class _Readers(local):
    """The reader of this thread, if it has one: a worker runs its tasks in one thread, jobs in one process in several.

    With units handed out in order each worker passes over a row group once, whichever of its units it gets. (One task
    for many units is no way: without a target size of blocks, which would cut units, Ray joins all that a read task
    yields.)
    """

    reader: UnitReader | None = None


_readers = _Readers()
#: What Arrow and file systems raise about a file. Anything else is a fault of ours, and says nothing against it.
_BAD_FILE = (OSError, EOFError, ValueError, KeyError, pa.ArrowException)


class UnitSource(Datasource):
    """One read task, hence one block, per unit. The units are planned before; this only hands them out.

    columns: input columns that are read, None for all.
    """

    def __init__(self, units: Sequence[Unit], storage: Storage, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        self._units = units
        self._storage = storage
        self._columns = columns

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(unit.bytes for unit in self._units)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        # Ray calls this several times, so nothing is read here, and a task captures no more than its own unit.
        return [
            ReadTask(partial(_read_block, unit, self._storage, self._columns), _metadata(unit)) for unit in self._units
        ]


def read_unit(unit: Unit, storage: Storage, columns: Sequence[str] | None = None) -> pa.Table:
    """`UnitReader.read` by the reader of this thread."""
    reader = _readers.reader
    if reader is None or not reader.is_for(storage, columns):
        if reader is not None:
            reader.close()
        reader = _readers.reader = UnitReader(storage, columns)
    return reader.read(unit)


def _read_block(unit: Unit, storage: Storage, columns: Sequence[str] | None) -> Iterable[pa.Table]:
    seed = failed(unit, FailureKind.READ, "not read")
    yield checked(FailureKind.READ, unit, seed, lambda u, _: _labelled(u, storage, columns))


def _labelled(unit: Unit, storage: Storage, columns: Sequence[str] | None) -> pa.Table:
    try:
        return label(read_unit(unit, storage, columns), unit)
    except Exception as e:
        if is_passing(e):
            return failed(unit, FailureKind.STORE, explain(e))
        if isinstance(e, _BAD_FILE) and not isinstance(e, InputChangedError | FileNotFoundError):
            return failed(unit, FailureKind.FILE, explain(e))
        raise


def _metadata(unit: Unit) -> BlockMetadata:
    return BlockMetadata(
        num_rows=unit.rows, size_bytes=unit.bytes, input_files=[unit.file.uri], exec_stats=None, task_exec_stats=None
    )
