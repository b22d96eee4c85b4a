"""The pipeline in one screen: plan, see what is done, stream the rest in rounds, finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from pipeline.block import Failure, FailureKind
from pipeline.commit import commit
from pipeline.compact import split_out
from pipeline.job import JobSpec, Progress, RunSummary
from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics
from pipeline.plan import planned_files
from pipeline.prepare import Prepared, check_start, prepare
from pipeline.promise import rows_committed
from pipeline.record import UnitRecord
from pipeline.resume import RUN, lost_rows, marks, open_run, remaining, select
from pipeline.rounds import Work, by_file
from pipeline.storage import StorageError
from pipeline.summary import METRICS_FILE, RunWork, summarise, work_of, write_metrics
from pipeline.units import Unit

ProgressCallback = Callable[[Progress], None]


def run(job: JobSpec, *, progress: ProgressCallback | None = None) -> RunSummary:
    """Runs the job, or what is left of it. Ends complete or not, never with a row lost or doubled.

    Raises what `prepare` and `check_start` raise for a job that cannot start, and `StorageError` where the output's
    bookkeeping cannot be read or written.
    """
    started = time.monotonic()
    prepared = prepare(job)
    job, output, plan = prepared.job, prepared.output, prepared.plan
    start = check_start(prepared, output.read_records())
    kept, dropped, todo = start.kept, start.dropped, start.todo
    fingerprint = open_run(output, prepared.facts, prepared.stored)
    bad = [str(b) for b in plan.bad]
    before = output.read_json(METRICS_FILE)
    done_before = before and before["complete"] and output.is_finished()
    if before and done_before and not todo and not dropped and _passes(job, bad):
        return summarise(output, before, model_calls=0, complete=True, failures=bad)

    output.reopen()
    output.forget_lost()
    kept = split_out(output, kept, dropped, prepared.schema)
    apart = [record for record in dropped if record.is_merged]  # whose file is gone from here on
    work = _work(prepared, fingerprint, todo, kept, started, progress)
    # The store's word counts, not Ray's: somebody else may have committed too, or a receipt may be lost.
    known = marks(output.read_json(RUN))
    if fingerprint not in known:
        raise StorageError(f"{output.uri}: another job has begun this output meanwhile")
    kept, dropped = select(_records(output, known, [*kept, *work.committed]), plan.files)
    dropped = [*apart, *dropped]
    left = remaining(plan.units, kept)
    complete = _passes(job, bad) and _all_done(job, left, work.given_up)
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
    facts = write_metrics(output, kept, rows_committed(plan.units, kept, left), done, complete)
    failures = [*bad, *_failures(left, work)]
    if complete:
        planned = [file.as_dict() for file in planned_files(plan, left)]
        notes = {"fingerprint": fingerprint, "skipped": failures, "limit": job.limit, "plan": planned}
        output.finish(kept, dropped, notes)
    return summarise(
        output,
        facts,
        model_calls=sum(record.metrics.decode.model_calls for record in work.fresh),
        complete=complete,
        failures=failures,
        rows_dropped=lost_rows(dropped, plan.files),
        unloadable=_unloadable(work),
    )


def _records(output: OutputFolder, known: Collection[str], read: Iterable[UnitRecord]) -> list[UnitRecord]:
    """Committed units with a fingerprint among the `known`; those already `read` are not read again."""
    return [record for record in output.read_records(read) if record.fingerprint in known]


def _failures(left: list[Unit], work: Work) -> list[str]:
    """What stands against the run, apart from bad files, one line each."""
    lines = by_file(work.given_up)
    if left and (work.stopped or not work.given_up):
        why = "the budget was spent" if work.stopped else "they are not committed, although nothing failed"
        lines.append(f"{sum(u.rows for u in left)} rows in {len(left)} units are left: {why}")
    return lines


def _unloadable(work: Work) -> str:
    """Why nothing can be decoded here, where that is the only thing that failed."""
    failures = list(work.given_up.values())
    return failures[0].reason if failures and all(f.kind is FailureKind.LOAD for f in failures) else ""


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
            folder=prepared.form.folder(unit.file.uri),
        )
        if receipt.record is not None:
            work.committed.append(receipt.record)
    rows = [u for u in todo if u.rows]
    if rows:
        from pipeline.drive import drive  # Ray takes seconds to import, and a finished job needs none

        drive(prepared, fingerprint, rows, kept, started, progress, work)
    return work
