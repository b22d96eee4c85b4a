"""A reader, an encoder and a decoder that a person can follow: the answer is a hash of the row's text, so that a row
that was shifted, lost or answered twice shows at once."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema, ValueType
from hpd_core.spec import DecoderSpec
from pipeline.job import RowFault

#: Texts that the fake decoder reacts to.
KILL, HANG, RAISE, SHORT, LOST = "<kill>", "<hang>", "<raise>", "<short>", "<lost device>"

PRODUCT = Schema("product", (Attribute("Brand"), Attribute("Pack size", type=ValueType.INTEGER)))
SPEC = DecoderSpec(ModelSpec("fake", dtype="float32"))


@dataclass(frozen=True)
class TitleReader:
    """The document is the column `title`; a row without one has no text. `wide` asks for one attribute more per row."""

    column: str = "title"
    wide: bool = False

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        schema = PRODUCT.select([*(a.name for a in PRODUCT), "Undeclared"]) if self.wide else PRODUCT
        texts = table.column(self.column).to_pylist()
        return [Document(t, schema) if t else RowFault(RowStatus.NO_TEXT, "no title") for t in texts]

    def check(self, schema: pa.Schema) -> None:
        if self.column not in schema.names:
            raise ValueError(f"column {self.column!r} is not in the input")

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def facts(self) -> Mapping[str, Any]:
        return {"column": self.column}


class ByteEncoder:
    """Token ids are the bytes of the text."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.most = spec.settings.max_document_tokens

    def encode(self, document: Document) -> EncodedDocument:
        ids = list(document.text.encode())
        return EncodedDocument(ids[: self.most], document.schema, cut=len(ids) > self.most)


@dataclass(frozen=True)
class HashDecoders:
    """Makes `HashDecoder`s; every call of one leaves a line in `log`, whichever process it runs in.

    kill_once: a path that is created, and the worker killed, the first time a decoder is called.
    deadly: every worker that loads it is killed; a 0 in `log` for each.
    """

    log: Path
    delay: float = 0.0
    kill_once: Path | None = None
    broken: bool = False
    deadly: bool = False

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> HashDecoder:
        if self.broken:
            raise FileNotFoundError("no such model")
        if self.deadly:
            with open(self.log, "a") as log:
                log.write("0\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return HashDecoder(self)

    def calls(self) -> list[int]:
        """Documents of each call of any decoder so far."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []


class HashDecoder:
    def __init__(self, make: HashDecoders) -> None:
        self.make = make

    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        with open(self.make.log, "a") as log:
            log.write(f"{len(documents)}\n")
        if self.make.kill_once is not None and not self.make.kill_once.exists():
            self.make.kill_once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.make.delay)
        rows = [self._row(document) for document in documents]
        if any(SHORT in text_of(d) for d in documents):
            rows = rows[:-1]
        counts = Counts(
            documents=len(rows), slots=2 * len(rows), generated_tokens=2 * len(rows), model_calls=1, steps=1
        )
        return Extraction(rows, counts)

    def _row(self, document: EncodedDocument) -> Row:
        text = text_of(document)
        if KILL in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in text:
            time.sleep(3600)
        if LOST in text:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if RAISE in text:
            raise MemoryError("this document is too much")
        found = [(a.name, answer(text, a)) for a in document.schema]
        values = tuple(Value(name, value, ValueStatus.EXTRACTED, str(value), -0.5, 1) for name, value in found)
        status = RowStatus.CUT if document.cut else RowStatus.OK
        return Row(document.schema, status, values, document_tokens=len(document.ids))


def text_of(document: EncodedDocument) -> str:
    return bytes(document.ids).decode()


def answer(text: str, attribute: Attribute) -> str | int:
    digest = hashlib.sha256(f"{attribute.name}|{text}".encode()).hexdigest()[:8]
    return int(digest, 16) if attribute.type is ValueType.INTEGER else digest
