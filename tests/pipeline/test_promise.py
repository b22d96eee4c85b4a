from __future__ import annotations

from collections import Counter

import pytest

from hpd_core.rows import Counts
from pipeline.metrics import Metrics
from pipeline.promise import PromiseError, rows_committed
from pipeline.record import UnitRecord
from pipeline.resume import remaining
from pipeline.summary import metrics_facts, per_step
from pipeline.units import InputFile, Unit

A, B = InputFile("/in/a", 1, "v1"), InputFile("/in/b", 1, "v1")
PLAN = [Unit(A, 0, 10), Unit(A, 10, 20), Unit(B, 0, 5)]


def record(file: InputFile, start: int, stop: int, **rows: int) -> UnitRecord:
    return UnitRecord(Unit(file, start, stop), "o", "f", 1, "", Metrics(rows=Counter(rows or {"ok": stop - start})))


@pytest.mark.parametrize(
    ("ranges", "rows"),
    [
        ([], 0),
        ([(A, 0, 10)], 10),
        ([(A, 0, 7), (A, 7, 20), (B, 0, 5)], 25),
        # An earlier run with a larger limit, or with inputs that this plan leaves out.
        ([(A, 0, 20), (B, 0, 9)], 29),
    ],
)
def test_committed_rows_are_those_planned_and_not_left(ranges: list[tuple[InputFile, int, int]], rows: int) -> None:
    kept = [record(*place) for place in ranges]
    assert rows_committed(PLAN, kept, remaining(PLAN, kept)) == rows
    assert metrics_facts(kept, rows)["rows_in"] == rows


def test_a_row_that_is_missing_or_doubled_breaks_the_promise() -> None:
    kept = [record(A, 0, 10)]
    with pytest.raises(PromiseError, match="25 rows are planned, 10 of them committed and 14 left"):
        rows_committed(PLAN, kept, [Unit(A, 11, 20), Unit(B, 0, 5)])
    with pytest.raises(PromiseError, match="25 rows are planned, 13 of them committed and 15 left"):
        rows_committed(PLAN, [*kept, record(A, 5, 8)], remaining(PLAN, kept))


def test_rows_that_the_actors_counted_otherwise_than_planned_break_the_promise() -> None:
    assert metrics_facts([record(A, 0, 10, ok=7, no_text=3)], 10)["rows_error"] == 3
    with pytest.raises(PromiseError, match="10 rows of the input are committed"):
        metrics_facts([record(A, 0, 10, ok=7, no_text=2)], 10)


def test_tokens_per_step_are_those_of_the_benchmark() -> None:
    decode = Counts(generated_tokens=30, decode_rows=20, slot_steps=15, steps=5, model_calls=10)
    wanted = {"tokens_per_step": 6.0, "slots_per_step": 3.0, "value_tokens_fed_per_step": 4.0}
    assert per_step(Metrics(decode=decode)) == wanted
    assert per_step(Metrics(decode=Counts(generated_tokens=3, model_calls=1)))["tokens_per_step"] == 3.0
