"""Streams units in rounds until none is left, and keeps people informed. Needs Ray: imported where there is work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.actor import DecodeStage
from pipeline.block import Failure, FailureKind
from pipeline.commit import CommitStage, Receipt
from pipeline.events import Progress
from pipeline.exports import DriverExports
from pipeline.folding import Folding
from pipeline.job import JobSpec
from pipeline.ledger import Attempt, suspects, wasted
from pipeline.prepare import Prepared
from pipeline.record import UnitRecord
from pipeline.reporter import Reporter
from pipeline.resume import revision_of
from pipeline.rounds import Rounds, Work
from pipeline.stream import Stages, read_ledger, read_pulse, receipts, resources, start_ledger
from pipeline.tokenize import TokenizeStage
from pipeline.units import Unit
from pipeline.watch import LoadsDiedError, StreamEndedError, Watch


def stages(prepared: Prepared, fingerprint: str) -> Stages:
    job, reads = prepared.job, prepared.reads
    return Stages(
        source=prepared.source,
        columns=None if reads is prepared.plan.schema else tuple(reads.names),
        tokenize=TokenizeStage(
            schema=reads,
            reader=job.reader,
            decoder=job.decoder,
            factory=job.encoder_factory,
            keep=job.output_options.columns,
        ),
        decode=DecodeStage(
            decoder=job.decoder,
            columns=prepared.columns,
            device=job.pool.model_device,
            threads=job.pool.threads,
            pack_documents=job.pack_documents,
            deadline_seconds=job.pack_deadline_seconds,
            revision=revision_of(prepared.facts["facts"]),
            price_per_hour=job.price_per_hour / job.pool.max_size,
            factory=job.decoder_factory,
        ),
        commit=CommitStage(prepared.output, prepared.form, fingerprint),
        pool=job.pool,
    )


def drive(
    prepared: Prepared,
    fingerprint: str,
    units: Sequence[Unit],
    kept: Sequence[UnitRecord],
    started: float,
    progress: Callable[[Progress], None] | None,
    work: Work,
) -> None:
    """Commits what can be committed of `units` (all with rows) on the Ray that runs, and writes what happened into
    `work`.

    kept: what earlier runs committed, whose manifests may be left to fold. started: `time.monotonic()` of the run.
    """
    job = prepared.job
    rounds = Rounds(list(units), job.max_rounds)
    exports = DriverExports(job.price_per_hour)
    report = Reporter(prepared.plan.units, units, exports, progress, started=started, price_per_hour=job.price_per_hour)
    report.running()
    folding = Folding(prepared.output, [*kept, *work.committed])
    begun_at, ledger = time.monotonic(), start_ledger()
    watch = Watch(
        job.pool,
        job.pack_deadline_seconds,
        spent=lambda: _spent(job, started),
        ask=lambda: read_pulse(ledger, job.pack_deadline_seconds),
        resources=resources,
        tell=report.waiting,
    )
    made = stages(prepared, fingerprint)
    while rounds.waiting and not watch.spent():
        ended = {r.unit: r for r in _round(rounds.waiting, made, ledger, report, folding, watch)}
        attempts = read_ledger(ledger)
        work.stalled = watch.stalled
        work.stopped = bool(work.stalled) or (watch.spent() and len(ended) < len(rounds.waiting))
        for unit in [u for u in rounds.waiting if u not in ended and not work.stopped]:
            lost = _lost_receipt(prepared, unit, fingerprint, attempts)
            if lost is not None:
                ended[unit] = lost
                report.take(lost)
            else:
                report.failed(unit)
        committed = {unit: r.record for unit, r in ended.items() if r.record is not None}
        failures = {unit: r.failure for unit, r in ended.items() if r.failure is not None}
        work.committed += committed.values()
        work.fresh += [record for unit, record in committed.items() if ended[unit].fresh]
        work.waste = None if attempts is None else wasted(attempts)
        exports.wasted(work.waste)
        work.rounds += 1
        if work.stopped:
            break  # a unit without a receipt was not tried, which is no reason to cut it
        rounds.after(committed, failures, None if attempts is None else set(attempts), suspects(attempts or {}))
        report.next_round(rounds.waiting, failures, rounds.given_up)
    work.stopped = work.stopped or bool(rounds.waiting)
    work.seconds = time.monotonic() - begun_at
    work.given_up = rounds.given_up


def _round(
    waiting: Sequence[Unit], made: Stages, ledger: object, report: Reporter, folding: Folding, watch: Watch
) -> Iterator[Receipt]:
    """Receipts of one round, until `watch` ends it or the model cannot be loaded, which each unit would try."""
    left = set(waiting)
    watch.heard()
    try:
        for receipt in receipts(waiting, made, ledger, watch.look):
            watch.heard()
            left.discard(receipt.unit)
            report.take(receipt)
            folding.add(receipt.record)
            yield receipt
            unloadable = receipt.failure is not None and receipt.failure.kind is FailureKind.LOAD
            if unloadable or watch.spent():
                return
    except LoadsDiedError as e:
        for unit in [unit for unit in waiting if unit in left][:1]:
            receipt = Receipt(unit, failure=Failure(FailureKind.LOAD, str(e)))
            report.take(receipt)
            yield receipt
    except StreamEndedError:
        return


def _lost_receipt(
    prepared: Prepared, unit: Unit, fingerprint: str, attempts: Mapping[str, Mapping[str, Attempt]] | None
) -> Receipt | None:
    """The receipt of a unit that was committed by a worker that died before it could say so: one of this run, where
    its ledger knows that the unit was decoded, else another driver's."""
    record = prepared.output.read_record(unit.object_name(fingerprint))
    ours = any(attempt.finished for attempt in (attempts or {}).get(unit.name, {}).values())
    if record is None or record.unit.key != unit.key:  # another's of the same name: `commit` says so at the next try
        return None
    return Receipt(unit, record, fresh=ours)


def _spent(job: JobSpec, started: float) -> bool:
    return job.budget_seconds is not None and time.monotonic() - started >= job.budget_seconds
