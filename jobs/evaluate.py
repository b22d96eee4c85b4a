"""`hpd evaluate`: a benchmark file through a decoder, scored with the benchmark's metric, with a report for people."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.reading import as_text
from hpd_core.rows import Counts, Row
from hpd_core.schema import Document
from hpd_core.settings import DecoderSpec, Layout, Visibility
from hpd_core.source import check_present
from jobs.console import command, output, run_alone, say
from jobs.options import AsJson, Dataset, Folder, LayoutName, Limit, ModelName, Threads, ValueTokens, VisibilityName
from jobs.scores.dataset import read_benchmark
from jobs.scores.pages import report_page, write_page
from jobs.scores.quality import Quality, assess
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL, model_spec

if TYPE_CHECKING:
    from hpd_core.extractor import Extractor

#: Documents per call of the decoder: enough for any batch, few enough for progress to be seen.
CHUNK = 256


@command
def evaluate(
    dataset: Dataset,
    output_folder: Folder,
    decoder: Annotated[str, typer.Option(help="hpd | ar | ar-lookup | per-attribute")] = "hpd",
    layout: LayoutName = None,
    visibility: VisibilityName = None,
    limit: Limit = None,
    model: ModelName = DEFAULT_MODEL,
    max_value_tokens: ValueTokens = None,
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """Extract the attributes of a benchmark file and score them.

    Writes predictions.jsonl, scores.json and report.html.
    """
    benchmark = read_benchmark(dataset)
    spec = decoder_spec(model, layout, visibility, max_value_tokens)
    from jobs.decoders import load, named  # torch: seconds, and not needed to refuse a wrong option

    build = named(decoder)
    with output(json_) as out:
        extractor = build(load(spec, threads), 0)
        documents = benchmark.documents(limit)
        start = time.perf_counter()
        rows, counts = extract_chunks(extractor, documents)
        seconds = time.perf_counter() - start
        predictions = [prediction(row) for row in rows]
        quality = assess(benchmark.rows[: len(rows)], predictions)
        facts = quality.as_dict() | {
            "rows": len(rows),
            "rows_digest": benchmark.digest(len(rows)),
            "rows_error": sum(not row.status.is_ok for row in rows),
            "docs_per_second": len(rows) / seconds,
            "run": {"dataset": dataset.name, "decoder": decoder, "limit": limit, **spec.as_dict()},
            "work": counts.as_dict(),
        }
        heading = f"{decoder} on {dataset.name}, {len(rows)} rows"
        write_results(output_folder, predictions, facts)
        write_page(output_folder / "report.html", report_page(facts, quality.errors, heading))
        out.console.print(f"{heading}: {figures(quality)}", highlight=False)
        out.console.print(f"written to {output_folder}", highlight=False)
        out.finish(facts | {"output": str(output_folder)})


def decoder_spec(model: str, layout: str | None, visibility: str | None, max_value_tokens: int | None) -> DecoderSpec:
    """The spec of command-line words; what is not given is the fine-tuned model's own, or the default.

    Raises JobError or SettingsError for what does not exist.
    """
    for name, given, allowed in (("layout", layout, Layout), ("visibility", visibility, Visibility)):
        known = [member.value for member in allowed]
        if given is not None and given not in known:
            raise JobError(f"--{name} {given}: must be one of {', '.join(known)}")
    spec = model_spec(model)
    check_present(spec)
    base = recipe.decoder_spec(spec)
    own = base.settings
    settings = replace(
        own,
        layout=Layout(layout or own.layout),
        visibility=Visibility(visibility or own.visibility),
        max_value_tokens=max_value_tokens or own.max_value_tokens,
    )
    return replace(base, settings=settings)


def extract_chunks(extractor: Extractor, documents: Sequence[Document]) -> tuple[list[Row], Counts]:
    """One row per document, in order, and the work of all; a document that cannot be asked is a row in error."""
    from hpd_core.extractor import extract_all

    rows: list[Row] = []
    counts = Counts()
    for start in range(0, len(documents), CHUNK):
        extraction = extract_all(extractor, documents[start : start + CHUNK])
        counts += extraction.counts
        rows += extraction.rows
        say(f"{len(rows)}/{len(documents)} rows")
    return rows, counts


def prediction(row: Row) -> dict[str, str | None]:
    """{attribute: text as extracted, or None} with every attribute of the row's schema."""
    found = row.as_dict()
    return {a.name: None if found.get(a.name) is None else as_text(found[a.name]) for a in row.schema}


def write_results(folder: Path, predictions: Sequence[dict[str, str | None]], facts: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.jsonl").open("w", encoding="utf-8", newline="\n") as lines:
        for entry in predictions:
            lines.write(json.dumps(entry, ensure_ascii=False) + "\n")
    (folder / "scores.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def figures(quality: Quality) -> str:
    """The figures of a run in one line, with the intervals of those that have one."""
    scores = quality.scores
    f1, strict = quality.interval("f1"), quality.interval("strict_f1")
    return (
        f"f1 {scores.f1:.2f} ({f1.low:.2f} to {f1.high:.2f}), "
        f"strict f1 {scores.strict_f1:.2f} ({strict.low:.2f} to {strict.high:.2f}), "
        f"precision {scores.precision:.2f}, recall {scores.recall:.2f}"
    )


if __name__ == "__main__":
    run_alone(evaluate)
