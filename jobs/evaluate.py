"""`hpd evaluate`: a benchmark file through a decoder, scored with the benchmark's metric."""

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
from hpd_core.rows import Counts, Row, RowStatus
from hpd_core.schema import Document
from hpd_core.settings import DecoderSpec, Layout, Visibility
from hpd_core.source import check_present
from jobs.console import command, output, run_alone, say
from jobs.dataset import read_benchmark
from jobs.options import AsJson, Dataset, Folder, LayoutName, Limit, ModelName, Threads, ValueTokens, VisibilityName
from jobs.scoring import score
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
    """Extract the attributes of a benchmark file and score them; writes predictions.jsonl and scores.json."""
    benchmark = read_benchmark(dataset)
    spec = decoder_spec(model, layout, visibility, max_value_tokens)
    from jobs.decoders import load, named  # torch: seconds, and not needed to refuse a wrong option

    build = named(decoder)
    with output(json_) as out:
        extractor = build(load(spec, threads), 0)
        documents = benchmark.documents(limit)
        start = time.perf_counter()
        rows, counts = extract_all(extractor, documents)
        seconds = time.perf_counter() - start
        predictions = [prediction(row) for row in rows]
        scores = score([row.gold for row in benchmark.rows[: len(rows)]], predictions).as_dict()
        facts = scores | {
            "rows": len(rows),
            "rows_error": sum(not row.status.is_ok for row in rows),
            "docs_per_second": len(rows) / seconds,
            "run": {"dataset": dataset.name, "decoder": decoder, "limit": limit, **spec.as_dict()},
            "work": counts.as_dict(),
        }
        write_results(output_folder, predictions, facts)
        line = "f1 {f1:.2f}, strict f1 {strict_f1:.2f}, precision {precision:.2f}, recall {recall:.2f}".format(**scores)
        out.console.print(f"{decoder} on {dataset.name}, {len(rows)} rows: {line}", highlight=False)
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
    given = {"layout": layout, "visibility": visibility, "max_value_tokens": max_value_tokens}
    settings = replace(base.settings, **{name: value for name, value in given.items() if value is not None})
    return replace(base, settings=settings)


def extract_all(extractor: Extractor, documents: Sequence[Document]) -> tuple[list[Row], Counts]:
    """One row per document, in order, and the work of all; a document that cannot be asked is a row in error."""
    rows: list[Row] = []
    counts = Counts()
    for start in range(0, len(documents), CHUNK):
        chunk = documents[start : start + CHUNK]
        answers: dict[int, Row] = {}
        encoded = {}
        for number, document in enumerate(chunk):
            try:
                encoded[number] = extractor.encoder.encode(document)
            except ValueError as error:
                answers[number] = Row(document.schema, RowStatus.ERROR, error=str(error))
        extraction = extractor.extract_encoded(list(encoded.values()))
        answers.update(zip(encoded, extraction.rows, strict=True))
        counts += extraction.counts
        rows += [answers[number] for number in range(len(chunk))]
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


if __name__ == "__main__":
    run_alone(evaluate)
