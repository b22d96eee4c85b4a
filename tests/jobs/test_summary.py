from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from jobs.summary import _shown, figures
from pipeline.job import RunSummary


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("red", "red"),
        (["red", "blue"], "red; blue"),
        ({"value": 1.5, "unit": "kg"}, "1.5 kg"),
        ([{"value": 1.0, "unit": "cm"}, {"value": 2.0, "unit": "cm"}], "1 cm; 2 cm"),
    ],
)
def test_values_of_output_columns_are_shown_as_people_read_them(value: object, text: str) -> None:
    assert _shown(value) == text


def told(**changes: object) -> str:
    facts: dict[str, object] = dict(
        complete=True, output="o", rows_in=4, rows_ok=4, rows_error=0, values={"a": 3}, model_calls=7, units=1,
        docs_per_second=2.0, tokens_per_step=1.0, slots_per_step=1.0, dollars_per_1000=0.1, seconds=2.0,
    )  # fmt: skip
    console = Console(width=200, record=True, file=StringIO())
    console.print(figures(RunSummary(**(facts | changes)), 0.1))  # type: ignore[arg-type]
    return console.export_text()


def test_answers_that_are_null_all_the_same_are_counted_beside_the_values() -> None:
    decode = {"truncated": 0, "invalid": 1200, "unsure": 2, "absent": 5}
    assert "3, and 1,200 invalid, 2 unsure (null; `output.statuses`" in told(metrics={"decode": decode})
    assert "null" not in told()


def test_a_run_that_had_nothing_to_do_says_so() -> None:
    assert "nothing was left to do" in told(model_calls=0)
    assert "nothing was left" not in told() and "nothing was left" not in told(model_calls=0, complete=False)
