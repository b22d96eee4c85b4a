"""The commands with the real default model, on a few rows: what a user sees after the install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

from jobs.timing.engines import OPTIONAL
from tests.jobs.test_dataset import row, write


def hpd(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "hpd"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_extract_ends_with_one_json_object_and_a_second_run_calls_no_model(tmp_path: Path, repository: Path) -> None:
    arguments = ["extract", "--config", repository / "conf" / "quickstart.yaml"]
    arguments += [
        "--input",
        repository / "samples" / "catalog",
        "--output",
        tmp_path / "out",
        "--limit",
        "12",
        "--json",
    ]
    arguments += ["--set", "pool.threads=1"]
    arguments += ["--set", "limits.max_error_rate=1"]

    first = hpd(*arguments)

    assert first.returncode == 0, first.stderr[-3000:]
    facts = json.loads(first.stdout.splitlines()[-1])
    assert facts["rows_in"] == 12 == facts["rows_ok"] + facts["rows_error"]
    assert facts["model_calls"] > 0 and facts["values"] > 0 and facts["dollars_per_1000"] > 0
    source = dataset.dataset(repository / "samples" / "catalog").head(12)
    output = dataset.dataset(tmp_path / "out" / "data").to_table()
    assert output.select(source.column_names).to_pylist() == source.to_pylist()
    assert {"brand", "pieces", "hpd_status", "brand__confidence"} <= set(output.column_names)
    for name in ("_SUCCESS", "_manifest", "metrics.json", "run.json"):
        assert (tmp_path / "out" / name).exists()

    again = hpd(*arguments)

    assert again.returncode == 0
    repeated = json.loads(again.stdout.splitlines()[-1])
    assert repeated["model_calls"] == 0
    assert (repeated["rows_in"], repeated["values"]) == (12, facts["values"])


@pytest.mark.parametrize("decoder", ["hpd", "ar", "per-attribute"])
def test_evaluate_writes_predictions_and_scores(tmp_path: Path, decoder: str) -> None:
    data = write(
        tmp_path / "x.jsonl",
        row("Diesel Men's Exposure High-Top Sneaker", "Shoes", Brand="Diesel", Gender="Men's"),
        row("Tazo Zen Green Tea, 20 bags", "Tea", Brand="Tazo"),
    )
    done = hpd(
        "evaluate", "--dataset", data, "--output", tmp_path / "o", "--decoder", decoder, "--max-value-tokens", "8",
        "--model", "smollm2-135m", "--threads", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads((tmp_path / "o" / "scores.json").read_text())
    assert scores.items() <= json.loads(done.stdout).items()
    assert sum(scores["counts"].values()) == 3
    predictions = [json.loads(line) for line in (tmp_path / "o" / "predictions.jsonl").read_text().splitlines()]
    assert [list(p) for p in predictions] == [["Brand", "Gender"], ["Brand"]]


def test_the_default_model_knows_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    data = write(
        tmp_path / "x.jsonl",
        row("Diesel Men's Exposure High-Top Sneaker", "Shoes", Brand="Diesel", Gender="Men's", Size="n/a"),
        row("Tazo Zen Green Tea, 20 bags", "Tea", Brand="Tazo", Roast="n/a"),
        row("Crocs Women's Jayna Ballet Flat,Nautical Navy,4 M US", "Shoes", Brand="Crocs", Gender="Women's"),
    )
    done = hpd("evaluate", "--dataset", data, "--output", tmp_path / "o", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    shoe, tea, flat = map(json.loads, (tmp_path / "o" / "predictions.jsonl").read_text().splitlines())
    assert shoe == {"Brand": "Diesel", "Gender": "Men's", "Size": None}
    assert tea["Brand"] in ("Tazo", "Tazo Zen") and tea["Roast"] is None
    assert (flat["Brand"], flat["Gender"]) == ("Crocs", "Women's")


def test_benchmark_counts_the_steps_that_it_predicts(tmp_path: Path) -> None:
    data = write(
        tmp_path / "x.jsonl",
        row("Diesel Men's Exposure High-Top Sneaker", "Shoes", Brand="Diesel", Gender="Men's", Size="n/a"),
        row("Tazo Zen Green Tea, 20 bags", "Tea", Brand="Tazo", Variety="Green Tea"),
    )
    skipped = [word for name in OPTIONAL if name != "ar-present" for word in ("--skip", name)]
    options = ["--output", tmp_path / "o", "--repeat", "1", "--threads", "1", *skipped, "--json"]
    done = hpd("benchmark", "--dataset", data, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((tmp_path / "o" / "benchmark.json").read_text())
    assert facts["steps"]["counted"] == pytest.approx(facts["steps"]["predicted"])
    assert facts["steps"]["predicted"] > 2
    assert {row["engine"] for row in facts["engines"]} == {"hpd", "ar", "ar-present"}
    assert all(0 < row["roofline_share"] < 1.5 and row["peak_bytes"] > 2**29 for row in facts["engines"])
    assert json.loads(done.stdout.splitlines()[-1])["engines"] == facts["engines"]
    assert "| ar, batch 1 |" in (tmp_path / "o" / "benchmark.md").read_text()
