"""`hpd report`: what outputs of `hpd extract` cost, and what a corpus would, for finance and for engineers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.console import command, output, run_alone, say
from jobs.costs.chapters import chapters
from jobs.costs.drawing import AREA_HEIGHT, AREA_WIDTH, LEFT, PITCH, WIDTH
from jobs.costs.facts import assemble
from jobs.costs.rivals import read_comparison
from jobs.costs.runs import read_runs
from jobs.costs.scenario import Scenario
from jobs.costs.told import Paragraph
from jobs.costs.written import markdown
from jobs.options import AsJson, Folder, Overrides, StorageConfig, storages
from jobs.scores.pages import cost_page, write_page
from pipeline.job import JobError
from pipeline.prices import read_prices


@command
def report(
    runs: Annotated[list[str], typer.Argument(help="Outputs of `hpd extract`, of one job on one kind of machine.")],
    output_folder: Folder,
    documents: Annotated[
        float, typer.Option("--documents", min=1, help="Rows of the corpus that is asked about, such as 500e6.")
    ],
    compare: Annotated[Path | None, typer.Option("--compare", help="benchmark.json of `hpd benchmark`.")] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="What `hpd plan --json` printed for the corpus: its lengths.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="YAML of prices; the one that ships otherwise.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Price of another machine of it than the job names.")
    ] = None,
    dollars_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of an hour of everything that ran, in place of both.")
    ] = None,
    fallback_dollars_per_hour: Annotated[
        float | None, typer.Option(min=0, help="The same, only where the job names neither a price nor a machine.")
    ] = None,
    finetune_dollars: Annotated[
        float | None, typer.Option(min=0, help="What training and labels cost, for the break-even.")
    ] = None,
    config: StorageConfig = None,
    set_: Overrides = None,
    seed: Annotated[int, typer.Option(help="Draws the resamples of the interval.")] = 0,
    json_: AsJson = False,
) -> None:
    """Write a cost report of runs: report.html, report.md and report.json. Loads no model, starts no Ray.

    An interval needs 30 different units that are a random sample (`hpd extract --sample-units`) or the whole of a
    catalog; how far one run is from the next needs 3 runs.
    """
    _, storage = storages(config, set_)
    asked = Scenario(
        documents, read_prices(prices), machine, dollars_per_hour, finetune_dollars, seed, fallback_dollars_per_hour
    )
    benchmark = None if compare is None else read_comparison(compare)
    planned = None if plan is None else _plan(plan)
    with output(json_) as out:
        found = read_runs(runs, storage)
        facts = assemble(found, asked, plan=planned, benchmark=benchmark)
        told = write_report(output_folder, facts)
        for part in told:
            line = "".join(piece if isinstance(piece, str) else piece.text for piece in part.pieces)
            out.console.print(line, markup=False, highlight=False, soft_wrap=True)
        out.console.print(f"written to {output_folder}", highlight=False, markup=False)
        out.finish(facts | {"output": str(output_folder)})
    if facts["measured"]["device"] == "not recorded":
        say("note: the runs are of an older version, which did not record device, waiting and loading")


def write_report(folder: Path, facts: Mapping[str, Any]) -> list[Paragraph]:
    """The three files; returns the summary's paragraphs."""
    told = chapters(facts)
    heading = f"Cost of {facts['documents']:,.0f} documents: {facts['measured']['model']}"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    (folder / "report.md").write_text(markdown(heading, told), encoding="utf-8")
    write_page(folder / "report.html", cost_page(heading, told, (WIDTH, PITCH, AREA_WIDTH, AREA_HEIGHT, LEFT)))
    return [part for part in told[0].parts if isinstance(part, Paragraph)]


def _plan(path: Path) -> dict[str, Any]:
    """The JSON object of a file, its last line where other lines stand before it."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        try:
            facts = json.loads(text)
        except ValueError:
            facts = json.loads(text.splitlines()[-1])
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise JobError(f"{path}: not what `hpd plan --json` prints ({error})") from error
    if not isinstance(facts, dict):
        raise JobError(f"{path}: not what `hpd plan --json` prints")
    return facts


if __name__ == "__main__":
    run_alone(report)
