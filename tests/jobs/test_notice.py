"""The terms that come with a model: told once to whoever loads it, kept with what is made of it, deciding nothing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hpd_core import recipe, source
from hpd_core.extractor import HyperParallelDecoder, ModelNotice
from hpd_core.model_spec import ModelSpec
from hpd_core.recipe import Recipe, content_hash, joined_notices, notice_of
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from jobs.cli import app
from jobs.training.labelled import read_datasets
from pipeline.job import JobError
from pipeline.resume import Resolved, job_facts, run_facts
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write
from tests.pipeline.helpers import job

TERMS = "trained on AE-110k: academic research use only"
PLAIN = ("--prompting", "plain", "--max-value-tokens", "6", "--threads", "1", "--rank", "2", "--max-steps", "1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "train.jsonl", row("shoe red", "shoes", Color="red"), row("shoe tan", "shoes", Color="tan"))


def hpd(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code, done.stderr


def finetune(data: Path, base: Path | str, out: Path, *options: str) -> str:
    code, said = hpd("finetune", "-d", data, "-m", base, "-o", out, *PLAIN, *options)
    assert code == 0, said
    return said


def test_lines_of_several_notices_stand_once_in_order() -> None:
    assert joined_notices(["b\n a ", "", "a\nc"]) == "b\na\nc"


def test_a_notice_changes_neither_hash_nor_fingerprint(base: Path, tmp_path: Path) -> None:
    def spec(notice: str, of_entry: str = "") -> DecoderSpec:
        made_for = Recipe(str(base), DecodeSettings(), rank=2, notice=notice, training={"größe": 1})
        made_for.write(tmp_path)
        return DecoderSpec(ModelSpec(str(base), adapter=str(tmp_path), notice=of_entry))

    assert notice_of(spec("").model) == "" and "notice" not in (tmp_path / "hpd.json").read_text()
    plain = spec("").as_dict()
    assert spec(TERMS).as_dict() == spec("", "of the entry").as_dict() == plain
    assert notice_of(spec(TERMS, f"{TERMS}\nmore").model) == f"{TERMS}\nmore"
    assert repr(Recipe(str(base), DecodeSettings(), notice="x")) == repr(Recipe(str(base), DecodeSettings()))
    (tmp_path / "hpd.json").write_text((tmp_path / "hpd.json").read_text().replace('"rank": 2', '"rank": 3'))
    assert content_hash(str(tmp_path)) != plain["model"]["adapter"], "all else in the recipe counts"


def test_a_notice_changes_no_identity_of_fully_trained_weights(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    Recipe("base", DecodeSettings()).write(folder)
    before = source.identity(ModelSpec(str(folder)))
    Recipe("base", DecodeSettings(), notice=TERMS).write(folder)
    assert source.identity(ModelSpec(str(folder))) == before and notice_of(ModelSpec(str(folder))) == TERMS
    Recipe("other", DecodeSettings(), notice=TERMS).write(folder)
    assert source.identity(ModelSpec(str(folder))) != before


def test_a_notice_that_is_no_text_is_refused(tmp_path: Path) -> None:
    Recipe("base", DecodeSettings()).write(tmp_path)
    facts = json.loads((tmp_path / "hpd.json").read_text())
    (tmp_path / "hpd.json").write_text(json.dumps(facts | {"notice": 5}))
    with pytest.raises(SettingsError, match=r"hpd.json: notice is 5"):
        Recipe.read(tmp_path)
    with pytest.raises(SettingsError, match="notice 5"):
        ModelSpec("x", notice=5)  # type: ignore[arg-type]


def test_who_trains_and_who_loads_is_told_once(
    base: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = finetune(data, base, tmp_path / "out", "--notice", TERMS)
    assert "notice of" not in said, "whoever wrote it knows it"
    adapter = tmp_path / "out" / "adapter"
    assert json.loads((adapter / "hpd.json").read_text())["notice"] == TERMS

    capfd.readouterr()
    code, said = hpd("evaluate", "-d", data, "-o", tmp_path / "e", "-m", adapter, "--threads", 1, "--json")
    written = capfd.readouterr().out
    assert code == 0 and said.count(TERMS) == 1 and f"notice of {adapter}: {TERMS}\n" in said
    assert len(written.splitlines()) == 1 and json.loads(written)["notice"] == TERMS
    assert json.loads((tmp_path / "e" / "scores.json").read_text())["notice"] == TERMS

    skip = [word for name in ("ar-lookup", "per-attribute") for word in ("--skip", name)]
    few = ("--repeat", 1, "--threads", 1, *skip)
    code, said = hpd("benchmark", "-d", data, "-o", tmp_path / "b", "-m", adapter, *few)
    assert code == 0 and said.count(TERMS) == 1
    assert json.loads((tmp_path / "b" / "benchmark.json").read_text())["notice"] == TERMS

    with pytest.warns(ModelNotice, match=TERMS) as warned:
        HyperParallelDecoder.from_pretrained(str(adapter), threads=1)
    assert [w.filename for w in warned if w.category is ModelNotice] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelNotice)  # what every actor of a job does says nothing
        HyperParallelDecoder.from_spec(recipe.decoder_spec(source.model_spec(str(adapter))), threads=1)
        HyperParallelDecoder.from_pretrained(ModelSpec(str(base), prompting="plain"), threads=1)  # type: ignore[arg-type]


def test_what_is_trained_further_or_on_such_data_inherits(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"tiny": {"source": str(base), "notice": TERMS}}
    monkeypatch.setattr("pipeline.models.shipped", lambda name: models)
    (tmp_path / "train.jsonl.notice").write_text(f"{TERMS}\nlabels: CC BY-NC\n")
    said = finetune(data, "tiny", tmp_path / "out", "--notice", "mine")
    assert said.count(TERMS) == 1 and f"notice of {tmp_path.name}/train.jsonl: labels: CC BY-NC\n" in said
    made = json.loads((tmp_path / "out" / "adapter" / "hpd.json").read_text())
    assert made["notice"] == f"{TERMS}\nlabels: CC BY-NC\nmine"
    assert hpd("finetune", "-d", data, "-m", "tiny", "-o", tmp_path / "x", "--notice", " ")[0] == 2


def test_a_notice_beside_data_that_cannot_be_read_is_named(data: Path) -> None:
    assert read_datasets([data], [])[0].notice == ""
    Path(f"{data}.notice").write_bytes(b"\xff")
    with pytest.raises(JobError, match=r"train\.jsonl\.notice: the notice of .*train\.jsonl cannot be read"):
        read_datasets([data], [])


def test_run_json_has_the_notice_beside_what_is_fingerprinted(tmp_path: Path) -> None:
    def run(notice: str) -> dict[str, Any]:
        model = ModelSpec("fake", dtype="float32", notice=notice)
        spec = job(tmp_path, tmp_path / "in", decoder=DecoderSpec(model))
        return run_facts(spec, job_facts(spec, Resolved("float32", 1)), [], pa.schema([]))

    assert "notice" not in run("") and run(TERMS)["notice"] == TERMS
    assert run(TERMS)["facts"] == run("")["facts"] and run(TERMS)["fingerprint"] == run("")["fingerprint"]


def test_extract_and_validate_tell_it_once(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"text: {{template: '{{{{ title }}}}'}}\nschemas: {{define: {{x: {{attributes: [A]}}}}, default: x}}\n"
        f"model: {{source: {base}, prompting: plain, name: tiny, notice: '{TERMS}'}}\n"
    )
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"title": ["a"]}), tmp_path / "in" / "x.parquet")
    places = ("--config", path, "--input", tmp_path / "in", "--output", tmp_path / "out")

    def stop(*_: object, **__: object) -> None:
        raise JobError("stopped")

    monkeypatch.setattr("pipeline.run.run", stop)
    code, said = hpd("extract", *places)
    assert code == 2 and said == f"notice of tiny: {TERMS}\nerror: stopped\n"
    done = CliRunner().invoke(app, ["validate", *map(str, places)])
    assert done.exit_code == 0 and f"notice          {TERMS}\n" in done.stdout
