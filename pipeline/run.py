"""The pipeline in one screen: plan, see what is done, stream the rest in rounds, finish."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.block import Failure, FailureKind
from pipeline.commit import commit
from pipeline.job import JobSpec, Progress, RunSummary
from pipeline.manifest import UnitRecord
from pipeline.metrics import Metrics
from pipeline.prepare import Prepared, prepare
from pipeline.resume import open_run, remaining, select
from pipeline.rounds import Work, by_file
from pipeline.summary import METRICS_FILE, RunWork, summarise, work_of, write_metrics
from pipeline.units import Unit

ProgressCallback = Callable[[Progress], None]


def run(job: JobSpec, *, progress: ProgressCallback | None = None) -> RunSummary:
    """Runs the job, or what is left of it. Ends complete or not, never with a row lost or doubled.

    Raises `JobError` for a job that cannot start, `StorageError` where the output's bookkeeping cannot be read or
    written.
    """
    started = time.monotonic()
    prepared = prepare(job)
    job, output, plan = prepared.job, prepared.output, prepared.plan
    fingerprint = open_run(output, job, prepared.facts, prepared.schema, prepared.stored)
    records = output.read_records()
    kept, dropped = select(records, plan.files)
    todo = remaining(plan.units, kept)
    bad = [str(b) for b in plan.bad]
    before = output.read_json(METRICS_FILE)
    if not todo and not dropped and before and before["complete"] and output.is_finished():
        return summarise(output, before, model_calls=0, complete=_passes(job, bad), failures=bad)

    output.reopen()
    work = _work(prepared, fingerprint, todo, kept, started, progress)
    # The store's word counts, not Ray's: somebody else may have committed too, or a receipt may be lost.
    kept, dropped = select(output.read_records(known=[*kept, *work.committed]), plan.files)
    left = remaining(plan.units, kept)
    complete = _passes(job, bad) and _all_done(job, left, work.given_up)
    failures = [*bad, *by_file(work.given_up)]
    if left and not work.given_up:
        failures.append(f"{sum(u.rows for u in left)} rows in {len(left)} units are left: the budget was spent")
    done = work_of(
        work.fresh,
        rounds=work.rounds,
        seconds=time.monotonic() - started,
        stream_seconds=work.seconds,
        price_per_hour=job.price_per_hour,
        waste=work.waste,
    )
    if not work.fresh and before:
        done = RunWork(**before["run"])
    facts = write_metrics(output, kept, done, complete)
    if complete:
        output.finish(kept, dropped, {"fingerprint": fingerprint, "skipped": failures})
    calls = sum(record.metrics.decode.model_calls for record in work.fresh)
    return summarise(output, facts, model_calls=calls, complete=complete, failures=failures)


def _passes(job: JobSpec, bad: list[str]) -> bool:
    return not bad or job.on_bad_file == "skip"


def _all_done(job: JobSpec, left: list[Unit], given_up: dict[Unit, Failure]) -> bool:
    """Whether nothing planned is uncommitted, apart from what cannot be read where that may be skipped."""
    skipped = {u.key for u, f in given_up.items() if f.kind is FailureKind.READ and job.on_bad_file == "skip"}
    return all(unit.key in skipped for unit in left)


def _work(
    prepared: Prepared,
    fingerprint: str,
    todo: list[Unit],
    kept: list[UnitRecord],
    started: float,
    progress: ProgressCallback | None,
) -> Work:
    """Commits what can be committed of `todo`. Ray is started only where a row is left."""
    work = Work()
    for unit in [u for u in todo if not u.rows]:  # Ray never shows an empty block to a stage
        receipt = commit(
            prepared.output,
            unit,
            prepared.schema.empty_table(),
            Metrics(),
            schema=prepared.schema,
            fingerprint=fingerprint,
        )
        if receipt.record is not None:
            work.committed.append(receipt.record)
    rows = [u for u in todo if u.rows]
    if rows:
        from pipeline.drive import drive  # Ray takes seconds to import, and a finished job needs none

        drive(prepared, fingerprint, rows, kept, started, progress, work)
    return work
