"""`hpd compare`: folders side by side, paired differences, and the folders that do not belong together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser
from typer.testing import CliRunner, Result

from jobs.cli import app
from jobs.compare import side_by_side
from jobs.scores.bootstrap import difference
from jobs.scores.breakdown import Part
from jobs.scores.dataset import read_benchmark
from jobs.scores.predictions import write_results
from jobs.scores.quality import assess
from jobs.scores.scoring import Scores
from tests.jobs.test_dataset import row, write

ROWS = 40


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = (row(f"text {n}", "Tea" if n % 2 else "<i>Shoes|", Brand=f"b{n}", Size=f"s{n}") for n in range(ROWS))
    return write(tmp_path / "x.jsonl", *rows)


def predicted(right_every: int, count: int = ROWS) -> list[dict[str, str | None]]:
    """Every so manieth brand is right, the others are missed; every size is wrong."""
    return [{"Brand": f"b{n}" if n % right_every == 0 else None, "Size": "wrong"} for n in range(count)]


def write_run(folder: Path, data: Path, predictions: list[dict[str, str | None]], **changes: Any) -> Path:
    benchmark = read_benchmark(data)
    facts = assess(benchmark.rows[: len(predictions)], predictions).as_dict() | {
        "rows": len(predictions),
        "rows_digest": benchmark.digest(len(predictions)),
        "rows_error": 0,
        "run": {"dataset": data.name, "decoder": "hpd", "settings": {"layout": "gaps"}},
    }
    facts |= changes
    write_results(folder, predictions, {key: value for key, value in facts.items() if value is not None})
    return folder


def compare(data: Path, output: Path, *runs: Path, json_: bool = False) -> Result:
    arguments = ["compare", *map(str, runs), "--dataset", str(data), "--output", str(output)]
    return CliRunner().invoke(app, arguments + ["--json"] * json_)


def test_runs_are_put_side_by_side_with_paired_differences(tmp_path: Path, data: Path) -> None:
    runs = {"few": predicted(8), "most": predicted(1), "some|<b>": predicted(2)}
    folders = [write_run(tmp_path / name, data, said) for name, said in runs.items()]
    qualities = {name: assess(read_benchmark(data).rows, said) for name, said in runs.items()}

    result = compare(data, tmp_path / "o", *folders)

    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert (facts["dataset"], facts["rows"], facts["reference"]) == ("x.jsonl", ROWS, "few")
    # few: P = 5/45, R = 5/80; most: P = 40/80 = R; some: P = 20/60, R = 20/80
    assert [(run["name"], run["f1"]) for run in facts["runs"]] == [("few", 8.0), ("most", 50.0), ("some|<b>", 28.57)]
    for run in facts["runs"]:
        found = qualities[run["name"]].interval("f1")
        assert run["intervals"]["f1"] == [found.low, found.high]
        assert run["settings"] == {"decoder": "hpd", "layout": "gaps"}
    reference = qualities["few"]
    for line in facts["differences"]:
        other = qualities[line["name"]]
        by_hand = difference(other.scores, other.draws, reference.scores, reference.draws, "f1")
        bounds = [by_hand.interval.low, by_hand.interval.high]
        assert line["f1"] == {"difference": by_hand.value, "interval": bounds, "clear": True}
        assert 0 < bounds[0] <= by_hand.value <= bounds[1]
    assert [line["name"] for line in facts["differences"]] == ["most", "some|<b>"]
    assert facts["differences"][0]["f1"]["difference"] == 42.0
    # Even rows are shoes: few has 5 of 20 brands right there, some has all.
    assert [(line["category"], line["gold"], line["f1"]) for line in facts["by_category"]] == [
        ("<i>Shoes|", 40, [15.38, 50.0, 50.0]),
        ("Tea", 40, [0.0, 50.0, 0.0]),
    ]
    assert [(line["category"], line["attribute"]) for line in facts["by_attribute"]] == [
        ("<i>Shoes|", "Brand"), ("<i>Shoes|", "Size"), ("Tea", "Brand"), ("Tea", "Size"),
    ]  # fmt: skip
    assert [run["errors"]["missed"] for run in facts["runs"]] == [35, 0, 20]

    text = (tmp_path / "o" / "comparison.md").read_text()
    assert text in result.stdout
    assert "| most | 50.00 (50.00 to 50.00) |" in text and "| minus few | F1 | strict F1 | rows" in text
    low, high = facts["differences"][0]["f1"]["interval"]
    assert f"| most | +42.00 ({low:.2f} to {high:.2f}) |" in text
    assert "| &lt;i>Shoes\\| | 40 | 15.38 | 50.00 | 50.00 |" in text and "some\\|&lt;b>" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1

    page = LexborHTMLParser((tmp_path / "o" / "comparison.html").read_text(encoding="utf-8"))
    assert not page.css("script,i,b,link,[src],[href]")
    shown = [[cell.text().strip() for cell in line.css("th,td")] for line in page.css("tr")]
    assert ["most", "+42.00", f"{low:.2f} to {high:.2f}"] in [line[:3] for line in shown]
    assert ["<i>Shoes|", "40", "15.38", "50.00", "50.00"] in shown
    assert ["missed", "35", "0", "20"] in [line[:4] for line in shown]
    assert "decoder hpd, layout gaps" in [line[-1] for line in shown]


def test_a_copy_of_a_run_differs_by_nothing(tmp_path: Path, data: Path) -> None:
    folders = [write_run(tmp_path / name, data, predicted(3)) for name in ("one", "two")]
    assert compare(data, tmp_path / "o", *folders).exit_code == 0
    facts = json.loads((tmp_path / "o" / "comparison.json").read_text())
    nothing = {"difference": 0.0, "interval": [0.0, 0.0], "clear": False}
    alike = {"rows_answered_alike": ROWS}
    assert facts["differences"] == [{"name": "two", **alike, "f1": nothing, "strict_f1": nothing}]
    line = f"| two | +0.00 (0.00 to 0.00) | +0.00 (0.00 to 0.00) | {ROWS} of {ROWS} |"
    assert line in (tmp_path / "o" / "comparison.md").read_text()


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, data: Path) -> None:
    folders = [write_run(tmp_path / name / "run", data, predicted(3)) for name in ("one", "two")]
    assert compare(data, tmp_path / "o", *folders).exit_code == 0
    facts = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert [run["name"] for run in facts["runs"]] == [str(folder) for folder in folders]


def test_what_one_run_alone_answers_beyond_the_gold_is_a_line_too() -> None:
    brand, size = Part("Tea", "Brand", Scores(vc=2)), Part("Tea", "Size", Scores(extra=3))
    sole = Part("Shoes", "Sole", Scores(extra=1))  # of a category that the first run has nothing in
    lines = side_by_side([[brand], [Part("Tea", "Brand", Scores(vw=1, vc=1)), size, sole]], ["Shoes", "Tea"])
    assert [(line["attribute"], line["gold"], line["f1"]) for line in lines] == [
        ("Sole", 0, [0.0, 0.0]),
        ("Brand", 2, [100.0, 50.0]),
        ("Size", 0, [0.0, 0.0]),
    ]


def test_a_run_of_before_the_digest_can_be_compared(tmp_path: Path, data: Path) -> None:
    old = write_run(tmp_path / "old", data, predicted(3), rows_digest=None, intervals=None, errors=None)
    new = write_run(tmp_path / "new", data, predicted(2))
    assert compare(data, tmp_path / "o", old, new).exit_code == 0


@pytest.mark.parametrize("digest", [True, False])
def test_runs_over_different_rows_are_refused_by_name(tmp_path: Path, data: Path, digest: bool) -> None:
    changes: dict[str, Any] = {} if digest else {"rows_digest": None}
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "x.jsonl", *(row("t", "Tea", Brand="b", Age="1") for _ in range(ROWS)))
    renamed = write(tmp_path / "y.jsonl", *(row(f"text {n}", "Tea", Brand="b", Size="1") for n in range(ROWS)))
    all_rows = write_run(tmp_path / "all", data, predicted(3), **changes)
    cases = {
        "rows 40 and 30": write_run(tmp_path / "short", data, predicted(3, 30), **changes),
        "dataset x.jsonl and y.jsonl": write_run(tmp_path / "renamed", renamed, predicted(3), **changes),
        "digest of the rows" if digest else "row 1 answers other attributes: Age, Size": write_run(
            tmp_path / "elsewhere", other, [{"Brand": "b", "Age": None}] * ROWS, **changes
        ),
    }
    for message, folder in cases.items():
        result = compare(data, tmp_path / "o", all_rows, folder)
        assert result.exit_code == 2
        assert f"{all_rows} and {folder} are over different rows: {message}" in result.stderr
    assert not (tmp_path / "o").exists()


def test_a_dataset_that_is_not_the_runs_own_is_refused(tmp_path: Path, data: Path) -> None:
    said = predicted(3)
    runs = [write_run(tmp_path / name, data, said) for name in ("one", "two")]
    old = [write_run(tmp_path / f"old {name}", data, said, rows_digest=None) for name in ("one", "two")]
    lines = data.read_text().splitlines(keepends=True)
    changed = [line.replace("b3", "B3") for line in lines]
    cases = [
        ("y.jsonl", lines, runs, "one is over x.jsonl, not over y.jsonl"),
        ("short/x.jsonl", lines[:9], runs, "one has 40 rows, x.jsonl 9"),
        ("gold/x.jsonl", changed, runs, "one is over other rows than x.jsonl has now"),
        ("gold/x.jsonl", changed, old, "old one: scores.json has counts"),
        ("keys/x.jsonl", [line.replace("Size", "Age") for line in lines], old,
         "old one: row 1 does not answer what x.jsonl asks of a '<i>Shoes|': Age, Size"),
    ]  # fmt: skip
    for name, content, folders, message in cases:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(content))
        result = compare(path, tmp_path / "o", *folders)
        assert (result.exit_code, message in result.stderr) == (2, True), result.output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scores.json", None, "scores.json: No such file"),
        ("scores.json", "{", "scores.json: no JSON"),
        ("scores.json", "[]", "scores.json: not a JSON object"),
        ("scores.json", '{"rows": 40}', "does not name a dataset"),
        ("predictions.jsonl", None, "predictions.jsonl: No such file"),
        ("predictions.jsonl", "{}\n", "predictions.jsonl: 1 lines, but scores.json counts 40 rows"),
        ("predictions.jsonl", "{}\n[]\n", "predictions.jsonl: line 2: not a JSON object"),
        ("predictions.jsonl", '{"Size": 9}\n', "line 1: the value of 'Size' is neither a text nor null"),
    ],
)
def test_a_folder_that_holds_no_run_is_refused(
    tmp_path: Path, data: Path, name: str, content: str | None, message: str
) -> None:
    good, bad = (write_run(tmp_path / folder, data, predicted(3)) for folder in ("good", "bad"))
    (bad / name).unlink()
    if content is not None:
        (bad / name).write_text(content)
    result = compare(data, tmp_path / "o", good, bad)
    assert (result.exit_code, str(bad / name) in result.stderr, message in result.stderr) == (2, True, True), (
        result.stderr
    )


def test_one_run_or_the_same_twice_is_refused(tmp_path: Path, data: Path) -> None:
    run = write_run(tmp_path / "run", data, predicted(3))
    assert "at least two runs" in compare(data, tmp_path / "o", run).stderr
    assert "given twice" in compare(data, tmp_path / "o", run, tmp_path / "o" / ".." / "run").stderr


def test_values_with_odd_line_ends_stay_on_their_line(tmp_path: Path) -> None:
    data = write(tmp_path / "x.jsonl", row("a\u2028b", "Tea", Brand="c\u2028d\x85"), row("e", "Tea", Brand="f"))
    said: list[dict[str, str | None]] = [{"Brand": "c\u2028d"}, {"Brand": "f"}]
    folders = [write_run(tmp_path / name, data, said) for name in ("one", "two")]
    result = compare(data, tmp_path / "o", *folders, json_=True)
    assert result.exit_code == 0, result.output


def test_compare_needs_no_torch_and_json_is_all_there_is_on_stdout(
    tmp_path: Path, data: Path, repository: Path
) -> None:
    folders = [write_run(tmp_path / name, data, predicted(3)) for name in ("one", "two")]
    script = (
        "import sys\nfrom jobs.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules), sorted(sys.modules)\n"
    )
    arguments = ["compare", *folders, "--dataset", data, "--output", tmp_path / "o", "--json"]
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "o" / "comparison.json").read_text()) | {
        "output": str(tmp_path / "o")
    }
    assert "| minus one |" in done.stderr
