"""`hpd label` from a catalog to a benchmark file, against a local endpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from hpd_core.grounding import SourceText
from hpd_core.reading import read
from hpd_core.schema import Attribute, Document, Schema, ValueType
from jobs.cli import app
from jobs.labels.label import Kept, benchmark_line
from jobs.remote import endpoint as module
from jobs.remote.asking import AnswerError
from jobs.remote.labels import label_question, labels_of
from jobs.scores.dataset import read_benchmark
from jobs.scores.declared import declared_schemas
from jobs.training.labelled import read_labelled
from tests.jobs.fake_endpoint import FakeEndpoint, Reply, asked_text, serving

KEY = "sk-secret-0123456789"
JOB = """
text: {template: "{{ title }}", category_column: kind}
schemas: {file: schemas.yaml, default: shoes}
limits: {max_error_rate: 0.5}
"""
SCHEMAS = """
shoes: {categories: [Sneakers, Boots], attributes: [Brand, Color, {name: Fit, values: [wide, slim]}]}
tea: {categories: [Tea], attributes: [Brand, {name: Grams, type: integer}]}
"""
TITLES = [
    ("Fila RED sneaker, slim", "Sneakers"),
    ("Fila RED sneaker, slim", "Sneakers"),
    ("", "Sneakers"),
    ("Acme boot", "Boots"),
    ("Acme tea 100g", "Tea"),
    ("what is this", None),
]
ANSWERS = {
    "Fila RED sneaker, slim": {"Brand": "Fila", "Color": "red", "Fit": "SLIM"},
    "Acme boot": {"Brand": "Acme", "Color": "brown", "Fit": "tight"},
    "Acme tea 100g": {"Brand": "n/a", "Grams": 100},
    "what is this": {"Brand": "Nike", "Color": "blue", "Fit": "x"},
}


def knowing(body: dict[str, Any]) -> Reply:
    return Reply(json.dumps(ANSWERS[asked_text(body)]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def fake() -> Iterator[FakeEndpoint]:
    with serving(knowing) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "schemas.yaml").write_text(SCHEMAS)
    (tmp_path / "in").mkdir()
    titles, kinds = zip(*TITLES, strict=True)
    pq.write_table(pa.table({"title": titles, "kind": kinds}), tmp_path / "in" / "a.parquet", row_group_size=2)
    return tmp_path


def line_of(folder: Path, url: str, *others: str) -> list[str]:
    paths = ["--config", str(folder / "job.yaml"), "--input", str(folder / "in"), "-o", str(folder / "out.jsonl")]
    return ["label", *paths, "--endpoint", url, "--model", "big", *others]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture
def label(folder: Path, fake: FakeEndpoint) -> Callable[..., Result]:
    return lambda *others: CliRunner().invoke(app, line_of(folder, fake.url, *others))


class TestLabels:
    schema = Schema(
        "s",
        (
            Attribute("Brand", "the maker"),
            Attribute("Fit", values=("wide", "None")),
            Attribute("Grams", type=ValueType.INTEGER),
            Attribute("New", type=ValueType.BOOLEAN),
        ),
    )
    document = Document("Acme 100 g new ten", schema)

    def label(self, **answer: Any) -> list[tuple[Kept, str | None]]:
        given = {"Brand": None, "Fit": None, "Grams": None, "New": None} | answer
        return [(one.kept, one.value) for one in labels_of(self.document, json.dumps(given))]

    def test_each_kind(self) -> None:
        assert self.label() == [(Kept.ABSENT, None)] * 4
        assert self.label(Brand="acme", Fit="none", Grams=100, New=True) == [
            (Kept.RESPELLED, "Acme"),
            (Kept.VALUE, "None"),
            (Kept.VALUE, "100"),
            (Kept.VALUE, "yes"),
        ]
        assert self.label(Brand="Fila", Fit="tight", Grams="ten", New="maybe") == [
            (Kept.UNGROUNDED, None),
            (Kept.INVALID, None),
            (Kept.INVALID, None),
            (Kept.INVALID, None),
        ]

    @pytest.mark.parametrize(
        ("attribute", "said", "kept", "value"),
        [
            (Attribute("A"), '"Pro"', Kept.VALUE, "Pro"),
            (Attribute("A"), "'PRO'", Kept.RESPELLED, "Pro"),
            (Attribute("A"), '"n/a".', Kept.ABSENT, None),
            (Attribute("A"), "o", Kept.UNGROUNDED, None),
            (Attribute("A", values=("None", "Wool")), '"None"', Kept.VALUE, "None"),
            (Attribute("A", values=("None", "Wool")), "N/A", Kept.ABSENT, None),
            (Attribute("A", values=("1.50", "2"), type=ValueType.NUMBER), 1.5, Kept.INVALID, None),
            (Attribute("A", values=("1.50", "2"), type=ValueType.NUMBER), "1.50", Kept.VALUE, "1.50"),
            (Attribute("A", type=ValueType.BOOLEAN), True, Kept.VALUE, "yes"),
            (Attribute("A", type=ValueType.BOOLEAN), " Y ", Kept.VALUE, "yes"),
            (Attribute("A", type=ValueType.BOOLEAN), "FALSE", Kept.VALUE, "no"),
            (Attribute("A", type=ValueType.INTEGER), "1,299", Kept.VALUE, "1,299"),
            (Attribute("A", type=ValueType.QUANTITY), "5 KG", Kept.RESPELLED, "5 kg"),
            (Attribute("A", many=True), "red;Blue", Kept.VALUE, "red; Blue"),
            (Attribute("A", many=True), '"Blue; RED; blue"', Kept.RESPELLED, "Blue; red"),
            (Attribute("A", many=True), "red; pink", Kept.UNGROUNDED, None),
            (Attribute("A", many=True), "none; ", Kept.ABSENT, None),
            (Attribute("A", many=True, values=("Men", "Women")), "women; MEN", Kept.VALUE, "Women; Men"),
            (Attribute("A", many=True, values=("Men", "Women")), "men; kids", Kept.INVALID, None),
        ],
    )
    def test_an_answer_is_read_as_a_decoders_value_is(
        self, attribute: Attribute, said: Any, kept: Kept, value: str | None
    ) -> None:
        text = "Pro 1,299 dollars, 5 kg, Blue or red"
        (label,) = labels_of(Document(text, Schema("s", (attribute,))), json.dumps({"A": said}))
        assert (label.kept, label.value) == (kept, value)
        if value is not None:  # and who reads the label again gets the same fact
            assert read(attribute, value).value == read(attribute, label.said or "", SourceText(text)).value

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ({"Brand": "x"}, "leaves out 'Fit', 'Grams', 'New'"),
            ({"Brand": 1, "Fit": 1, "Grams": 1, "New": 1, "Extra": 1}, "not asked: 'Extra'"),
            ({"Brand": ["x"], "Fit": 1, "Grams": 1, "New": 1}, "'Brand' is neither a text nor null"),
        ],
    )
    def test_an_answer_to_another_schema_is_none(self, answer: dict[str, Any], message: str) -> None:
        with pytest.raises(AnswerError, match=message):
            labels_of(self.document, json.dumps(answer))

    def test_the_question_shows_schema_and_text(self) -> None:
        question = label_question(self.document)
        assert "- Brand: the maker\n- Fit (one of: wide, None)\n- Grams (a whole number)\n" in question.system
        assert "- New (yes or no)\n" in question.system
        assert '["Brand", "Fit", "Grams", "New"]' in question.system and question.user == self.document.text
        assert question.shape["properties"]["Fit"]["enum"] == ["wide", "None", None]

    def test_the_question_says_which_attributes_may_have_several_values(self) -> None:
        schema = Schema("s", (Attribute("Colors", many=True), Attribute("For", values=("Men", "Women"), many=True)))
        question = label_question(Document("x", schema))
        several = '(may have several values: ";" between them)'
        assert f"- Colors {several}\n- For (any of: Men, Women) {several}\n\n" in question.system
        assert question.shape["properties"]["For"] == {"type": ["string", "null"]}

    def test_a_dropped_value_is_not_named_and_not_lost(self) -> None:
        answer = '{"Brand": "Fila", "Fit": null, "Grams": null, "New": null}'
        line = benchmark_line("t", "c", labels_of(self.document, answer))
        assert "Brand" not in line["target_scores"] and line["target_scores"]["Fit"] == {"n/a": 1}
        assert line["dropped"] == {"Brand": {"value": "Fila", "reason": "ungrounded"}}


class TestCommand:
    def test_every_row_is_a_line_a_duplicate_or_a_rejection(self, label: Callable[..., Result], folder: Path) -> None:
        done = label("--input-price", "2", "--output-price", "10")
        assert done.exit_code == 0, done.output
        rows = read_benchmark(folder / "out.jsonl").rows
        assert [(row.category, row.gold) for row in rows] == [
            ("Sneakers", {"Brand": ("Fila",), "Color": ("RED",), "Fit": ("slim",)}),
            ("Boots", {"Brand": ("Acme",)}),
            ("Tea", {"Brand": ("n/a",), "Grams": ("100",)}),
        ]
        rejected = lines(folder / "out.rejected.jsonl")
        assert [(r["row"], r["kind"]) for r in rejected] == [(2, "no_text"), (5, "nothing_usable")]
        assert "Nike" in rejected[1]["reason"] and rejected[1]["input"] == "what is this"
        facts = json.loads((folder / "out.summary.json").read_text())
        assert (facts["rows"], facts["labelled"], facts["duplicates"]) == (6, 3, 1)
        assert facts["attributes"]["Color"] == {
            "values": 0,
            "respelled": 1,
            "absent": 0,
            "ungrounded": 2,  # of a rejected row, too
            "invalid": 0,
        }
        # 4 answers of 100 and 10 tokens: 400 * 2 + 40 * 10 dollars per million
        assert facts["spent"]["dollars"] == pytest.approx(0.0012) and "0.0012 dollars" in done.stdout

    def test_finetune_takes_every_row_with_the_schema_that_it_was_labelled_with(
        self, label: Callable[..., Result], folder: Path, fake: FakeEndpoint
    ) -> None:
        kinds = ["Sneakers", " Boots ", "Tea", "None", None, "", "of no schema"]
        table = pa.table({"title": [f"Acme {n}" for n in range(len(kinds))], "kind": kinds})
        pq.write_table(table, folder / "in" / "a.parquet")
        fake.answer = lambda body: Reply(
            json.dumps({"Brand": "Acme"} | ({"Grams": None} if "Grams" in str(body) else {"Color": None, "Fit": None}))
        )
        schemas = SCHEMAS + "none: {categories: [None], attributes: [Brand, Color, Fit]}\n"
        (folder / "schemas.yaml").write_text(schemas)
        assert label().exit_code == 0
        declared = declared_schemas([folder / "schemas.yaml"])
        rows = read_labelled([folder / "out.jsonl"], [], declared)
        found = [row.document.schema.name for row in rows]
        assert found == ["shoes", "shoes", "tea", "none", "shoes", "shoes", "shoes"]
        categories = [line["category"] for line in lines(folder / "out.jsonl")]
        assert categories == ["Sneakers", "Boots", "Tea", "None", "shoes", "shoes", "shoes"]
        assert all(row.document.schema is declared[c] for row, c in zip(rows, categories, strict=True))

    def test_the_key_is_sent_and_written_nowhere(
        self, label: Callable[..., Result], folder: Path, fake: FakeEndpoint
    ) -> None:
        done = label("--json")
        assert set(fake.keys) == {f"Bearer {KEY}"}
        fake.answer = lambda body: Reply(status=401, message=f"bad key {KEY}")
        refused = label("--request", "seed=1")
        assert refused.exit_code == 2
        assert fake.url in refused.stderr and "OPENAI_API_KEY holds a key that it does not take" in refused.stderr
        written = "".join(path.read_text() for path in folder.rglob("out*"))
        assert KEY not in done.output + refused.output + written

    def test_another_variable_must_be_set(
        self, label: Callable[..., Result], fake: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "--key-variable SHOP_KEY" in label("--key-variable", "SHOP_KEY").stderr
        monkeypatch.setenv("SHOP_KEY", " other \n")
        assert label("--key-variable", "SHOP_KEY").exit_code == 0 and set(fake.keys) == {"Bearer other"}

    def test_a_run_that_stopped_goes_on_and_asks_nothing_twice(
        self, label: Callable[..., Result], folder: Path, fake: FakeEndpoint
    ) -> None:
        fake.answer = lambda body: Reply(status=503) if "boot" in asked_text(body) else knowing(body)
        stopped = label("--retries", "0", "--max-failures", "1", "--concurrency", "1")
        assert "a question got no answer: status 503" in stopped.stderr and "after one try" in stopped.stderr
        assert stopped.exit_code == 4 and "the same command goes on" in stopped.stderr
        assert [r["kind"] for r in lines(folder / "out.rejected.jsonl")] == [
            "no_text",
            "no_answer",
            "not_asked",
            "not_asked",
        ]
        fake.answer, fake.bodies = knowing, []
        assert label().exit_code == 0
        assert sorted(map(asked_text, fake.bodies)) == ["Acme boot", "Acme tea 100g", "what is this"]
        assert json.loads((folder / "out.summary.json").read_text())["spent_in_all_runs"]["answers"] == 4
        fake.bodies = []
        before = (folder / "out.jsonl").read_bytes()
        assert label().exit_code == 0 and not fake.bodies and (folder / "out.jsonl").read_bytes() == before

    def test_a_killed_run_goes_on(self, folder: Path, fake: FakeEndpoint) -> None:
        fake.answer = lambda body: Reply(status=200, delay=60) if "tea" in asked_text(body) else knowing(body)
        line = [sys.executable, "-m", "jobs.cli", *line_of(folder, fake.url, "--concurrency", "1")]
        killed = subprocess.Popen(line, cwd=Path(__file__).parents[2], start_new_session=True)
        try:
            end = time.monotonic() + 60
            while len(fake.bodies) < 3 and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
        assert len(fake.bodies) == 3 and not (folder / "out.jsonl").exists()
        fake.answer, fake.bodies = knowing, []
        assert CliRunner().invoke(app, line_of(folder, fake.url)).exit_code == 0
        assert sorted(map(asked_text, fake.bodies)) == ["Acme tea 100g", "what is this"]
        assert len(read_benchmark(folder / "out.jsonl").rows) == 3

    def test_a_sample_is_drawn_from_all_files_with_a_seed(
        self, label: Callable[..., Result], folder: Path, fake: FakeEndpoint
    ) -> None:
        fake.answer = lambda body: Reply(json.dumps({"Brand": asked_text(body), "Color": None, "Fit": None}))
        for file in "ab":
            titles = [f"n{file}{n:02}" for n in range(50)]
            pq.write_table(pa.table({"title": titles, "kind": ["Boots"] * 50}), folder / "in" / f"{file}.parquet")
        drawn = []
        for seed in "0", "0", "1":
            assert label("--sample", "20", "--seed", seed).exit_code == 0
            drawn.append([row["input"] for row in lines(folder / "out.jsonl")])
        assert drawn[0] == drawn[1] == sorted(drawn[0]) and drawn[0] != drawn[2]
        assert len(set(drawn[0])) == 20 and {text[1] for text in drawn[0]} == {"a", "b"}

    def test_more_rejected_than_the_job_allows(self, label: Callable[..., Result]) -> None:
        done = label("--set", "limits.max_error_rate=0.2")
        assert done.exit_code == 3 and "2 of 6 rows rejected" in done.stderr

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--limit", "1", "--sample", "1"], "--limit and --sample"),
            (["-o", "x.json"], "must end in .jsonl"),
            (["--request", "model=x"], "--request model: is set by the command"),
            (["--input-price", "1"], "give both or none"),
            (["--set", "text.template={{ nosuch }}"], "column 'nosuch' is not in the input"),
        ],
    )
    def test_wrong_options_ask_nothing(
        self, label: Callable[..., Result], fake: FakeEndpoint, options: list[str], message: str
    ) -> None:
        done = label(*options)
        assert done.exit_code == 2 and re.search(re.escape(message), done.stderr) and not fake.bodies

    def test_a_file_that_cannot_be_read_is_named(self, label: Callable[..., Result], folder: Path) -> None:
        (folder / "in" / "b.parquet").write_text("no parquet")
        done = label()
        assert done.exit_code == 2 and "b.parquet" in done.stderr
