"""From a benchmark file to predictions and scores, and the same documents for every decoder of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpd_core.grounding import SourceText
from hpd_core.prompt import EncodedDocument, PromptError
from hpd_core.reading import read
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema, ValueType
from hpd_core.settings import ClosedValues
from jobs.cli import app
from jobs.decoders import OneByOne
from jobs.options import decoder_spec
from jobs.remote.labels import labels_of
from jobs.scores.dataset import BenchmarkRow, read_benchmark
from jobs.scores.predictions import CHUNK, extract_chunks, prediction, write_results
from pipeline.models import BASE_MODEL, DEFAULT_MODEL
from tests.jobs.test_dataset import row, write


class WordEncoder:
    """A document's ids are the lengths of its words; a text that says so cannot be asked."""

    def encode(self, document: Document) -> EncodedDocument:
        if "unaskable" in document.text:
            raise PromptError("too long")
        return EncodedDocument([len(word) for word in document.text.split()], document.schema)


@dataclass
class FirstLengthDecoder:
    """Answers every attribute with the length of the first word, the last attribute with nothing; notes its calls."""

    encoder: WordEncoder = field(default_factory=WordEncoder)
    calls: list[tuple[int, object]] = field(default_factory=list)

    def extract_encoded(
        self, documents: Sequence[EncodedDocument], forced: Sequence[dict[str, str]] | None = None
    ) -> Extraction:
        self.calls.append((len(documents), forced))
        rows = [self._row(document) for document in documents]
        return Extraction(rows, Counts(documents=len(rows), steps=1))

    def _row(self, document: EncodedDocument) -> Row:
        *others, last = document.schema
        values = [Value(a.name, str(document.ids[0]), ValueStatus.EXTRACTED, "", -0.1, 1) for a in others]
        values.append(Value(last.name, None, ValueStatus.ABSENT, "n/a", -0.1, 1))
        return Row(document.schema, RowStatus.OK, tuple(values))


@pytest.fixture
def benchmark_file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "x.jsonl",
        row("four words", "Tea", Flavor="4", Size="n/a"),
        row("unaskable", "Tea", Flavor="9"),
        row(" \u3000 ", "Tea", Flavor="8"),
        row("sixsix", "Tea", Size="6"),
        row("four words", "Tea", Flavor="again", Size="n/a"),
    )


def test_every_row_gets_a_prediction_in_order_also_one_that_cannot_be_asked(benchmark_file: Path) -> None:
    rows, counts = extract_chunks(FirstLengthDecoder(), read_benchmark(benchmark_file).documents())  # type: ignore[arg-type]
    assert [prediction(r) for r in rows] == [
        {"Flavor": "4", "Size": None},
        {"Flavor": None, "Size": None},
        {"Flavor": None, "Size": None},
        {"Flavor": "6", "Size": None},
        {"Flavor": "4", "Size": None},
    ]
    assert (counts.documents, rows[1].error) == (3, "too long")
    assert rows[2].status is RowStatus.NO_TEXT


@pytest.mark.parametrize(
    ("attribute", "raw", "text"),
    [
        (Attribute("A"), ' "Pro"', "Pro"),
        (Attribute("A", type=ValueType.INTEGER), "1,299", "1,299"),
        (Attribute("A", type=ValueType.NUMBER), " 5.50", "5.50"),
        (Attribute("A", type=ValueType.QUANTITY), "5 KG", "5 kg"),
        (Attribute("A", type=ValueType.INTEGER), "many", None),
        (Attribute("A", type=ValueType.BOOLEAN), "TRUE", "yes"),
        (Attribute("A", type=ValueType.BOOLEAN), "0", "no"),
        (Attribute("A", values=("1.50", "2"), type=ValueType.NUMBER), "1.50", "1.50"),
        (Attribute("A", many=True), "RED;Blue; RED", "red; Blue"),
        (Attribute("A", many=True, type=ValueType.QUANTITY), "5 kg; n/a;7 cm", "5 kg; 7 cm"),
        (Attribute("A", values=("Men", "Women"), many=True), "women;MEN", "Women; Men"),
    ],
)
@pytest.mark.parametrize("grounded", [True, False])
def test_a_prediction_is_the_text_that_a_label_has_for_the_same_fact(
    attribute: Attribute, raw: str, text: str | None, grounded: bool
) -> None:
    source = "Pro for 1,299 dollars; 5.50, 5 kg, 7 cm, Blue or red"
    found = read(attribute, raw, SourceText(source) if grounded else None)
    value = Value("A", found.value, found.status, raw, -0.1, 1, found.spans)
    row_ = Row(Schema("s", (attribute,)), RowStatus.OK, (value,), text=source if grounded else "")
    said = prediction(row_)["A"]
    assert said == text if grounded else (said or "").casefold() == (text or "").casefold()
    (label,) = labels_of(Document(source, row_.schema), json.dumps({"A": raw}))
    assert label.value == text


def test_the_work_of_all_chunks_is_summed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl", *(row(f"{'x' * (n % 7 + 1)}", "Tea", A="1", B="2") for n in range(2 * CHUNK + 3))
    )
    decoder = FirstLengthDecoder()
    rows, counts = extract_chunks(decoder, read_benchmark(path).documents())  # type: ignore[arg-type]
    assert [size for size, _ in decoder.calls] == [CHUNK, CHUNK, 3]
    assert (len(rows), counts.documents, counts.steps) == (2 * CHUNK + 3, 2 * CHUNK + 3, 3)
    assert rows[CHUNK + 1].as_dict()["A"] == str((CHUNK + 1) % 7 + 1)


def test_predictions_are_one_object_a_line(tmp_path: Path) -> None:
    write_results(tmp_path / "new" / "folder", [{"A": "ü\u2028x", "B": None}, {}], {"f1": 1.0})
    text = (tmp_path / "new" / "folder" / "predictions.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.rstrip("\n").split("\n")] == [{"A": "ü\u2028x", "B": None}, {}]
    assert json.loads((tmp_path / "new" / "folder" / "scores.json").read_text()) == {"f1": 1.0}


def test_one_by_one_hands_over_each_document_with_its_answers() -> None:
    decoder = FirstLengthDecoder()
    schema = read_schema()
    documents = [EncodedDocument([n], schema) for n in (5, 6, 7)]
    forced = [{"A": "x"}, {"A": "y"}, {"A": "z"}]

    counts = OneByOne(decoder).extract_encoded(documents[:2], forced[:2]).counts  # type: ignore[arg-type]

    assert decoder.calls == [(1, [{"A": "x"}]), (1, [{"A": "y"}])]
    assert (counts.documents, counts.steps) == (2, 2)


def read_schema() -> object:
    from jobs.scores.dataset import category_schemas

    return category_schemas([BenchmarkRow("x", "Tea", {"A": ("1",), "B": ("2",)})], "x")["Tea"]


def test_scores_of_real_files_agree_with_the_reference_scorer(
    real_data: Callable[[str], Path], reference_scorer: Path, tmp_path: Path
) -> None:
    import subprocess
    import sys

    from jobs.scores.scoring import score

    gold_file = real_data("ave/ae-110k/test.jsonl")
    data = read_benchmark(gold_file)
    # Predictions that are right, absent, wrong and beyond the gold, by turns.
    predictions: list[dict[str, str | None]] = []
    for number, entry in enumerate(data.rows):
        said: dict[str, str | None] = {}
        for place, (attribute, values) in enumerate(entry.gold.items()):
            said[attribute] = [values[0].strip(), None, "wrong", "n/a"][(number + place) % 4]
        said |= {
            a.name: "made up" for a in data.schemas[entry.category] if a.name not in entry.gold and number % 3 == 0
        }
        predictions.append(said)
    write_results(tmp_path, predictions, {})
    command = [sys.executable, str(reference_scorer), str(gold_file), str(tmp_path / "predictions.jsonl")]
    reference = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert score([r.gold for r in data.rows], predictions).as_dict() == reference


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("absent_margins=1", "--decode absent_margins=1: did you mean 'absent_margin'?"),
        ("absent_margin", "--decode absent_margin: must be written KEY=VALUE"),
        ("absent_margin=much", "absent_margin is 'much': must be a finite number of nats"),
        ("closed_values=always", "--decode: 'always' is not a valid ClosedValues"),
        ("max_slots=0", "max_slots is 0: must be at least 1"),
    ],
)
def test_a_decode_setting_that_is_none_is_refused(benchmark_file: Path, word: str, message: str) -> None:
    line = ["evaluate", "--dataset", str(benchmark_file), "--output", "out", "--model", BASE_MODEL, "--decode", word]
    result = CliRunner().invoke(app, line)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"error: {message}")


def test_decode_settings_are_laid_over_the_models_own() -> None:
    words = ["absent_margin=-0.5", "closed_values=listed", "kv_mib=null"]
    settings = decoder_spec(DEFAULT_MODEL, None, None, None, None, words).settings
    assert (settings.absent_margin, settings.closed_values, settings.kv_mib) == (-0.5, ClosedValues.LISTED, None)
    assert settings.layout is decoder_spec(DEFAULT_MODEL, None, None, None).settings.layout
