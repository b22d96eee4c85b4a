"""Rows of a job's catalog, all or some, read without Ray's cluster: for commands that want them one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from hpd_core.schema import Document
from pipeline.job import JobError, JobSpec, RowFault
from pipeline.plan import make_plan
from pipeline.reader import CatalogReader
from pipeline.schema import conform
from pipeline.storage import Storage
from pipeline.unit_reader import UnitReader


@dataclass(frozen=True, slots=True)
class Product:
    """One row of a catalog. file: its URI. row: in that file, from 0. category: see `CatalogReader.categorized`."""

    file: str
    row: int
    category: str
    item: Document | RowFault


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one unit. places: of them in the file, from 0. table: them, with the columns that were asked for."""

    file: str
    places: list[int]
    table: pa.Table


def read_catalog(job: JobSpec, reader: CatalogReader, sample: int | None = None, seed: int = 0) -> Iterator[Product]:
    """The rows of the job's plan as products; see `read_rows`."""
    with closing(read_rows(job, reader.columns(), reader.check, sample, seed)) as parts:
        for rows in parts:
            for place, (category, item) in zip(rows.places, reader.categorized(rows.table), strict=True):
                yield Product(rows.file, place, category, item)


def read_rows(
    job: JobSpec, columns: Sequence[str], check: Callable[[pa.Schema], None], sample: int | None = None, seed: int = 0
) -> Generator[Rows, None, None]:
    """The rows of the job's plan in order, or `sample` of them, drawn with `seed`, in the plan's order.

    columns: what they are read with. check: raises ValueError naming what the input's schema lacks.
    Raises JobError for that, and for an input that cannot be read whole.
    """
    storage = Storage(job.input_storage)
    plan = make_plan(job.inputs, storage, job.units, job.limit)
    if plan.bad:
        raise JobError("\n".join(map(str, plan.bad)))
    try:
        check(plan.schema)
    except ValueError as error:
        raise JobError(str(error)) from error
    rows = range(plan.rows)
    chosen = rows if sample is None or sample >= plan.rows else sorted(random.Random(seed).sample(rows, sample))
    left = iter(chosen)
    wanted = next(left, None)
    first = 0
    schema = pa.schema([plan.schema.field(name) for name in columns])
    with closing(UnitReader(storage, schema.names)) as units:
        for unit in plan.units:
            places = []
            while wanted is not None and wanted < first + unit.rows:
                places.append(wanted - first)
                wanted = next(left, None)
            first += unit.rows
            if places:
                table = conform(units.read(unit), schema).take(pa.array(places))
                yield Rows(unit.file.uri, [unit.start + place for place in places], table)
