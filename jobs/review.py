"""`hpd review`: people compare two runs without knowing which is which. `build` makes the page, `score` counts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.blind.questions import Key, KeyRun, draw, key
from jobs.blind.verdicts import (
    VOTES,
    Reviewer,
    VoteCount,
    agreements,
    ballots,
    majority,
    read_exports,
    read_key,
    share_interval,
    sign_test,
)
from jobs.console import command, output
from jobs.options import AsJson, Dataset, Folder
from jobs.scores.bootstrap import LEVEL, RESAMPLES, SEED
from jobs.scores.dataset import Benchmark, read_benchmark
from jobs.scores.markdown import bounds, cell
from jobs.scores.pages import review_page, settings, write_page
from jobs.scores.quality import assess
from jobs.scores.runs import check_belongs, check_same_rows, check_scores, read_runs
from pipeline.job import JobError

app = typer.Typer(
    name="review",
    help="Blind comparison of two runs by people: a page to decide on, and a count of what was decided.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Run = Annotated[Path, typer.Argument(help="Output folder of `hpd evaluate`.", show_default=False)]
Page = Annotated[Path, typer.Option("--output", "-o", help="The page, a name in .html.", show_default=False)]
KeyFile = Annotated[Path, typer.Option("--key", "-k", help="The key that was written beside the page.")]


@app.command()
@command
def build(
    run_a: Run,
    run_b: Run,
    dataset: Dataset,
    page: Page,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Rows to draw.")] = 50,
    seed: Annotated[int, typer.Option(help="Draws the rows and their sides.")] = 0,
    only_differing: Annotated[
        bool, typer.Option("--only-differing", help="Draw only rows that the two runs answer differently.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Make a page that shows products with the answers of two runs on random sides, and its key.

    Writes PAGE.html for the reviewers and PAGE.key.json, which they must not see.
    """
    if page.suffix != ".html":
        raise JobError(f"--output {page}: must end in .html")
    found = read_runs([run_a, run_b])
    check_same_rows(found)
    benchmark = read_benchmark(dataset)
    total = len(found[0].predictions)
    for run in found:
        check_belongs(run, benchmark, dataset.name)
        check_scores(run, assess(benchmark.rows[:total], run.predictions).scores.as_dict())
    mine, theirs = (run.predictions for run in found)
    attributes = _attributes(benchmark, mine, theirs)
    sample = draw(benchmark.rows[:total], attributes, mine, theirs, rows, seed, only_differing)
    if not sample.questions:
        same = len(sample.identical) or total
        raise JobError(f"{run_a} and {run_b} give the same answers on all {same} rows: nothing to ask")
    a, b = (KeyRun(name=run.name, settings=settings(run.facts)) for run in found)
    made = key(sample, dataset.name, seed, only_differing, a, b)
    with output(json_) as out:
        key_file = page.with_suffix(".key.json")
        _check_free(key_file, made)
        page.parent.mkdir(parents=True, exist_ok=True)
        content = {"id": sample.page_id, "questions": [question.shown() for question in sample.questions]}
        write_page(page, review_page(content, "Which answer is better?"))
        key_file.write_text(made.model_dump_json(indent=2) + "\n", encoding="utf-8")
        shown, same = len(sample.questions), len(sample.identical)
        out.console.print(f"{shown} questions; {same} more rows drawn have the same answer twice", highlight=False)
        out.console.print(f"written to {page}; keep {key_file} from the reviewers", highlight=False, soft_wrap=True)
        facts = {"page": made.page, "questions": shown, "identical": same}
        out.finish(facts | {"output": str(page), "key": str(key_file)})


@app.command()
@command
def score(
    exports: Annotated[list[Path], typer.Argument(help="Exports of the page, one per reviewer.", show_default=False)],
    key_file: KeyFile,
    output_folder: Folder,
    json_: AsJson = False,
) -> None:
    """Count what reviewers decided: wins, ties and losses of run A; writes review.json and review.md."""
    found = read_key(key_file)
    reviewers = read_exports(exports, found)
    if not ballots(reviewers):
        raise JobError(f"{', '.join(map(str, exports))}: every question is skipped")
    with output(json_) as out:
        facts = counted(found, reviewers)
        output_folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (output_folder / "review.json").write_text(text, encoding="utf-8")
        (output_folder / "review.md").write_text(markdown(facts), encoding="utf-8")
        out.console.print(markdown(facts), markup=False, highlight=False, soft_wrap=True)
        out.console.print(f"written to {output_folder}", highlight=False)
        out.finish(facts | {"output": str(output_folder)})


def counted(found: Key, reviewers: Sequence[Reviewer]) -> dict[str, Any]:
    """The content of review.json. Of reviewers who voted on at least one question."""
    votes = ballots(reviewers)
    verdicts = {number: majority(cast) for number, cast in votes.items()}
    per_row = _figures([VoteCount.of([verdict]) for verdict in verdicts.values()])
    pairs = agreements(reviewers)
    kappas = [pair.kappa for pair in pairs if pair.kappa is not None]
    categories = dict.fromkeys(question.category for question in found.questions)
    sided = sum(vote != "tie" for cast in votes.values() for vote in cast)
    return {
        "page": found.page,
        "dataset": found.dataset,
        "only_differing": found.only_differing,
        "a": found.a.model_dump(),
        "b": found.b.model_dump(),
        "level": LEVEL,
        "resamples": RESAMPLES,
        "seed": SEED,
        "questions": len(found.questions),
        "without_vote": len(found.questions) - len(votes),
        "identical": len(found.identical),
        "majority": per_row | {"sign_test_p": sign_test(per_row["win"], per_row["loss"])},
        "raw": _figures([VoteCount.of(cast) for cast in votes.values()]),
        "with_identical": _with_identical(per_row, len(found.questions), len(found.identical)),
        "answer_1": {"chosen": sum(reviewer.left for reviewer in reviewers), "of": sided},
        "agreement": {
            "mean_kappa": round(statistics.fmean(kappas), 3) if kappas else None,
            "pairs": [asdict(pair) for pair in pairs],
        },
        "reviewers": [
            {
                "name": reviewer.name,
                **asdict(VoteCount.of(list(reviewer.votes.values()))),
                "skipped": reviewer.skipped,
                "median_seconds": round(statistics.median(reviewer.seconds), 1),
            }
            for reviewer in reviewers
        ],
        "by_category": [
            {"category": category}
            | asdict(VoteCount.of([v for n, v in verdicts.items() if found.questions[n - 1].category == category]))
            for category in sorted(categories)
        ],
        "rows": [
            {
                "question": number,
                "row": found.questions[number - 1].row,
                "category": found.questions[number - 1].category,
                "votes": {vote: cast.count(vote) for vote in VOTES},
                "verdict": verdicts[number],
            }
            for number, cast in votes.items()
        ],
    }


def markdown(facts: dict[str, Any]) -> str:
    """The count as Markdown."""
    names = {side: f"{side} is {cell(facts[side.lower()]['name'])}" for side in ("A", "B")}
    lines = [f"# Blind comparison on {cell(facts['dataset'])}, {facts['questions']} questions", ""]
    lines += [f"{names['A']}; {names['B']}.", ""]
    lines += ["| | A wins | ties | B wins | preference for A |", "|---|---:|---:|---:|---:|"]
    for name, title in (("majority", "rows, by majority"), ("raw", "single votes")):
        part = facts[name]
        share = f"{part['share']:.2f} ({bounds(part['interval'])})"
        lines.append(f"| {title} | {part['win']} | {part['tie']} | {part['loss']} | {share} |")
    lines += ["", f"Sign test over rows, ties left out, two-sided: p = {facts['majority']['sign_test_p']:.3g}."]
    if facts["without_vote"]:
        lines += ["", f"Left open or skipped by everyone, and in no figure: {facts['without_vote']} questions."]
    if facts["with_identical"]:
        share = f"{facts['with_identical']['share']:.2f} ({bounds(facts['with_identical']['interval'])})"
        lines += ["", f"With {facts['identical']} more drawn rows, on which A and B say the same, as ties: {share}."]
    if facts["only_differing"]:
        lines += ["", "Only rows with different answers were drawn; the figures speak of those."]
    side = facts["answer_1"]
    lines += ["", f"Answer 1 was chosen in {side['chosen']} of {side['of']} votes for a side.", ""]
    lines += ["| reviewer | for A | ties | for B | skipped | median seconds |", "|---|---:|---:|---:|---:|---:|"]
    for person in facts["reviewers"]:
        figures = [person[name] for name in ("win", "tie", "loss", "skipped", "median_seconds")]
        lines.append(f"| {cell(person['name'])} | {' | '.join(map(str, figures))} |")
    if facts["agreement"]["pairs"]:
        lines += ["", "| reviewers | questions in common | same vote | Cohen's kappa |", "|---|---:|---:|---:|"]
        for pair in facts["agreement"]["pairs"]:
            kappa = "not defined" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
            both = f"{cell(pair['one'])}, {cell(pair['other'])}"
            lines.append(f"| {both} | {pair['questions']} | {pair['percent']:.2f} | {kappa} |")
    lines += ["", "| rows by category | A wins | ties | B wins |", "|---|---:|---:|---:|"]
    for part in facts["by_category"]:
        lines.append(f"| {cell(part['category'])} | {part['win']} | {part['tie']} | {part['loss']} |")
    lines += [
        "",
        f"Percent; a tie is half a preference. In brackets {100 * facts['level']:g} % intervals: percentile bootstrap "
        f"over rows, {facts['resamples']} resamples.",
        "",
    ]
    return "\n".join(lines)


def _figures(tallies: Sequence[VoteCount]) -> dict[str, Any]:
    """tallies: one per row."""
    whole = VoteCount(*(sum(getattr(tally, name) for tally in tallies) for name in ("win", "tie", "loss")))
    interval = share_interval(tallies)
    return asdict(whole) | {"share": whole.share, "interval": [interval.low, interval.high]}


def _with_identical(per_row: dict[str, Any], different: int, identical: int) -> dict[str, Any] | None:
    """The preference over all drawn rows: that of the voted ones stands for all that differ, the others are ties.

    How many of the drawn rows differ is taken as it is: the interval leaves out that another draw has another number.
    """
    if not identical:
        return None

    def mixed(share: float) -> float:
        return round((different * share + identical * 50) / (different + identical), 2)

    return {"share": mixed(per_row["share"]), "interval": [mixed(bound) for bound in per_row["interval"]]}


def _attributes(benchmark: Benchmark, *runs: Sequence[Mapping[str, str | None]]) -> dict[str, list[str]]:
    """{category: attributes of the page}: those of the file, then what the runs were asked beyond (`--schemas`)."""
    found = {category: dict.fromkeys(a.name for a in schema) for category, schema in benchmark.schemas.items()}
    for predictions in runs:
        for row, said in zip(benchmark.rows, predictions, strict=False):
            found[row.category].update(dict.fromkeys(said))
    return {category: list(names) for category, names in found.items()}


def _check_free(path: Path, made: Key) -> None:
    """Raises JobError where `path` holds the key of another page, whose exports could not be scored without it."""
    if path.exists() and read_key(path).page != made.page:
        raise JobError(f"{path} is the key of another page, whose exports need it: remove it or choose another name")


if __name__ == "__main__":
    app()
