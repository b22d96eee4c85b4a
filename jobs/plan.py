"""`hpd plan`: units, tokens, hours and dollars of a job before it runs, from footers and random rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from hpd_core.quantization import KINDS
from jobs.console import command, output, run_alone
from jobs.costs.planning import AssumedPace, assumed, check_decoder, describe, given, measured, shown
from jobs.costs.roofline import ROOF_SHARE, TOKENS_PER_VALUE, WIDTH, Workload, estimates, told
from jobs.costs.runs import MeasuredRun, read_runs
from jobs.costs.sampling import draw_rows
from jobs.described import described
from jobs.options import AsJson, ConfigFile, Inputs, Limit, OutputFolder, Overrides
from pipeline.closed_lists import check_lists, has_lists
from pipeline.job import JobError
from pipeline.metrics import total
from pipeline.prepare import Prepared
from pipeline.prices import read_prices
from pipeline.shapes import model_shapes
from pipeline.storage import Storage


@command
def plan(
    config: ConfigFile,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    set_: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Random rows to look at, over all files.")] = 1000,
    seed: Annotated[int, typer.Option(help="Draws the rows.")] = 0,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Output of an earlier run to take the pace from; may be repeated.")
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(min=1e-9, help="Rows per second of the whole job, where no run was measured.")
    ] = None,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Also: what data sheets allow larger models on GPUs, by arithmetic.")
    ] = False,
    tokens_per_value: Annotated[
        float | None,
        typer.Option(min=1, help=f"For --roofline; that of --run otherwise, else {TOKENS_PER_VALUE:g}, an assumption."),
    ] = None,
    roof_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="For --roofline: share of the roof that is reached, an assumption.")
    ] = ROOF_SHARE,
    json_: AsJson = False,
) -> None:
    """Estimate a job without running it. Loads the tokenizer, no weights; writes nothing.

    The pace is that of --run or --throughput, else what the configuration expects (units.documents_per_second).
    `hpd report --plan` takes the lengths from what --json prints. Exit codes: 0 estimated, 2 it cannot be,
    4 a store did not answer: what is estimated leaves out the files that were not reached.
    """
    if run and throughput is not None:
        raise JobError("--run and --throughput: give one of them")
    with output(json_) as out:
        asked = described(config, set_, inputs=input, output=output_folder, limit=limit)
        prepared, job = asked.prepared, asked.job
        runs = read_runs(run, Storage(job.output_storage)) if run else []
        check_decoder(runs, prepared)
        sample = _sample(prepared, rows, seed)
        if runs:
            pace: AssumedPace = measured(runs, sample)
        elif throughput is not None:
            pace = given(throughput, job.pool.max_size)
        else:
            pace = assumed(job.units.documents_per_second)
        facts = describe(prepared, asked.start, sample, seed, pace)
        if roofline:
            facts["roofline"] = _roofline(prepared, sample, runs, tokens_per_value, roof_share)
        out.finish(facts)
        for line in [*shown(facts), *(told(facts["roofline"]) if roofline else ())]:
            out.console.print(line, highlight=False, markup=False, soft_wrap=True)
    asked.say_files()
    asked.end()


def _roofline(
    prepared: Prepared,
    sample: Mapping[str, Any],
    runs: Sequence[MeasuredRun],
    tokens_per_value: float | None,
    share: float,
) -> dict[str, Any]:
    """Every model of conf/shapes.yaml on every GPU of conf/prices.yaml, with this job's documents and quantisation."""
    decoder, prices = prepared.job.decoder, read_prices()
    counted = total(run.metrics for run in runs).decode if runs else None
    if tokens_per_value is not None:
        generated, source = tokens_per_value, "--tokens-per-value"
    elif counted is not None and counted.slots:
        generated, source = max(1.0, counted.generated_tokens / counted.slots), "counted in --run"
    else:
        generated, source = TOKENS_PER_VALUE, "an assumption"
    work = Workload.of_sample(sample, generated, decoder.settings.max_value_tokens)
    kind = KINDS.get(decoder.model.quantization)
    return {
        "work": asdict(work),
        "generated_from": source,
        "weights": f"weights {decoder.model.quantization.value}" if kind else "weights in 16 bits",
        "share": share,
        "prices": prices.origin,
        "rows": estimates(
            model_shapes().values(),
            prices.machines.values(),
            work,
            each=kind.bytes_per_weight if kind else WIDTH,
            share=share,
        ),
    }


def _sample(prepared: Prepared, rows: int, seed: int) -> dict[str, Any]:
    """Raises `JobError` where the input has no row, or none of those drawn can be used."""
    if not prepared.plan.rows:
        raise JobError("the input has no rows: there is nothing to estimate")
    from hpd_core.prompt import PromptEncoder  # transformers: seconds, which a wrong option need not wait for
    from jobs.costs.sampling import measure

    encoder = PromptEncoder.from_spec(prepared.job.decoder)
    if has_lists(prepared.job):
        check_lists(encoder, prepared.job.schemas)
    try:
        return measure(prepared, encoder, draw_rows(prepared.plan.units, rows, seed)).as_dict()
    except ValueError as error:
        raise JobError(str(error)) from error


if __name__ == "__main__":
    run_alone(plan)
