"""Exactly once, seen with pyarrow alone: nothing of the pipeline is asked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tests.pipeline.fakes import PRODUCT, answer
from tests.soak.catalog import Catalog

#: Violations of one kind that are listed.
_SHOWN = 5


def violations(catalog: Catalog, fs: AbstractFileSystem, folder: str) -> Iterator[str]:
    """What is wrong with the data files in `folder` of `fs`, read in the order of their names as readers do.

    Every row of the catalog must be there once, in order, its columns untouched, with the hashes of its own title.
    """
    times = np.zeros(catalog.rows, np.int64)
    last, out_of_order, foreign = -1, 0, 0
    source = _Reader(catalog.tables())
    is_aligned = True
    for path in sorted(p for p in fs.find(folder) if p.endswith(".parquet")):
        name = path.rsplit("/", 1)[-1]
        with fs.open(path, "rb") as raw:
            table = pq.read_table(raw)
        rows = table.column("row").to_numpy()
        known = rows[(rows >= 0) & (rows < catalog.rows)]
        foreign += len(rows) - len(known)
        np.add.at(times, known, 1)
        out_of_order += int(np.sum(np.diff(np.concatenate(([last], rows))) != 1))
        last = int(rows[-1]) if len(rows) else last
        if is_aligned:  # past the first shift every row differs
            expected = source.take(len(rows))
            is_aligned = table.select(expected.column_names).equals(expected)
            if not is_aligned:
                yield f"{name}: its input columns are not rows {source.at - len(rows)} to {source.at} of the catalog"
        yield from islice((f"{name}: {wrong}" for wrong in _wrong_answers(table)), _SHOWN)
    lost, doubled = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    if len(lost):
        yield f"{len(lost)} rows of the catalog are not in the output, the first is row {lost[0]}"
    if len(doubled):
        yield f"{len(doubled)} rows of the catalog are in the output more than once, the first is row {doubled[0]}"
    if foreign:
        yield f"{foreign} rows of the output are not in the catalog"
    if out_of_order:
        yield f"the order of the rows breaks {out_of_order} times"


def _wrong_answers(table: pa.Table) -> Iterator[str]:
    columns = ("row", "title", "brand", "pack_size", "hpd_status")
    for row, title, *given in zip(*(table.column(name).to_pylist() for name in columns), strict=True):
        expected = [*(answer(title, a) for a in PRODUCT), "ok"] if title else [None, None, "no_text"]
        if given != expected:
            yield f"row {row} has {given}, and its title asks for {expected}"


class _Reader:
    """The rows of some tables, as many at a time as are asked for. at: rows taken so far."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self.at = 0
        self._tables = tables
        self._left: pa.Table | None = None

    def take(self, count: int) -> pa.Table:
        while self._left is None or self._left.num_rows < count:
            more = next(self._tables, None)
            if more is None:
                break
            self._left = more if self._left is None else pa.concat_tables([self._left, more])
        assert self._left is not None
        taken, self._left = self._left.slice(0, count), self._left.slice(count)
        self.at += count
        return taken.combine_chunks()
