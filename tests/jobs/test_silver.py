"""`hpd silver`: a catalog's own fields as labels, and what becomes of the rows that give none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from jobs.cli import app
from jobs.labels.fields import FieldLabels
from jobs.scores.dataset import read_benchmark
from pipeline.compose import catalog_reader
from pipeline.config import load_config
from tests.jobs.test_conf import CONF

JOB = """
text: {template: "{{ title }}", category_column: kind}
schemas: {file: schemas.yaml}
"""
SCHEMAS = """
shoes: {attributes: [Brand, Color, {name: Fit, values: [wide, slim]}, {name: Kept, type: boolean}]}
tea: {attributes: [Brand, {name: Weight, type: quantity}]}
"""
FIELDS = """
shoes:
  Brand: "{{ maker }}"
  Color: "{{ (details | json).colour }}"
  Fit: "{{ (details | json).fit }}"
tea:
  Weight: "{{ (details | json).grams + ' g' }}"
"""
ROWS: list[tuple[str | None, str, str | None, str | None]] = [
    ("Fila RED sneaker", "shoes", "fila", '{"colour": "RED", "fit": "slim"}'),
    ("Fila RED sneaker", "shoes", "Fila", None),
    ("Fila Disruptor", "shoes", "Importer Ltd", '{"colour": "n/a"}'),
    ("Acme boot", "shoes", None, "no JSON"),
    (None, "shoes", "Fila", None),
    ("Acme tea 100 g", "tea", None, '{"grams": "100"}'),
    ("Acme tea", "tea", None, '{"grams": 100}'),
    ("Acme hat", "hats", "Acme", None),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("job", JOB), ("schemas", SCHEMAS), ("fields", FIELDS)):
        (tmp_path / f"{name}.yaml").write_text(text)
    columns = zip(*ROWS, strict=True)
    table = pa.table(dict(zip(("title", "kind", "maker", "details"), columns, strict=True)))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    return tmp_path


@pytest.fixture
def silver(folder: Path) -> Callable[..., Result]:
    files = [f"--{o}={folder / f}" for o, f in (("config", "job.yaml"), ("fields", "fields.yaml"))]
    paths = [f"--input={folder / 'a.parquet'}", f"--output={folder / 'out.jsonl'}"]
    return lambda *others: CliRunner().invoke(app, ["silver", *files, *paths, *others])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_row_is_a_line_a_duplicate_or_a_rejection(silver: Callable[..., Result], folder: Path) -> None:
    done = silver("--set", "limits.max_error_rate=0.5")
    assert done.exit_code == 0, done.output
    assert [(row.category, row.gold) for row in read_benchmark(folder / "out.jsonl").rows] == [
        ("shoes", {"Brand": ("Fila",), "Color": ("RED",), "Fit": ("slim",)}),
        ("tea", {"Weight": ("100 g",)}),
    ]
    rejected = lines(folder / "out.rejected.jsonl")
    assert [(r["row"], r["kind"]) for r in rejected] == [
        (2, "nothing_usable"), (3, "no_field"), (4, "no_text"), (6, "error"), (7, "error"),
    ]  # fmt: skip
    assert "Importer Ltd" in rejected[0]["reason"] and rejected[3]["reason"].startswith("Weight: TypeError: ")
    facts = json.loads((folder / "out.summary.json").read_text())
    assert (facts["rows"], facts["labelled"], facts["duplicates"]) == (8, 2, 1)
    assert facts["attributes"]["Brand"]["respelled"] == 1 and facts["attributes"]["Brand"]["ungrounded"] == 1
    assert "8 rows = 2 labelled + 1 duplicates" in done.stdout


def test_rows_of_one_text_say_together_what_each_says(silver: Callable[..., Result], folder: Path) -> None:
    rows = [
        ("Fila RED sneaker", "shoes", "Importer", '{"fit": "slim"}'),
        ("Fila RED sneaker", "shoes", "FILA", '{"colour": "RED"}'),
        ("Fila RED sneaker", "shoes", None, '{"colour": "sneaker"}'),
        ("Fila RED sneaker", "shoes", None, '{"colour": "RED"}'),
    ]
    columns = zip(*rows, strict=True)
    pq.write_table(
        pa.table(dict(zip(("title", "kind", "maker", "details"), columns, strict=True))), folder / "a.parquet"
    )
    assert silver().exit_code == 0
    (line,) = lines(folder / "out.jsonl")
    assert line["target_scores"] == {"Brand": {"Fila": 1}, "Fit": {"slim": 1}}
    assert line["dropped"] == {"Color": {"value": ["RED", "sneaker"], "reason": "contradicted"}}
    facts = json.loads((folder / "out.summary.json").read_text())
    assert (facts["labelled"], facts["duplicates"], facts["contradicted"]) == (1, 3, 1)


def test_rows_in_error_and_rows_without_a_label_are_told_apart(silver: Callable[..., Result], folder: Path) -> None:
    """In error are one without text, one whose template fails and one of no schema; the labels of three are missing."""
    few = silver("--set", "limits.max_error_rate=0.25")
    assert few.exit_code == 3 and "3 of 8 rows rejected" in few.stderr
    assert silver("--set", "limits.max_error_rate=0.375").exit_code == 0
    assert (folder / "out.jsonl").exists()


def test_a_sample_is_of_all_rows(silver: Callable[..., Result], folder: Path) -> None:
    assert silver("--sample", "3", "--seed", "1", "--set", "limits.max_error_rate=1").exit_code == 0
    assert json.loads((folder / "out.summary.json").read_text())["rows"] == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("shoe: {Brand: '{{ maker }}'}", "fields.yaml: unknown schema 'shoe'; did you mean 'shoes'?"),
        ("shoes: {Colour: '{{ maker }}'}", "fields.yaml: shoes: unknown attribute 'Colour'; did you mean 'Color'?"),
        ("shoes: {Brand: '{{ maker'}", "fields.yaml: shoes: Brand: text template: "),
        ("shoes: {Brand: Fila}", "fields.yaml: shoes: Brand: text template: names no column"),
        ("shoes: {Brand: 1}", "fields.yaml: shoes: Brand: must be a template over columns, is int"),
        ("shoes: [Brand]", "fields.yaml: shoes: must hold a template per attribute, holds list"),
        ("shoes: {}", "fields.yaml: names no attribute"),
        ("shoes: {Brand: '{{ store }}'}", "column 'store' is not in the input, which has 'title', 'kind'"),
    ],
)
def test_wrong_fields_are_named(silver: Callable[..., Result], folder: Path, fields: str, message: str) -> None:
    (folder / "fields.yaml").write_text(fields)
    done = silver()
    assert done.exit_code == 2 and message in done.stderr
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "amazon-2023",
            {"store": "Tilly's", "details": '{"Package Dimensions": "5.25 x 4 inches; 0.18 Ounces"}'},
            {"Brand": "Tilly's", "Package dimensions": "5.25 x 4 inches", "Weight": "0.18 Ounces"},
        ),
        ("amazon-2023", {"store": None, "details": None}, {}),
        ("amazon-2023", {"store": None, "details": '{"Package Dimensions": "5 x 4 inches"}'},
         {"Package dimensions": "5 x 4 inches"}),
        (
            "promap",
            {"specification": '[{"key": "Barva", "value": "Šedá "}, {"key": "Barva", "value": "Bílá"}]'},
            {"Color": "Šedá"},
        ),
        ("promap", {"specification": None}, {}),
    ],
)  # fmt: skip
def test_the_fields_that_ship(name: str, row: dict[str, Any], expected: dict[str, str]) -> None:
    config = CONF / f"{name}.yaml"
    labels = FieldLabels.load(CONF / "silver" / f"{name}.yaml", catalog_reader(load_config(config), config))
    said = {attribute: template.render(row) for attribute, template in labels.templates["product"].items()}
    assert {attribute: value for attribute, value in said.items() if value} == expected
