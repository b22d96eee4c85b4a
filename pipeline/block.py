"""The block that travels between the stages: one unit as one Arrow table, with columns that say which unit and row it
is.

Every stage goes through `unit_of`, which refuses a block that is not exactly one whole unit in row order, and
`checked`, which turns a stage's exception into a failed unit: a fault of the data never ends a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from hpd_core.checkpoint import ModelUnavailableError
from pipeline.units import Unit

RESERVED_PREFIX = "__hpd_"
UNIT = "__hpd_unit"  # the unit as JSON, the same in every row
ROW = "__hpd_row"  # row number in the file
METRICS = "__hpd_metrics"  # of a decoded unit: pipeline.metrics.Metrics as JSON, the same in every row
INTERNAL_COLUMNS = (UNIT, ROW, METRICS)
FAILED = "__hpd_failed"  # only in the one-row block of a failed unit: its reason
KIND = "__hpd_failed_kind"
_CONSTANT = pa.dictionary(pa.int32(), pa.string())

log = logging.getLogger(__name__)


class FailureKind(StrEnum):
    """Which stage failed a unit."""

    READ = "read"
    #: What the file holds cannot be read: all that `on_bad_file: skip` goes on without.
    FILE = "file"
    #: The store of the unit's file, or of the model, gave no answer to any try: nothing is known against either.
    STORE = "store"
    TOKENIZE = "tokenize"
    DECODE = "decode"
    #: The decoder or its tokenizer cannot be loaded: no unit can succeed.
    LOAD = "load"
    COMMIT = "commit"
    #: A worker that died without a word.
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    reason: str


class BlockError(RuntimeError):
    """A block that is not one whole unit in order: the mechanism itself is broken, nothing may be written."""


def constant(text: str, rows: int) -> pa.Array:
    """`text` in every row, held once."""
    indices = pa.array(np.zeros(rows, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], pa.string())).cast(_CONSTANT)


def first_text(column: pa.ChunkedArray) -> str:
    """The one text of a constant column; raises `BlockError` where it is not constant."""
    values = column.unique().to_pylist()
    if len(values) != 1:
        raise BlockError(f"a constant column holds {len(values)} values: {str(values)[:300]}")
    return str(values[0])


def label(table: pa.Table, unit: Unit) -> pa.Table:
    """`table` (the rows of `unit`, in order) with its identity columns."""
    if table.num_rows != unit.rows:
        raise BlockError(f"{unit}: {table.num_rows} rows were read for {unit.rows}")
    table = table.append_column(UNIT, constant(unit.to_json(), unit.rows))
    return table.append_column(ROW, pa.array(np.arange(unit.start, unit.stop, dtype=np.int64)))


def failed(unit: Unit, kind: FailureKind, reason: str) -> pa.Table:
    """The one-row block of a unit that failed."""
    columns = {UNIT: constant(unit.to_json(), 1), FAILED: [reason], KIND: [kind.value]}
    return pa.table(columns, schema=pa.schema([(UNIT, _CONSTANT), (FAILED, pa.string()), (KIND, pa.string())]))


def not_loaded(unit: Unit, what: str, error: Exception) -> pa.Table:
    """The block of a unit whose `what`, decoder or tokenizer, could not be loaded: to be tried again where it was the
    model's store that did not answer, else the end of the job."""
    kind = FailureKind.STORE if isinstance(error, ModelUnavailableError) else FailureKind.LOAD
    return failed(unit, kind, f"the {what} cannot be loaded: {explain(error)}")


def failure(block: pa.Table) -> Failure | None:
    if FAILED not in block.column_names:
        return None
    return Failure(FailureKind(block.column(KIND)[0].as_py()), str(block.column(FAILED)[0].as_py()))


def unit_of(block: pa.Table) -> Unit:
    """The unit that `block` is; raises `BlockError` unless it is exactly that unit, every row once and in order."""
    if UNIT not in block.column_names or not block.num_rows:
        raise BlockError(f"a block of {block.num_rows} rows without identity: {block.column_names[:20]}")
    unit = Unit.from_json(first_text(block.column(UNIT)))
    if failure(block) is None:
        rows = block.column(ROW).to_numpy() if ROW in block.column_names else np.zeros(0)
        if len(rows) != unit.rows or (rows != np.arange(unit.start, unit.stop)).any():
            raise BlockError(f"{unit}: a stage got {len(rows)} rows for {unit.rows}, or not in order")
    return unit


def checked(kind: FailureKind, unit: Unit, block: pa.Table, stage: Callable[[Unit, pa.Table], pa.Table]) -> pa.Table:
    """Runs `stage` over the block of `unit`; what comes out is that same unit, whole, or a failed one."""
    try:
        out = stage(unit, block)
        if failure(out) is None and unit_of(out) != unit:
            raise BlockError(f"{unit}: the {kind.value} stage answered for another unit")
        return out
    except Exception as e:
        log.warning("%s: %s failed", unit, kind.value, exc_info=True)
        return failed(unit, kind, explain(e))


def explain(error: BaseException) -> str:
    """One line for people: type and message of an exception."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__
