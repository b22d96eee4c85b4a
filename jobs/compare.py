"""`hpd compare`: several runs of `hpd evaluate` over the same rows side by side, with paired differences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.console import command, output, run_alone
from jobs.options import AsJson, Dataset, Folder
from jobs.scores.bootstrap import LEVEL, METRICS, RESAMPLES, SEED, difference
from jobs.scores.breakdown import Part, in_order
from jobs.scores.dataset import read_benchmark
from jobs.scores.markdown import bounds, cell
from jobs.scores.pages import KINDS, comparison_page, settings, write_page
from jobs.scores.quality import Quality, assess
from jobs.scores.runs import Run, check_belongs, check_same_rows, check_scores, read_runs
from jobs.scores.scoring import Scores
from pipeline.job import JobError

Runs = Annotated[
    list[Path], typer.Argument(help="Output folders of `hpd evaluate`; the others are held against the first.")
]


@command
def compare(runs: Runs, dataset: Dataset, output_folder: Folder, json_: AsJson = False) -> None:
    """Put runs of `hpd evaluate` over the same rows side by side; writes comparison.html, .md and .json."""
    if len(runs) < 2:
        raise JobError("give at least two runs to compare")
    found = read_runs(runs)
    check_same_rows(found)
    benchmark = read_benchmark(dataset)
    qualities = []
    for run in found:
        check_belongs(run, benchmark, dataset.name)
        quality = assess(benchmark.rows[: len(run.predictions)], run.predictions)
        check_scores(run, quality.scores.as_dict())
        qualities.append(quality)
    with output(json_) as out:
        facts = {"dataset": dataset.name, "rows": len(found[0].predictions)} | comparison(found, qualities)
        heading = f"{len(found)} runs on {dataset.name}, {facts['rows']} rows"
        write_comparison(output_folder, facts, heading)
        out.console.print(markdown(facts, heading), markup=False, highlight=False, soft_wrap=True)
        out.console.print(f"written to {output_folder}", highlight=False)
        out.finish(facts | {"output": str(output_folder)})


def comparison(runs: Sequence[Run], qualities: Sequence[Quality]) -> dict[str, Any]:
    """What comparison.json says: the figures of each run, and the differences of all but the first from the first."""
    first, *others = zip(runs, qualities, strict=True)
    order = [part.category for part in first[1].categories]
    return {
        "level": LEVEL,
        "resamples": RESAMPLES,
        "seed": SEED,
        "reference": first[0].name,
        "runs": [_figures(run, quality) for run, quality in zip(runs, qualities, strict=True)],
        "differences": [
            {"name": run.name, "rows_answered_alike": _alike(run, first[0])} | _differences(quality, first[1])
            for run, quality in others
        ],
        "by_category": side_by_side([quality.categories for quality in qualities], order),
        "by_attribute": side_by_side([quality.attributes for quality in qualities], order),
    }


def side_by_side(parts: Sequence[Sequence[Part]], categories: Sequence[str]) -> list[dict[str, Any]]:
    """A line per part that any run has, with the F1 of each run. parts: those of each run. categories: their order."""
    found = [{part.key: part.scores for part in of_run} for of_run in parts]
    # The gold is the same in all; what one run alone answered beyond it is a part without gold.
    every = {part.key: part for of_run in parts for part in of_run}
    ordered = in_order(every.values(), categories)
    return [
        {
            "category": part.category,
            **({} if part.attribute is None else {"attribute": part.attribute}),
            "gold": part.scores.gold,
            "f1": [of_run.get(part.key, Scores()).f1 for of_run in found],
            "strict_f1": [of_run.get(part.key, Scores()).strict_f1 for of_run in found],
        }
        for part in ordered
    ]


def markdown(facts: dict[str, Any], heading: str) -> str:
    """The comparison as Markdown tables: runs, differences, categories, errors; attributes are in the other files."""
    names = [cell(run["name"]) for run in facts["runs"]]
    figures = "---|---:|---:|---:|---:|"
    lines = [f"# {heading}", "", "| run | F1 | strict F1 | precision | recall |", f"|{figures}"]
    for name, run in zip(names, facts["runs"], strict=True):
        f1, strict = (f"{run[m]:.2f} ({bounds(run['intervals'][m])})" for m in METRICS)
        lines.append(f"| {name} | {f1} | {strict} | {run['precision']:.2f} | {run['recall']:.2f} |")
    lines += ["", f"| minus {names[0]} | F1 | strict F1 | rows answered alike |", "|---|---:|---:|---:|"]
    for run in facts["differences"]:
        f1, strict = (f"{run[m]['difference']:+.2f} ({bounds(run[m]['interval'])})" for m in METRICS)
        lines.append(f"| {cell(run['name'])} | {f1} | {strict} | {run['rows_answered_alike']} of {facts['rows']} |")
    columns = "---:|" * len(names)
    lines += ["", f"| F1 per category | gold | {' | '.join(names)} |", f"|---|---:|{columns}"]
    for part in facts["by_category"]:
        f1s = " | ".join(f"{f1:.2f}" for f1 in part["f1"])
        lines.append(f"| {cell(part['category'])} | {part['gold']} | {f1s} |")
    lines += ["", f"| errors | {' | '.join(names)} |", f"|---|{columns}"]
    for kind, (name, _) in KINDS.items():
        lines.append(f"| {name} | {' | '.join(str(run['errors'][kind]) for run in facts['runs'])} |")
    lines += [
        "",
        f"Percent; differences in percentage points. In brackets {100 * facts['level']:g} % intervals: percentile "
        f"bootstrap over rows, {facts['resamples']} resamples, the same draws for every run.",
        "",
    ]
    return "\n".join(lines)


def write_comparison(folder: Path, facts: dict[str, Any], heading: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (folder / "comparison.json").write_text(text, encoding="utf-8")
    (folder / "comparison.md").write_text(markdown(facts, heading), encoding="utf-8")
    write_page(folder / "comparison.html", comparison_page(facts, heading))


def _figures(run: Run, quality: Quality) -> dict[str, Any]:
    found = quality.as_dict()
    kept = ("f1", "strict_f1", "precision", "recall", "counts", "extra_values", "intervals", "errors")
    return {
        "name": run.name,
        "rows_error": run.facts.get("rows_error"),
        "settings": settings(run.facts),
        **{key: found[key] for key in kept},
    }


def _alike(run: Run, other: Run) -> int:
    return sum(a == b for a, b in zip(run.predictions, other.predictions, strict=True))


def _differences(quality: Quality, reference: Quality) -> dict[str, Any]:
    found = {m: difference(quality.scores, quality.draws, reference.scores, reference.draws, m) for m in METRICS}
    return {
        metric: {"difference": d.value, "interval": [d.interval.low, d.interval.high], "clear": d.is_clear}
        for metric, d in found.items()
    }


if __name__ == "__main__":
    run_alone(compare)
