"""A unit's documents -> packs for the decoder, and what to do when a pack fails. Knows no model and no Arrow.

The packs are a pure function of the unit's documents, so a rerun decodes in the same schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction, Row, RowStatus
from hpd_core.schema import Schema
from pipeline.block import BlockError, explain
from pipeline.job import RowFault

Decode = Callable[[Sequence[EncodedDocument]], Extraction]


def packs(documents: int, most: int) -> list[range]:
    """Even, consecutive packs of at most `most` documents."""
    pieces = -(-documents // most)
    edges = [documents * i // pieces for i in range(pieces + 1)] if pieces else []
    return [range(a, b) for a, b in itertools.pairwise(edges)]


def decode_items(
    decode: Decode, items: Sequence[EncodedDocument | RowFault], pack_documents: int
) -> tuple[list[Row | RowFault], Counts]:
    """One row per item, in order: faults as they are, documents through `decode` pack by pack.

    Of equal documents the first is decoded, and its row, or the fault that it ended in, is that of all of them.
    """
    owners, counts = _owners(items), Counts()
    answers: dict[int, Row | RowFault] = {n: item for n, item in enumerate(items) if isinstance(item, RowFault)}
    places = _by_schema(items, set(owners) - answers.keys())
    for pack in packs(len(places), pack_documents):
        chosen = [places[i] for i in pack]
        rows = _decode_pack(decode, [items[n] for n in chosen], counts)  # type: ignore[misc]
        answers.update(zip(chosen, rows, strict=True))
    results = [answers[owner] for owner in owners]
    copies = [row for n, row in enumerate(results) if owners[n] != n and isinstance(row, Row)]
    counts.duplicates += len(copies)
    counts.count_values(copies)
    return results, counts


def prompt_tokens(decoder: object, documents: Sequence[EncodedDocument]) -> int:
    """Tokens that `documents` feed before their values, those that `Counts.prompt_tokens` counts: text, suffix, stubs.
    The text alone of a decoder that has no encoder, as a fake."""
    tokens, encoder = sum(len(document.ids) for document in documents), getattr(decoder, "encoder", None)
    if encoder is not None:
        for _, group in itertools.groupby(documents, key=lambda document: document.schema):
            first, *others = group
            tokens += (1 + len(others)) * (len(encoder.prompt(first).memory_ids) - len(first.ids))
    return tokens


def _owners(items: Sequence[EncodedDocument | RowFault]) -> list[int]:
    """For each document the number of the first one equal to it, which may be its own; a fault is like no other.

    Equal is what the model reads and what its values are looked up in, under the same schema; and whether it was cut,
    which the row says: a text that ends where another was cut is not the same text.
    """
    first: dict[Hashable, int] = {}
    schemas: dict[Schema, int] = {}  # by number in the keys: a schema's hash is long to compute
    owners = []
    for number, item in enumerate(items):
        key: Hashable = number
        if isinstance(item, EncodedDocument):
            key = (schemas.setdefault(item.schema, len(schemas)), tuple(item.ids), item.text, item.cut)
        owners.append(first.setdefault(key, number))
    return owners


def _by_schema(items: Sequence[EncodedDocument | RowFault], places: Iterable[int]) -> list[int]:
    """The `places` of documents, those of one schema together, else in order: a pack reads few shared prefixes, and
    each is computed for few packs.

    Not by length: the decoder sorts a pack by itself, and packs of like lengths take as many steps (counted: 4 % less
    to 6 % more), while the longest would hold half as many tokens again as the mean, all under one deadline.
    """
    groups: dict[Schema, list[int]] = {}
    for n in sorted(places):
        item = items[n]
        assert isinstance(item, EncodedDocument)
        groups.setdefault(item.schema, []).append(n)
    return [n for group in groups.values() for n in group]


def _decode_pack(decode: Decode, documents: list[EncodedDocument], counts: Counts) -> list[Row | RowFault]:
    """Rows of one pack. A pack that raises (memory, a document the decoder cannot take) is halved, down to one
    document, which becomes a row in error."""
    try:
        extraction = decode(documents)
    except Exception as e:
        if len(documents) == 1:
            alone = "it does not fit the memory, even alone: " if isinstance(e, MemoryError) else ""
            return [RowFault(RowStatus.ERROR, f"decoding: {alone}{explain(e)}")]
        middle = len(documents) // 2
    else:
        _check(documents, extraction)
        counts += extraction.counts
        return list(extraction.rows)
    # Outside the handler, so that the traceback does not keep the failed pack's tensors alive.
    return _decode_pack(decode, documents[:middle], counts) + _decode_pack(decode, documents[middle:], counts)


def _check(documents: Sequence[EncodedDocument], extraction: Extraction) -> None:
    """A decoder that answers for other documents than it was given must fail the unit, not shift its rows."""
    if len(extraction.rows) != len(documents):
        raise BlockError(f"the decoder answered with {len(extraction.rows)} rows for {len(documents)} documents")
    for number, (document, row) in enumerate(zip(documents, extraction.rows, strict=True)):
        if row.schema != document.schema:
            raise BlockError(f"the decoder answered document {number} for schema {row.schema.name!r}, another one's")
