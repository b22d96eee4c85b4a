"""A job as it is described, checked as `hpd extract` checks it at its start: what the commands have in common that look
at one without running it. Writes nothing, loads neither weights nor torch nor Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from hpd_core.source import check_present
from jobs.console import Exit, say
from pipeline.compose import compose
from pipeline.config import JobConfig, load_config
from pipeline.job import JobSpec
from pipeline.prepare import Prepared, Start, check_start, prepare


@dataclass(frozen=True, slots=True)
class Described:
    """settings: the configuration. prepared, start: the job that it makes, and what is left to do of it."""

    settings: JobConfig
    prepared: Prepared
    start: Start

    @property
    def job(self) -> JobSpec:
        return self.prepared.job

    @property
    def _refuses_bad_files(self) -> bool:
        return bool(self.prepared.plan.bad) and self.job.on_bad_file == "fail"

    def say_files(self) -> None:
        """A line for every input file that no row is taken from, on stderr."""
        for file in self.prepared.plan.bad:
            say(f"{'error' if self._refuses_bad_files else 'skipped'}: {file}")
        for file in self.prepared.plan.unreached:
            say(f"error: not reached: {file}")

    def end(self) -> None:
        """Raises `typer.Exit` where such files stand against the job."""
        if self._refuses_bad_files:
            raise typer.Exit(Exit.INPUT)
        if self.prepared.plan.unreached:
            raise typer.Exit(Exit.INCOMPLETE)


def described(
    config: Path,
    overrides: Sequence[str] | None,
    *,
    inputs: Sequence[str] | None,
    output: str | None,
    limit: int | None,
) -> Described:
    """The job of a configuration with the command line's words laid over it. Raises what `load_config`, `compose`,
    `check_present`, `prepare` and `check_start` raise."""
    settings = load_config(config, overrides or ())
    job = compose(settings, config, inputs=inputs or (), output=output, limit=limit)
    check_present(job.decoder.model)
    prepared = prepare(job)
    return Described(settings, prepared, check_start(prepared, prepared.output.read_records()))
