"""A job checked against its input and its output, before anything is written or started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.output import OutputColumns, output_schema
from pipeline.plan import Plan, check_names, make_plan
from pipeline.resume import RUN, job_facts, resolve
from pipeline.storage import Storage


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that was checked against its input and its output, with nothing written yet.

    job: without `auto`. schema: of every output file. stored: run.json of an earlier run.
    """

    job: JobSpec
    source: Storage
    output: OutputFolder
    plan: Plan
    columns: OutputColumns
    schema: pa.Schema
    facts: dict[str, Any]
    stored: dict[str, Any] | None


def prepare(job: JobSpec) -> Prepared:
    """Plans the job and checks names, columns and schema, without model, Ray or a write. Raises `JobError`."""
    source, storage = Storage(job.input_storage), Storage(job.output_storage)
    output = OutputFolder(storage.absolute(job.output), storage)
    for uri in job.inputs:
        if f"{output.uri}/".startswith(source.absolute(uri).rstrip("/") + "/"):
            raise JobError(f"the output {output.uri} lies inside the input {uri}: a rerun would read its own output")
    stored = output.read_json(RUN)
    job, resolved = resolve(job, stored)
    plan = make_plan(job.inputs, source, job.units, job.limit)
    try:
        job.reader.check(plan.schema)
    except ValueError as e:
        raise JobError(str(e)) from e
    columns = OutputColumns(job.attributes(), {s.name: s for s in job.schemas}, job.output_options)
    schema = output_schema(plan.schema, columns)
    check_names(plan.schema.names, job.output_options.columns, columns.described())
    return Prepared(job, source, output, plan, columns, schema, job_facts(job, resolved), stored)
