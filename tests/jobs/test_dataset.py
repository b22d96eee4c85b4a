"""Benchmark files: rows, full schemas of categories, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpd_core.schema import Attribute, Schema
from jobs.scores.dataset import joined, read_benchmark
from pipeline.job import JobError


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def row(text: str, category: str, **gold: str) -> dict[str, Any]:
    return {"input": text, "category": category, "target_scores": {a: {v: 1} for a, v in gold.items()}}


def test_a_schema_is_the_union_over_the_whole_file_in_order_of_first_appearance(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl",
        row("a", "Shoes", Brand="A", Size="1"),
        row("b", "Tea", Flavor="mint"),
        row("c", "Shoes", Color="n/a", Brand="C"),
    )
    benchmark = read_benchmark(path)

    first = benchmark.documents(limit=1)

    assert len(first) == len(benchmark.answers(limit=1)) == 1
    assert [a.name for a in first[0].schema] == ["Brand", "Size", "Color"]
    assert [a.name for a in benchmark.schemas["Tea"]] == ["Flavor"]
    assert benchmark.answers() == [{"Brand": "A", "Size": "1"}, {"Flavor": "mint"}, {"Brand": "C"}]


def test_declared_schemas_are_asked_of_their_categories_and_others_keep_theirs(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("a", "Shoes", Brand="A"), row("b", "Tea", Flavor="mint"))
    shoes = Schema("s", (Attribute("Fit", values=("slim",)), Attribute("Brand", "the maker")))
    benchmark = read_benchmark(path).with_schemas({"Shoes": shoes, "Hats": shoes})
    assert [document.schema for document in benchmark.documents()] == [shoes, read_benchmark(path).schemas["Tea"]]
    assert benchmark.rows == read_benchmark(path).rows and list(benchmark.schemas) == ["Shoes", "Tea"]


def test_gold_beyond_the_declared_schema_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("a", "Tea", Size="1"), row("b", "Tea", Flavor="mint"))
    with pytest.raises(JobError, match=r"x\.jsonl: row 2 \('b'\) names 'Flavor', not in schema 's'.*category 'Tea'"):
        read_benchmark(path).with_schemas({"Tea": Schema("s", (Attribute("Size"),))})


def test_benchmarks_are_joined_with_the_first_rows_of_each_and_every_attribute(tmp_path: Path) -> None:
    one = read_benchmark(write(tmp_path / "a.jsonl", row("1", "shoes", Brand="A"), row("2", "tea", Kind="B")))
    two = read_benchmark(write(tmp_path / "b.jsonl", row("3", "shoes", Size="4"), row("4", "shoes", Color="red")))
    both = joined([one, two], 1)
    assert [r.text for r in both.rows] == ["1", "3"]
    assert {c: [a.name for a in s] for c, s in both.schemas.items()} == {
        "shoes": ["Brand", "Size", "Color"],
        "tea": ["Kind"],
    }
    assert [r.text for r in joined([one, two]).rows] == ["1", "2", "3", "4"]


def test_a_line_separator_inside_a_text_does_not_end_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("one\u2028two\x85three", "Tea", Flavor="mint"))
    assert read_benchmark(path).rows[0].text == "one\u2028two\x85three"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no row"),
        ('{"input": "x"}\n', "line 1: not a benchmark row"),
        ("[1]\n", "line 1: not a benchmark row"),
        ('{"input": "x", "category": "c", "target_scores": {"A": {}}}\n', "line 1: attribute 'A' has no value"),
    ],
)
def test_what_is_no_benchmark_is_refused_with_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(JobError, match=rf"bad\.jsonl.*{message}"):
        read_benchmark(path)


@pytest.mark.parametrize(("name", "rows", "categories"), [("oa-mine", 491, 10), ("ae-110k", 524, 10)])
def test_the_published_files_are_read_whole(
    real_data: Callable[[str], Path], name: str, rows: int, categories: int
) -> None:
    benchmark = read_benchmark(real_data(f"ave/{name}/test.jsonl"))
    assert (len(benchmark.rows), len(benchmark.schemas)) == (rows, categories)
