"""What commands that label a catalog have in common: which rows, where to, and when too many gave nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.console import Exit, say
from pipeline.config import LimitsConfig
from pipeline.job import JobError

BenchmarkFile = Annotated[Path, typer.Option("--output", "-o", help="Benchmark file to write (.jsonl).")]
Sample = Annotated[int | None, typer.Option(min=1, help="So many rows, drawn from the whole catalog.")]
SampleSeed = Annotated[int, typer.Option(help="Of the sample.")]


def check_choice(limit: int | None, sample: int | None, output_file: Path) -> None:
    """Raises JobError where both --limit and --sample are given, or another kind of file is to be written."""
    if limit is not None and sample is not None:
        raise JobError("--limit and --sample: give one of them")
    if output_file.suffix != ".jsonl":
        raise JobError(f"--output {output_file}: must end in .jsonl")


def exit_of_too_many(limits: LimitsConfig, failed: int, rows: int) -> None:
    """Raises typer.Exit, with a word why, where more rows failed than the job allows."""
    if not limits.allow(failed, rows):
        say(f"{failed} of {rows} rows rejected, more than limits.max_error_rate {limits.max_error_rate} allows")
        raise typer.Exit(Exit.TOO_MANY_ERRORS)
