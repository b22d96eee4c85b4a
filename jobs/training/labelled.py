"""Training data of every kind: benchmark files, Parquet with attribute columns, outputs of `hpd extract`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpd_core.examples import Labelled
from hpd_core.recipe import joined_notices
from hpd_core.schema import Document, Schema
from jobs.console import say
from jobs.scores.dataset import ABSENT, BenchmarkRow, category_schemas, read_benchmark
from jobs.training.labelled_output import read_output
from jobs.training.labelled_table import read_table
from jobs.training.origin import notice_beside, run_of, teacher_facts
from jobs.training.tally import Tally, one_line
from pipeline.globs import PARQUET_SUFFIXES
from pipeline.job import JobError
from pipeline.resume import RUN
from pipeline.storage import Storage, explained
from pipeline.writers import info_of, is_there


class Kind(StrEnum):
    """What a data set is, with the name that people know it by."""

    BENCHMARK = "a benchmark file"
    TABLE = "Parquet with attribute columns"
    OUTPUT = "an output of `hpd extract`"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How data sets are read that are no benchmark files.

    job: YAML with text and schemas of Parquet. min_confidence, unfinished: see `read_output`.
    """

    job: Path | None = None
    min_confidence: float | None = None
    unfinished: bool = False

    def options(self) -> list[tuple[str, Kind]]:
        """The options that were given, each with the kind that heeds it."""
        given = [
            ("--job", Kind.TABLE, self.job is not None),
            ("--min-confidence", Kind.OUTPUT, self.min_confidence is not None),
            ("--unfinished", Kind.OUTPUT, self.unfinished),
        ]
        return [(option, kind) for option, kind, is_given in given if is_given]

    def facts(self) -> dict[str, Any]:
        """What was given, for the log of a training. Data that was read without options has none."""
        facts = {
            "job": self.job.name if self.job else None,
            "min_confidence": self.min_confidence,
            "unfinished": self.unfinished or None,
        }
        return {name: value for name, value in facts.items() if value is not None}


def kind_of(dataset: str) -> Kind:
    """A folder with run.json is an output; other folders, globs and names of Parquet files are Parquet."""
    if dataset.lower().endswith(PARQUET_SUFFIXES):
        return Kind.TABLE
    with explained(dataset):
        fs, path = Storage().at(dataset)
        info = info_of(fs, path)
        if info and info["type"] == "directory":
            return Kind.OUTPUT if is_there(fs, f"{path.rstrip('/')}/{RUN}") else Kind.TABLE
        if info:
            return Kind.BENCHMARK
    return Kind.TABLE if set("*?[") & set(path) else Kind.BENCHMARK


@dataclass(frozen=True, slots=True)
class DataSet:
    """What one data set teaches. name: as it was given. notice: terms that it brings, those of the model that wrote it
    or of the file beside it. teacher: what wrote an output, see `teacher_facts`; None for other kinds."""

    name: str
    kind: Kind
    rows: Sequence[Labelled]
    notice: str = ""
    teacher: Mapping[str, Any] | None = None


def read_labelled(
    datasets: Sequence[str | Path],
    excluded: Iterable[Path],
    declared: Mapping[str, Schema] | None = None,
    reading: ReadOptions = ReadOptions(),
) -> list[Labelled]:
    """The rows of `read_datasets`."""
    return [row for data in read_datasets(datasets, excluded, declared, reading) for row in data.rows]


def read_datasets(
    datasets: Sequence[str | Path],
    excluded: Iterable[Path],
    declared: Mapping[str, Schema] | None = None,
    reading: ReadOptions = ReadOptions(),
) -> list[DataSet]:
    """Rows of the data sets without those whose text stands in an excluded benchmark file, blanks aside.

    declared: {category: schema} of benchmark rows. Says of other data sets what is left out and why. Raises JobError
    where no row is left, an option is given that no data set heeds, and what the reader of a data set raises.
    """
    names = [str(dataset) for dataset in datasets]
    kinds = [kind_of(name) for name in names]
    for option, heeded in [*([("--schemas", Kind.BENCHMARK)] if declared else []), *reading.options()]:
        if heeded not in kinds:
            raise JobError(f"{option}: no --dataset is {heeded}")
    unwanted = frozenset(one_line(row.text) for path in excluded for row in read_benchmark(path).rows)
    found = []
    for name, kind in zip(names, kinds, strict=True):
        notice = notice_beside(name)
        if kind is Kind.BENCHMARK:
            found.append(DataSet(name, kind, _benchmark(name, unwanted, declared or {}), notice))
            continue
        tally = Tally(unwanted)
        rows = list(_rows(name, kind, reading, tally))
        for line in tally.lines():
            say(f"{name}: {line}")
        teacher = None
        if kind is Kind.OUTPUT:
            run = run_of(name)
            teacher, notice = teacher_facts(name, run), joined_notices([notice, str(run.get("notice", ""))])
        found.append(DataSet(name, kind, rows, notice, teacher))
    if not any(data.rows for data in found):
        raise JobError(f"{', '.join(names)}: every row is excluded or left out")
    return found


def data_fingerprint(labelled: Iterable[Labelled], facts: Mapping[str, Any]) -> str:
    """`fingerprint(facts | {"rows": [repr(row), ...]})`, without all rows as one text in memory. The keys of `facts`
    come before "rows"."""
    head = json.dumps(dict(facts), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(f'{head[:-1]},"rows":['.encode())
    for number, row in enumerate(labelled):
        digest.update(f"{',' if number else ''}{json.dumps(repr(row), ensure_ascii=False)}".encode())
    digest.update(b"]}")
    return digest.hexdigest()[:16]


def _rows(name: str, kind: Kind, reading: ReadOptions, tally: Tally) -> Iterable[Labelled]:
    if kind is Kind.OUTPUT:
        return read_output(name, tally, threshold=reading.min_confidence, unfinished=reading.unfinished)
    if reading.job is None and any(Path(name).glob("*.jsonl")):
        raise JobError(f"{name}: a folder of JSON lines is not read; name its files, each with --dataset")
    if reading.job is None:
        raise JobError(f"{name}: {kind} needs --job, the YAML of a job that says its text and schemas")
    return read_table(name, reading.job, tally)


def _benchmark(path: str, unwanted: frozenset[str], declared: Mapping[str, Schema]) -> list[Labelled]:
    """Each row asks for the schema that `declared` has for its category, or for every attribute that the kept rows of
    the file name in it. Raises JobError as `Benchmark.with_schemas` does, for rows that are not kept too."""
    rows = [row for row in read_benchmark(path).with_schemas(declared).rows if one_line(row.text) not in unwanted]
    schemas = {**category_schemas(rows, path), **declared}
    return [Labelled(Document(row.text, schemas[row.category]), _values(row)) for row in rows]


def _values(row: BenchmarkRow) -> dict[str, tuple[str, ...]]:
    """Texts that can be written as a line; none where the gold says that the attribute is absent."""
    return {
        attribute: () if texts[0] == ABSENT else tuple(t for t in map(str.strip, texts) if t and "\n" not in t)
        for attribute, texts in row.gold.items()
    }
