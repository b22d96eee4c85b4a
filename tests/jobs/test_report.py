"""`hpd report`: its figures against a corpus whose cost is known, its words against its JSON, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser
from typer.testing import CliRunner, Result

from jobs.cli import app
from jobs.costs.chapters import chapters
from jobs.costs.paper import arithmetic
from jobs.costs.runs import dollars_per_1000, groups
from jobs.costs.told import Grid, figures, resolve, shown, significant, tell
from jobs.costs.written import markdown
from pipeline.metrics import Metrics
from pipeline.record import UnitRecord
from pipeline.storage import Storage
from pipeline.units import InputFile, Unit
from tests.jobs.outputs import (
    CPU,
    IDLE,
    LOAD,
    PER_STEP,
    PER_TOKEN,
    PER_UNIT,
    PREFIX,
    ROWS,
    write_benchmark,
    write_output,
    write_plan,
)

DOCUMENTS = 500_000_000


def random_sample(units: int, seed: int = 0) -> dict[str, int]:
    return {"units": units, "of": 10 * units, "seed": seed, "rows": units * ROWS}


def ask(out: Path, *arguments: object) -> Result:
    command = ["report", *map(str, arguments), "--documents", "500e6", "--output", str(out)]
    return CliRunner().invoke(app, command)


def facts_of(out: Path, *arguments: object) -> dict[str, Any]:
    result = ask(out, *arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads((out / "report.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs over random units, a plan, a benchmark."""
    folder = tmp_path_factory.mktemp("report")
    for number, slower in enumerate((1.0, 1.05, 0.97)):
        write_output(folder / f"run{number}", seed=number, sample=random_sample(40, number), slower=slower)
    write_plan(folder / "plan.json")
    write_benchmark(folder / "benchmark.json")
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """A report with everything in it."""
    runs = [folder / f"run{number}" for number in range(3)]
    options = ("--plan", folder / "plan.json", "--compare", folder / "benchmark.json")
    return facts_of(folder / "out", *runs, *options)


def test_the_cost_of_a_corpus_is_that_of_the_formula_its_units_were_made_by(folder: Path, tmp_path: Path) -> None:
    facts = facts_of(tmp_path, folder / "run0", "--plan", folder / "plan.json")
    sample = json.loads((folder / "plan.json").read_text())["sample"]
    decoded = sample["documents"] / sample["rows"] * 48 / 49  # one of 49 repeats another
    steps = 30.0
    truth = PER_UNIT / ROWS + decoded * (PER_TOKEN * sample["prompt_tokens_per_document"] + PER_STEP * steps)
    terms = facts["terms"]
    assert terms["seconds_per_row"] == pytest.approx(truth, rel=0.03)
    assert terms["seconds_per_row_low"] < truth < terms["seconds_per_row_high"]
    assert terms["load_seconds"] == pytest.approx(LOAD) and terms["start_seconds"] == pytest.approx(9, abs=0.01)
    busy = facts["runs"][0]["actor_seconds"]
    assert terms["waiting"] == pytest.approx(1 + 39 * IDLE / busy)
    assert facts["measured"]["idle_share"] == pytest.approx(39 * IDLE / (busy + 39 * IDLE))

    estimate = facts["estimate"]
    hours = DOCUMENTS * terms["seconds_per_row"] * terms["waiting"] / 3600
    assert estimate["dollars"] == pytest.approx(0.10 * hours, rel=1e-4) and estimate["days"] == pytest.approx(
        hours / 24
    )
    assert sum(term["dollars"] for term in estimate["terms"]) == pytest.approx(estimate["dollars"])
    assert estimate["low"] < estimate["dollars"] < estimate["high"]
    spot = {row["name"]: row for row in facts["prices"]}["spot"]
    assert spot["dollars"] == pytest.approx(0.4 * estimate["dollars"]), "a price is a scenario: it scales everything"


def test_prefixes_that_are_fed_again_are_paid_for(folder: Path, tmp_path: Path) -> None:
    """As where each document has attributes of its own, or a job more schemas than the cache has room for."""
    run = write_output(tmp_path / "run", fed=True)
    alike = facts_of(tmp_path / "alike", run)
    took = alike["runs"][0]
    assert alike["terms"]["seconds_per_row"] == pytest.approx(took["actor_seconds"] / took["rows"])
    facts = facts_of(tmp_path / "out", run, "--plan", folder / "plan.json")
    sample = json.loads((folder / "plan.json").read_text())["sample"]
    decoded = sample["documents"] / sample["rows"] * 48 / 49
    fed = sample["prompt_tokens_per_document"] + PREFIX
    truth = PER_UNIT / ROWS + decoded * (PER_TOKEN * fed + PER_STEP * 30)
    assert facts["terms"]["seconds_per_row"] == pytest.approx(truth, rel=0.03)
    assert facts["target"]["prefixes_fed"] == 1
    assert "documents of a schema share 100 % was fed" in (tmp_path / "out/report.md").read_text()
    once = facts_of(tmp_path / "once", folder / "run0", "--plan", folder / "plan.json")
    assert once["target"]["prefixes_fed"] == pytest.approx(1 / (40 * 48))


def test_work_done_again_is_charged_once(tmp_path: Path) -> None:
    """A tenth of the prompt tokens went into tries that failed, and as much of the seconds, on two actors."""
    plain = facts_of(tmp_path / "a", write_output(tmp_path / "plain", actors=2))
    [took] = plain["runs"]
    fed = plain["measured"]["prompt_tokens_per_document"] * 40 * 48
    lost = took["actor_seconds"] / 10 / 2
    run = write_output(tmp_path / "run", actors=2, waste=(4, round(fed / 10)), wasted_seconds=lost)
    facts = facts_of(tmp_path / "b", run)
    terms = facts["terms"]
    assert terms["retried"] == pytest.approx(1.1, abs=1e-4) and facts["runs"][0]["retries"] == 4
    assert terms["start_seconds"] == pytest.approx(plain["terms"]["start_seconds"], abs=0.01), (
        "not in the start as well"
    )
    assert facts["estimate"]["dollars"] == pytest.approx(1.1 * plain["estimate"]["dollars"], rel=1e-4)


def test_storage_options_are_those_of_the_configuration_with_set_over_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setattr("jobs.options.Storage", lambda options: given.append(options) or Storage({}))
    config = tmp_path / "job.yaml"
    config.write_text("text: {template: x}\nschemas: {default: x}\noutput: {storage: {key: a}}\n")
    options = (folder / "run0", "--config", config, "--set", "output.storage={key: b}")
    facts_of(tmp_path / "out", *options)
    facts_of(tmp_path / "out", *options[:3])
    assert given == [{}, {"key": "b"}, {}, {"key": "a"}]  # of the input, of the output
    result = ask(tmp_path / "out", *options[:3], "--set", "output.storag={}")
    assert result.exit_code == 2 and "unknown key 'storag'" in result.output
    result = ask(tmp_path / "out", folder / "run0", "--set", "output.storage={}")
    assert result.exit_code == 2 and "give --config" in result.output


def test_without_a_price_there_is_no_curve(folder: Path, tmp_path: Path) -> None:
    facts = facts_of(tmp_path, folder / "run0", "--dollars-per-hour", 0)
    assert facts["estimate"]["dollars"] == 0
    assert "Dollars over corpus size" not in (tmp_path / "report.html").read_text()
    assert facts_of(tmp_path, folder / "run0") and "Dollars over corpus size" in (tmp_path / "report.html").read_text()


def test_the_wait_for_the_last_unit_is_counted_once(tmp_path: Path) -> None:
    """The clock of a run has 9 seconds beside its actors' work, the wait of all but one of them among these."""
    facts = facts_of(tmp_path / "out", write_output(tmp_path / "run", actors=4))
    terms, dollars = facts["terms"], {term["name"]: term["dollars"] for term in facts["estimate"]["terms"]}
    tail = terms["unit_seconds"] * 3 / 8
    assert 0 < tail < 9 and terms["start_seconds"] == pytest.approx(9 - tail, abs=0.01)
    assert dollars["tail"] == pytest.approx(tail * 0.10 / 3600)


def test_more_actors_take_fewer_days_and_a_little_more_money(whole: dict[str, Any]) -> None:
    days, dollars = ([row[name] for row in whole["days"]] for name in ("days", "dollars"))
    assert days == sorted(days, reverse=True) and dollars == sorted(dollars)
    assert days[0] / days[-1] == pytest.approx(128, rel=1e-3) and dollars[-1] > dollars[0]
    sizes = {row["documents"]: row["dollars"] for row in whole["sizes"]}
    assert sizes[DOCUMENTS] == pytest.approx(whole["estimate"]["dollars"])
    assert sizes[10_000] / 10_000 > sizes[1_000_000_000] / 1_000_000_000, "the start counts where there is little work"


def test_few_units_or_the_first_rows_give_no_interval_and_say_why(tmp_path: Path) -> None:
    for name, options, why in (
        ("few", {"units": 29, "sample": random_sample(29)}, "29 units were measured, fewer than 30"),
        ("first", {"limit": 40 * ROWS}, "measured the first rows of its input (--limit)"),
        ("mixed", {"sample": random_sample(39)}, "holds more than the random sample"),
        ("running", {"finished": False}, "is not finished"),
    ):
        write_output(tmp_path / name, **options)  # type: ignore[arg-type]
        facts = facts_of(tmp_path / "out", tmp_path / name)
        assert why in facts["sampling"]["why"] and not facts["sampling"]["interval"]
        assert facts["estimate"]["low"] is None and all(row["high"] is None for row in facts["sizes"])
        page = LexborHTMLParser((tmp_path / "out" / "report.html").read_text()).body.text()  # type: ignore[union-attr]
        assert "An interval does not hold here" in page and why in page
        assert not (tmp_path / "out" / "report.html").read_text().count('band" points')
    write_output(tmp_path / "whole", limit=41 * ROWS)
    assert facts_of(tmp_path / "out", tmp_path / "whole")["sampling"]["interval"], "a limit that cut nothing off"


def test_a_unit_that_several_runs_measured_is_one_unit(tmp_path: Path) -> None:
    """Three runs of one sample tell how far runs are apart, and nothing more of the catalog."""
    same = [write_output(tmp_path / f"same{n}", 12, seed=n, sample=random_sample(12)) for n in range(3)]
    facts = facts_of(tmp_path / "out", *same)
    assert (facts["sampling"]["units"], facts["sampling"]["measurements"]) == (12, 36)
    assert "12 different units were measured, fewer than 30" in facts["sampling"]["why"]
    assert not facts["sampling"]["interval"] and facts["spread"]["runs"] == 3
    others = [
        write_output(tmp_path / f"other{n}", 12, seed=n, sample=random_sample(12, n), begin=12 * n) for n in range(3)
    ]
    assert facts_of(tmp_path / "out", *others)["sampling"]["interval"]

    thirty = [
        write_output(tmp_path / f"thirty{n}", 30, sample=random_sample(30), slower=slower)
        for n, slower in enumerate((1.0, 1.05, 0.97))
    ]
    one, three = (facts_of(tmp_path / f"{n}", *thirty[:n])["sampling"] for n in (1, 3))
    assert (three["units"], three["measurements"]) == (30, 90)
    assert three["relative_width"] > 0.9 * one["relative_width"], "the same lengths, thrice"
    assert "30 units (measured 90 times in all: one in several runs" in (tmp_path / "3/report.md").read_text()
    assert "times in all" not in (tmp_path / "1/report.md").read_text()


def test_units_that_share_rows_are_of_one_group() -> None:
    def record(uri: str, start: int, stop: int) -> UnitRecord:
        return UnitRecord(Unit(InputFile(uri, 1, "v"), start, stop), "name", "f", 1, "", Metrics())

    places = [("b", 0, 10), ("a", 10, 20), ("a", 0, 10), ("a", 15, 20), ("a", 10, 15), ("a", 20, 30), ("a", 0, 10)]
    assert groups([record(*place) for place in places]).tolist() == [3, 1, 0, 1, 1, 2, 0]


def test_dollars_are_of_all_machines_and_seconds_are_summed_over_actors() -> None:
    metrics = Metrics(rows=Counter(ok=500), seconds=defaultdict(float, decode=3600.0, idle=360.0))
    assert dollars_per_1000(metrics, 1, 2.0, "decode") == pytest.approx(4.0)
    assert dollars_per_1000(metrics, 4, 2.0, "decode") == pytest.approx(1.0), "an hour of work is a quarter of an hour"
    assert dollars_per_1000(metrics, 4, 2.0, "decode", "idle") == pytest.approx(1.1)


def test_run_to_run_spread_takes_three_runs(folder: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    assert facts_of(tmp_path, folder / "run0", folder / "run1")["spread"] is None
    assert "at least three runs" in (tmp_path / "report.md").read_text()
    assert whole["spread"]["slowest"] / whole["spread"]["fastest"] == pytest.approx(1.05 / 0.97, rel=0.02)
    told = (folder / "out" / "report.md").read_text()
    assert "at least three runs" not in told
    first = told.partition("## What was measured")[0]
    assert "(of sampling alone)" in first and f"{whole['spread']['slowest']:.2f}x of what the fit over all" in first


def test_other_ways_are_priced_for_the_same_corpus(folder: Path, whole: dict[str, Any]) -> None:
    ours, sample = whole["estimate"]["dollars"], json.loads((folder / "plan.json").read_text())["sample"]
    methods = {row["name"]: row for row in whole["methods"]}
    assert methods["ar, batch 1"]["dollars"] == pytest.approx(20 * ours) and methods["hpd"]["saved"] == 0
    assert methods["per-attribute-cached, batch 32"]["saved"] == pytest.approx(3 * ours)
    tokens = whole["hosted_tokens"]
    assert not tokens["keys_assumed"] and tokens["output_per_document"] == pytest.approx(10 + 4 + 30, rel=0.03)
    gpt = {row["name"]: row for row in whole["hosted"]}["gpt-4.1"]
    million = DOCUMENTS * tokens["sent_per_row"] / 1e6
    dollars = million * (2 * tokens["input_per_document"] + 8 * tokens["output_per_document"])
    assert gpt["dollars"] == pytest.approx(dollars) and gpt["batch_saved"] == pytest.approx(dollars / 2 - ours)
    assert gpt["date"] and gpt["source"]
    back = {row["name"]: row for row in whole["finetune"]["others"]}["gpt-4.1"]
    saved_each = (gpt["dollars"] - ours) / DOCUMENTS
    assert back["documents"] == pytest.approx(100 / saved_each) and whole["finetune"]["assumed"]
    assert tokens["input_per_document"] == pytest.approx(80 + sample["prompt_tokens_per_document"] - 6), (
        "no stubs in it"
    )
    ways = {way["name"]: way["dollars"] for way in whole["ways"]}
    assert ways["gpt-4.1, in batches"] == pytest.approx(dollars / 2) and ways["gpt-4.1"] == pytest.approx(dollars)
    batches = {row["name"]: row for row in whole["finetune"]["others"]}["gpt-4.1, in batches"]
    assert batches["documents"] == pytest.approx(100 * DOCUMENTS / (dollars / 2 - ours))
    assert "gpt-5-nano: it reasons before it answers" in (folder / "out" / "report.md").read_text()
    roof = {row["name"]: row for row in whole["roofline"]}
    assert {"gpu-l4", "gpu-h200"} < set(roof) and all(name.startswith("gpu-") for name in roof)
    assert roof["gpu-h200"]["rows_per_second"] > roof["gpu-l4"]["rows_per_second"]
    assert [way["dollars"] for way in whole["ways"]] == sorted(way["dollars"] for way in whole["ways"])


def test_without_a_benchmark_the_roofline_is_of_published_models(
    folder: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    assert whole["on_paper"] is None and "Larger models" not in (folder / "out" / "report.md").read_text()
    for name, options, prompt in (
        ("alone", [], None),
        ("plan", ["--plan", folder / "plan.json"], json.loads((folder / "plan.json").read_text())["sample"]),
    ):
        facts = facts_of(tmp_path / name, folder / "run0", *options)
        paper, told = facts["on_paper"], (tmp_path / name / "report.md").read_text()
        wanted = (prompt or facts["measured"])["prompt_tokens_per_document"]
        assert paper["work"]["prompt"] == pytest.approx(wanted) and paper["work"]["prefix"] == pytest.approx(PREFIX)
        assert paper["work"]["slots"] == 4 and paper["work"]["generated"] == pytest.approx(1 + 30 / 4, rel=0.03)
        assert len(paper["rows"]) == 6 * 7 and facts["roofline"] == []
        assert told.count("roofline estimate") == 2 and "| qwen3-32b | gpu-a100-40 | – | – | – | – |" in told


@pytest.mark.parametrize(
    ("model", "dtype", "same"),
    [
        ({"dtype": "auto"}, "float32", True),  # what the benchmark was asked for, and what that became
        ({"dtype": "auto"}, "bfloat16", False),
        ({"dtype": "bfloat16"}, "float32", False),
        ({"quantization": "int8-dynamic"}, "float32", False),
        ({"adapter": "sha256:2"}, "float32", False),
    ],
)
def test_a_benchmark_of_another_model_is_told(
    folder: Path, tmp_path: Path, model: dict[str, str], dtype: str, same: bool
) -> None:
    benchmark = json.loads((folder / "benchmark.json").read_text())
    benchmark["spec"]["model"] |= model
    benchmark["machine"]["dtype"] = dtype
    (tmp_path / "other.json").write_text(json.dumps(benchmark))
    facts = facts_of(tmp_path / "out", folder / "run0", "--compare", tmp_path / "other.json")
    assert facts["benchmark"]["same_model"] is same
    assert ("ran another model" in (tmp_path / "out" / "report.md").read_text()) is not same


def test_mass_outside_of_what_was_measured_is_told(folder: Path, tmp_path: Path) -> None:
    write_plan(tmp_path / "long.json", mean=1500)
    facts = facts_of(tmp_path, folder / "run0", "--plan", tmp_path / "long.json")
    lengths = facts["target"]["lengths"]
    last = max(row["tokens"] for row in lengths if row["measured"])
    beyond = sum(row["target"] for row in lengths if row["tokens"] > last)
    assert facts["target"]["outside"] == pytest.approx(beyond) and beyond > 0.5
    assert "shorter or longer than any that were measured" in (tmp_path / "report.md").read_text()

    shutil.copytree(folder / "run0", tmp_path / "gap")
    path = tmp_path / "gap/_manifest/job.json"
    job = json.loads(path.read_text())
    for record in job["objects"]:
        record["metrics"]["lengths"] = {"64": 24, "1024": 24}
    path.write_text(json.dumps(job))
    plan = json.loads((folder / "plan.json").read_text())
    plan["sample"]["lengths"] = {"48": 1, "256": 2, "2048": 5}
    (tmp_path / "gap.json").write_text(json.dumps(plan))
    facts = facts_of(tmp_path / "out", tmp_path / "gap", "--plan", tmp_path / "gap.json")
    assert facts["target"]["outside"] == 6 / 8, "what lies between measured lengths is no guess beyond them"


def test_units_of_another_size_are_told_and_not_reckoned_with(folder: Path, tmp_path: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    (tmp_path / "large.json").write_text(json.dumps(plan | {"rows_per_unit": 10_000.0}))
    usual = facts_of(tmp_path / "a", folder / "run0", "--plan", folder / "plan.json")
    large = facts_of(tmp_path / "b", folder / "run0", "--plan", tmp_path / "large.json")
    assert large["estimate"]["dollars"] == usual["estimate"]["dollars"]
    assert "The plan's units have 10,000 rows, the measured ones 50.0" in (tmp_path / "b" / "report.md").read_text()
    assert "The plan's units" not in (tmp_path / "a" / "report.md").read_text()


def test_the_papers_arithmetic_and_its_mismatch() -> None:
    paper = arithmetic()
    assert paper["ratio"] == pytest.approx(8.7, abs=0.01)
    assert paper["saved_by_rates"] == pytest.approx(3_425_000)
    assert paper["rate_of_saving_over_ar"] == pytest.approx(1.194)
    assert paper["rate_of_saving_over_hosted"] == pytest.approx(0.972)
    assert not paper["consistent"], "the rates save 5.7 times what is stated as saved: other configurations"
    assert paper["saved_by_rates"] / paper["stated_saving_over_ar"] > 5.7


def test_the_report_says_that_the_papers_figures_do_not_agree(folder: Path, whole: dict[str, Any]) -> None:
    text = (folder / "out" / "report.md").read_text()
    assert "$7.74 per 1,000 products autoregressively and $0.89 with HPD: 8.70x less" in text
    assert "saves $3,425,000" in text and "$1.194 and $0.972 per 1,000" in text
    assert "The two do not agree" in text


def test_every_number_of_the_page_is_a_field_of_the_json(folder: Path, whole: dict[str, Any]) -> None:
    tree = LexborHTMLParser((folder / "out" / "report.html").read_text())
    told = [(node.attributes["value"], node) for node in tree.css("data")]
    drawn = [(node.attributes["data-value"], node) for node in tree.css("svg tspan")]
    assert len(told) > 150 and len(drawn) > 20
    for path, node in told + drawn:
        assert path is not None and node.text() == shown(resolve(whole, path), str(node.attributes["data-as"]))
    for node in tree.css("data, tspan, g.axes text, style, head"):  # the ticks of axes apart
        node.decompose()
    assert tree.body is not None and re.findall(r"\S*\d\S*", tree.body.text()) == ["500,000,000", "smollm2-135m-ave"]
    assert not tree.css("script, link, img, iframe") and "http" not in tree.html.replace("http://www.w3.org", "")  # type: ignore[union-attr]


def test_every_number_of_the_markdown_is_the_same_field(whole: dict[str, Any]) -> None:
    bare = markdown("", chapters(whole), show=lambda figure: "")
    assert not re.search(r"\d", bare)
    found = figures(chapters(whole))
    assert len(found) > 150 and all(f.text == shown(resolve(whole, f.path), f.spec) for f in found)
    tables = [part for chapter in chapters(whole) for part in chapter.parts if isinstance(part, Grid)]
    assert all(len(row) == len(table.heads) == len(table.numbers) for table in tables for row in table.rows)


def test_prose_with_a_number_of_its_own_or_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no field"):
        tell({}, "about 3 dollars")
    with pytest.raises(ValueError, match="no field"):
        tell({"a": 1}, "{a}")
    with pytest.raises(KeyError, match=r"b\.c"):
        tell({"b": {}}, "{b.c:text}")


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (None, "usd", "–"),
        (1234.5, "usd", "$1,234.50"),
        (0.1, "usd", "$0.10"),
        (0.012345, "usd", "$0.0123"),
        (-0.5, "usd", "-$0.50"),
        (1234.5, "usd_whole", "$1,234"),
        (-1234.5, "usd_whole", "-$1,234"),
        (0.4567, "share", "46 %"),
        (0.0123, "share", "1.2 %"),
        (8.697, "times", "8.70x"),
        (1_234_567, "figure", "1,230,000"),
        (0.00012345, "figure", "0.000123"),
    ],
)
def test_numbers_are_shown_as_people_write_them(value: float | None, spec: str, text: str) -> None:
    assert shown(value, spec) == text
    assert significant(0.0) == "0"


def test_what_cannot_be_reported_is_refused(folder: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        result = ask(tmp_path / "out", *arguments)
        assert result.exit_code == 2 and not (tmp_path / "out").exists(), result.output
        return result.output

    run = folder / "run0"
    assert "not the output of a run that ended" in refused(tmp_path)
    other = write_output(tmp_path / "other", fingerprint="e" * 16)
    assert "measured another job than" in refused(run, other)
    gpu = write_output(tmp_path / "gpu", device="NVIDIA H200")
    assert "measured another device" in refused(run, gpu) and CPU in refused(run, gpu)
    assert "another number of actors" in refused(run, write_output(tmp_path / "two", actors=2))
    dear = write_output(tmp_path / "dear", price={"machine": "gpu-l4"})
    assert re.search(r"dear ran at another price than \S+/run0: on demand 0\.8", refused(run, dear))
    double = write_output(tmp_path / "double", price={"machine": "laptop-2-core", "machines": 2})
    for options in ((), ("--machine", "gpu-l4")):
        assert "ran at another price" in refused(run, double, *options)
    free = write_output(tmp_path / "free", price={})
    assert "its job has no price" in refused(free)
    assert "did you mean 'gpu-h200'" in refused(run, "--machine", "gpu-h20")
    ablations = write_benchmark(tmp_path / "ablations.json", kind="ablations")
    assert "without --ablations" in refused(run, "--compare", ablations)
    assert "not a benchmark.json" in refused(run, "--compare", folder / "plan.json")
    assert "not what `hpd plan --json` prints" in refused(run, "--plan", folder / "benchmark.json")
    (tmp_path / "prices.yaml").write_text("machines: {a: {dollars_per_hour: -1, source: x, date: x}}")
    assert "prices.yaml: machines.a" in refused(run, "--prices", tmp_path / "prices.yaml")
    (tmp_path / "prices.yaml").write_text("machines: {a: {dolars: 1, source: x, date: x}}")
    assert "prices.yaml: machines.a" in refused(run, "--prices", tmp_path / "prices.yaml")


def test_prices_of_a_file_or_of_the_command_line_win(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("machines: {mine: {dollars_per_hour: 7, source: me, date: 2026-11-30}}")
    own = facts_of(tmp_path / "a", folder / "run0", "--prices", tmp_path / "prices.yaml", "--machine", "mine")
    assert [(row["name"], row["dollars_per_hour"]) for row in own["prices"]] == [("on demand", 7)]
    assert "The price of the machine is an assumption" not in (tmp_path / "a" / "report.md").read_text()
    assert own["hosted"] == [] and "hosted models" not in (tmp_path / "a" / "report.md").read_text()
    given = facts_of(tmp_path / "b", folder / "run0", "--dollars-per-hour", 1)
    dear = write_output(tmp_path / "dear", price={"machine": "gpu-l4"})
    assert facts_of(tmp_path / "c", folder / "run0", dear, "--dollars-per-hour", 1)["price_source"].startswith("--")
    assert len(facts_of(tmp_path / "d", folder / "run0", dear, "--machine", "gpu-l4")["runs"]) == 2
    assert given["estimate"]["dollars"] == pytest.approx(own["estimate"]["dollars"] / 7)


def test_the_fallback_is_the_price_of_a_job_without_one_and_of_no_other(folder: Path, tmp_path: Path) -> None:
    def price(name: str, run: Path, *options: object) -> tuple[float, str]:
        facts = facts_of(tmp_path / name, run, "--fallback-dollars-per-hour", 5, *options)
        return facts["prices"][0]["dollars_per_hour"], facts["price_source"]

    free = write_output(tmp_path / "free", price={})
    assert price("a", free) == (5, "--fallback-dollars-per-hour")
    assert price("b", free, "--dollars-per-hour", 3) == (3, "--dollars-per-hour")
    assert price("c", free, "--machine", "laptop-2-core")[0] == pytest.approx(0.1)
    assert price("d", folder / "run0")[0] == pytest.approx(0.1)
    assert price("e", write_output(tmp_path / "own", price={"dollars_per_hour": 2}))[0] == 2


def test_an_output_of_an_older_version_is_reported_as_far_as_it_goes(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run0", tmp_path / "old")
    path = tmp_path / "old/_manifest/job.json"
    job = json.loads(path.read_text())
    for record in job["objects"]:
        del record["metrics"]["lengths"], record["metrics"]["devices"]
        record["metrics"]["seconds"] = {"decode": record["metrics"]["seconds"]["decode"]}
    path.write_text(json.dumps(job))
    facts = facts_of(tmp_path / "out", tmp_path / "old", "--plan", folder / "plan.json")
    assert facts["measured"]["device"] == "not recorded" and facts["measured"]["dtype"] == "float32"
    assert facts["target"]["outside"] is None and facts["terms"]["waiting"] == 1
