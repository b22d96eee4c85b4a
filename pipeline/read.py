"""Unit -> its rows as one Arrow table, and the Ray datasource with one read task per unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from hpd_core.passing import is_passing
from pipeline.block import FailureKind, checked, explain, failed, label
from pipeline.file_rows import FileRows
from pipeline.partitions import with_partitions
from pipeline.storage import Storage
from pipeline.units import Unit


class UnitSource(Datasource):
    """One read task, hence one block, per unit. The units are planned before; this only hands them out."""

    def __init__(self, units: Sequence[Unit], storage: Storage) -> None:
        super().__init__()
        self._units = units
        self._storage = storage

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(unit.bytes for unit in self._units)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        # Ray calls this several times, so nothing is read here, and a task captures no more than its own unit.
        return [ReadTask(partial(_read_block, unit, self._storage), _metadata(unit)) for unit in self._units]


def read_unit(unit: Unit, storage: Storage) -> pa.Table:
    """The rows of `unit` under the file's own schema, with the columns that its path adds.

    Raises where the object is not, or no longer after the read, the version that was planned.
    """
    _check_version(unit, storage)
    with storage.open(unit.file.uri) as f, pq.ParquetFile(f, pre_buffer=True) as parquet:
        table = with_partitions(FileRows(parquet).take(unit.start, unit.stop), unit.file.uri)
    _check_version(unit, storage)
    return table


def _read_block(unit: Unit, storage: Storage) -> Iterable[pa.Table]:
    seed = failed(unit, FailureKind.READ, "not read")
    yield checked(FailureKind.READ, unit, seed, lambda u, _: _labelled(u, storage))


def _labelled(unit: Unit, storage: Storage) -> pa.Table:
    try:
        return label(read_unit(unit, storage), unit)
    except Exception as e:
        if not is_passing(e):
            raise
        return failed(unit, FailureKind.STORE, explain(e))  # which no policy for bad files may skip


def _metadata(unit: Unit) -> BlockMetadata:
    return BlockMetadata(
        num_rows=unit.rows, size_bytes=unit.bytes, input_files=[unit.file.uri], exec_stats=None, task_exec_stats=None
    )


def _check_version(unit: Unit, storage: Storage) -> None:
    now = storage.stat(unit.file.uri)
    if now != unit.file:
        raise ValueError(
            f"{unit.file.uri} changed since it was planned: {unit.file.size} bytes, {unit.file.version} -> "
            f"{now.size} bytes, {now.version}"
        )
