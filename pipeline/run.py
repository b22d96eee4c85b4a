"""The pipeline in one screen: plan, see what is done, take the lease, stream the rest in rounds, finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any

from hpd_core import sizing
from pipeline.block import Failure, FailureKind
from pipeline.changes import changes
from pipeline.closed_lists import check_where_it_runs
from pipeline.commit import commit
from pipeline.compact import split_out
from pipeline.events import Event, Progress
from pipeline.job import JobSpec
from pipeline.lease import Lease, held
from pipeline.manifest import JOB, OutputFolder
from pipeline.metrics import Metrics
from pipeline.plan import planned_files
from pipeline.prepare import Prepared, Start, check_start, is_current, prepare, with_settings
from pipeline.promise import rows_committed
from pipeline.record import Segment, UnitRecord, left_over
from pipeline.reporter import units_done
from pipeline.resume import RUN, lost_rows, marks, open_run, remaining, select
from pipeline.rounds import Work, by_file
from pipeline.storage import StorageError, StoreUnavailableError
from pipeline.summary import METRICS_FILE, RunSummary, RunWork, summarise, work_of, write_metrics
from pipeline.units import Unit

ProgressCallback = Callable[[Progress], None]


def run(
    job: JobSpec, *, progress: ProgressCallback | None = None, say: Callable[[str], None] = lambda _: None
) -> RunSummary:
    """Runs the job, or what is left of it. Ends complete or not, never with a row lost or doubled.

    say: is told what was measured for `auto` settings, and what was decided.
    Raises what `prepare` and `check_start` raise for a job that cannot start, `LeaseError` where another driver writes
    the output, and `StorageError` where the output's bookkeeping cannot be read or written.
    """
    started = time.monotonic()
    prepared = prepare(job)
    segments: dict[str, Segment] = {}  # which are large, and read once
    records = prepared.output.read_records(held=segments)
    start = check_start(prepared, records)
    if (summary := _finished(prepared, start)) is not None:
        return summary
    with held(prepared.output, _teller(prepared, start, started, progress)) as lease, ExitStack() as opened:
        # Another driver may have been here since.
        prepared = prepare(job) if lease.waited or not is_current(prepared) else prepared
        records = prepared.output.read_records(() if lease.waited else records, segments)
        start = check_start(prepared, records)
        if (summary := _finished(prepared, start)) is not None:
            return summary
        _start_ray(prepared.job, start.todo, opened)
        if any(unit.rows for unit in start.todo):
            check_where_it_runs(prepared.job)
        if prepared.job.decoder.settings.is_auto:
            prepared = _decided(prepared, start, say)
        elif job.decoder.settings.is_auto:
            say(f"as decided before: {sizing.shown(prepared.job.decoder.settings)}")
        return _go_on(prepared, start, lease, segments, started, progress)


def _finished(prepared: Prepared, start: Start) -> RunSummary | None:
    """The summary of an output to which nothing is to be added; None where there is something to do. Raises
    `StoreUnavailableError` where all that may be left to do lies in files that cannot be reached."""
    output, bad = prepared.output, [str(b) for b in prepared.plan.bad]
    if start.todo or start.dropped:
        return None
    for file in prepared.plan.unreached:
        raise StoreUnavailableError(str(file))
    if not _passes(prepared.job, bad):
        return None
    before = output.read_json(METRICS_FILE)
    if not before or not before["complete"] or not output.is_finished():
        return None
    if left_over(output.data_names(), start.kept):  # who reads every file of the folder finds its rows twice
        return None
    open_run(output, prepared.facts, prepared.stored)
    return summarise(output, before, model_calls=0, complete=True, failures=bad)


def _start_ray(job: JobSpec, todo: Iterable[Unit], opened: ExitStack) -> None:
    """Enters a Ray for the rows that are left to decode, where there are any: what does not fit it is refused before a
    finished output is reopened."""
    largest = max((unit.bytes for unit in todo if unit.rows), default=None)
    if largest is not None:
        from pipeline.stream import cluster  # Ray takes seconds to import, and a finished job needs none

        opened.enter_context(cluster(job.ray_address, job.num_cpus, job.pool, largest))


def _decided(prepared: Prepared, start: Start, say: Callable[[str], None]) -> Prepared:
    """`prepared` without `auto`, measured on the Ray of the work that follows; the defaults where there is no row to
    decode."""
    if not any(unit.rows for unit in start.todo):
        return with_settings(prepared, sizing.defaults(prepared.job.decoder.settings), None)
    from pipeline.measure import measured_settings  # brings Ray in

    return measured_settings(prepared, say)


def _go_on(
    prepared: Prepared,
    start: Start,
    lease: Lease,
    segments: dict[str, Segment],
    started: float,
    progress: ProgressCallback | None,
) -> RunSummary:
    """Does what is left and finishes, as long as the lease is ours. segments: of the output, that were read."""
    lease.confirm()  # measuring `auto` may have taken minutes
    job, output, plan = prepared.job, prepared.output, prepared.plan
    kept, dropped, todo = start.kept, start.dropped, start.todo
    fingerprint = open_run(output, prepared.facts, prepared.stored)
    bad = [str(b) for b in plan.bad]
    before = output.read_json(METRICS_FILE)
    output.reopen()
    output.forget_lost(segments)
    lease.confirm()
    kept = split_out(output, kept, dropped, prepared.schema)
    apart = [record for record in dropped if record.is_merged]  # whose file is gone from here on
    work = _work(prepared, fingerprint, todo, kept, started, _watched(lease, progress))
    lease.confirm()
    # The store's word counts, not Ray's: somebody else may have committed too, or a receipt may be lost.
    known = marks(output.read_json(RUN))
    if fingerprint not in known:
        raise StorageError(f"{output.uri}: another job has begun this output meanwhile")
    kept, dropped = select(_records(output, known, [*kept, *work.committed], segments), plan.files)
    dropped = [*apart, *dropped]
    left = remaining(plan.units, kept)
    complete = not plan.unreached and _passes(job, bad) and _all_done(job, left, work.given_up)
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
    failures = [*bad, *(f"{file.file.uri}: not reached: {file.reason}" for file in plan.unreached)]
    failures += _failures(left, work)
    if complete:
        planned = [file.as_dict() for file in planned_files(plan, left)]
        notes: dict[str, Any] = {"fingerprint": fingerprint, "skipped": failures, "limit": job.limit, "plan": planned}
        notes["changes"] = changes(output.read_json(JOB) or {}, plan.files, kept, dropped)
        if plan.drawn_from is not None:
            drawn = {"units": len(plan.units), "of": plan.drawn_from, "seed": job.sample_seed, "rows": plan.rows}
            notes["sample"] = drawn
        output.finish(kept, notes, lease.confirm)
    return summarise(
        output,
        facts,
        model_calls=sum(record.metrics.decode.model_calls for record in work.fresh),
        complete=complete,
        failures=failures,
        rows_dropped=lost_rows(dropped, plan.files),
        unloadable=_unloadable(work),
    )


def _teller(
    prepared: Prepared, start: Start, started: float, progress: ProgressCallback | None
) -> Callable[[str], None]:
    """Tells people what is waited for before anything runs."""
    plan = prepared.plan
    units = (units_done(plan.units, start.todo), len(plan.units))
    rows = (plan.rows - sum(unit.rows for unit in start.todo), plan.rows)

    def tell(text: str) -> None:
        if progress is not None:
            seconds = time.monotonic() - started
            progress(Progress(Event.WAITING, *units, *rows, 0, 0, seconds, 0.0, 0.0, 0, reason=text))

    return tell


def _watched(lease: Lease, progress: ProgressCallback | None) -> ProgressCallback:
    """`progress`, and a stop after the next unit where the lease is lost."""

    def show(state: Progress) -> None:
        lease.check()
        if progress is not None:
            progress(state)

    return show


def _records(
    output: OutputFolder, known: Collection[str], read: Iterable[UnitRecord], segments: dict[str, Segment]
) -> list[UnitRecord]:
    """Committed units with a fingerprint among the `known`; those already `read`, and segments, are not read again."""
    return [record for record in output.read_records(read, segments) if record.fingerprint in known]


def _failures(left: list[Unit], work: Work) -> list[str]:
    """What stands against the run, apart from bad files, one line each."""
    lines = by_file(work.given_up)
    if left and (work.stopped or not work.given_up):
        spent = "the budget was spent" if work.stopped else "they are not committed, although nothing failed"
        why = work.stalled or spent
        lines.append(f"{sum(u.rows for u in left)} rows in {len(left)} units are left: {why}")
    return lines


def _unloadable(work: Work) -> str:
    """Why nothing can be decoded here, where that is the only thing that failed."""
    failures = list(work.given_up.values())
    return failures[0].reason if failures and all(f.kind is FailureKind.LOAD for f in failures) else ""


def _passes(job: JobSpec, bad: list[str]) -> bool:
    return not bad or job.on_bad_file == "skip"


def _all_done(job: JobSpec, left: list[Unit], given_up: dict[Unit, Failure]) -> bool:
    """Whether nothing planned is uncommitted, apart from files that are bad where those may be skipped."""
    skipped = {u.key for u, f in given_up.items() if f.kind is FailureKind.FILE and job.on_bad_file == "skip"}
    return all(unit.key in skipped for unit in left)


def _work(
    prepared: Prepared,
    fingerprint: str,
    todo: list[Unit],
    kept: list[UnitRecord],
    started: float,
    progress: ProgressCallback | None,
) -> Work:
    """Commits what can be committed of `todo`. Ray runs where a row is left."""
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
        from pipeline.drive import drive  # brings Ray in

        drive(prepared, fingerprint, rows, kept, started, progress, work)
    return work
