"""`hpd extract`: the main job. Parquet catalog in, the same rows with attribute columns out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from jobs.console import Exit, command, output, run_alone, say, say_notice, terminable
from jobs.options import AsJson, ConfigFile, Inputs, Limit, LogFile, OutputFolder, Overrides
from jobs.progress import LogFormat, run_log, shown
from jobs.summary import print_summary, summary_facts
from pipeline.compose import compose
from pipeline.config import LimitsConfig, load_config
from pipeline.summary import RunSummary


@command
def extract(
    config: ConfigFile,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    sample_units: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many units, drawn at random: what `hpd report` can tell a corpus from."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the units of --sample-units.")] = 0,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Go on in an output of another job: run.allow_mixed for this once.")
    ] = False,
    set_: Overrides = None,
    log_file: LogFile = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="On stderr: progress for people, or a JSON object an event.")
    ] = LogFormat.TEXT,
    json_: AsJson = False,
) -> None:
    """Extract attribute values of every row of a catalog. Run it again to continue after an interruption.

    Exit codes: 0 complete, 2 configuration or input, 3 more rows in error than allowed,
    4 incomplete or terminated, a store did not answer, or another driver writes the output.
    """
    settings = load_config(config, set_ or ())
    job = compose(settings, config, inputs=input or (), output=output_folder, limit=limit)
    job = replace(job, sample_units=sample_units, sample_seed=seed, allow_mixed=allow_mixed or job.allow_mixed)
    say_notice(job.decoder.model)
    from pipeline.run import run  # brings Ray in, which `--help` and a wrong key need not wait for

    with run_log(log_file, log_format) as log:
        log.start(job)
        with output(json_) as out:
            with terminable(), shown(log, log_format) as show:
                summary = run(job, progress=show, say=say)
            code, why = ending(summary, settings.limits)
            # The work is done: what is printed for people must not cost the program that waits for the object.
            log.end(code, summary_facts(summary))
            out.finish(summary_facts(summary))
            print_summary(summary, job, out.console)
    for failure in summary.failures:
        say(f"failed: {failure}")
    if code != Exit.COMPLETE:
        say(why)
        raise typer.Exit(code)


def ending(summary: RunSummary, limits: LimitsConfig) -> tuple[Exit, str]:
    """The exit code of a run, and why where it is not 0."""
    if summary.unloadable:
        return Exit.INPUT, f"error: {summary.unloadable}"
    if not summary.complete:
        return Exit.INCOMPLETE, "incomplete: run the same command again to continue"
    if not limits.allow(summary.rows_error, summary.rows_in):
        share = f"limits.max_error_rate ({limits.max_error_rate:g})"
        why = f"{summary.rows_error} of {summary.rows_in} rows in error, more than {share} allows"
        return Exit.TOO_MANY_ERRORS, why
    return Exit.COMPLETE, ""


if __name__ == "__main__":
    run_alone(extract)
