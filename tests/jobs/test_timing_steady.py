"""Actors that live long, and the pipeline against the bare loop: figures from made-up runs, and a tiny run of each."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from jobs import benchmark_steady
from jobs.benchmark_pipeline import units_of
from jobs.timing.bare import BareLoop, Pass
from jobs.timing.process import Loop
from jobs.timing.resident import samples, write_tiny
from jobs.timing.steady import memory_figures, speed_figures
from jobs.timing.through_ray import Extracted, figures, markdown, parts
from pipeline.compose import compose
from pipeline.config import load_config
from tests.core.tiny_folder import write_tiny_model


def test_speed_at_many_rows_over_few_in_documents_and_in_tokens() -> None:
    # The further rows are twice as long: half the documents a second is as fast as before.
    facts = speed_figures([(Pass(10.0, 500, 5000), Pass(160.0, 4000, 80_000)), (Pass(11.0, 500, 5000),) * 2])
    assert facts["rows"] == [500, 4000]
    assert facts["many_over_few"]["documents"]["low"] == 0.5 and facts["many_over_few"]["tokens"]["low"] == 1.0


def test_memory_that_stays_and_memory_that_grows() -> None:
    flat = memory_figures([(1000 * n, 400 * 2**20 + (0 if n > 1 else -(2**20) * 100)) for n in range(1, 201)])
    assert (flat["mib_warm"], flat["mib_end"], flat["mib_per_100_000_rows"]) == (400.0, 400.0, 0.0)
    leak = memory_figures([(1000 * n, 400 * 2**20 + 1000 * n * 1024) for n in range(1, 201)])
    assert leak["mib_per_100_000_rows"] == pytest.approx(97.66, abs=0.01) and leak["rows"] == 200_000


def test_ratios_of_the_pipeline_leave_start_up_apart() -> None:
    runs = [parts(40.0, {"decode": 20.0, "idle": 1.0, "load": 6.0, "commit": 3.0}), Extracted(50.0, 25.0, 0.0)]
    assert (runs[0].stream, runs[0].start_up) == (21.0, 19.0)
    facts = figures([19.0, 20.0], runs, 100)
    assert facts["ratios"]["decode"] == pytest.approx({"median": 19.5 / 22.5, "low": 0.8, "high": 0.95})
    assert facts["start_up_seconds"] == 22.0
    text = markdown(facts | {"heading": "x"})
    assert "| bare decoder loop | 19.50 | 5.13 | 1 |" in text and "Start-up: 22.0 s, once" in text
    assert "| decode phase of the actor | 22.50 | 4.44 | 0.87 (0.80-0.95) |" in text


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("job")
    config = {
        "text": {"template": "{{ title }}"},
        "schemas": {"default": "s", "define": {"s": {"attributes": ["Brand", "Color"]}}},
        "model": {"source": str(write_tiny_model(folder / "tiny")), "prompting": "plain"},
        "decode": {"max_value_tokens": 4, "tokens_per_step": 64},
        "prompt": {"system": "", "instruction": "{attributes}\n"},
        "units": {"rows": 5},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    pq.write_table(pa.table({"title": [f"tea {n % 9}" for n in range(11)] + [None]}), folder / "c.parquet")
    return ["--config", str(folder / "job.yaml"), "--input", str(folder / "c.parquet")]


def test_the_bare_loop_decodes_what_the_units_of_the_job_hold(job: list[str]) -> None:
    settings = load_config(job[1])
    spec = compose(settings, job[1], inputs=[job[3]], output="unused")
    units = units_of(spec, settings, Path(job[1]))
    assert [[d.text for d in unit] for unit in units] == [
        [f"tea {n % 9}" for n in numbers] for numbers in (range(4), range(4, 8), range(8, 11))
    ]
    loop = BareLoop(Loop(spec.decoder, 1, 512, {"all": units, "one": units[:1]}))
    whole, one = loop.run("all"), loop.run("one")
    assert (whole.documents, one.documents) == (11, len(units[0])) and whole.tokens > one.tokens > 0
    assert loop.run("one").tokens == one.tokens  # the shared prefix was there before the first


def test_memory_is_read_after_each_unit(tmp_path: Path) -> None:
    folder = write_tiny(str(write_tiny_model(tmp_path / "other")), tmp_path / "tiny")
    spec = DecoderSpec(ModelSpec(str(folder), prompting=Prompting.PLAIN), DecodeSettings(max_value_tokens=2))
    found = list(samples(spec, 25, 10, 1))
    assert [rows for rows, _ in found] == [10, 20, 25] and all(size > 2**26 for _, size in found)


@pytest.mark.parametrize("rows", ["500", "4000,500", "a,b"])
def test_two_numbers_of_rows_are_few_and_many(job: list[str], rows: str) -> None:
    result = CliRunner().invoke(benchmark_steady.app, ["speed", *job, "--rows", rows])
    assert result.exit_code == 2 and "must be two numbers, few,many" in result.stderr


def test_a_catalog_that_is_too_small_is_refused(job: list[str]) -> None:
    result = CliRunner().invoke(benchmark_steady.app, ["speed", *job, "--rows", "5,40"])
    assert result.exit_code == 2 and "of 12 rows drawn 9 are different documents" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pipeline_and_the_bare_loop_in_turns(job: list[str], tmp_path: Path) -> None:
    import typer

    from jobs.benchmark_pipeline import benchmark_pipeline

    app = typer.Typer()
    app.command()(benchmark_pipeline)
    arguments = [*job, "--output", str(tmp_path / "o"), "--repeat", "1", "--set", "pool.cpus=1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "o" / "through-ray.json").read_text())
    assert facts["documents"] == 11 and len(facts["runs"]) == 1
    run = facts["runs"][0]
    assert 0 < run["decode"] <= run["stream"] < run["whole"] and run["start_up"] > 1


@pytest.mark.slow
def test_an_actor_s_speed_at_many_rows(job: list[str]) -> None:
    result = CliRunner().invoke(
        benchmark_steady.app, ["speed", *job, "--rows", "3,9", "--repeat", "2", "--threads", "1"]
    )
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["rows"] == [3, 9] and len(facts["seconds"]) == 2
