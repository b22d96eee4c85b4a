"""The labelled listings that ship: what they teach is in the text, and none of it is in the sample catalog."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from hpd_core.schema import Schema
from jobs.scores.dataset import ABSENT, BenchmarkRow, read_benchmark
from jobs.scores.declared import declared_schemas

FILES = ("train.jsonl", "validation.jsonl")


@pytest.fixture(scope="module")
def rows(repository: Path) -> dict[str, tuple[BenchmarkRow, ...]]:
    return {name: read_benchmark(repository / "samples" / "labelled" / name).rows for name in FILES}


@pytest.fixture(scope="module")
def declared(repository: Path) -> dict[str, Schema]:
    """What the README of the adapter trains with: the quickstart's schemas and those beside the listings."""
    files = (repository / "conf" / "schemas" / "sample.yaml", repository / "samples" / "labelled" / "schemas.yaml")
    return declared_schemas(files)


@pytest.mark.parametrize("name", FILES)
def test_every_value_stands_in_its_text_or_in_the_closed_list(
    name: str, rows: dict[str, tuple[BenchmarkRow, ...]], declared: dict[str, Schema]
) -> None:
    for row in rows[name]:
        attributes = {a.name: a for a in declared[row.category]}
        assert set(row.gold) == set(attributes), row.text
        for attribute, values in row.gold.items():
            closed = attributes[attribute].values
            for value in values:
                right = values == (ABSENT,) or (value in closed if closed else value in row.text)
                assert right and value == value.strip() and "\n" not in value, (row.text, attribute, value)


def test_every_schema_is_taught(declared: dict[str, Schema], rows: dict[str, tuple[BenchmarkRow, ...]]) -> None:
    taught = Counter(row.category for row in rows["train.jsonl"])
    assert set(taught) == set(declared) and min(taught.values()) >= 10


def test_no_text_stands_twice_nor_in_both_files_nor_in_the_sample(
    rows: dict[str, tuple[BenchmarkRow, ...]], sample: pa.Table
) -> None:
    texts = [" ".join(row.text.split()) for name in FILES for row in rows[name]]
    assert len(set(texts)) == len(texts)
    titles = {title for title in sample["title"].to_pylist() if title}
    assert not titles & {row.text.split("\n")[0] for name in FILES for row in rows[name]}


def test_the_sample_s_brands_are_not_taught(repository: Path, rows: dict[str, tuple[BenchmarkRow, ...]]) -> None:
    shown = {
        str(listing["brand"]).casefold()
        for path in (repository / "samples" / "listings").glob("*.yaml")
        for listing in yaml.safe_load(path.read_text(encoding="utf-8"))
    }
    taught = {value.casefold() for name in FILES for row in rows[name] for value in row.gold.get("Brand", ())}
    assert len(shown) > 30 and not shown & taught
