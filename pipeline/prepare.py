"""A job checked against its input and its output, before anything is written or started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import pyarrow as pa

from pipeline.fit import check_machine
from pipeline.form import StoredForm, stored_form
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.output import OutputColumns, check_names, output_schema
from pipeline.plan import Plan, make_plan
from pipeline.record import UnitRecord
from pipeline.resume import RUN, check_run, job_facts, lost_rows, marks, remaining, resolve, run_facts, select
from pipeline.storage import Storage
from pipeline.units import Unit


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that was checked against its input and its output, with nothing written yet.

    job: without `auto`. form: how rows are stored. facts: what run.json is to say. stored: what it says, where an
    earlier run has committed something; a start that committed nothing binds nobody.
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


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins. kept, dropped: committed units that stay and that go. todo: planned rows that are left."""

    kept: list[UnitRecord]
    dropped: list[UnitRecord]
    todo: list[Unit]


def prepare(job: JobSpec) -> Prepared:
    """Plans the job and checks names, columns and schema, without model, Ray or a write. Raises `JobError`."""
    source, storage = Storage(job.input_storage), Storage(job.output_storage)
    output = OutputFolder(storage.absolute(job.output), storage)
    place = storage.real(job.output).rstrip("/") + "/"
    for uri in job.inputs:
        if place.startswith(source.real(uri).rstrip("/") + "/"):
            raise JobError(f"the output {output.uri} lies inside the input {uri}: a rerun would read its own output")
        if "**" in uri and fnmatch(f"{place}data/x.parquet", source.real(uri)):
            raise JobError(f"the input {uri} finds what is written to the output {output.uri}: take another output")
    _refuse_inside(place, job.inputs, source)
    stored = _stored(output)
    job, resolved = resolve(job, stored)
    plan = make_plan(job.inputs, source, job.units, job.limit)
    _refuse_inside(place, [file.uri for file in plan.files], source)
    try:
        job.reader.check(plan.schema)
    except ValueError as e:
        raise JobError(str(e)) from e
    columns = OutputColumns(job.attributes(), {s.name: s for s in job.schemas}, job.output_options)
    decoded = output_schema(plan.schema, columns)
    check_names(plan.schema.names, job.output_options.columns, columns.described())
    form = stored_form(decoded, job.output_options, plan.files)
    _check_attributes(form, columns)
    inputs = list(dict.fromkeys(source.absolute(uri) for uri in job.inputs))
    facts = run_facts(job, job_facts(job, resolved), inputs, form.schema, form.sources)
    return Prepared(job, source, output, plan, columns, form, facts, stored)


def check_start(prepared: Prepared, records: Iterable[UnitRecord]) -> Start:
    """What there is to do, the `records` of the output being committed already.

    Raises `JobError`, `StorageError`, SettingsError or ModelNotFoundError where nothing may or can be done: an output
    of another job, one that cannot be written, a machine that is too small or has no place for the model. Changes
    nothing.
    """
    job, output, plan = prepared.job, prepared.output, prepared.plan
    known = marks(prepared.facts) | marks(prepared.stored)
    kept, dropped = select((r for r in records if r.fingerprint in known), plan.files)
    todo = remaining(plan.units, kept)
    if prepared.stored is not None:
        lost = lost_rows(dropped, plan.files)
        check_run(output.uri, prepared.facts, prepared.stored, lost=lost, allow_mixed=job.allow_mixed)
    if any(unit.rows for unit in todo):
        check_machine(job)
    if todo:
        output.check_writable()
    return Start(kept, dropped, todo)


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
