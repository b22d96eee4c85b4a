"""Schema files by category, of one file and of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.scores.declared import declared_schemas
from pipeline.checked import ConfigError

SHOES = "shoes: {categories: [Boots], attributes: [Brand]}\n"


def files(folder: Path, *contents: str) -> list[Path]:
    paths = [folder / f"{number}.yaml" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return paths


def test_a_schema_is_found_under_its_categories_and_its_own_name(tmp_path: Path) -> None:
    tea = "tea: {attributes: [Flavor]}\nTea: {categories: [Tea, Mate], attributes: [Size]}\n"
    found = declared_schemas(files(tmp_path, SHOES, tea))
    named = {category: schema.name for category, schema in found.items()}
    assert named == {"Boots": "shoes", "shoes": "shoes", "tea": "tea", "Tea": "Tea", "Mate": "Tea"}


def test_categories_lose_their_edge_blanks_as_in_a_job(tmp_path: Path) -> None:
    found = declared_schemas(files(tmp_path, "shoes: {categories: [' Boots '], attributes: [Brand]}\n"))
    assert set(found) == {"Boots", "shoes"}


@pytest.mark.parametrize(
    "contents",
    [
        (SHOES, "hats: {categories: [shoes], attributes: [Size]}\n"),
        ("hats: {categories: [shoes], attributes: [Size]}\n" + SHOES,),
        ("hats: {categories: [Boots], attributes: [Size]}\n", SHOES),
        ("shoes: {categories: [Clogs], attributes: [Size]}\n", SHOES),
    ],
)
def test_what_two_schemas_claim_is_an_error_that_names_both(tmp_path: Path, contents: tuple[str, ...]) -> None:
    both = r"\d\.yaml: category '(shoes|Boots)' is of schema '\w+', and of '\w+' in .*\d\.yaml"
    with pytest.raises(ConfigError, match=both):
        declared_schemas(files(tmp_path, *contents))
