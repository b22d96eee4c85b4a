"""Benchmark files as training data: what of them may be learned, and as what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpd_core.examples import Labelled
from hpd_core.schema import Document, Schema
from jobs.dataset import ABSENT, BenchmarkRow, category_schemas, read_benchmark
from pipeline.job import JobError


def read_labelled(
    files: Sequence[Path], excluded: Iterable[Path], declared: Mapping[str, Schema] | None = None
) -> list[Labelled]:
    """Rows of `files` without those whose text stands in an excluded file, blanks aside.

    Each row asks for the schema that `declared` has for its category, or for every attribute that the kept rows of its
    file name in it. Raises JobError where no row is left, or one names an attribute that its schema does not declare.
    """
    declared = declared or {}
    unwanted = {_plain(row.text) for path in excluded for row in read_benchmark(path).rows}
    labelled = []
    for path in files:
        rows = [row for row in read_benchmark(path).rows if _plain(row.text) not in unwanted]
        schemas = {**category_schemas(rows, str(path)), **declared}
        for row in rows:
            unknown = set(row.gold) - {a.name for a in schemas[row.category]}
            if unknown:
                raise JobError(f"{path}: {row.text[:40]!r} names {sorted(unknown)}, not in schema {row.category!r}")
        labelled += [Labelled(Document(row.text, schemas[row.category]), _values(row)) for row in rows]
    if not labelled:
        raise JobError(f"{', '.join(map(str, files))}: every row is excluded")
    return labelled


def _values(row: BenchmarkRow) -> dict[str, tuple[str, ...]]:
    """Texts that can be written as a line; none where the gold says that the attribute is absent."""
    return {
        attribute: () if texts[0] == ABSENT else tuple(t for t in map(str.strip, texts) if t and "\n" not in t)
        for attribute, texts in row.gold.items()
    }


def _plain(text: str) -> str:
    return " ".join(text.split())
