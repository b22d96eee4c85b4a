"""Random rows of a job's plan, and what they would feed the model: tokenizer only, no weights and no Ray."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import mean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.prompt import EncodedDocument, PromptEncoder
from hpd_core.rows import RowStatus
from hpd_core.schema import Document, Schema
from pipeline.file_rows import FileRows
from pipeline.job import RowFault
from pipeline.metrics import length_bin
from pipeline.partitions import with_partitions
from pipeline.prepare import Prepared
from pipeline.reader import CatalogReader
from pipeline.schema import conform
from pipeline.storage import explained
from pipeline.tokenize import documents
from pipeline.units import Unit

#: Units that rows are drawn from at most: each costs decoding a part of a row group.
PLACES = 64


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row by its number in the unit's file. place: which of the `PLACES` groups of the sample it belongs to."""

    unit: Unit
    row: int
    place: int


def draw_rows(units: Sequence[Unit], count: int, seed: int) -> list[DrawnRow]:
    """`count` rows, each row of the `units` as likely as any other, in the order of files and rows.

    Of few units simple random rows; of many, units drawn by their number of rows, and as many random rows in each, so
    that neighbours of one unit form one place. All rows where there are no more than `count`.
    """
    random_ = random.Random(seed)
    units = [unit for unit in units if unit.rows]
    if len(units) <= PLACES or sum(unit.rows for unit in units) <= count:
        found = _anywhere(units, count, random_)
    else:
        found = []
        for place, unit in enumerate(random_.choices(units, weights=[unit.rows for unit in units], k=PLACES)):
            each = (place + 1) * count // PLACES - place * count // PLACES
            rows = random_.sample(range(unit.start, unit.stop), min(unit.rows, each))
            found += [DrawnRow(unit, row, place) for row in rows]
    order = {unit: number for number, unit in enumerate(units)}
    return sorted(found, key=lambda drawn: (order[drawn.unit], drawn.row, drawn.place))


def _anywhere(units: Sequence[Unit], count: int, random_: random.Random) -> list[DrawnRow]:
    total = sum(unit.rows for unit in units)
    chosen = random_.sample(range(total), min(count, total))
    place = {row: number % PLACES for number, row in enumerate(chosen)}  # in the order of the draw, which is random
    found, first = [], 0
    left = iter(sorted(chosen))
    row = next(left, None)
    for unit in units:
        while row is not None and row < first + unit.rows:
            found.append(DrawnRow(unit, unit.start + row - first, place[row]))
            row = next(left, None)
        first += unit.rows
    return found


@dataclass(slots=True)
class RowSample:
    """What random rows would feed the model, counted in tokens.

    places: {place: [rows, documents, prompt tokens, slots, prefix tokens]}. texts: what is read of each document's
    text; prompts: all that is fed of it (text, suffix, stubs); prefixes: the shared prefix before it; keys: the whole
    names of its attributes; stubs: what is fed of them. cut: documents that are longer than what is read. reasons: why
    rows are no documents.
    """

    places: dict[int, list[int]] = field(default_factory=dict)
    texts: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    stubs: list[int] = field(default_factory=list)
    cut: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able. Raises ValueError where no row is a document."""
        rows, documents, prompt_tokens, slots, _ = (sum(column) for column in zip(*self.places.values(), strict=True))
        if not documents:
            raise ValueError(f"none of {rows} random rows can be used; the reasons are {dict(self.reasons)}")
        ordered = sorted(self.prompts)
        return {
            "rows": rows,
            "documents": documents,
            "rows_unusable": dict(self.reasons.most_common()),
            "documents_cut": self.cut,
            "prompt_tokens_per_document": prompt_tokens / documents,
            "prompt_tokens_median": ordered[len(ordered) // 2],
            "prompt_tokens_longest": ordered[-1],
            "text_tokens_per_document": mean(self.texts),
            "prefix_tokens_per_document": mean(self.prefixes),
            "key_tokens_per_document": mean(self.keys),
            "stub_tokens_per_document": mean(self.stubs),
            "attributes_per_document": slots / documents,
            "lengths": histogram(self.texts),
            "prompt_lengths": histogram(self.prompts),
            "places": [counts for _, counts in sorted(self.places.items())],
        }


def histogram(lengths: Iterable[int]) -> dict[str, int]:
    """{upper edge of a bin, see `pipeline.metrics.length_bin`: how many}, shortest first."""
    return dict(sorted(Counter(map(length_bin, lengths)).items(), key=lambda item: int(item[0])))


def measure(prepared: Prepared, encoder: PromptEncoder, rows: Sequence[DrawnRow]) -> RowSample:
    """Reads and encodes the drawn rows, in the order of `draw_rows`. Raises StorageError for a file that is gone."""
    sample = RowSample()
    fixed: dict[Schema, tuple[int, int, int, int]] = {}
    for drawn, item in _items(prepared, rows):
        counts = sample.places.setdefault(drawn.place, [0, 0, 0, 0, 0])
        counts[0] += 1
        if isinstance(item, RowFault):
            sample.reasons[item.reason] += 1
            continue
        try:
            encoded = encoder.encode(item)
            if item.schema not in fixed:
                fixed[item.schema] = _fixed(encoder, encoded)
        except ValueError as error:
            sample.reasons[f"tokenisation: {error}"] += 1
            continue
        prefix, around, keys, stubs = fixed[item.schema]
        sample.texts.append(len(encoded.ids))
        sample.prompts.append(len(encoded.ids) + around)
        sample.prefixes.append(prefix)
        sample.keys.append(keys)
        sample.stubs.append(stubs)
        sample.cut += encoded.cut
        for n, more in enumerate((1, len(encoded.ids) + around, len(item.schema), prefix), 1):
            counts[n] += more
    return sample


def _fixed(encoder: PromptEncoder, encoded: EncodedDocument) -> tuple[int, int, int, int]:
    """Tokens that all documents of a schema have: prefix; suffix and stubs; whole keys; stubs."""
    prompt = encoder.prompt(encoded)
    names = [f"{attribute.name}:" for attribute in encoded.schema]
    keys = encoder.tokenizer(names, add_special_tokens=False).input_ids
    stubs = sum(map(len, prompt.shared.stubs))
    return len(prompt.shared.prefix), len(prompt.memory_ids) - len(encoded.ids), sum(map(len, keys)), stubs


def _items(prepared: Prepared, rows: Sequence[DrawnRow]) -> Iterator[tuple[DrawnRow, Document | RowFault]]:
    reader, schema = prepared.job.reader, prepared.plan.schema
    wanted = reader.columns() if isinstance(reader, CatalogReader) else schema.names
    asked = pa.schema([schema.field(name) for name in wanted])
    for file, of_file in groupby(rows, key=lambda drawn: drawn.unit.file):
        chosen = list(of_file)
        with (
            explained(file.uri),
            prepared.source.open(file.uri, ahead=False) as opened,
            pq.ParquetFile(opened) as parquet,
        ):
            there = [name for name in wanted if name in parquet.schema_arrow.names]
            # A column has to be read, or nobody knows how many rows a batch has.
            tables, found = _taken(parquet, there or parquet.schema_arrow.names[:1], {drawn.row for drawn in chosen})
        if tables:
            table = conform(with_partitions(pa.concat_tables(tables.values()), file.uri), asked)
            found |= zip(tables, documents(reader, table), strict=True)
        yield from ((drawn, found[drawn.row]) for drawn in chosen)


def _taken(
    parquet: pq.ParquetFile, columns: Sequence[str], rows: Collection[int]
) -> tuple[dict[int, pa.Table], dict[int, Document | RowFault]]:
    """Rows by number, and why others cannot be read: a damaged page is no reason to plan nothing, since a run leaves
    out its unit alone."""
    tables: dict[int, pa.Table] = {}
    faults: dict[int, Document | RowFault] = {}
    held = FileRows(parquet, columns)
    for row in sorted(rows):
        try:
            tables[row] = held.take(row, row + 1)
        except (ValueError, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the store; what Arrow cannot read has none
                raise
            faults[row] = RowFault(RowStatus.ERROR, f"cannot be read: {error}")
            held = FileRows(parquet, columns)
    return tables, faults
