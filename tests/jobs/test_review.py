"""`hpd review`: the page gives nothing away, votes find their way back to the runs, other files are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser
from typer.testing import CliRunner, Result

from jobs.cli import app
from tests.jobs.test_compare import write_run
from tests.jobs.test_dataset import row, write

ROWS = 12
#: Both runs say the same on them.
SAME = (4, 9)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} \u2028 & \"'"
Export = dict[str, Any]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = (row(f"text {n} {HOSTILE}", "Tea" if n % 3 else "Shoes", Brand=f"b{n}", Size="1") for n in range(ROWS))
    return write(tmp_path / "x.jsonl", *rows)


def said(prefix: str) -> list[dict[str, str | None]]:
    return [{"Brand": "same" if n in SAME else f"{prefix}{n} {HOSTILE}", "Size": None} for n in range(ROWS)]


@pytest.fixture
def runs(tmp_path: Path, data: Path) -> tuple[Path, Path]:
    """run-adam says adam0, adam1 …, run-eve eve0, eve1 …"""
    adam, eve = (write_run(tmp_path / f"run-{name}", data, said(name)) for name in ("adam", "eve"))
    return adam, eve


def build(runs: tuple[Path, Path], data: Path, page: Path, *options: str) -> Result:
    arguments = ["review", "build", *map(str, runs), "--dataset", str(data), "--output", str(page), *options]
    return CliRunner().invoke(app, arguments)


def score(output: Path, key: Path, *exports: Path) -> Result:
    arguments = ["review", "score", *map(str, exports), "--key", str(key), "--output", str(output)]
    return CliRunner().invoke(app, arguments)


def content(page: Path) -> dict[str, Any]:
    node = LexborHTMLParser(page.read_text(encoding="utf-8")).css_first("#content")
    assert node is not None
    return json.loads(node.text())


def choice_for(question: dict[str, Any], run: str) -> str:
    """The button beside the answer of `run`, going by the values that the page shows."""
    _, one, two = question["lines"][0]
    assert one.startswith(run) != two.startswith(run)
    return "1" if one.startswith(run) else "2"


def export(path: Path, page: Path, reviewer: str, *votes: str) -> Path:
    """votes: "adam", "eve", "tie" or "skip" for the first questions of the page; written as the page exports."""
    shown = content(page)
    decisions = [
        {"question": n, "choice": v if v in ("tie", "skip") else choice_for(q, v), "seconds": n, "at": "2026-01-01"}
        for n, (q, v) in enumerate(zip(shown["questions"], votes, strict=False), 1)
    ]
    file = {"format": "hpd-review-1", "page": shown["id"], "reviewer": reviewer, "exported": "2026-01-01"}
    path.write_text(json.dumps(file | {"decisions": decisions}))
    return path


def test_a_page_shows_the_rows_that_differ_and_its_key_tells_whose_answers_they_are(
    tmp_path: Path, data: Path, runs: tuple[Path, Path]
) -> None:
    result = build(runs, data, tmp_path / "p" / "page.html", "--rows", "99")
    assert result.exit_code == 0, result.output
    assert "10 questions; 2 more rows drawn have the same answer twice" in result.stdout
    shown = content(tmp_path / "p" / "page.html")
    key = json.loads((tmp_path / "p" / "page.key.json").read_text())
    assert key["page"] == shown["id"]
    assert (key["a"]["name"], key["b"]["name"], key["dataset"]) == ("run-adam", "run-eve", "x.jsonl")
    assert key["identical"] == [n + 1 for n in SAME]
    assert sorted(entry["row"] for entry in key["questions"]) == [n + 1 for n in range(ROWS) if n not in SAME]
    for question, entry in zip(shown["questions"], key["questions"], strict=True):
        n = entry["row"] - 1
        assert question["text"] == f"text {n} {HOSTILE}"
        values = [f"adam{n} {HOSTILE}".strip(), f"eve{n} {HOSTILE}".strip()]
        one, two = values if entry["left"] == "A" else reversed(values)
        assert question["lines"] == [["Brand", one, two], ["Size", None, None]]


def test_the_page_is_one_file_without_anything_of_the_runs(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> None:
    assert build(runs, data, tmp_path / "page.html", "--seed", "7").exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = content(tmp_path / "page.html")
    assert set(shown) == {"id", "questions"}
    assert all(set(question) == {"category", "text", "lines"} for question in shown["questions"])
    for word in ("run-", "x.jsonl", str(tmp_path), "gaps", "seed"):
        assert word not in text
    page = LexborHTMLParser(text)
    assert not page.css("link,img,[src],[href]") and len(page.css("script")) == 2
    assert "innerHTML" not in text and "default-src 'none'" in text
    # The same page, byte for byte, whatever the runs are called and however they were made.
    renamed = tmp_path / "zeta", tmp_path / "alpha"
    for old, new in zip(runs, renamed, strict=True):
        shutil.copytree(old, new)
    facts = json.loads((renamed[0] / "scores.json").read_text())
    facts["run"]["decoder"] = "ar"
    (renamed[0] / "scores.json").write_text(json.dumps(facts))
    assert build(renamed, data, tmp_path / "other.html", "--seed", "7").exit_code == 0
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == text


def test_votes_come_back_to_the_runs(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> None:
    page, key = tmp_path / "page.html", tmp_path / "page.key.json"
    build(runs, data, page)
    ann = export(tmp_path / "ann.json", page, "Ann|<b>", "adam", "adam", "adam", "eve", "tie", "skip", "skip")
    bob = export(tmp_path / "bob.json", page, "Bob", "adam", "adam", "eve", "eve", "tie", "eve")
    result = score(tmp_path / "o", key, ann, bob)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "o" / "review.json").read_text())
    # Row by row: A, A, tie (one each), B, tie, B (Ann skipped); the 7th was skipped, 8 to 10 are open.
    assert [line["verdict"] for line in facts["rows"]] == ["A", "A", "tie", "B", "tie", "B"]
    majority, raw = facts["majority"], facts["raw"]
    assert [majority[name] for name in ("win", "tie", "loss", "share", "sign_test_p")] == [2, 2, 2, 50.0, 1.0]
    assert [raw[name] for name in ("win", "tie", "loss", "share")] == [5, 2, 4, 54.55]
    assert majority["interval"][0] < 50 < majority["interval"][1]
    assert (facts["questions"], facts["without_vote"], facts["identical"]) == (10, 4, 2)
    assert facts["with_identical"]["share"] == 50.0
    # 4 of 5 alike; chance (3*2 + 1*2 + 1*1) / 25.
    assert facts["agreement"]["pairs"] == [
        {"one": "Ann|<b>", "other": "Bob", "questions": 5, "percent": 80.0, "kappa": 0.688}
    ]
    assert facts["agreement"]["mean_kappa"] == 0.688
    assert [(r["name"], r["win"], r["skipped"], r["median_seconds"]) for r in facts["reviewers"]] == [
        ("Ann|<b>", 3, 2, 4.0),
        ("Bob", 2, 0, 3.5),
    ]
    entries = json.loads(key.read_text())["questions"]
    assert [(line["question"], line["row"]) for line in facts["rows"]] == [(n + 1, entries[n]["row"]) for n in range(6)]
    lefts = sum(vote["choice"] == "1" for path in (ann, bob) for vote in json.loads(path.read_text())["decisions"])
    assert facts["answer_1"] == {"chosen": lefts, "of": 9}
    assert sum(part["win"] for part in facts["by_category"]) == 2
    text = (tmp_path / "o" / "review.md").read_text()
    assert text in result.stdout
    assert "A is run-adam; B is run-eve." in text and "| Ann\\|&lt;b>, Bob | 5 | 80.00 | 0.688 |" in text
    low, high = raw["interval"]
    assert f"| single votes | 5 | 2 | 4 | 54.55 ({low:.2f} to {high:.2f}) |" in text


@pytest.mark.parametrize(("run", "counts"), [("adam", (10, 0)), ("eve", (0, 10))])
def test_a_vote_is_the_runs_on_whichever_side_it_stood(
    tmp_path: Path, data: Path, runs: tuple[Path, Path], run: str, counts: tuple[int, int]
) -> None:
    page = tmp_path / "page.html"
    build(runs, data, page)
    ann = export(tmp_path / "ann.json", page, "Ann", *[run] * 10)
    assert score(tmp_path / "o", page.with_suffix(".key.json"), ann).exit_code == 0
    facts = json.loads((tmp_path / "o" / "review.json").read_text())
    assert (facts["raw"]["win"], facts["raw"]["loss"]) == counts
    assert facts["answer_1"] == {"chosen": 5, "of": 10}


def test_the_rows_with_equal_answers_pull_the_preference_to_the_middle(
    tmp_path: Path, data: Path, runs: tuple[Path, Path]
) -> None:
    page = tmp_path / "page.html"
    build(runs, data, page)
    ann = export(tmp_path / "ann.json", page, "Ann", *["eve"] * 10)
    assert score(tmp_path / "o", page.with_suffix(".key.json"), ann).exit_code == 0
    facts = json.loads((tmp_path / "o" / "review.json").read_text())
    assert (facts["majority"]["share"], facts["majority"]["loss"]) == (0.0, 10)
    assert facts["with_identical"] == {"share": 8.33, "interval": [8.33, 8.33]}  # (10 * 0 + 2 * 50) / 12
    assert facts["agreement"] == {"mean_kappa": None, "pairs": []}

    build(runs, data, tmp_path / "only.html", "--only-differing", "--rows", "8")
    ann = export(tmp_path / "ann.json", tmp_path / "only.html", "Ann", "eve")
    result = score(tmp_path / "o", tmp_path / "only.key.json", ann)
    facts = json.loads((tmp_path / "o" / "review.json").read_text())
    assert (facts["questions"], facts["with_identical"], facts["only_differing"]) == (8, None, True)
    assert "Only rows with different answers were drawn" in result.stdout


def change(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def decision(number: int, choice: str = "1", **changes: Any) -> Export:
    return {"question": number, "choice": choice, "seconds": 1.5, "at": "2026-01-01"} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page": "0123"}, "is of page 0123, the key of page"),
        ({"format": "other"}, "format: "),
        ({"reviewer": " "}, "reviewer: has no name"),
        ({"more": 1}, "unknown key 'more'"),
        ({"decisions": []}, "holds no decision"),
        ({"decisions": [decision(11)]}, "decides question 11; the page has 1 to 10"),
        ({"decisions": [decision(0)]}, "decides question 0; the page has 1 to 10"),
        ({"decisions": [decision(3), decision(2), decision(3, "2")]}, "decides question 3 twice"),
        ({"decisions": [decision(1, "3")]}, "decisions.0.choice: "),
        ({"decisions": [decision(1, seconds=-1)]}, "decisions.0.seconds: "),
        ({"decisions": [decision(1, more=1)]}, "decisions.0: unknown key 'more'"),
        ({"decisions": [decision(1, "skip")]}, "every question is skipped"),
    ],
)
def test_an_export_that_cannot_be_counted_is_refused_by_name(
    tmp_path: Path, data: Path, runs: tuple[Path, Path], changes: dict[str, Any], message: str
) -> None:
    page = tmp_path / "page.html"
    build(runs, data, page)
    good = export(tmp_path / "good.json", page, "Ann", "skip")
    bad = change(export(tmp_path / "bad.json", page, "Bob", "adam"), **changes)
    result = score(tmp_path / "o", tmp_path / "page.key.json", good, bad)
    assert (result.exit_code, str(bad) in result.stderr, message in result.stderr) == (2, True, True), result.output
    assert not (tmp_path / "o").exists()


def test_a_reviewer_counts_once(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> None:
    page = tmp_path / "page.html"
    build(runs, data, page)
    one = export(tmp_path / "one.json", page, "Ann  Lee", "adam")
    two = export(tmp_path / "two.json", page, "ann lee ", "eve")
    for exports in ((one, two), (one, one)):
        result = score(tmp_path / "o", tmp_path / "page.key.json", *exports)
        assert result.exit_code == 2
        assert f"{exports[1]}: reviewer " in result.stderr and f"is in {one} already" in result.stderr


def test_the_key_of_a_page_that_is_out_is_not_written_over(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> None:
    page, key = tmp_path / "page.html", tmp_path / "page.key.json"
    build(runs, data, page)
    before = page.read_text(), key.read_text()
    assert build(runs, data, page).exit_code == 0  # the same page again
    result = build(runs, data, page, "--seed", "1")
    assert result.exit_code == 2 and f"{key} is the key of another page" in result.stderr
    assert (page.read_text(), key.read_text()) == before


def test_what_makes_no_page_is_refused(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(runs[0], twin)
    short = write_run(tmp_path / "short", data, said("adam")[:5])
    elsewhere = write(tmp_path / "y.jsonl", row("t", "Tea", Brand="b"))
    cases = [
        (build((runs[0], twin), data, tmp_path / "page.html"), "the same answers on all 12 rows"),
        (build((runs[0], twin), data, tmp_path / "page.html", "--only-differing"), "the same answers on all 12 rows"),
        (build((runs[0], short), data, tmp_path / "page.html"), "are over different rows"),
        (build((runs[0], runs[0]), data, tmp_path / "page.html"), "given twice"),
        (build(runs, elsewhere, tmp_path / "page.html"), "is over x.jsonl, not over y.jsonl"),
        (build(runs, data, tmp_path / "page"), "must end in .html"),
        (score(tmp_path / "o", tmp_path / "none.json", tmp_path / "none.json"), "none.json: No such file"),
        (score(tmp_path / "o", data, data), "x.jsonl: no JSON"),
        (score(tmp_path / "o", runs[0] / "scores.json", data), "scores.json: page: Field required"),
    ]
    for result, message in cases:
        assert (result.exit_code, message in result.stderr) == (2, True), (message, result.output)
    assert not (tmp_path / "page.html").exists()


def test_a_value_beyond_what_the_file_names_is_shown_too(tmp_path: Path, data: Path) -> None:
    declared = [[{**entry, "Fit": f"{fit}{n}"} for n, entry in enumerate(said("x"))] for fit in ("slim", "wide")]
    runs = tuple(write_run(tmp_path / f"run-{n}", data, entries) for n, entries in enumerate(declared))
    for run in runs:
        facts = json.loads((run / "scores.json").read_text())
        schema = {"name": "s", "attributes": [{"name": name} for name in ("Brand", "Size", "Fit")]}
        facts["run"]["declared"] = {"Tea": schema, "Shoes": schema}
        (run / "scores.json").write_text(json.dumps(facts))
    built = build(runs, data, tmp_path / "p.html")  # type: ignore[arg-type]
    assert built.exit_code == 0, built.output
    for question in content(tmp_path / "p.html")["questions"]:
        (line,) = [line for line in question["lines"] if line[0] == "Fit"]
        assert {value[:4] for value in line[1:]} == {"slim", "wide"}
