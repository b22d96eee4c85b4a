from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import pipeline.drive
from jobs.summary import _shown, figures, first_rows, row_table
from pipeline.job import OutputOptions
from pipeline.reader import CatalogReader
from pipeline.run import run
from pipeline.summary import RunSummary
from pipeline.text import TextTemplate
from tests.pipeline.fakes import PRODUCT
from tests.pipeline.helpers import inline, job, write


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


@pytest.mark.parametrize("options", [OutputOptions(), OutputOptions(layout="hive", profile="athena")], ids=str)
def test_the_first_rows_are_of_files_that_readers_see_under_the_names_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: OutputOptions
) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    for colour in ("blue", "red"):
        write(tmp_path / f"in/Colour={colour}/{colour}.parquet", {"Title": [f"a {colour} thing {n}" for n in range(3)]})
    reader = CatalogReader(TextTemplate("{{ Colour }} {{ Title }}"), {}, default=PRODUCT)
    spec = job(tmp_path, tmp_path / "in", reader=reader, output_options=options)
    assert run(spec).complete
    for folder in (tmp_path / "out/data").rglob("*"):
        if folder.is_dir():
            (folder / ".killed-worker.tmp").write_bytes(b"half a file")
    (tmp_path / "out/data/.killed-worker.tmp").write_bytes(b"half a file")
    rows = first_rows(str(tmp_path / "out"), spec, 4)
    assert [(row["Colour"], row["Title"][:6]) for row in rows] == [("blue", "a blue")] * 3 + [("red", "a red ")]
    assert all(row["hpd_status"] == "ok" and row["brand"] for row in rows) and row_table(rows, spec).row_count == 4
