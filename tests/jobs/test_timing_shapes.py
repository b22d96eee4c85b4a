"""Which documents a benchmark takes, and the command's refusals and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from hpd_core.model_spec import ModelSpec
from hpd_core.rows import RowStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings
from hpd_core.sizing import Measured
from hpd_core.spec import DecoderSpec
from jobs.benchmark import catalog
from jobs.cli import app
from jobs.scores.dataset import read_benchmark
from jobs.timing.engines import OPTIONAL, Engine
from jobs.timing.process import EngineFailed, Probe
from jobs.timing.series import Series, _sized, _started
from jobs.timing.shapes import Lengths, Shape, catalog_shape, dataset_shape
from pipeline.job import JobError, RowFault
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

SCHEMA = Schema("s", (Attribute("A"),))


def test_each_text_once_with_its_own_gold_or_all_as_they_come(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl",
        row("aa", "Tea", Flavor="mint", Size="n/a"),
        row("aa", "Tea", Flavor="other"),
        row("bbb", "Tea", Size=" L "),
        row("cccc", "Tea", Size="M"),
    )
    data = read_benchmark(path)
    once = dataset_shape(data, "x", None, 0, keep_repeats=False)
    assert [d.text for d in once.documents] == ["aa", "bbb", "cccc"]
    assert once.gold == ({"Flavor": "mint"}, {"Size": "L"}, {"Size": "M"}) and once.repeats == 0
    two = dataset_shape(data, "x", 2, 1, keep_repeats=False)
    assert len(two.documents) == 2 and two == dataset_shape(data, "x", 2, 1, keep_repeats=False)
    as_they_come = dataset_shape(data, "x", 3, 0, keep_repeats=True)
    assert [d.text for d in as_they_come.documents] == ["aa", "aa", "bbb"] and as_they_come.repeats == 1


def test_rows_are_drawn_from_the_whole_file() -> None:
    items = [Document(str(n), SCHEMA) for n in range(100)]
    taken = [int(d.text) for d in catalog_shape(items, "x", 10, 0, keep_repeats=False).documents]
    assert taken == sorted(taken) and taken[-1] > 50 and len(set(taken)) == 10
    assert taken != [int(d.text) for d in catalog_shape(items, "x", 10, 1, keep_repeats=False).documents]


def test_rows_that_are_no_documents_are_counted_and_only_those_are_refused() -> None:
    faults = [RowFault(RowStatus.NO_TEXT, "no text")] * 2
    assert catalog_shape([*faults, Document("x", SCHEMA)], "c", 5, 0, keep_repeats=False).faults == 2
    with pytest.raises(JobError, match="c: none of its 2 rows is a document: no text"):
        catalog_shape(faults, "c", 5, 0, keep_repeats=False)


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    model = {"source": str(write_tiny_model(tmp_path / "tiny")), "prompting": "plain"}
    config = {
        "text": {"template": "{{ title }}"},
        "schemas": {"default": "s", "define": {"s": {"attributes": ["Brand", "Color"]}}},
        "model": model,
        "decode": {"max_value_tokens": 4},
        "prompt": {"system": "", "instruction": "{attributes}\n"},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    pq.write_table(pa.table({"title": [f"tea {n % 6}" for n in range(12)] + [None]}), tmp_path / "c.parquet")
    return ["--config", str(tmp_path / "job.yaml"), "--input", str(tmp_path / "c.parquet")]


def test_the_documents_of_a_job_are_those_of_its_template_and_schema(job: list[str]) -> None:
    spec, shape = catalog(Path(job[1]), [job[3]], (), 4, 0, keep_repeats=False)
    assert {d.text for d in shape.documents} < {f"tea {n}" for n in range(6)} and len(shape.documents) == 4
    assert shape.documents[0].schema.name == "s" and shape.gold is None and spec.settings.max_value_tokens == 4
    assert shape.name == "job: c.parquet"
    _, repeated = catalog(Path(job[1]), [job[3]], (), 8, 0, keep_repeats=True)
    assert repeated.repeats == 2


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--lengths", "gold"], "a catalog has no gold answers"),
        (["--lengths", "long"], "--lengths long: must be one of gold, recorded, model"),
        (["--skip", "hpd"], "--skip 'hpd': must be one of ar-present"),
        (
            [word for n in (1, 8, 32, 128) for word in ("--skip", f"ar, batch {n}")],
            "--skip: no batch of ar is left",
        ),
        (["--model", "x", "--layout", "gaps"], "--model, --layout: with --config"),
        (["--dataset", "x.jsonl"], "give either --dataset"),
        (["--set", "decode.layot=gaps"], "did you mean 'layout'?"),
    ],
)
def test_benchmark_refuses_with_the_reason(job: list[str], tmp_path: Path, extra: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["benchmark", *job, "--output", str(tmp_path / "o"), *extra])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "o").exists()


def test_a_dataset_takes_no_input(tmp_path: Path) -> None:
    arguments = ["--dataset", str(write(tmp_path / "x.jsonl", row("a", "b", C="d"))), "--output", str(tmp_path / "o")]
    result = CliRunner().invoke(app, ["benchmark", *arguments, "--input", "x"])
    assert result.exit_code == 2 and "--input and --set belong to --config" in result.stderr
    assert CliRunner().invoke(app, ["benchmark", *arguments[2:]]).exit_code == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_catalog_through_processes_of_their_own(job: list[str], tmp_path: Path) -> None:
    skipped = [word for name in OPTIONAL for word in ("--skip", name)]
    arguments = ["benchmark", *job, "--output", str(tmp_path / "o"), "--limit", "3", "--repeat", "1", "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, *skipped])
    assert result.exit_code == 0, result.stderr
    facts = json.loads((tmp_path / "o" / "benchmark.json").read_text())
    assert [row["label"] for row in facts["engines"]] == ["hpd", "hpd, batch 1", "ar, batch 1", "ar, batch 3"]
    assert (facts["documents"], facts["lengths"], len(facts["machine"]["rates"])) == (3, "recorded", 2)
    # All of them write the same values: HPD's tokens are AR's without the keys.
    counts = [row["counts"]["generated_tokens"] for row in facts["engines"]]
    assert counts[0] == counts[1] and counts[2] == counts[3] > counts[0]
    assert "<svg" in (tmp_path / "o" / "benchmark.html").read_text()
    assert "| ar, batch 3 |" in (tmp_path / "o" / "benchmark.md").read_text()


class FakeFleet:
    """Starts every engine but one."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def ready(self, engine: Engine) -> str:
        if engine.name == self.broken:
            raise EngineFailed("ValueError: no pages")
        return f"ready: {engine.label}"


def test_an_engine_that_cannot_start_is_left_out_with_its_reason_but_hpd_and_ar_must(tmp_path: Path) -> None:
    spec = DecoderSpec(ModelSpec(str(tmp_path)))
    engines = (Engine("hpd"), Engine("ar", 8), Engine("ar-continuous"))
    plan = Series(spec, Shape("x", (), None), Lengths.RECORDED, engines, 1, None, False, 0.0)
    started, left_out, ready, _ = _started(plan, FakeFleet("ar-continuous"), lambda _: None)  # type: ignore[arg-type]
    assert (started, left_out) == ([*engines[:2]], {"ar-continuous": "ValueError: no pages"})
    assert ready == "ready: hpd"
    with pytest.raises(JobError, match="ar, batch 8: ValueError: no pages"):
        _started(plan, FakeFleet("ar"), lambda _: None)  # type: ignore[arg-type]


def test_auto_settings_are_measured_once_and_are_the_same_for_all_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Machine:
        def __init__(self, order: object) -> None:
            asked.append(order)

        def ask(self, what: str) -> Measured:
            return Measured({64: 1.0, 128: 2.0}, 2**30, "cpu", "float32", 3)

        def stop(self) -> None:
            asked.append("stopped")

    monkeypatch.setattr("jobs.timing.series.Worker", Machine)
    spec = DecoderSpec(ModelSpec(str(tmp_path)), DecodeSettings(tokens_per_step="auto"))
    plan, said = Series(spec, Shape("x", (), None), Lengths.RECORDED, (), 1, 3, False, 0.0), list[str]()
    made = _sized(plan, said.append)
    assert made.spec.settings == DecodeSettings(tokens_per_step=128) and asked == [Probe(spec, 3), "stopped"]
    assert said[1].startswith("decided: 128 tokens per step")
    assert _sized(made, said.append) is made and len(said) == 2
