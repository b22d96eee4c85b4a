"""A decoded block -> one committed data object and its manifest. Whole, first wins, adopted when it was half done.

The data object comes first, its manifest second, both created only where nothing of that name is. A worker that is
slow, repeated or outlives its driver can therefore add nothing and change nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.block import (
    INTERNAL_COLUMNS,
    METRICS,
    BlockError,
    Failure,
    FailureKind,
    explain,
    failure,
    first_text,
    unit_of,
)
from pipeline.form import StoredForm
from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics
from pipeline.record import UnitRecord
from pipeline.storage import StorageError
from pipeline.units import Unit

FACTS = b"hpd"  # key of the unit's facts in the footer of a data object
_RECEIPT = "receipt"


@dataclass(frozen=True, slots=True)
class Receipt:
    """How one unit ended: a record where it is committed, else a failure. fresh: this call made the record."""

    unit: Unit
    record: UnitRecord | None = None
    failure: Failure | None = None
    fresh: bool = False

    def to_block(self) -> pa.Table:
        facts = {
            "unit": self.unit.to_json(),
            "record": self.record.to_json() if self.record else None,
            "failure": [self.failure.kind, self.failure.reason] if self.failure else None,
            "fresh": self.fresh,
        }
        return pa.table({_RECEIPT: [json.dumps(facts)]})

    @classmethod
    def from_block(cls, block: pa.Table) -> list[Receipt]:
        return [cls._from_json(text) for text in block.column(_RECEIPT).to_pylist()]

    @classmethod
    def _from_json(cls, text: str) -> Receipt:
        facts = json.loads(text)
        kind_and_reason = facts["failure"]
        return cls(
            Unit.from_json(facts["unit"]),
            UnitRecord.from_json(facts["record"]) if facts["record"] else None,
            Failure(FailureKind(kind_and_reason[0]), kind_and_reason[1]) if kind_and_reason else None,
            facts["fresh"],
        )


@dataclass(frozen=True, slots=True)
class CommitStage:
    """Decoded block -> one-row receipt. `form` is how its rows are stored."""

    output: OutputFolder
    form: StoredForm
    fingerprint: str

    def __call__(self, block: pa.Table) -> pa.Table:
        unit = unit_of(block)
        known = failure(block)
        if known:
            return Receipt(unit, failure=known).to_block()
        try:
            return self._run(unit, block).to_block()
        except Exception as e:
            return Receipt(unit, failure=Failure(FailureKind.COMMIT, explain(e))).to_block()

    def _run(self, unit: Unit, block: pa.Table) -> Receipt:
        metrics = Metrics.from_json(first_text(block.column(METRICS)))
        table = block.drop_columns(list(INTERNAL_COLUMNS))
        uri, schema = unit.file.uri, self.form.schema
        kept, folder = self.form.stored(table, uri), self.form.folder(uri)
        return commit(self.output, unit, kept, metrics, schema=schema, fingerprint=self.fingerprint, folder=folder)


def commit(
    output: OutputFolder,
    unit: Unit,
    table: pa.Table,
    metrics: Metrics,
    *,
    schema: pa.Schema,
    fingerprint: str,
    folder: str = "",
) -> Receipt:
    """Commits the rows of `unit`, or finds that somebody has. folder: below data/.

    Raises `BlockError` where the table is not the unit's rows under `schema`, `StorageError` where it cannot be stored.
    """
    if table.schema != schema:
        raise BlockError(f"{unit}: the output has columns {table.schema}, not the job's {schema}")
    if table.num_rows != unit.rows or metrics.rows_in != unit.rows:
        raise BlockError(f"{unit}: {table.num_rows} rows, {metrics.rows_in} of them counted, for {unit.rows}")
    started = time.perf_counter()
    name = unit.object_name(fingerprint)
    file = f"{folder}/{name}" if folder else ""
    uri = output.data(file or name)
    facts = {"unit": json.loads(unit.to_json()), "fingerprint": fingerprint, "metrics": metrics.as_dict()}
    data = to_parquet(table, json.dumps(facts))
    if not output.storage.create(uri, data):
        existing = _of(unit, output.read_record(name), uri)
        if existing is not None:
            return Receipt(unit, existing)
        data = output.storage.read(uri) or b""
        metrics = adopted(data, unit, schema, fingerprint, uri)
    metrics.seconds["commit"] = time.perf_counter() - started
    record = UnitRecord(unit, name, fingerprint, len(data), hashlib.sha256(data).hexdigest(), metrics, file)
    if output.storage.create(output.record(name), record.to_json().encode()):
        return Receipt(unit, record, fresh=True)
    # What is there may be this very record: the answer to the write may have been lost.
    there = _of(unit, output.read_record(name), uri) or record
    return Receipt(unit, there, fresh=there.as_dict() == record.as_dict())


def _of(unit: Unit, record: UnitRecord | None, uri: str) -> UnitRecord | None:
    """The record; raises `StorageError` where it is another unit's: names tell URIs apart by 32 bits of a hash."""
    if record is not None and record.unit.key != unit.key:
        raise StorageError(
            f"{uri} is the output of {record.unit}, and {unit} would have the same name: rename its file"
        )
    return record


def to_parquet(table: pa.Table, facts: str) -> bytes:
    """One row group per unit; the facts of the unit stand in the footer too, so that an object explains itself."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({FACTS: facts})
    return sink.getvalue()


def adopted(data: bytes, unit: Unit, schema: pa.Schema, fingerprint: str, uri: str) -> Metrics:
    """Metrics out of the footer of an object that was written by a worker that died before its manifest.

    Raises `StorageError` unless the object is this unit's, whole and readable.
    """
    try:
        table = pq.read_table(io.BytesIO(data))
        facts = json.loads(pq.read_metadata(io.BytesIO(data)).metadata[FACTS])
        there = Unit.from_json(json.dumps(facts["unit"]))
        same = there.key == unit.key and facts["fingerprint"] == fingerprint
        metrics = Metrics.from_dict(facts["metrics"])
    except Exception as e:
        raise StorageError(f"{uri} exists without a manifest and cannot be read: {explain(e)}") from e
    if not same or table.num_rows != unit.rows or not table.schema.equals(schema):
        raise StorageError(f"{uri} exists without a manifest and is not the output of {unit}")
    return metrics
