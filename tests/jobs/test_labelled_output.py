"""Outputs of `hpd extract` as training data: a hand-written teacher behind the pipeline's own stages, without Ray."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pipeline.drive
from hpd_core.confidence import ConfidenceRule
from hpd_core.examples import Labelled
from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import EncodedDocument
from hpd_core.reading import ValueStatus, typed_value
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value
from hpd_core.schema import Attribute, Schema, ValueType
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from jobs.cli import app
from jobs.training.labelled import ReadOptions, read_datasets, read_labelled
from pipeline.compact import compact
from pipeline.job import JobError, OutputOptions, UnitCaps
from pipeline.manifest import OutputFolder
from pipeline.reader import CatalogReader
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.text import TextTemplate
from tests.core.tiny_folder import write_tiny_model
from tests.pipeline.fakes import text_of
from tests.pipeline.helpers import inline, job, output_files, write

SHOES = Schema(
    "shoes",
    (
        Attribute("Brand"),
        Attribute("Color", values=("Navy", "Red")),
        Attribute("Size", type=ValueType.NUMBER, column="eu_size"),
    ),
)
READER = CatalogReader(TextTemplate("{{ title }}"), {"shoes": SHOES}, None, "kind", "ask")
ALL = OutputOptions(confidence=True, statuses=True, raw=True)
SPEC = DecoderSpec(ModelSpec("fake", dtype="float32"), DecodeSettings(max_document_tokens=200))
#: {attribute: (raw text, confidence)}; a raw text that ends with '…' reached K_max.
Answers = dict[str, tuple[str, float]]
SURE: Answers = {"Brand": ("Acme", 0.9), "Color": ("navy", 0.9), "Size": ("42,5", 0.9)}


class Scripted:
    """Answers what the document's own text says, as JSON."""

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> Scripted:
        return self

    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        return Extraction([self._row(d) for d in documents], Counts(documents=len(documents), model_calls=1))

    def _row(self, document: EncodedDocument) -> Row:
        text = text_of(document)
        answers = json.loads(text[: text.index("}") + 1])
        values = []
        for attribute in document.schema:
            raw, confidence = answers[attribute.name]
            value, status = (None, ValueStatus.TRUNCATED) if raw.endswith("…") else typed_value(attribute, raw)
            values.append(Value(attribute.name, value, status, raw, log(confidence), 1))
        return Row(document.schema, RowStatus.CUT if document.cut else RowStatus.OK, tuple(values))


@pytest.fixture
def extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Extracts rows with these answers (None: no text) into a folder, two rows to a unit."""
    monkeypatch.setattr(pipeline.drive, "drive", inline)

    def make(*rows: Answers | str | None, asked: Sequence[str] | None = None, **changes: Any) -> Path:
        titles = [json.dumps(r) if isinstance(r, dict) else r for r in rows]
        table = {"id": list(range(len(rows))), "title": titles, "kind": ["shoes"] * len(rows)}
        for name in changes.pop("files", ["a"]):
            path = tmp_path / f"in/{name}.parquet"
            write(path, table | {"ask": [list(asked or [])] * len(rows)}, row_group_size=2)
        settings: dict[str, Any] = {
            "output_options": ALL,
            "decoder": SPEC,
            "decoder_factory": Scripted(),
            "units": UnitCaps(rows=2),
            "reader": READER,
            "schemas": (SHOES,),
        }
        spec = job(tmp_path, tmp_path / "in", **settings | changes)
        assert run(spec).complete
        return tmp_path / "out"

    return make


def read(folder: Path, threshold: float | None = None, **others: Any) -> list[Labelled]:
    return read_labelled([folder], [], reading=ReadOptions(min_confidence=threshold, **others))


def test_values_texts_and_schemas_come_from_the_output_alone(extracted: Any) -> None:
    folder = extracted(SURE, {**SURE, "Brand": ('"Bo"', 0.9), "Size": ("7", 0.9)})
    rows = read(folder)
    assert [r.document.schema for r in rows] == [SHOES, SHOES]
    assert rows[0].document.text == json.dumps(SURE)  # what the template made of the title
    assert rows[0].values == {"Brand": ("Acme",), "Color": ("Navy",), "Size": ("42,5",)}
    assert rows[1].values == {"Brand": ("Bo",), "Color": ("Navy",), "Size": ("7",)}


@pytest.mark.parametrize("profile", ["", "athena"])
def test_rows_of_folders_are_read_once_and_a_text_may_name_what_the_folder_holds(extracted: Any, profile: str) -> None:
    brands = [{**SURE, "Brand": (f"B{n}", 0.9)} for n in range(4)]
    reader = replace(READER, template=TextTemplate("{{ title }} {{ Colour }}"))
    schema = Schema("shoes", tuple(replace(a, column=a.column.lower()) for a in SHOES)) if profile else SHOES
    reader = replace(reader, schemas={"shoes": schema})
    options = replace(ALL, layout="hive", profile=profile)
    changes = {"reader": reader, "schemas": (schema,), "output_options": options}
    files = [f"Colour={colour}/{name}" for name in "ab" for colour in ("red", "blue")]
    folder = extracted(*brands, files=files, **changes)
    before = read(folder)
    assert Counter(r.document.text.rpartition(" ")[2] for r in before) == {"red": 8, "blue": 8}
    compact(OutputFolder(str(folder), Storage()), most=2**30)
    assert read(folder) == before and len(before) == 16


def test_a_student_inherits_the_notice_of_its_teacher(extracted: Any) -> None:
    folder = extracted(SURE, decoder=replace(SPEC, model=replace(SPEC.model, notice="research only")))
    (data,) = read_datasets([folder], [])
    assert data.notice == "research only" and len(data.rows) == 1


def test_a_student_says_who_taught_it(extracted: Any, tmp_path: Path) -> None:
    """hpd.json of what `hpd finetune` trained on an output, whether or not a job file named the teacher."""
    config = {"model": {"name": "/home/x/teacher/model"}}
    folder = extracted(SURE, config=config)
    run = json.loads((folder / "run.json").read_text())
    base = write_tiny_model(tmp_path / "base")
    few = ("--prompting", "plain", "--max-value-tokens", "9", "--threads", "1", "--rank", "2", "--max-steps", "1")
    command = ["finetune", "-d", str(folder), "-m", str(base), "-o", str(tmp_path / "student"), *few]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    trained = json.loads((tmp_path / "student" / "adapter" / "hpd.json").read_text())["training"]
    (teacher,) = trained["teachers"]
    assert teacher["fingerprint"] == run["fingerprint"] and teacher["output"] == f"{tmp_path.name}/out"
    assert (teacher["model"], teacher["weights"], teacher["adapter"]) == ("teacher/model", "fake@main", "")
    assert teacher["settings"]["max_document_tokens"] == 200 and teacher["decoder"] == "hpd"
    assert "/home/x" not in str(trained) and str(tmp_path) not in str(trained)


def test_an_output_that_does_not_tell_its_model_is_refused(extracted: Any) -> None:
    path = extracted(SURE) / "run.json"
    run = json.loads(path.read_text())
    del run["facts"]["decoder"]["model"]["dtype"]
    path.write_text(json.dumps(run))
    with pytest.raises(JobError, match=r"out/run\.json: does not tell which model wrote it \(KeyError\('dtype'\)\)"):
        read(path.parent)


def test_without_raw_texts_typed_values_are_written(extracted: Any) -> None:
    (row,) = read(extracted(SURE, output_options=OutputOptions()))
    assert row.values == {"Brand": ("Acme",), "Color": ("Navy",), "Size": ("42.5",)}


def test_below_the_threshold_neither_value_nor_absence_is_taught(
    extracted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = extracted({"Brand": ("Acme", 0.5), "Color": ("n/a", 0.49), "Size": ("n/a", 0.8)})
    assert read(folder)[0].values == {"Brand": ("Acme",), "Color": (), "Size": ()}
    assert read(folder, 0.5)[0].values == {"Brand": ("Acme",), "Color": None, "Size": ()}
    assert "1 values not taught: confidence below 0.5 (first: " in capsys.readouterr().err
    with pytest.raises(JobError, match="every row is excluded or left out"):
        read(folder, 0.9)
    assert "1 rows left out: nothing of it may be taught" in capsys.readouterr().err


BAD: Answers = {"Brand": ("Acm…", 0.9), "Color": ("Green", 0.9), "Size": ("n/a", 0.9)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ALL, {"Brand": None, "Color": None, "Size": ()}),
        (OutputOptions(statuses=True), {"Brand": None, "Color": None, "Size": ()}),
        (OutputOptions(raw=True), {"Brand": None, "Color": None, "Size": ()}),
        (OutputOptions(confidence=True), None),
    ],
)
def test_null_is_an_absence_only_where_the_output_says_so(
    extracted: Any, options: OutputOptions, expected: dict[str, Any] | None
) -> None:
    folder = extracted(BAD, {**SURE, "Brand": ("n/a", 0.9), "Size": ("n/a", 0.9)}, output_options=options)
    rows = read(folder)
    if expected is None:  # nothing tells why: only an open string of a row without truncated values is sure
        assert [r.values for r in rows] == [{"Brand": (), "Color": ("Navy",), "Size": None}]
    else:
        assert [r.values for r in rows] == [expected, {"Brand": (), "Color": ("Navy",), "Size": ()}]


@pytest.mark.parametrize("grounding", ["mark", "enforce"])
@pytest.mark.parametrize("options", [OutputOptions(), OutputOptions(raw=True), OutputOptions(confidence=True)])
def test_under_grounding_statuses_tell_what_was_found(extracted: Any, grounding: str, options: OutputOptions) -> None:
    decoder = replace(SPEC, settings=replace(SPEC.settings, grounding=grounding))
    folder = extracted(SURE, decoder=decoder, output_options=options)
    with pytest.raises(JobError, match=r"out: extracted with grounding .*: extract with output\.statuses"):
        read(folder)


def test_under_grounding_an_output_with_statuses_is_read(extracted: Any) -> None:
    decoder = replace(SPEC, settings=replace(SPEC.settings, grounding="mark"))
    assert len(read(extracted(SURE, decoder=decoder, output_options=OutputOptions(statuses=True)))) == 1


def test_under_grounding_attributes_without_a_status_are_not_taught(
    extracted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = replace(SPEC, settings=replace(SPEC.settings, grounding="enforce"))
    answers = {"Heel": ("5 cm", 0.9), "Sole": ("n/a", 0.9), "Brand": ("Acme", 0.9)}
    (row,) = read(extracted(answers, asked=["Heel", "Sole", "Brand"], decoder=decoder))
    assert row.values == {"Heel": None, "Sole": None, "Brand": ("Acme",)}
    assert "2 values not taught: only the row asked for it" in capsys.readouterr().err


def test_a_raw_text_of_several_lines_is_not_taught(extracted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = read(extracted({**SURE, "Brand": ("Ac\u2028me", 0.9)}))
    assert row.values["Brand"] is None
    assert "1 values not taught: a value has more than one line" in capsys.readouterr().err


def test_a_document_that_was_cut_teaches_no_absence(extracted: Any) -> None:
    answers = {**SURE, "Brand": ("n/a", 0.9)}
    (row,) = read(extracted(json.dumps(answers) + " and more" * 40))
    assert row.values == {"Brand": None, "Color": ("Navy",), "Size": ("42,5",)}
    assert row.document.text.endswith("and more")


def test_rows_in_error_are_left_out_and_said(extracted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read(extracted(SURE, None, None))) == 1
    assert "2 rows left out: hpd_status 'no_text' (first:" in capsys.readouterr().err


def test_attributes_that_only_a_row_asked_for(extracted: Any) -> None:
    answers = {"Heel": ("5 cm", 0.9), "Sole": ("n/a", 0.9), "Brand": ("Acme", 0.9)}
    folder = extracted(answers, asked=["Heel", "Sole", "Brand"])
    assert read(folder)[0].values == {"Heel": ("5 cm",), "Sole": (), "Brand": ("Acme",)}
    assert read(folder, 0.5)[0].values == {"Heel": None, "Sole": None, "Brand": ("Acme",)}  # it has no confidence


def test_only_listed_units_count_and_reading_changes_nothing(extracted: Any) -> None:
    folder = extracted(SURE, SURE, {**SURE, "Brand": ("Bo", 0.9)})
    stray = folder / "data" / "stray.parquet"
    stray.write_bytes(output_files(folder)[0].read_bytes())
    assert len(read(folder)) == 3

    (folder / "_SUCCESS").unlink()
    with pytest.raises(JobError, match=r"out: not finished \(no _SUCCESS\).*--unfinished"):
        read(folder)
    assert len(read(folder, unfinished=True)) == 3
    first, second = sorted((folder / "_manifest/units").iterdir())
    (folder / "data" / f"{first.stem}.parquet").unlink()
    assert [r.values["Brand"] for r in read(folder, unfinished=True)] == [("Bo",)]
    second.unlink()
    with pytest.raises(JobError, match="left out"):
        read(folder, unfinished=True)
    assert first.exists() and stray.exists()


def test_units_of_another_configuration_are_left_out_and_said(
    extracted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = extracted(SURE, SURE, SURE)
    listing = json.loads((folder / "_manifest/job.json").read_text())
    listing["objects"][0]["fingerprint"] = "other"
    (folder / "_manifest/job.json").write_text(json.dumps(listing))
    assert len(read(folder)) == 1
    assert "2 rows left out: committed under another configuration" in capsys.readouterr().err


def test_refusals_say_what_to_change(extracted: Any, tmp_path: Path) -> None:
    folder = extracted(SURE, output_options=OutputOptions(columns=("id", "kind", "ask")))
    with pytest.raises(JobError, match=r"no confidence columns to hold against 0\.5: extract with output\.confidence"):
        read(folder, 0.5)
    with pytest.raises(JobError, match=r"output\.keep too narrow\? column 'title' is not in the input"):
        read(folder)
    facts = json.loads((folder / "run.json").read_text())
    for change, message in (
        ({"output_version": 99}, "output version 99"),
        ({"reader": {}}, "KeyError\\('template'\\)"),
    ):
        (folder / "run.json").write_text(json.dumps(facts | {"facts": facts["facts"] | change}))
        with pytest.raises(JobError, match=f"run.json: .*{message}"):
            read(folder)


def test_what_a_threshold_took_away_is_taught_neither_as_value_nor_as_absence(extracted: Any) -> None:
    rule = ConfidenceRule(threshold=0.8)

    class Unsure(Scripted):
        def _row(self, document: EncodedDocument) -> Row:
            return rule.apply(super()._row(document))

    made = {"decoder": replace(SPEC, confidence=rule), "decoder_factory": Unsure()}
    folder = extracted({"Brand": ("Acme", 0.7), "Color": ("navy", 0.9), "Size": ("n/a", 0.9)}, **made)
    assert read(folder)[0].values == {"Brand": None, "Color": ("Navy",), "Size": ()}
    facts = json.loads((folder / "run.json").read_text())
    facts["facts"]["output"]["statuses"] = False
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(JobError, match="with a threshold of confidence and without statuses"):
        read(folder)


def test_the_reader_of_a_job_comes_back_from_its_facts() -> None:
    reader = CatalogReader(TextTemplate("{{ a }}"), {"x": SHOES, "y": SHOES}, SHOES, "kind")
    facts = json.loads(json.dumps(reader.facts()))
    assert CatalogReader.from_facts(facts) == reader
