"""Rows of a job's catalog as products, read without Ray's cluster: for jobs that want some rows and not all."""

from __future__ import annotations

import random
from collections.abc import Iterator
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


def read_catalog(job: JobSpec, reader: CatalogReader, sample: int | None = None, seed: int = 0) -> Iterator[Product]:
    """The rows of the job's plan in order, or `sample` of them, drawn with `seed`, in the plan's order.

    Raises JobError for an input that cannot be read whole, and naming the column that the text needs and it lacks.
    """
    storage = Storage(job.input_storage)
    plan = make_plan(job.inputs, storage, job.units, job.limit)
    if plan.bad:
        raise JobError("\n".join(map(str, plan.bad)))
    try:
        reader.check(plan.schema)
    except ValueError as error:
        raise JobError(str(error)) from error
    rows = range(plan.rows)
    chosen = rows if sample is None or sample >= plan.rows else sorted(random.Random(seed).sample(rows, sample))
    left = iter(chosen)
    wanted = next(left, None)
    first = 0
    columns = pa.schema([plan.schema.field(name) for name in reader.columns()])
    units = UnitReader(storage, columns.names)
    for unit in plan.units:
        places = []
        while wanted is not None and wanted < first + unit.rows:
            places.append(wanted - first)
            wanted = next(left, None)
        first += unit.rows
        if places:
            table = conform(units.read(unit), columns).take(pa.array(places))
            for place, (category, item) in zip(places, reader.categorized(table), strict=True):
                yield Product(unit.file.uri, unit.start + place, category, item)
    units.close()
