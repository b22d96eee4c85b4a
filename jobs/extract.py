"""`hpd extract`: the main job. Parquet catalog in, the same rows with attribute columns out."""

from __future__ import annotations

import typer

from jobs.console import Exit, command, output, progress_bar, run_alone, say, say_notice
from jobs.options import AsJson, ConfigFile, Inputs, Limit, OutputFolder, Overrides
from jobs.summary import print_summary, summary_facts
from pipeline.compose import compose
from pipeline.config import load_config


@command
def extract(
    config: ConfigFile,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Extract attribute values of every row of a catalog. Run it again to continue after an interruption.

    Exit codes: 0 complete, 2 configuration or input, 3 more rows in error than allowed,
    4 incomplete, or a store did not answer.
    """
    settings = load_config(config, set_ or ())
    job = compose(settings, config, inputs=input or (), output=output_folder, limit=limit)
    say_notice(job.decoder.model)
    from pipeline.run import run  # brings Ray in, which `--help` and a wrong key need not wait for

    with output(json_) as out:
        with progress_bar() as show:
            summary = run(job, progress=show, say=say)
        # The work is done: what is printed for people must not cost the program that waits for the object.
        out.finish(summary_facts(summary))
        print_summary(summary, job, out.console)
    for failure in summary.failures:
        say(f"failed: {failure}")
    if summary.unloadable:
        say(f"error: {summary.unloadable}")
        raise typer.Exit(Exit.INPUT)
    if not summary.complete:
        say("incomplete: run the same command again to continue")
        raise typer.Exit(Exit.INCOMPLETE)
    if not settings.limits.allow(summary.rows_error, summary.rows_in):
        share = f"limits.max_error_rate ({settings.limits.max_error_rate:g})"
        say(f"{summary.rows_error} of {summary.rows_in} rows in error, more than {share} allows")
        raise typer.Exit(Exit.TOO_MANY_ERRORS)


if __name__ == "__main__":
    run_alone(extract)
