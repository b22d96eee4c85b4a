"""`hpd finetune` from benchmark file to decoded answers, on a tiny model with byte-level tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from selectolax.lexbor import LexborHTMLParser
from typer.testing import CliRunner

from hpd_core.examples import Labelled
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.spec import fingerprint
from jobs.cli import app
from jobs.training.labelled import data_fingerprint, read_labelled
from jobs.training.student import Student
from pipeline.job import JobError
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

torch.set_num_threads(1)
Finetune = Callable[..., tuple[int, dict[str, Any], str]]
COLORS = ("red", "tan", "sky")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    def product(n: int) -> dict[str, Any]:
        return row(f"shoe {n} {COLORS[n % 3]}", "shoes", Color=COLORS[n % 3], Brand="n/a")

    train = write(tmp_path / "train.jsonl", *(product(n) for n in range(24)))
    validation = write(tmp_path / "validation.jsonl", *(product(n) for n in range(4)))
    return {"train": train, "validation": validation, "out": tmp_path / "out"}


@pytest.fixture
def hpd(base: Path, files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> Finetune:
    """Runs `hpd finetune` on the files with further options: (exit code, its JSON, what it said)."""

    def run(*others: str) -> tuple[int, dict[str, Any], str]:
        paths = ("-d", files["train"], "--validation", files["validation"], "-o", files["out"], "-m", base)
        fixed = ("--prompting", "plain", "--max-value-tokens", "6", "--batch-documents", "5", "--threads", "1")
        done = CliRunner().invoke(app, ["finetune", *map(str, paths), *fixed, *others, "--json"])
        said = capfd.readouterr().out  # the JSON goes to the real stdout
        return done.exit_code, json.loads(said.splitlines()[-1]) if said else {}, done.output

    return run


class TestLabelled:
    def test_excluded_rows_are_left_out_blanks_aside(self, tmp_path: Path) -> None:
        train = write(tmp_path / "a.jsonl", row("a  b", "x", Brand="B"), row("c", "x", Color="n/a", Size=" 4 "))
        test = write(tmp_path / "b.jsonl", row(" a b ", "x", Brand="B"))
        (item,) = read_labelled([train], [test])
        assert item.document.text == "c" and [a.name for a in item.document.schema] == ["Color", "Size"]
        assert item.values == {"Color": (), "Size": ("4",)}
        with pytest.raises(JobError, match="every row is excluded"):
            read_labelled([test], [train])

    def test_declared_schemas_win_over_what_rows_name(self, tmp_path: Path) -> None:
        shoes = Schema("s", (Attribute("Fit", values=("wide", "slim")), Attribute("Brand")))
        train = write(tmp_path / "a.jsonl", row("B 4", "x", Brand="B"), row("C", "y", Size="4"))
        first, second = read_labelled([train], [], {"x": shoes})
        assert first.document.schema == shoes and first.values == {"Brand": ("B",)}
        assert [a.name for a in second.document.schema] == ["Size"]
        with pytest.raises(JobError, match=r"a.jsonl: row 2 \('C'\) names 'Size', not in schema 's'.*'y'"):
            read_labelled([train], [], {"y": shoes})

    def test_real_training_rows_share_no_title_with_what_is_excluded(self, real_data: Any) -> None:
        train, others = real_data("ave/oa-mine/train.jsonl"), ["validation", "test"]
        excluded = [real_data(f"ave/oa-mine/{name}.jsonl") for name in others]
        kept = read_labelled([train], excluded)
        assert len(kept) == 1202 and len(read_labelled([train], [])) == 1452


def test_the_fingerprint_of_the_data_is_that_of_the_whole_at_once() -> None:
    """Hashed row by row, it is the digest of all rows in one piece."""
    schema = Schema("x", (Attribute("Größe"), Attribute("Fit", values=("wide",))))
    rows = [Labelled(Document(f'"{n}" ü', schema), {"Größe": (str(n),), "Fit": ()}) for n in range(3)]
    facts = {"recipe": "r", "facts": {"seed": 1, "datasets": ["ä.jsonl"]}}
    assert data_fingerprint(rows, facts) == fingerprint(facts | {"rows": [repr(row) for row in rows]})
    assert repr(rows[0]).startswith("Labelled(document=Document(text=") and "values={'Größe': ('0',)" in repr(rows[0])
    unknown = [Labelled(row.document, {**row.values, "Fit": None}) for row in rows]
    assert len({data_fingerprint(some, facts) for some in (rows, rows[::-1], rows[:2], unknown)}) == 4


def test_the_prompt_of_training_shows_the_declared_schema(hpd: Finetune, files: dict[str, Path]) -> None:
    declared = files["out"].parent / "schemas.yaml"
    declared.write_text("shoes: {attributes: [Brand, {name: Color, values: [red, tan, sky]}]}")
    code, facts, text = hpd("--epochs", "1", "--rank", "4", "--schemas", str(declared))
    assert code == 0 and facts["schemas"] == [f"{declared.parent.name}/schemas.yaml"], text
    declared.write_text("shoes: {attributes: [Brand]}")
    code, _, text = hpd("--epochs", "1", "--rank", "4", "--schemas", str(declared))
    assert code == 2 and "names 'Color', not in schema 'shoes'" in text


@pytest.mark.parametrize(
    "way", [("hpd", "branches", "isolated"), ("hpd", "gaps", "causal"), ("ar", "branches", "isolated")]
)
def test_a_model_is_trained_scored_and_saved(hpd: Finetune, files: dict[str, Path], way: tuple[str, str, str]) -> None:
    decoder, layout, visibility = way
    options = ("--decoder", decoder, "--layout", layout, "--visibility", visibility)
    code, facts, text = hpd(*options, "--epochs", "2", "--rank", "4", "--lr", "0.01")
    assert code == 0, text
    assert facts["rows"] == 20 and facts["step"] == 8 and len(facts["scores"]) == 2
    recorded = json.loads((files["out"] / "adapter" / "hpd.json").read_text())
    assert (recorded["decoder"], recorded["layout"], recorded["visibility"]) == way
    assert recorded["document_block"] == (1 if decoder == "ar" else 64)
    assert recorded["training"]["datasets"] == [f"{files['train'].parent.name}/train.jsonl"]
    assert str(files["out"].parent) not in str(recorded["training"])
    lines = [json.loads(line) for line in (files["out"] / "log.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == 8 and sum("strict_f1" in line for line in lines) == 2


def test_two_workers_train_what_one_trains(hpd: Finetune, files: dict[str, Path]) -> None:
    """Ray Train with two CPU workers; validation, adapter, log and resume are those of one process."""
    options = ("--epochs", "2", "--rank", "4", "--lr", "0.01")
    code, alone, text = hpd(*options)
    assert code == 0, text
    losses = [line["loss"] for line in map(json.loads, (files["out"] / "log.jsonl").open()) if "loss" in line]
    files["out"] = files["out"].with_name("together")
    code, together, text = hpd(*options, "--workers", "2")
    assert code == 0, text
    assert together["scores"] == pytest.approx(alone["scores"]) and together["step"] == alone["step"]
    log = [line["loss"] for line in map(json.loads, (files["out"] / "log.jsonl").open()) if "loss" in line]
    assert log == pytest.approx(losses, rel=1e-3)
    assert (files["out"] / "adapter" / "adapter_model.safetensors").is_file()
    code, _, text = hpd(*options, "--workers", "2")
    assert code == 2 and "resume that run" in text
    code, again, text = hpd(*options, "--workers", "2", "--resume")
    assert code == 0 and again["step"] == alone["step"], text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpus", "1"), "--gpus: is for --workers"),
        (("--workers", "2", "--device", "cpu"), "--device cpu: each of several workers"),
        (("--lr", "0"), "learning_rate"),
        (("--schemas", "{a}", "--schemas", "{a}"), "category 'shoes' is of schema 'shoes'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    hpd: Finetune, files: dict[str, Path], options: tuple[str, ...], message: str
) -> None:
    declared = files["out"].parent / "schemas.yaml"
    declared.write_text("shoes: {attributes: [Brand, Color]}")
    code, _, text = hpd(*(option.format(a=declared) for option in options))
    assert code == 2 and message in text


@pytest.mark.parametrize("stub", ["key", "shortest"])
def test_a_trained_adapter_answers(hpd: Finetune, files: dict[str, Path], stub: str) -> None:
    """Enough steps to learn a toy: the colour stands last, the brand is never there."""
    code, _, text = hpd("--epochs", "40", "--rank", "16", "--lr", "0.02", "--negatives", "1", "--stub", stub)
    assert code == 0, text
    decoder = HyperParallelDecoder.from_pretrained(str(files["out"] / "adapter"))
    assert decoder.encoder.template.stub == stub
    rows = decoder.extract(["shoe 31 tan", "shoe 33 red"], Schema("x", (Attribute("Color"), Attribute("Brand"))))
    assert [r.as_dict() for r in rows] == [{"Color": "tan", "Brand": None}, {"Color": "red", "Brand": None}]


def test_all_weights(hpd: Finetune, files: dict[str, Path]) -> None:
    code, facts, text = hpd("--rank", "0", "--max-steps", "1")
    assert code == 0, text
    model = files["out"] / "model"
    assert facts["output"] == str(model) and (model / "model.safetensors").exists() and (model / "hpd.json").exists()
    assert HyperParallelDecoder.from_pretrained(str(model)).encoder.settings.max_value_tokens == 6


def test_resume_is_asked_for_and_refuses_other_data(hpd: Finetune, files: dict[str, Path]) -> None:
    assert hpd("--max-steps", "2")[0] == 0
    assert "resume that run" in hpd("--max-steps", "2")[2]
    code, facts, _ = hpd("--max-steps", "2", "--resume")
    assert code == 0 and facts["step"] == 2
    write(files["train"], row("other", "shoes", Color="red"))
    code, _, text = hpd("--max-steps", "2", "--resume")
    assert code == 2 and "made with other settings" in text


def test_the_curve_is_whole_after_a_resumption(
    hpd: Finetune, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--epochs", "3", "--rank", "4")
    score, done = Student.score, []

    def interrupted(student: Student) -> Any:
        done.append(score(student))
        if len(done) == 2:
            raise KeyboardInterrupt
        return done[-1]

    def drawn() -> tuple[int, int]:
        page = LexborHTMLParser((files["out"] / "curve.html").read_text())
        raw = page.css_first("polyline.raw")
        assert raw is not None
        return len(str(raw.attributes["points"]).split()), len(page.css("circle.first"))

    with monkeypatch.context() as patch:
        patch.setattr(Student, "score", interrupted)
        assert hpd(*options)[0] == 130
    assert drawn() == (4, 1), "drawn after each epoch"
    code, facts, text = hpd(*options, "--resume")
    assert code == 0, text
    assert drawn() == (12, 3) == (facts["step"], len(facts["scores"]))
    whole = (files["out"] / "curve.html").read_text()
    (files["out"] / "curve.html").unlink()
    assert hpd(*options, "--resume")[0] == 0 and (files["out"] / "curve.html").read_text() == whole


@pytest.mark.parametrize(
    "options, message",
    [
        (("--layout", "branches", "--visibility", "causal"), "needs layout 'gaps'"),
        (("--decoder", "beam"), "fine-tuning knows 'hpd' and 'ar'"),
        (("--decay", "steps"), "decay 'steps'"),
        (("--precision", "int8"), "precision 'int8'"),
        (("--decoder", "ar", "--document-block", "8"), "the control is plain causal text"),
    ],
)
def test_what_cannot_be_done_is_refused(
    hpd: Finetune, files: dict[str, Path], options: tuple[str, ...], message: str
) -> None:
    code, _, text = hpd(*options)
    assert code == 2 and message in text and not files["out"].exists()
