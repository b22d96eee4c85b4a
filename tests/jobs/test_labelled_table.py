"""Parquet with attribute columns: what each cell teaches, what is left out, and that a person is told why."""

from __future__ import annotations

import decimal
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpd_core.examples import Labelled
from jobs.training.labelled import Kind, ReadOptions, kind_of, read_labelled
from jobs.training.labelled_table import BATCH_ROWS
from pipeline.job import JobError
from pipeline.storage import StoreUnavailableError
from tests.jobs.test_dataset import row as benchmark_row
from tests.jobs.test_dataset import write as write_benchmark

JOB = """
text: {template: "{{ title }}", category_column: kind, attributes_column: ask}
schemas:
  define:
    shoes:
      attributes:
      - Brand
      - {name: Color, values: [Navy, Red]}
      - {name: Size, type: number, column: eu_size}
      - {name: Waterproof, type: boolean}
    tea: {attributes: [Flavor]}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def write(path: Path, **columns: Any) -> Path:
    size = len(next(iter(columns.values())))
    whole = {"title": [f"shoe {n}" for n in range(size)], "kind": ["shoes"] * size}
    whole |= {"ask": pa.nulls(size, pa.list_(pa.string()))}
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(whole | columns), path)
    return path


def read(path: Path | str, job: Path) -> list[Labelled]:
    return read_labelled([path], [], reading=ReadOptions(job=job))


def test_values_are_written_as_a_model_writes_them_and_null_is_absent(tmp_path: Path, job: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        brand=pa.array([" Acme", None, "n/a"]).dictionary_encode(),
        color=["navy", "Red", ""],
        eu_size=pa.array([42.1, float("nan"), 42], pa.float32()),
        waterproof=[True, False, None],
    )
    rows = read(path, job)
    assert [r.document.text for r in rows] == ["shoe 0", "shoe 1", "shoe 2"]
    assert [r.values for r in rows] == [
        {"Brand": ("Acme",), "Color": ("Navy",), "Size": ("42.1",), "Waterproof": ("yes",)},
        {"Brand": (), "Color": ("Red",), "Size": (), "Waterproof": ("no",)},
        {"Brand": (), "Color": (), "Size": ("42",), "Waterproof": ()},
    ]


def test_texts_and_decimals_of_a_number_and_several_accepted_values(tmp_path: Path, job: Path) -> None:
    path = write(tmp_path / "a.parquet", brand=[["A", "B", "A"], [], None], eu_size=["42,5", "1,200", "7"])
    assert [(r.values["Brand"], r.values["Size"]) for r in read(path, job)] == [
        (("A", "B"), ("42,5",)),
        ((), ("1,200",)),
        ((), ("7",)),
    ]
    path = write(tmp_path / "b.parquet", eu_size=pa.array([decimal.Decimal("42.50")], pa.decimal128(9, 2)))
    assert read(path, job)[0].values["Size"] == ("42.50",)


def test_quantities_dates_and_several_values(tmp_path: Path, job: Path) -> None:
    declared = "[{name: Weight, type: quantity}, {name: Since, type: date}, {name: Colors, many: true}]"
    job.write_text(JOB.replace("[Flavor]", declared))
    path = write(
        tmp_path / "a.parquet",
        kind=["tea"] * 3,
        weight=[{"value": 1.5, "unit": "kg"}, None, {"value": 2.0, "unit": "m"}],
        since=[date(2024, 3, 9), None, date(1999, 1, 1)],
        colors=[["red", None, "tan"], [], None],
    )
    rows = [r.values for r in read(path, job)]
    assert rows == [
        {"Weight": ("1.5 kg",), "Since": ("2024-03-09",), "Colors": ("red; tan",)},
        {"Weight": (), "Since": (), "Colors": ()},
        {"Weight": ("2 m",), "Since": ("1999-01-01",), "Colors": ()},
    ]


def test_lists_and_structs_that_hold_nothing_teach_nothing_that_is_not_said(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = "[{name: Weight, type: quantity}, {name: Colors, many: true}]"
    job.write_text(JOB.replace("[Flavor]", declared))
    path = write(
        tmp_path / "a.parquet",
        kind=["tea"] * 3,
        weight=pa.array(
            [{"value": None, "unit": "kg"}, {"value": 2.0, "unit": None}, {"value": 2.0, "unit": "kg"}],
            pa.struct({"value": pa.float64(), "unit": pa.string()}),
        ),
        colors=[["red", "n/a", "", "red"], ["n/a"], ["a;b", "c"]],
    )
    assert [r.values for r in read(path, job)] == [
        {"Weight": (), "Colors": ("red",)},
        {"Weight": (), "Colors": ()},
        {"Weight": ("2 kg",), "Colors": None},
    ]
    said = capsys.readouterr().err
    assert "1 values not taught: an item of 'Colors' holds the separator (first: " in said
    assert "row 2 column 'colors': 'a;b' holds" in said


def test_what_cannot_be_asked_for_is_not_taught_and_said(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.parquet", brand=["A", "two\nlines"], color=["Green", None], eu_size=["x", "8"])
    first, second = read(path, job)
    assert first.values == {"Brand": ("A",), "Color": None, "Size": None, "Waterproof": None}
    assert second.values == {"Brand": None, "Color": (), "Size": ("8",), "Waterproof": None}
    said = capsys.readouterr().err
    assert "2 rows with 2 values and 1 known absences" in said
    assert f"'Color' is not in its closed list (first: {path} row 0 column 'color': 'Green')" in said
    assert "'Size' is no number" in said and "'Brand' has more than one line" in said
    assert "2 values not taught: there is no column of 'Waterproof'" in said


def test_rows_without_text_or_schema_are_left_out_and_said(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.parquet", brand=["A", "B", "C"], title=["a", None, "c"], kind=["shoes", "shoes", "hat"])
    assert [r.document.text for r in read(path, job)] == ["a"]
    said = capsys.readouterr().err
    assert "1 rows left out: the text columns of this row are empty (first:" in said and "category 'hat'" in said


def test_an_undeclared_name_of_a_row_never_takes_another_schema_s_column(tmp_path: Path, job: Path) -> None:
    path = write(tmp_path / "a.parquet", brand=["A"], flavor=["mint"], ask=[["Flavor", "Brand"]])
    assert read(path, job)[0].values == {"Flavor": None, "Brand": ("A",)}


def test_a_file_of_a_folder_that_lacks_a_column_knows_nothing_of_it(tmp_path: Path, job: Path) -> None:
    write(tmp_path / "in/a.parquet", brand=["A"], color=["Red"])
    write(tmp_path / "in/b.parquet", brand=["B"])
    for name in ("in", "in/*.parquet"):
        assert [r.values["Color"] for r in read(str(tmp_path / name), job)] == [("Red",), None]


def test_a_large_file_is_read_in_batches_and_rows_keep_their_number(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 2 * BATCH_ROWS + 5
    path = write(tmp_path / "a.parquet", brand=[f"b{n}" for n in range(size)], color=["Red"] * (size - 1) + ["no"])
    assert [r.values["Brand"] for r in read(path, job)] == [(f"b{n}",) for n in range(size)]
    assert f"row {size - 1} column 'color'" in capsys.readouterr().err


def test_excluded_texts_are_left_out_of_parquet_too(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = write_benchmark(tmp_path / "test.jsonl", benchmark_row("shoe  0", "shoes", Brand="A"))
    path = write(tmp_path / "a.parquet", brand=["A", "B"])
    both = read_labelled([test, path], [test], reading=ReadOptions(job=job))
    assert [r.document.text for r in both] == ["shoe 1"]
    assert "1 rows left out: the text stands in an excluded file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"brnad": ["A"]}, r"a.parquet: has none of the attribute columns 'brand'.*'brnad'"),
        ({"brand": [{"x": 1}]}, r"a.parquet: column 'brand' is struct<x: int64>"),
        ({"brand": [b"A"]}, "column 'brand' is binary"),
        ({"brand": ["A"], "hpd_status": ["ok"]}, "give its output folder"),
    ],
)
def test_columns_that_cannot_be_labels_are_refused(
    tmp_path: Path, job: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        read(write(tmp_path / "a.parquet", **columns), job)


def test_refusals_name_what_is_missing(tmp_path: Path, job: Path) -> None:
    path = write(tmp_path / "a.parquet", brand=["A"])
    (tmp_path / "lines").mkdir()
    write_benchmark(tmp_path / "lines" / "train.jsonl", benchmark_row("Acme boot", "shoes"))
    with pytest.raises(JobError, match=r"lines: a folder of JSON lines is not read; name its files, each with --data"):
        read_labelled([tmp_path / "lines"], [], reading=ReadOptions())
    with pytest.raises(JobError, match=r"a.parquet: Parquet with attribute columns needs --job"):
        read_labelled([path], [])
    with pytest.raises(JobError, match="--min-confidence: no --dataset is an output of `hpd extract`"):
        read_labelled([path], [], reading=ReadOptions(job=job, min_confidence=0.5))
    job.write_text(JOB.replace("{{ title }}", "{{ name }}"))
    with pytest.raises(JobError, match=r"a.parquet: column 'name' is not in the input"):
        read(path, job)
    (tmp_path / "b.parquet").write_text("no parquet")
    with pytest.raises(JobError, match=r"b\.parquet: ArrowInvalid"):
        read(tmp_path / "b.parquet", job)


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text("{}")
    (tmp_path / "odd[1].jsonl").write_text("")
    expected = {"out": Kind.OUTPUT, "out/": Kind.OUTPUT, "odd[1].jsonl": Kind.BENCHMARK, ".": Kind.TABLE}
    expected |= {"x.parquet": Kind.TABLE, "*/part-*": Kind.TABLE, "missing.jsonl": Kind.BENCHMARK}
    assert {name: kind_of(f"{tmp_path}/{name}") for name in expected} == expected


def test_a_store_that_does_not_answer_has_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/data/run.json", b"{}")

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("Connection reset by peer")

    monkeypatch.setattr(type(memory), "info", lost)
    with pytest.raises(StoreUnavailableError, match="Connection reset"):
        kind_of("memory://data")
