"""`hpd verify`: is this output whole? Checks it against its manifest and its input, without a model, torch or Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.console import Exit, command, output, run_alone, say
from jobs.options import AsJson, Inputs, OutputUri, Overrides, StorageConfig, storages
from pipeline.findings import FindingKind, OutputVerdict, Verification
from pipeline.manifest import OutputFolder
from pipeline.verify import verify as check

#: Findings shown to people; --json has all of them.
SHOWN = 50
EVERY_SECONDS = 5.0
EXITS = {
    OutputVerdict.VERIFIED: Exit.COMPLETE,
    OutputVerdict.DAMAGED: Exit.DAMAGED,
    OutputVerdict.INCOMPLETE: Exit.INCOMPLETE,
    OutputVerdict.NO_INPUT: Exit.INPUT,
}


@command
def verify(
    folder: OutputUri,
    input: Inputs = None,
    no_input: Annotated[bool, typer.Option("--no-input", help="Do not compare with the input.")] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Open only so many data files, spread evenly; names and sizes of all."),
    ] = None,
    config: StorageConfig = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Check a committed output against its manifest and its input, value by value.

    --input names where the job's inputs lie now, in the job's order. Exit codes: 0 verified, 2 not a job's output, or
    an input is gone, 4 incomplete or behind its input (run the job again), 5 damaged.
    """
    if no_input and input:
        raise typer.BadParameter("--no-input and --input contradict each other")
    source, target = storages(config, set_)
    with output(json_) as out:
        result = check(
            OutputFolder(target.absolute(folder), target),
            source,
            inputs=input or (),
            compare=not no_input,
            sample=sample,
            progress=_progress_lines(),
        )
        out.finish(result.as_dict())
        print_report(result, out.console)
    findings = sorted(result.findings, key=lambda f: list(FindingKind).index(f.kind))
    for finding in findings[:SHOWN]:
        say(f"{finding.kind}: {finding}")
    if len(findings) > SHOWN:
        say(f"… and {len(findings) - SHOWN} more; --json has all of them")
    if result.verdict is not OutputVerdict.VERIFIED:
        raise typer.Exit(EXITS[result.verdict])


def _progress_lines() -> Callable[[int, int], None]:
    """A line on stderr every few seconds."""
    last = time.monotonic()

    def show(done: int, units: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            say(f"{done}/{units} units")

    return show


def print_report(result: Verification, console: Console) -> None:
    """The verdict and what it rests on."""
    table = Table(title=result.verdict.value.replace("_", " "), show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    extent = result.extent
    for name, value in (
        ("rows in", f"{result.rows_in:,} = {result.rows_ok:,} ok + {result.rows_error:,} in error"),
        ("data files read", f"{extent.units_read:,} of {result.units:,}, {extent.bytes_read / 2**20:,.1f} MiB"),
        ("compared with the input", f"{extent.rows_compared:,} rows in {extent.units_compared:,} units"),
        ("findings", f"{len(result.findings):,}"),
        ("seconds", f"{result.seconds:.1f}"),
        ("output", result.output),
    ):
        table.add_row(name, Text(value))
    console.print(table)


if __name__ == "__main__":
    run_alone(verify)
