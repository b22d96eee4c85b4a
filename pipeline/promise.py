"""The promise, checked by other arithmetic than what decides the work: each planned row is committed once or left."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.record import UnitRecord
from pipeline.units import Unit


class PromiseError(AssertionError):
    """Rows are missing or doubled: a fault of this program, never of the data."""


def rows_committed(planned: Sequence[Unit], kept: Sequence[UnitRecord], left: Sequence[Unit]) -> int:
    """Input rows in the output: the planned ones that are not left, and those an earlier run had beyond this plan.

    planned: units without overlap. Raises `PromiseError` unless planned = committed + left.
    """
    spans = _spans(planned)
    inside = beyond = 0
    for record in kept:
        unit = record.unit
        rows = sum(max(0, min(stop, unit.stop) - max(start, unit.start)) for start, stop in spans.get(unit.key[:2], ()))
        inside, beyond = inside + rows, beyond + record.unit.rows - rows
    rows_planned, rows_left = sum(u.rows for u in planned), sum(u.rows for u in left)
    if rows_planned != inside + rows_left:
        raise PromiseError(f"{rows_planned} rows are planned, {inside} of them committed and {rows_left} left")
    return rows_planned - rows_left + beyond


def _spans(planned: Sequence[Unit]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """{file: planned row ranges}, those that touch made one: a whole file is one, a sample of its units are several."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for unit in sorted(planned, key=lambda unit: unit.key):
        ranges = spans.setdefault(unit.key[:2], [])
        if ranges and ranges[-1][1] == unit.start:
            ranges[-1] = ranges[-1][0], unit.stop
        else:
            ranges.append((unit.start, unit.stop))
    return spans
