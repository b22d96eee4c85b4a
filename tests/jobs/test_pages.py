"""`hpd evaluate` with a decoder that answers from a table: what it writes, and the report that people read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser
from typer.testing import CliRunner, Result

from hpd_core.model_spec import ModelSpec
from hpd_core.rows import Counts, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Document
from jobs.cli import app
from jobs.scores.dataset import read_benchmark
from jobs.scores.pages import EXAMPLES, KINDS, report_page, settings, shortened, write_page
from jobs.scores.quality import assess
from tests.jobs.test_dataset import row, write

HOSTILE = "<script>alert('x')</script> & \"boot\""
Answers = dict[str, dict[str, str]]
Evaluate = Callable[..., Result]


@pytest.fixture
def run_evaluate(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """run_evaluate(dataset, folder, {text: {attribute: value}}, *options): the command, its decoder replaced."""

    def answer(answers: Answers, documents: Sequence[Document]) -> tuple[list[Row], Counts]:
        rows = []
        for document in documents:
            found = [(a.name, answers.get(document.text, {}).get(a.name)) for a in document.schema]
            status = {None: ValueStatus.ABSENT}
            values = tuple(Value(n, v, status.get(v, ValueStatus.EXTRACTED), v or "", -0.1, 1) for n, v in found)
            rows.append(Row(document.schema, RowStatus.OK, values))
        return rows, Counts(documents=len(rows))

    def evaluate(dataset: Path, folder: Path, answers: Answers, *options: str) -> Result:
        facts = {"model": {"source": "<b>model</b>", "adapter": ""}, "settings": {"layout": "gaps"}}
        spec = SimpleNamespace(model=ModelSpec("m"), as_dict=lambda: facts)
        # In place of the module that brings torch.
        decoders = ModuleType("jobs.decoders")
        decoders.load = lambda spec, threads: None  # type: ignore[attr-defined]
        decoders.named = lambda name: lambda loaded, batch: None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jobs.decoders", decoders)
        monkeypatch.setattr("jobs.evaluate.decoder_spec", lambda *_, **__: spec)
        monkeypatch.setattr("jobs.evaluate.extract_chunks", lambda _, documents: answer(answers, documents))
        return CliRunner().invoke(app, ["evaluate", "--dataset", str(dataset), "--output", str(folder), *options])

    return evaluate


def cells(table: Any) -> list[list[str]]:
    return [[cell.text().strip() for cell in line.css("th,td")] for line in table.css("tr")]


def test_evaluate_writes_scores_and_a_report_beside_its_predictions(tmp_path: Path, run_evaluate: Evaluate) -> None:
    data = write(
        tmp_path / "x.jsonl",
        row("Diesel boot", "Shoes", Brand="Diesel", Color="red"),
        row("Fila boot", "Shoes", Brand="Fila"),
        row("Tazo", "Tea", Brand="Tazo", Flavor="n/a"),
    )
    answers = {"Diesel boot": {"Brand": "Diesel"}, "Fila boot": {"Brand": "Fila boot"}, "Tazo": {"Flavor": "mint"}}

    result = run_evaluate(data, tmp_path / "o", answers)

    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "confidences.jsonl",
        "predictions.jsonl",
        "report.html",
        "scores.json",
    ]
    facts = json.loads((tmp_path / "o" / "scores.json").read_text())
    # VC Diesel, VN red | VW Fila boot | VN Tazo, NV mint: P = 1/3, R = 1/4
    assert (facts["counts"], facts["f1"]) == ({"NN": 0, "NV": 1, "VN": 2, "VC": 1, "VW": 1}, 28.57)
    assert facts["intervals"]["f1"][0] <= 28.57 <= facts["intervals"]["f1"][1]
    assert facts["rows_digest"] == read_benchmark(data).digest()
    assert f"f1 28.57 ({facts['intervals']['f1'][0]:.2f} to " in result.stdout

    page = LexborHTMLParser((tmp_path / "o" / "report.html").read_text(encoding="utf-8"))
    figures, categories, shoes, tea, sure, kept, _, *errors = [cells(table) for table in page.css("table")]
    low, high = facts["intervals"]["f1"]
    assert figures[0] == ["F1", "28.57", f"{low:.2f} to {high:.2f}"]
    assert ["weights", "<b>model</b>"] in figures and ["layout", "gaps"] in figures and ["decoder", "hpd"] in figures
    assert categories == [
        ["category", "gold", "predicted", "correct", "precision", "recall", "F1", "beyond the gold", "strict F1"],
        ["Shoes", "3", "2", "1", "50.00", "33.33", "40.00", "0", "40.00"],
        ["Tea", "1", "1", "0", "0.00", "0.00", "0.00", "0", "0.00"],
    ]
    assert [line[:4] for line in shoes[1:]] == [["Brand", "2", "2", "1"], ["Color", "1", "0", "0"]]
    assert [line[:4] for line in tea[1:]] == [["Brand", "1", "0", "0"], ["Flavor", "0", "1", "0"]]
    assert [node.text() for node in page.css("summary")] == [
        "Shoes (2)", "Tea (2)",
        "what a threshold keeps, strict", "what a threshold keeps, where the gold names the attribute",
        "missed: 2", "boundary: 1", "wrong attribute: 0", "wrong value: 0", "invented, absent: 1",
        "invented, not named: 0",
    ]  # fmt: skip
    # Three values, one of them right, each told with exp(-0.1).
    assert sure[1:4] == [["values", "3", "3"], ["right", "1", "1"], ["mean confidence", "0.905", "0.905"]]
    assert sure[4] == ["expected calibration error", "0.572", "0.572"]
    assert kept[1] == ["0.905", "3", "100.00", "33.33", "25.00", "28.57"]
    assert [chart.attributes["aria-label"] for chart in page.css("svg")] == [
        "reliability diagram",
        "precision over recall",
    ]
    missed, boundary, invented = errors
    assert missed[1:] == [
        ["1", "Diesel boot", "ColorShoes", "red", "none"],
        ["3", "Tazo", "BrandTea", "Tazo", "none"],
    ]
    assert boundary[1:] == [["2", "Fila boot", "BrandShoes", "Fila", "Fila boot"]]
    assert invented[1:] == [["3", "Tazo", "FlavorTea", "none", "mint"]]


def test_declared_schemas_are_asked_and_told(tmp_path: Path, run_evaluate: Evaluate) -> None:
    data = write(
        tmp_path / "x.jsonl",
        row("Fila boot, slim", "Boots", Fit="slim"),
        row("Acme boot", "shoes", Fit="n/a", Brand="Acme"),
        row("Tazo", "Tea", Flavor="n/a"),
    )
    (tmp_path / "a.yaml").write_text(
        "shoes: {categories: [Boots], attributes: [Brand, {name: Fit, description: the cut, values: [slim]}]}"
    )
    (tmp_path / "b.yaml").write_text("hats: {attributes: [Size]}")
    options = ["--schemas", str(tmp_path / "a.yaml"), "--schemas", str(tmp_path / "b.yaml")]
    answers = {"Fila boot, slim": {"Brand": "Fila", "Fit": "slim"}}

    result = run_evaluate(data, tmp_path / "o", answers, *options)

    assert result.exit_code == 0, result.output
    said = [json.loads(line) for line in (tmp_path / "o" / "predictions.jsonl").read_text().splitlines()]
    assert said == [{"Brand": "Fila", "Fit": "slim"}, {"Brand": None, "Fit": None}, {"Flavor": None}]
    facts = json.loads((tmp_path / "o" / "scores.json").read_text())
    assert facts["run"]["schemas"] == ["a.yaml", "b.yaml"] and settings(facts)["schemas"] == "a.yaml, b.yaml"
    assert set(facts["run"]["declared"]) == {"Boots", "shoes"}
    assert facts["run"]["declared"]["Boots"]["attributes"][1]["description"] == "the cut"
    assert facts["rows_digest"] == read_benchmark(data).digest(), "the same rows, whatever they are asked for"
    assert run_evaluate(data, tmp_path / "p", answers).exit_code == 0
    assert "schemas" not in json.loads((tmp_path / "p" / "scores.json").read_text())["run"]
    nothing = run_evaluate(data, tmp_path / "q", answers, *options[2:])
    both = [str(tmp_path / "o"), str(tmp_path / "p")]
    for pair in (both, both[::-1]):
        line = ["compare", *pair, "--dataset", str(data), "--output", str(tmp_path / "c")]
        assert (done := CliRunner().invoke(app, line)).exit_code == 0, done.output
    assert nothing.exit_code == 2 and "--schemas: declares none of the categories" in nothing.stderr


def test_whatever_products_and_models_write_is_text_on_the_page(tmp_path: Path, run_evaluate: Evaluate) -> None:
    # Text, category, attribute, gold and prediction, in an error of every kind that shows them.
    gold = {f"Attribute {HOSTILE}": f"gold {HOSTILE}", "Color": f"other {HOSTILE}", "Size": "n/a"}
    data = write(tmp_path / f"{'<i>x'}.jsonl", row(f"text {HOSTILE}", f"Category {HOSTILE}", **gold))
    said = {f"Attribute {HOSTILE}": f"other {HOSTILE}", "Color": HOSTILE, "Size": HOSTILE}

    assert run_evaluate(data, tmp_path / "o", {f"text {HOSTILE}": said}).exit_code == 0

    source = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    page = LexborHTMLParser(source)
    assert "<script" not in source and not page.css("script,i,b") and "&amp;amp;" not in source
    [wrong] = [
        cells(table) for table in page.css("table") if f"text {HOSTILE}" in table.text() and "(gold of" in table.text()
    ]
    assert wrong[1] == [
        "1", f"text {HOSTILE}", f"Attribute {HOSTILE}Category {HOSTILE}", f"gold {HOSTILE}",
        f"other {HOSTILE} (gold of Color)",
    ]  # fmt: skip
    assert page.css_first("h1").text() == "hpd on <i>x.jsonl, 1 rows"


def test_a_report_needs_nothing_but_itself_and_fits_a_phone(tmp_path: Path, run_evaluate: Evaluate) -> None:
    data = write(tmp_path / "x.jsonl", row("https://shop.example/a.png", "Tea", Brand="Tazo"))
    assert run_evaluate(data, tmp_path / "o", {}).exit_code == 0
    source = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    page = LexborHTMLParser(source)
    assert not page.css("[src],[href],link,script,iframe,img") and not re.search(r"@import|url\(", source)
    assert page.css_first("meta[name=viewport]").attributes["content"] == "width=device-width, initial-scale=1"
    assert page.css_first("meta[charset]").attributes["charset"] == "utf-8"
    # A table wider than the screen scrolls by itself, never the page.
    assert all((table.parent.attributes.get("class") or "") == "wide" for table in page.css("table"))


def test_examples_are_few_and_long_texts_are_cut(tmp_path: Path) -> None:
    data = write(tmp_path / "x.jsonl", *(row(f"{n} " + "word " * 500, "Tea", Brand="Tazo") for n in range(50)))
    benchmark = read_benchmark(data)
    quality = assess(benchmark.rows, [{"Brand": None}] * 50)
    facts = quality.as_dict() | {"rows": 50, "rows_error": 0}
    page = LexborHTMLParser(report_page(facts, quality.errors, "x"))
    missed = cells(page.css("table")[-1])
    assert [line[0] for line in missed[1:]] == [str(n) for n in range(1, 51, 5)] and len(missed) == EXAMPLES + 1
    assert all(len(line[1]) == 400 and line[1].endswith("…") for line in missed[1:])
    assert shortened("x" * 400) == "x" * 400


def test_every_kind_of_error_is_on_the_page() -> None:
    from jobs.scores.errors import ErrorKind

    assert set(KINDS) == set(ErrorKind)


def test_a_page_is_written_whatever_characters_json_held(tmp_path: Path) -> None:
    write_page(tmp_path / "x.html", "half a pair: \ud83d, ü")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == "half a pair: ?, ü"


def test_whatever_tells_two_runs_apart_is_among_their_settings() -> None:
    run = {
        "decoder": "hpd",
        "name": "tiny",
        "model": {"source": "sha256:1", "adapter": "2"},
        "settings": {"layout": "gaps", "visibility": "causal", "max_value_tokens": 8, "grounding": "enforce"},
        "confidence": {"calibration": {"score": "sum"}, "threshold": 0.37, "thresholds": {}},
    }
    assert settings({"run": run}) == {
        "decoder": "hpd", "model": "tiny", "layout": "gaps", "visibility": "causal", "longest value": "8",
        "grounding": "enforce", "calibrated": "yes", "threshold": "0.37", "weights": "sha256:1", "adapter": "2",
    }  # fmt: skip
    assert settings({"run": run | {"confidence": None}}).keys().isdisjoint({"calibrated", "threshold"})
