"""A job checked against its input and its output, before anything is written or started."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from hpd_core import sizing
from hpd_core.settings import DecodeSettings
from pipeline import globs
from pipeline.fit import check_machine
from pipeline.form import StoredForm, stored_form
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.output import OutputColumns, check_names, output_schema
from pipeline.plan import Plan, make_plan, sampled
from pipeline.published import published_files, read_published
from pipeline.record import UnitRecord
from pipeline.resume import (
    RUN,
    Resolved,
    check_run,
    job_facts,
    lost_rows,
    marks,
    output_schema_of,
    remaining,
    resolve,
    run_facts,
    select,
    settings_of,
)
from pipeline.storage import Storage, StorageError, StoreUnavailableError
from pipeline.units import Unit
from pipeline.uris import has_line_break, is_utf8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that was checked against its input and its output, with nothing written yet.

    job: without `auto`, decode settings apart that nobody has measured yet. form: how rows are stored. facts: what
    run.json is to say. stored: what it says, where an earlier run has committed something; a start that committed
    nothing binds nobody.
    """

    job: JobSpec
    source: Storage
    output: OutputFolder
    plan: Plan
    columns: OutputColumns
    form: StoredForm
    facts: dict[str, Any]
    stored: dict[str, Any] | None

    @property
    def schema(self) -> pa.Schema:
        """Of every data file."""
        return self.form.schema

    @property
    def reads(self) -> pa.Schema:
        """The input columns that rows are read with: all, or, where few are kept, those and what the text needs."""
        inputs, kept, looked_at = self.plan.schema, self.job.output_options.columns, self.job.reader.columns()
        if kept is None or not looked_at:
            return inputs
        return pa.schema([field for field in inputs if field.name in {*kept, *looked_at}])


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins. kept, dropped: committed units that stay and that go. todo: planned rows that are left."""

    kept: list[UnitRecord]
    dropped: list[UnitRecord]
    todo: list[Unit]


def prepare(job: JobSpec) -> Prepared:
    """Plans the job and checks names, columns and schema, without model, Ray or a write. Raises `JobError`, and
    `StorageError` for a store that refuses or does not answer."""
    source, storage = Storage(job.input_storage), Storage(job.output_storage)
    output = OutputFolder(storage.absolute(job.output), storage)
    if not is_utf8(output.uri) or has_line_break(output.uri):  # the lists of its files have one on a line
        raise JobError(f"output {output.uri!a}: a name with line breaks, or no UTF-8: take another")
    place = storage.real(job.output).rstrip("/") + "/"
    for uri in job.inputs:
        if place.startswith(source.real(uri).rstrip("/") + "/"):
            raise JobError(f"the output {output.uri} lies inside the input {uri}: a rerun would read its own output")
        if globs.is_pattern(uri) and globs.may_find(source.real(uri), place):
            raise JobError(f"the input {uri} finds what is written to the output {output.uri}: take another output")
    _refuse_inside(place, job.inputs, source)
    stored = _stored(output)
    job, resolved = resolve(job, stored)
    plan = make_plan(job.inputs, source, job.units, job.limit, partial=True)
    if job.sample_units is not None:
        plan = sampled(plan, job.sample_units, job.sample_seed)
    _refuse_inside(place, [file.uri for file in plan.files], source)
    try:
        job.reader.check(plan.schema)
    except ValueError as e:
        raise JobError(str(e)) from e
    columns = OutputColumns(job.attributes(), {s.name: s for s in job.schemas}, job.output_options)
    decoded = output_schema(plan.schema, columns)
    described = columns.described()
    check_names(plan.schema.names, job.output_options.columns, described)
    asked = {unit.file.uri for unit in plan.units}
    contradicted = [(uri, key) for uri, key in plan.contradicted if uri in asked]
    form = stored_form(decoded, job.output_options, plan.files, added=described, contradicted=contradicted)
    _check_attributes(form, columns)
    inputs = list(dict.fromkeys(source.absolute(uri) for uri in job.inputs))
    _check_partial(job, plan, form.schema, stored)
    facts = run_facts(job, job_facts(job, resolved), inputs, form.schema, form.sources)
    prepared = Prepared(job, source, output, plan, columns, form, facts, stored)
    return _as_before(prepared, stored or output.read_json(RUN))


def with_settings(prepared: Prepared, settings: DecodeSettings, measured: Mapping[str, Any] | None) -> Prepared:
    """`prepared` with numbers in place of `auto` decode settings, decided from what was `measured`."""
    job = replace(prepared.job, decoder=replace(prepared.job.decoder, settings=settings))
    facts = job_facts(job, Resolved(**prepared.facts["facts"]["resolved"]))
    run = run_facts(job, facts, prepared.facts["inputs"], prepared.schema, prepared.form.sources)
    return replace(prepared, job=job, facts=run | ({"measured": dict(measured)} if measured else {}))


def _as_before(prepared: Prepared, run: Mapping[str, Any] | None) -> Prepared:
    """`prepared` with the `auto` settings of an earlier start of the same job, and what they were decided from.

    Also of a start that has committed nothing yet: its workers may live, and what they commit is this job's too.
    """
    if run is None:
        return prepared
    settings = sizing.reused(prepared.job.decoder.settings, settings_of(run))
    same = with_settings(prepared, settings, run.get("measured"))
    return same if same.facts["fingerprint"] == run.get("fingerprint") else prepared


def check_start(prepared: Prepared, records: Collection[UnitRecord]) -> Start:
    """What there is to do, the `records` of the output being committed already.

    Raises `JobError`, `StorageError`, SettingsError or ModelNotFoundError where nothing may or can be done: an output
    of another job, one whose files a table points to and would lose, one whose data files are all gone, one that cannot
    be written, a machine that is too small or has no place for the model. Changes nothing.
    """
    job, output, plan = prepared.job, prepared.output, prepared.plan
    known = marks(prepared.facts) | marks(prepared.stored)
    kept, dropped = select((r for r in records if r.fingerprint in known), plan.files)
    todo = remaining(plan.units, kept)
    _check_published(output, dropped)
    if prepared.stored is not None and not records:
        _check_not_all_lost(prepared, known)
    if prepared.stored is not None:
        lost = lost_rows(dropped, plan.files)
        check_run(output.uri, prepared.facts, prepared.stored, lost=lost, allow_mixed=job.allow_mixed)
    if any(unit.rows for unit in todo):
        check_machine(job)
    if todo:
        output.check_writable()
    return Start(kept, dropped, todo)


def _check_published(output: OutputFolder, dropped: Iterable[UnitRecord]) -> None:
    """Raises `JobError` where a run would remove files that a table points to."""
    gone = {record.data for record in dropped}
    held = published_files(read_published(output)) if gone else {}
    if lost := sorted(gone & held.keys()):
        tables = " and ".join(dict.fromkeys(str(table) for name in lost for table in held[name]))
        raise JobError(
            f"{output.uri}: {len(lost)} of its data files would be removed, since their input has changed or is not "
            f"the job's any more, and the Iceberg table {tables} points to them, such as {output.data(lost[0])}. Take "
            "a new output, or let them go first by `hpd publish --withdraw`"
        )


def _check_not_all_lost(prepared: Prepared, known: Collection[str]) -> None:
    """Raises `StorageError` where units of the `known` fingerprints are committed, and no data file is there: a folder
    that is not mounted would have all of them forgotten and decoded again. One unit alone may be lost by itself."""
    output, current = prepared.output, set(prepared.plan.files)
    found: set[str] = set()
    for record in output.all_records():
        if record.fingerprint in known and record.unit.file in current:
            found.add(record.object)
        if len(found) > 1:
            raise StorageError(
                f"{output.path('data')}: none of the data files that {output.path('_manifest')} tells of is there. "
                f"Bring them back, or remove {output.uri} to have all of it decoded again"
            )


def is_current(prepared: Prepared) -> bool:
    """Whether nobody has begun, or begun anew, the output since."""
    return _stored(prepared.output) == prepared.stored


def _check_attributes(form: StoredForm, columns: OutputColumns) -> None:
    """Bookkeeping and `hpd verify` know the columns of attributes by the names that they are declared with."""
    wrong = next((c for c in columns.attributes if c not in form.schema.names), None)
    if wrong is not None:
        name, lowered = columns.attributes[wrong].name, wrong.lower()
        raise JobError(f"output.profile {form.profile}: set 'column' of the attribute {name!r} to {lowered!r}")


def _refuse_inside(place: str, uris: Iterable[str], source: Storage) -> None:
    """Finishing removes from the output what it did not write: an input may not lie there."""
    for uri in uris:
        if source.real(uri).startswith(place):
            raise JobError(f"the input {uri} lies inside the output {place}: take another output")


def _check_partial(job: JobSpec, plan: Plan, schema: pa.Schema, stored: dict[str, Any] | None) -> None:
    """Raises `StoreUnavailableError` where a plan without the files that could not be reached may go wrong: it would
    bind the output to other columns, or take other rows for the first ones."""
    if not plan.unreached:
        return
    reached = len(plan.files) - len(plan.unreached)
    if job.limit is not None:
        why = "with a limit, its rows may be the ones to take"
    elif job.sample_units is not None:
        why = "of a random sample, its units may be the ones to take"
    elif stored is not None and not schema.equals(output_schema_of(stored)):
        why = f"without it the {reached} other file(s) do not give the columns that the output was begun with"
    elif stored is None and not plan.is_uniform:
        why = f"the {reached} other file(s) differ in their columns: those of the output cannot be known without it"
    else:
        return
    raise StoreUnavailableError(f"{plan.unreached[0]} ({why})")


def _stored(output: OutputFolder) -> dict[str, Any] | None:
    """run.json of an earlier run that committed something. Raises `JobError` where data/ holds files and there is no
    run.json: they are somebody else's, and finishing would remove them."""
    stored = output.read_json(RUN)
    if stored is None:
        foreign = output.data_files()
        stored = output.read_json(RUN) if foreign else None  # who begins right now has written it before its first file
        if foreign and stored is None:
            raise JobError(
                f"the output {output.uri} has no {RUN}, but {len(foreign)} file(s) of somebody else, such as "
                f"{foreign[0]}: take another output"
            )
    return stored if stored is not None and output.is_begun() else None
