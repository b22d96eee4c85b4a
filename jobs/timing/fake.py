"""A catalog of made-up rows and a decoder of fixed cost, to time what is around a decoder. Nothing here needs torch."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import EncodedDocument
from hpd_core.reading import ValueStatus
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.spec import DecoderSpec
from pipeline.job import RowFault

SCHEMA = Schema("product", tuple(Attribute(f"attribute {n}") for n in range(8)))
SPEC = DecoderSpec(ModelSpec("fixed-cost", dtype="float32"))
#: Bytes of text per token, as English has them.
_BYTES_OF_TOKEN = 4


def write_catalog(folder: Path, rows: int, *, rows_per_file: int, row_bytes: int = 2048, seed: int = 0) -> Path:
    """Parquet files of different products, about `row_bytes` of text each (words, so that they compress as such)."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(5000)]
    for number, start in enumerate(range(0, rows, rows_per_file)):
        stop = min(rows, start + rows_per_file)
        texts = [" ".join(rng.choices(words, k=row_bytes // 7)) for _ in range(start, stop)]
        table = pa.table(
            {"id": range(start, stop), "title": [f"product {i}" for i in range(start, stop)], "description": texts}
        )
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=10_000)
    return folder


@dataclass(frozen=True)
class TextReader:
    """The document is title and description."""

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        pairs = zip(table.column("title").to_pylist(), table.column("description").to_pylist(), strict=True)
        return [Document(f"{title} {text}", SCHEMA) for title, text in pairs]

    def check(self, schema: pa.Schema) -> None:
        missing = {"title", "description"} - set(schema.names)
        if missing:
            raise ValueError(f"columns {', '.join(sorted(missing))}: not in the input")

    def columns(self) -> Sequence[str]:
        return ("title", "description")

    def facts(self) -> Mapping[str, Any]:
        return {"columns": list(self.columns())}


class TextEncoder:
    """As many ids as a tokenizer would give."""

    def __init__(self, spec: DecoderSpec) -> None:
        pass

    def encode(self, document: Document) -> EncodedDocument:
        return EncodedDocument(list(document.text.encode()[::_BYTES_OF_TOKEN]), document.schema)


@dataclass(frozen=True)
class FixedCost:
    """Makes decoders that take so many seconds for each document, asleep, whatever the machine does meanwhile."""

    seconds: float

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> FixedCostDecoder:
        return FixedCostDecoder(self.seconds)


class FixedCostDecoder:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        time.sleep(self._seconds * len(documents))
        rows = [self._row(document) for document in documents]
        slots = sum(len(document.schema) for document in documents)
        return Extraction(rows, Counts(documents=len(rows), slots=slots, generated_tokens=3 * slots, model_calls=1))

    @staticmethod
    def _row(document: EncodedDocument) -> Row:
        values = tuple(
            Value(a.name, text, ValueStatus.EXTRACTED, text, -0.1, 3)
            for a, text in ((a, f"value {len(document.ids) % 97}") for a in document.schema)
        )
        return Row(document.schema, RowStatus.OK, values, document_tokens=len(document.ids))
