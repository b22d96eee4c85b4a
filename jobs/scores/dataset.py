"""Benchmark files: one JSON object a line, {"input", "category", "target_scores": {attribute: {value: 1}}}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpd_core.schema import Attribute, Document, Schema, SchemaError
from pipeline.job import JobError

ABSENT = "n/a"


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One product. gold: {attribute: accepted values}; ("n/a",) where the product has none."""

    text: str
    category: str
    gold: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark file.

    schemas: per category, every attribute that its rows name, in order of first appearance, or what `with_schemas` put
    in its place. origin: the file, for messages.
    """

    rows: tuple[BenchmarkRow, ...]
    schemas: dict[str, Schema]
    origin: str = ""

    def with_schemas(self, declared: Mapping[str, Schema]) -> Benchmark:
        """The same rows, asked for the schemas that are `declared` for their categories, with descriptions, closed
        lists and types; categories without one keep theirs. `jobs.scores.declared` reads such schemas.

        Raises JobError naming a row whose gold names an attribute that its declared schema does not have: it could only
        be counted as missed.
        """
        for number, row in enumerate(self.rows, 1):
            schema = declared.get(row.category)
            unknown = [name for name in row.gold if schema and not schema.declares(name)]
            if schema and unknown:
                names = f"names {', '.join(map(repr, unknown))}, not in schema {schema.name!r}"
                where = f"{self.origin}: row {number} ({row.text[:40]!r})"
                raise JobError(f"{where} {names}, which is declared for category {row.category!r}")
        return replace(self, schemas={c: declared.get(c, schema) for c, schema in self.schemas.items()})

    def documents(self, limit: int | None = None) -> list[Document]:
        """The first `limit` rows as documents, each with the whole schema of its category."""
        return [Document(row.text, self.schemas[row.category]) for row in self.rows[:limit]]

    def answers(self, limit: int | None = None) -> list[dict[str, str]]:
        """Gold answers of the first `limit` rows, one text per attribute, absent ones left out."""
        return [{a: v[0].strip() for a, v in row.gold.items() if v[0] != ABSENT} for row in self.rows[:limit]]

    def digest(self, limit: int | None = None) -> str:
        """A name for the first `limit` rows, their gold included: files of different benchmarks share theirs."""
        rows = [[row.text, row.category, row.gold] for row in self.rows[:limit]]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def read_benchmark(path: str | Path) -> Benchmark:
    """Reads a whole benchmark file. Raises JobError naming the file and line of what is wrong."""
    rows = []
    try:
        # Not splitlines(): product texts hold characters that it takes for line ends.
        with Path(path).open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append(_row(line, f"{path}: line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise JobError(f"{path}: holds no row")
    return Benchmark(tuple(rows), category_schemas(rows, str(path)), str(path))


def joined(benchmarks: Sequence[Benchmark], limit: int | None = None) -> Benchmark:
    """The first `limit` rows of each as one benchmark; a category that several have asks for what any of them names."""
    rows = [row for benchmark in benchmarks for row in benchmark.rows]
    origin = ", ".join(benchmark.origin for benchmark in benchmarks)
    kept = tuple(row for benchmark in benchmarks for row in benchmark.rows[:limit])
    return Benchmark(kept, category_schemas(rows, origin), origin)


def category_schemas(rows: Sequence[BenchmarkRow], origin: str) -> dict[str, Schema]:
    """{category: schema of the union of its rows' attributes, in order of first appearance}."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row.category, {}).update(dict.fromkeys(row.gold))
    try:
        return {
            # Nothing is written to columns here, and two attributes may differ in what a column name drops.
            category: Schema(category, tuple(Attribute(name, column=f"a{i}") for i, name in enumerate(attributes)))
            for category, attributes in names.items()
        }
    except SchemaError as error:
        raise JobError(f"{origin}: {error}") from error


def _row(line: str, where: str) -> BenchmarkRow:
    try:
        data = json.loads(line)
        gold = {str(a): tuple(str(v) for v in values) for a, values in data["target_scores"].items()}
        row = BenchmarkRow(str(data["input"]), str(data["category"]), gold)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{where}: not a benchmark row ({type(error).__name__}: {error})") from error
    empty = [attribute for attribute, values in gold.items() if not values]
    if empty:
        raise JobError(f"{where}: attribute {empty[0]!r} has no value, not even {ABSENT!r}")
    return row
