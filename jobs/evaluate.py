"""`hpd evaluate`: a benchmark file through a decoder, scored with the benchmark's metric, with a report for people."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hpd_core import recipe
from hpd_core.confidence import ConfidenceSettings, with_confidence
from jobs.console import command, output, run_alone, say_notice
from jobs.options import (
    AsJson,
    Calibrated,
    CalibrationFile,
    Dataset,
    Decoding,
    Folder,
    GroundingName,
    LayoutName,
    Limit,
    ModelDtype,
    ModelName,
    QuantizationName,
    Threads,
    Thresholds,
    ValueTokens,
    VisibilityName,
    confidence_settings,
    decoder_spec,
)
from jobs.scores.confidences import told, write_confidences
from jobs.scores.dataset import read_benchmark
from jobs.scores.declared import declared_schemas
from jobs.scores.pages import report_page, write_page
from jobs.scores.predictions import extract_chunks, prediction, write_results
from jobs.scores.quality import Quality, assess
from jobs.scores.reliability import trust_facts
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL


@command
def evaluate(
    dataset: Dataset,
    output_folder: Folder,
    decoder: Annotated[str, typer.Option(help="hpd | ar | ar-lookup | per-attribute | per-attribute-cached")] = "hpd",
    layout: LayoutName = None,
    visibility: VisibilityName = None,
    schemas: Annotated[
        list[Path] | None,
        typer.Option(
            help="Schema file as a job's; asks rows what it declares for their category, others all that is named. "
            "Repeatable."
        ),
    ] = None,
    limit: Limit = None,
    model: ModelName = DEFAULT_MODEL,
    max_value_tokens: ValueTokens = None,
    grounding: GroundingName = None,
    decode: Decoding = None,
    calibrated: Calibrated = False,
    calibration: CalibrationFile = None,
    threshold: Thresholds = None,
    quantization: QuantizationName = None,
    dtype: ModelDtype = None,
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """Extract the attributes of a benchmark file and score them.

    Writes predictions.jsonl, confidences.jsonl, scores.json and report.html.
    """
    benchmark = read_benchmark(dataset)
    declared = declared_schemas(schemas or ())
    if declared and not declared.keys() & benchmark.schemas.keys():
        raise JobError(f"--schemas: declares none of the categories of {dataset}, as {next(iter(benchmark.schemas))!r}")
    benchmark = benchmark.with_schemas(declared)
    spec = decoder_spec(
        model, layout, visibility, max_value_tokens, grounding, decode, quantization=quantization, dtype=dtype
    )
    sure = confidence_settings(calibrated, calibration, threshold)
    sure.check_names(a.name for schema in benchmark.schemas.values() for a in schema)
    if sure != ConfidenceSettings() and decoder != "hpd":
        raise JobError(f"--decoder {decoder}: calibrations and thresholds are of hpd")
    spec = with_confidence(spec, sure)
    from jobs.decoders import load, named  # torch: seconds, and not needed to refuse a wrong option

    build = named(decoder)
    # What decides the prompts, beside the spec; runs without it keep the facts that they always had.
    used = {category: asdict(schema) for category, schema in benchmark.schemas.items() if category in declared}
    asked = {"schemas": [path.name for path in schemas], "declared": used} if schemas else {}
    say_notice(spec.model)
    notice = recipe.notice_of(spec.model)
    with output(json_) as out:
        extractor = build(load(spec, threads), 0)
        documents = benchmark.documents(limit)
        start = time.perf_counter()
        rows, counts = extract_chunks(extractor, documents)
        seconds = time.perf_counter() - start
        predictions = [prediction(row) for row in rows]
        confidences = [told(row) for row in rows]
        quality = assess(benchmark.rows[: len(rows)], predictions)
        trusted = trust_facts(benchmark.rows[: len(rows)], predictions, confidences, calibrated=sure.calibrated)
        facts = quality.as_dict() | {
            "confidence": trusted,
            "rows": len(rows),
            "rows_digest": benchmark.digest(len(rows)),
            "rows_error": sum(not row.status.is_ok for row in rows),
            "docs_per_second": len(rows) / seconds,
            "run": {
                "dataset": dataset.name,
                "decoder": decoder,
                "limit": limit,
                "name": spec.model.name,
                **asked,
                **spec.as_dict(),
            },
            "work": counts.as_dict(),
            **({"notice": notice} if notice else {}),
        }
        heading = f"{decoder} on {dataset.name}, {len(rows)} rows"
        write_results(output_folder, predictions, facts)
        write_confidences(output_folder, confidences)
        write_page(output_folder / "report.html", report_page(facts, quality.errors, heading))
        out.console.print(f"{heading}: {figures(quality)}", highlight=False)
        out.console.print(f"written to {output_folder}", highlight=False)
        out.finish(facts | {"output": str(output_folder)})


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
