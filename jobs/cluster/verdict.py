"""How a submitted job ended, by what lies in its output: Ray calls a stopped job a success of its client, and a driver
that was lost after its last write a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.cluster.submission import RemoteJob, State
from jobs.console import Exit
from pipeline.config import LimitsConfig
from pipeline.job import JobSpec
from pipeline.manifest import JOB, OutputFolder
from pipeline.resume import RUN


@dataclass(frozen=True, slots=True)
class Finished:
    """What a complete output says of the job that finished it."""

    listing: Mapping[str, Any]
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestVerdict:
    """exit: as `hpd extract` would have ended. Rows: of the committed output, None where it is not complete."""

    exit: Exit
    reason: str
    rows_in: int | None = None
    rows_error: int | None = None


def finished(output: OutputFolder) -> Finished | None:
    """None where the output is not complete. Raises `StorageError`."""
    listing = output.read_json(JOB) if output.is_finished() else None
    if listing is None:
        return None
    return Finished(listing, tuple((output.read_json(RUN) or {}).get("inputs", ())))


def judge(
    job: JobSpec, limits: LimitsConfig, before: Finished | None, after: Finished | None, ended: RemoteJob | None
) -> ManifestVerdict:
    """before, after: the output when the job was submitted (or attached to) and when it had ended. ended: None where
    the cluster has forgotten the job. job: with absolute paths, as it was submitted."""
    how = f"Ray says {ended.state}" if ended else "the cluster has forgotten the job"
    if ended is not None and ended.exit_code == Exit.INPUT:
        return ManifestVerdict(Exit.INPUT, f"refused: {how}, and the log the reason")
    again = "submit it again to continue"
    if after is None:
        shared = "" if "://" in job.output else "; a local folder must be shared by this machine and all nodes"
        told = shared if ended is not None and ended.state is State.SUCCEEDED else ""
        return ManifestVerdict(Exit.INCOMPLETE, f"incomplete: {job.output} has no _SUCCESS ({how}{told}); {again}")
    difference = _of_another(job, after)
    if difference:
        return ManifestVerdict(
            Exit.INCOMPLETE, f"incomplete: the _SUCCESS of {job.output} is of another job: {difference}"
        )
    # The driver ends by itself with 0 or 3 where it found nothing left to do, and Ray calls the latter a failure.
    looked = ended is not None and (ended.state is State.SUCCEEDED or ended.exit_code == Exit.TOO_MANY_ERRORS)
    if after == before and not looked:
        # An older success says nothing of files that were added since, and this job did not live to look.
        return ManifestVerdict(Exit.INCOMPLETE, f"incomplete: {job.output} was complete before, but {how}; {again}")
    rows, errors = int(after.listing["rows_in"]), int(after.listing["rows_error"])
    counts = f"{rows:,} rows, {errors:,} in error"
    if not limits.allow(errors, rows):
        share = f"limits.max_error_rate ({limits.max_error_rate:g})"
        return ManifestVerdict(Exit.TOO_MANY_ERRORS, f"complete: {counts}, more than {share} allows", rows, errors)
    return ManifestVerdict(Exit.COMPLETE, f"complete: {counts}", rows, errors)


def _of_another(job: JobSpec, after: Finished) -> str:
    """What tells the job that finished the output from this one; empty where nothing does."""
    if after.listing.get("limit") != job.limit:
        return f"limit {after.listing.get('limit')}, not {job.limit}"
    if after.inputs and set(after.inputs) != set(job.inputs):
        return f"inputs {', '.join(after.inputs)}, not {', '.join(job.inputs)}"
    return ""
