"""The promise, checked by other arithmetic than what decides the work: each planned row is committed once or left."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.record import UnitRecord
from pipeline.units import Unit


class PromiseError(AssertionError):
    """Rows are missing or doubled: a fault of this program, never of the data."""


def rows_committed(planned: Sequence[Unit], kept: Sequence[UnitRecord], left: Sequence[Unit]) -> int:
    """Input rows in the output: the planned ones that are not left, and those an earlier run had beyond this plan.

    planned: units, those of one file without a gap. Raises `PromiseError` unless planned = committed + left.
    """
    spans: dict[tuple[str, str], tuple[int, int]] = {}
    for unit in planned:
        start, stop = spans.get(file := unit.key[:2], (unit.start, unit.stop))
        spans[file] = min(start, unit.start), max(stop, unit.stop)
    inside = beyond = 0
    for record in kept:
        start, stop = spans.get(record.unit.key[:2], (0, 0))
        rows = max(0, min(stop, record.unit.stop) - max(start, record.unit.start))
        inside, beyond = inside + rows, beyond + record.unit.rows - rows
    rows_planned, rows_left = sum(u.rows for u in planned), sum(u.rows for u in left)
    if rows_planned != inside + rows_left:
        raise PromiseError(f"{rows_planned} rows are planned, {inside} of them committed and {rows_left} left")
    return rows_planned - rows_left + beyond
