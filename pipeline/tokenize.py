"""Rows -> documents -> token ids, on CPU tasks apart from the actors."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from hpd_core.prompt import EncodedDocument, PromptEncoder
from hpd_core.rows import RowStatus
from hpd_core.schema import Document, Schema
from hpd_core.spec import DecoderSpec
from pipeline.block import FailureKind, checked, constant, explain, failure, not_loaded, unit_of
from pipeline.job import Encoder, EncoderFactory, RowFault, RowReader
from pipeline.schema import conform
from pipeline.units import Unit

IDS = "__hpd_ids"
CUT = "__hpd_cut"
TEXT = "__hpd_text"  # what the ids stand for, where values are looked up in it; else empty
SCHEMA = "__hpd_schema"  # pickled hpd_core Schema, dictionary-encoded: as many as there are different ones
FAULT = "__hpd_fault"
FAULT_STATUS = "__hpd_fault_status"
ENCODED_COLUMNS = (IDS, CUT, TEXT, SCHEMA, FAULT, FAULT_STATUS)
SECONDS = "__hpd_tokenize_seconds"  # that this stage took for the unit, the same in every row

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenizeStage:
    """Block of input rows -> the same rows under the job's one input schema, with the `ENCODED_COLUMNS` and `SECONDS`.

    schema: of the input columns that are read. keep: those that go on from here, None for all: what the text alone
    needs may have the name of an output.
    """

    schema: pa.Schema
    reader: RowReader
    decoder: DecoderSpec
    factory: EncoderFactory | None = None
    keep: Collection[str] | None = None

    def __call__(self, block: pa.Table) -> pa.Table:
        if failure(block):
            return block
        return checked(FailureKind.TOKENIZE, unit_of(block), block, self._run)

    def _run(self, unit: Unit, block: pa.Table) -> pa.Table:
        started, identity = time.perf_counter(), block.column_names[-2:]
        rows = conform(block.drop_columns(identity), self.schema)
        if unit.poison:
            items: Sequence[EncodedDocument | RowFault] = [RowFault(RowStatus.ERROR, unit.poison)]
        else:
            try:
                encoder = _encoder(self.factory, self.decoder)
            except Exception as e:
                log.exception("the tokenizer cannot be loaded")
                return not_loaded(unit, "tokenizer", e)
            items = [_encode(encoder, document) for document in documents(self.reader, rows)]
        kept = [name for name in rows.column_names if self.keep is None or name in self.keep]
        for name in identity:
            rows = rows.append_column(block.schema.field(name), block.column(name))
        rows = rows.select([*kept, *identity])
        for name, column in to_columns(items).items():
            rows = rows.append_column(name, column)
        return rows.append_column(SECONDS, constant(f"{time.perf_counter() - started:.6f}", unit.rows))


def documents(reader: RowReader, rows: pa.Table) -> list[Document | RowFault]:
    """One document or fault per row. A reader that fails on a table is asked row by row: one row is the fault."""
    try:
        found = list(reader.documents(rows))
    except Exception as e:
        if rows.num_rows == 1:
            return [RowFault(RowStatus.ERROR, f"text: {explain(e)}")]
        return [item for i in range(rows.num_rows) for item in documents(reader, rows.slice(i, 1))]
    if len(found) != rows.num_rows:
        raise ValueError(f"the row reader gave {len(found)} documents for {rows.num_rows} rows")
    return found


def to_columns(items: Sequence[EncodedDocument | RowFault]) -> dict[str, pa.Array]:
    """The `ENCODED_COLUMNS` of `items`, one row each."""
    encoded = [i if not isinstance(i, RowFault) else None for i in items]
    faults = [i if isinstance(i, RowFault) else None for i in items]
    pickled = {schema: pickle.dumps(schema) for schema in {e.schema for e in encoded if e is not None}}
    schemas = [None if e is None else pickled[e.schema] for e in encoded]
    return {
        IDS: pa.array([None if e is None else e.ids for e in encoded], pa.large_list(pa.int32())),
        CUT: pa.array([None if e is None else e.cut for e in encoded], pa.bool_()),
        TEXT: pa.array([None if e is None else e.text for e in encoded], pa.large_string()),
        SCHEMA: pa.array(schemas, pa.binary()).dictionary_encode(),
        FAULT: pa.array([None if f is None else f.reason for f in faults], pa.string()),
        FAULT_STATUS: pa.array([None if f is None else f.status.value for f in faults], pa.string()),
    }


def from_columns(block: pa.Table) -> list[EncodedDocument | RowFault]:
    """Inverse of `to_columns`; ids are tuples, which can be looked up without another copy of a unit's tokens."""
    dictionary: dict[bytes, Schema] = {}

    def schema(raw: bytes) -> Schema:
        if raw not in dictionary:
            dictionary[raw] = pickle.loads(raw)
        return dictionary[raw]

    columns = [block.column(name).to_pylist() for name in ENCODED_COLUMNS]
    return [
        RowFault(RowStatus(status), reason)
        if status is not None
        else EncodedDocument(tuple(ids), schema(raw), cut, text)
        for ids, cut, text, raw, reason, status in zip(*columns, strict=True)
    ]


def _encode(encoder: Encoder, document: Document | RowFault) -> EncodedDocument | RowFault:
    if isinstance(document, RowFault):
        return document
    try:
        encoded = encoder.encode(document)
    except Exception as e:
        return RowFault(RowStatus.ERROR, f"tokenisation: {explain(e)}")
    return EncodedDocument(encoded.ids, encoded.schema, encoded.cut, encoded.text)


@lru_cache(maxsize=2)
def _encoder(factory: EncoderFactory | None, spec: DecoderSpec) -> Encoder:
    """Loaded once in a worker process, which runs many tasks."""
    return (factory or PromptEncoder.from_spec)(spec)
