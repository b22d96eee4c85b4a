"""What is decoded: documents of a benchmark file or of a catalog, and whose answers every engine writes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpd_core.schema import Document
from jobs.scores.dataset import Benchmark
from pipeline.job import JobError, RowFault


class Lengths(StrEnum):
    """Whose answers are written."""

    #: Every engine is made to write the gold answers: the work is that of real values, whatever the model would say.
    GOLD = "gold"
    #: HPD decodes the documents once, untimed, and every engine is made to write what it said: where there is no gold.
    RECORDED = "recorded"
    #: Every engine writes what the model says to its own prompt, so that engines differ in how much they write.
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload.

    gold: one dict per document, absent ones left out; None where there is none. faults: rows that make no document
    (without text, without a category), left out. repeats: documents equal to an earlier one.
    """

    name: str
    documents: tuple[Document, ...]
    gold: tuple[dict[str, str], ...] | None
    faults: int = 0

    @property
    def repeats(self) -> int:
        return len(self.documents) - len({(d.text, d.schema) for d in self.documents})


def dataset_shape(data: Benchmark, name: str, limit: int | None, seed: int, *, keep_repeats: bool) -> Shape:
    """`limit` rows of a benchmark file with their gold, see `_chosen`."""
    pairs = list(zip(data.documents(), data.answers(), strict=True))
    chosen = _chosen([document for document, _ in pairs], limit, seed, keep_repeats)
    return Shape(name, tuple(pairs[n][0] for n in chosen), tuple(pairs[n][1] for n in chosen))


def catalog_shape(
    items: Sequence[Document | RowFault], name: str, limit: int | None, seed: int, *, keep_repeats: bool
) -> Shape:
    """`limit` rows of a catalog, see `_chosen`. Raises JobError where none of them is a document."""
    documents = [item for item in items if isinstance(item, Document)]
    if not documents:
        reasons = sorted({item.reason for item in items if isinstance(item, RowFault)})
        raise JobError(f"{name}: none of its {len(items)} rows is a document: {'; '.join(reasons) or 'it is empty'}")
    chosen = _chosen(documents, limit, seed, keep_repeats)
    return Shape(name, tuple(documents[n] for n in chosen), None, len(items) - len(documents))


def _chosen(documents: Sequence[Document], limit: int | None, seed: int, keep_repeats: bool) -> list[int]:
    """Numbers of the documents to take, in their order.

    Each different text once, and of these `limit` drawn with `seed` (the files are sorted by category). With repeats,
    the first `limit` as they come, as a unit of work has them: in a draw from a large catalog nothing would repeat.
    """
    if keep_repeats:
        return list(range(len(documents)))[:limit]
    first: dict[tuple[str, object], int] = {}
    for number, document in enumerate(documents):
        first.setdefault((document.text, document.schema), number)
    unique = list(first.values())
    if limit is None or limit >= len(unique):
        return unique
    return sorted(random.Random(seed).sample(unique, limit))
