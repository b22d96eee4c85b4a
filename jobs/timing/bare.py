"""The decoder in a loop over units of documents, as an actor has it, with nothing of a pipeline around it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpd_core.rows import Counts
from jobs.decoders import load
from jobs.timing.process import Loop
from jobs.timing.work import live_tokens
from pipeline.pack import decode_items


@dataclass(frozen=True, slots=True)
class Pass:
    """All units once. tokens: live tokens and those written, the work as documents of other lengths have it."""

    seconds: float
    documents: int
    tokens: int


class BareLoop:
    """Loads the decoder, encodes all documents, and decodes one of each schema, so that shared prefixes are there."""

    def __init__(self, order: Loop) -> None:
        self._order, self._decoder = order, load(order.spec, order.threads)
        encode = self._decoder.encoder.encode
        self._units = {
            name: [[encode(document) for document in unit] for unit in units] for name, units in order.units.items()
        }
        every = [document for units in self._units.values() for unit in units for document in unit]
        first = {document.schema: document for document in reversed(every)}
        self._decoder.extract_encoded(list(first.values()))

    def run(self, name: str) -> Pass:
        counts, documents = Counts(), 0
        started = time.perf_counter()
        for unit in self._units[name]:
            rows, did = decode_items(self._decoder.extract_encoded, unit, self._order.pack_documents)
            counts += did
            documents += len(rows)
        return Pass(time.perf_counter() - started, documents, live_tokens(counts) + counts.generated_tokens)
