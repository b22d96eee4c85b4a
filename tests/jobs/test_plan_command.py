"""`hpd plan`: rows that are drawn fairly, tokens as the decoder feeds them, a pace that says where it comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hpd_core.prompt import EncodedDocument, PromptEncoder
from jobs.cli import app
from jobs.costs.sampling import PLACES, draw_rows, histogram, measure
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.plan import read_footer
from pipeline.prepare import prepare
from pipeline.storage import Storage, StoreUnavailableError
from pipeline.units import InputFile, Unit
from tests.jobs.outputs import write_output
from tests.jobs.test_conf import CONF
from tests.pipeline.helpers import write

JOB = """
text: {template: "{{ title }}", category_column: category}
schemas: {define: {shoes: {attributes: [Brand, Size]}, tools: {attributes: [Brand]}}}
price: {dollars_per_hour: 3.6}
units: {rows: 10, documents_per_second: 5}
"""


def unit(file: int, start: int, stop: int) -> Unit:
    return Unit(InputFile(f"/in/{file:03d}", 1, "v"), start, stop)


FEW = [unit(file, start, start + rows) for file in range(4) for start, rows in ((0, 90), (90, 10))]
MANY = [unit(file, 0, 50 + 50 * (file % 2)) for file in range(200)]


@pytest.mark.parametrize("units", [FEW, MANY], ids=["few units", "many units"])
def test_each_row_is_as_likely_as_any_other_over_all_files(units: list[Unit]) -> None:
    of_file, total = Counter[str](), sum(u.rows for u in units)
    for seed in range(200):
        drawn = draw_rows(units, 128, seed)
        assert len(drawn) == 128 and all(d.unit.start <= d.row < d.unit.stop for d in drawn)
        of_file.update(d.unit.file.uri for d in drawn)
    rows = Counter[str]()
    for u in units:
        rows[u.file.uri] += u.rows
    shares = np.array([of_file[uri] / (200 * 128) / (rows[uri] / total) for uri in rows])
    assert abs(shares.mean() - 1) < 0.05 and shares.min() > 0.4 and shares.max() < 1.8
    assert draw_rows(units, 128, 0) == draw_rows(units, 128, 0) != draw_rows(units, 128, 1)


def test_no_file_has_the_first_rows_alone_and_all_rows_are_all_rows() -> None:
    drawn = draw_rows(FEW, 40, 0)
    assert max(d.row for d in drawn) > 50 and len({(d.unit.file, d.row) for d in drawn}) == 40
    assert len({d.place for d in drawn}) == 40
    every = draw_rows([*FEW, unit(9, 0, 0)], 10_000, 0)
    assert len(every) == 400 and len({d.place for d in every}) == PLACES


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    for part in range(3):
        titles = [f"shoe number {n} of part {part}" if n % 10 else None for n in range(40)]
        categories = ["tools" if n % 4 == 0 else "shoes" for n in range(40)]
        write(tmp_path / f"in/colour={part}/x.parquet", {"title": titles, "category": categories, "id": range(40)})
    return ["--config", str(tmp_path / "job.yaml"), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]


class WordEncoder:
    """A token per word, 7 before a document and 3 after it, 2 per attribute."""

    @staticmethod
    def tokenizer(names: list[str], add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[[0] * 2 for _ in names])

    @classmethod
    def from_spec(cls, spec: object) -> WordEncoder:
        return cls()

    def encode(self, document: Any) -> EncodedDocument:
        return EncodedDocument([0] * len(document.text.split()), document.schema)

    def prompt(self, encoded: EncodedDocument) -> Any:
        length = len(encoded.ids) + 3 + 2 * len(encoded.schema)
        shared = SimpleNamespace(prefix=(0,) * 7, stubs=((0, 0),) * len(encoded.schema))
        return SimpleNamespace(shared=shared, memory_ids=(0,) * length)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpd_core.prompt.PromptEncoder", WordEncoder)
    monkeypatch.setattr("jobs.described.check_present", lambda model: None)
    monkeypatch.setattr("pipeline.prepare.check_machine", lambda job: None)


def ask(job: list[str], *options: object) -> Result:
    return CliRunner().invoke(app, ["plan", *job, *map(str, options)])


PlanOf = Callable[..., dict[str, Any]]


@pytest.fixture
def plan_of(capfd: pytest.CaptureFixture[str]) -> PlanOf:
    """The one object on stdout, which goes past what is captured in Python."""

    def plan(job: list[str], *options: object) -> dict[str, Any]:
        result = ask(job, "--json", *options)
        assert result.exit_code == 0, result.output
        return dict(json.loads(capfd.readouterr().out.splitlines()[-1]))

    return plan


@pytest.mark.usefixtures("words")
def test_a_damaged_page_is_a_reason_of_its_rows_and_not_the_end_of_the_plan(
    job: list[str], plan_of: PlanOf, tmp_path: Path
) -> None:
    titles = [f"{n}" * 50 for n in range(1000)]
    path = write(tmp_path / "in/colour=9/x.parquet", {"title": titles, "category": ["shoes"] * 1000, "id": range(1000)})
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    sample = plan_of(job, "--rows", 600)["sample"]
    unread = sum(count for reason, count in sample["rows_unusable"].items() if reason.startswith("cannot be read: "))
    assert sample["rows"] == 600 and unread > 300 and sample["documents"] > 30


@pytest.mark.usefixtures("words")
def test_a_plan_counts_what_would_be_fed_and_writes_nothing(job: list[str], tmp_path: Path, plan_of: PlanOf) -> None:
    before = sorted(tmp_path.rglob("*"))
    facts = plan_of(job, "--rows", 1000)
    assert sorted(tmp_path.rglob("*")) == before
    assert (facts["rows"], facts["units"], facts["rows_left"], facts["files"]) == (120, 12, 120, 3)
    sample = facts["sample"]
    tools = 3 * 8  # of the 10 tools of a part 2 have no title
    shoes = 108 - tools
    assert (sample["rows"], sample["documents"]) == (120, 108)
    assert list(sample["rows_unusable"].values()) == [12]
    assert facts["prompt_tokens"] == 108 * (6 + 3) + 2 * (tools + 2 * shoes)
    assert facts["slots"] == tools + 2 * shoes
    assert sample["stub_tokens_per_document"] == 2 * (tools + 2 * shoes) / 108
    assert sample["prefix_tokens_per_document"] == 7 and sample["text_tokens_per_document"] == 6
    assert sample["lengths"] == {"16": 108} and sum(p[0] for p in sample["places"]) == 120
    assert sum(p[4] for p in sample["places"]) == pytest.approx(108 * sample["prefix_tokens_per_document"])
    assert facts["pace"]["source"].startswith("units.documents_per_second")
    assert facts["hours"] == pytest.approx(120 / 5 / 3600) and facts["dollars"] == pytest.approx(3.6 * 120 / 5 / 3600)
    assert facts["hours_low"] is None and "assumption" in facts["pace"]["no_interval"]


@pytest.mark.usefixtures("words")
def test_a_given_throughput_and_a_sample_of_some_rows(job: list[str], plan_of: PlanOf) -> None:
    facts = plan_of(job, "--rows", 40, "--seed", 3, "--throughput", 0.5)
    assert facts["sample"]["rows"] == 40 and facts["pace"]["source"] == "--throughput"
    assert facts["hours"] == pytest.approx(120 / 0.5 / 3600)
    assert facts["prompt_tokens"] == pytest.approx(108 * 12.5, rel=0.15)
    shown = ask(job, "--rows", 40).output
    assert "40 random rows (seed 0)" in shown and "to      16 ####" in shown and "no interval" in shown


@pytest.mark.usefixtures("words")
def test_the_pace_of_an_earlier_run_has_an_interval(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_of: PlanOf
) -> None:
    monkeypatch.setattr("jobs.plan.check_decoder", lambda runs, prepared: None)
    write_output(tmp_path / "run")
    facts = plan_of(job, "--run", tmp_path / "run")
    assert "fit of 40 units" in facts["pace"]["source"] and facts["pace"]["no_interval"] is None
    assert 0 < facts["hours_low"] < facts["hours"] < facts["hours_high"]
    assert "95 % interval" in ask(job, "--run", tmp_path / "run").output


@pytest.mark.usefixtures("words")
def test_auto_is_what_the_machine_of_an_earlier_run_decided(job: list[str], tmp_path: Path) -> None:
    options = ("--set", "decode.max_slots=auto", "--run", tmp_path / "run", "--rows", 40)
    spec = compose(load_config(job[1], options[1:2]), job[1], inputs=[job[3]], output=job[5])
    facts = write_output(tmp_path / "run") / "run.json"
    decoder = prepare(spec).job.decoder
    run = json.loads(facts.read_text())
    for slots, context, code in ((96, 200, 0), (96, 201, 2)):
        settings = replace(decoder.settings, max_slots=slots, max_document_tokens=context)
        run["facts"]["decoder"] = json.loads(json.dumps(replace(decoder, settings=settings).as_dict()))
        facts.write_text(json.dumps(run))
        result = ask(job, *options, "--set", "decode.max_document_tokens=200")
        assert result.exit_code == code, result.output
    assert "max_document_tokens: 201 -> 200" in result.output and "max_slots" not in result.output


@pytest.mark.usefixtures("words")
def test_files_that_were_not_reached_are_named(
    job: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def unreached(file: InputFile, storage: Storage) -> object:
        if "colour=1" in file.uri:
            raise StoreUnavailableError(f"{file.uri}: no answer")
        return read_footer(file, storage)

    monkeypatch.setattr("pipeline.plan.read_footer", unreached)
    result = ask(job, "--json", "--rows", 40)
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert result.exit_code == 4 and "error: not reached: " in result.output, result.output
    assert facts["rows"] == 80 and [file.partition("colour=")[2] for file in facts["unreached"]] == [
        "1/x.parquet: no answer"
    ]


@pytest.mark.usefixtures("words")
def test_what_cannot_be_planned_is_refused(job: list[str], tmp_path: Path) -> None:
    write_output(tmp_path / "run")
    for options, message in (
        (("--run", tmp_path / "run"), "measured another decoder than this job has"),
        (("--run", tmp_path / "run", "--throughput", 1), "give one of them"),
        (("--run", tmp_path), "not the output of a run"),
        (("--set", "text.template={{ nothing }}"), "column 'nothing' is not in the input"),
    ):
        result = ask(job, *options)
        assert result.exit_code == 2 and message in result.output, result.output
    write(tmp_path / "empty/a.parquet", {"title": ["", None], "category": ["shoes", "shoes"]})
    result = ask([*job[:2], "--input", str(tmp_path / "empty"), *job[4:]])
    assert result.exit_code == 2 and "none of 2 random rows can be used" in result.output


def test_a_histogram_is_in_order() -> None:
    assert list(histogram([1000, 20, 5, 20])) == ["16", "24", "1024"]


def test_the_quickstarts_tokens_are_those_that_its_decoder_counts(tmp_path: Path) -> None:
    """With the real tokenizer, and the numbers that runs of it counted."""
    path = CONF / "quickstart.yaml"
    job = compose(load_config(path), path, inputs=[str(CONF.parent / "samples/catalog")], output=str(tmp_path / "out"))
    prepared = prepare(replace(job, num_cpus=2))
    encoder = PromptEncoder.from_spec(prepared.job.decoder)
    found = measure(prepared, encoder, draw_rows(prepared.plan.units, 10_000, 0)).as_dict()
    assert (found["rows"], found["documents"]) == (313, 308)
    assert found["prompt_tokens_per_document"] == pytest.approx(34543 / 305, rel=0.01)
    assert found["prefix_tokens_per_document"] == pytest.approx(41.8, rel=0.02)


@pytest.mark.usefixtures("words")
def test_larger_models_on_gpus_are_reckoned_with_the_lengths_of_the_sample(job: list[str], plan_of: PlanOf) -> None:
    assert "roofline" not in plan_of(job)
    facts = plan_of(job, "--roofline")
    roofline, sample = facts["roofline"], facts["sample"]
    assert roofline["work"]["prompt"] == sample["prompt_tokens_per_document"]
    assert (roofline["work"]["prefix"], roofline["work"]["generated"]) == (7, 4)
    assert roofline["generated_from"] == "an assumption" and len(roofline["rows"]) == 6 * 7
    longer = plan_of(job, "--roofline", "--tokens-per-value", 9, "--roof-share", 1)["roofline"]
    assert longer["generated_from"] == "--tokens-per-value"
    for before, after in zip(roofline["rows"], longer["rows"], strict=True):
        assert not after["fits"] or (after["expected"] == after["at_roof"] < before["at_roof"])
    shown = ask(job, "--roofline", "--set", "model.quantization=int8-weight-only").output
    assert "nothing was run" in shown and "weights int8-weight-only" in shown and "does not fit: needs" in shown
