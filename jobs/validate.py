"""`hpd validate`: is this a job? Checks configuration, schema, input and output without a model, torch or Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from hpd_core.rows import RowStatus
from hpd_core.schema import Document
from hpd_core.source import check_present
from jobs.console import Exit, command, output, run_alone, say
from jobs.options import AsJson, ConfigFile, Inputs, Limit, OutputFolder, Overrides
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.job import RowFault
from pipeline.partitions import with_partitions
from pipeline.prepare import Prepared, prepare
from pipeline.schema import conform
from pipeline.storage import explained

#: Rows of the first file whose texts are built, to see what the template makes of real data.
PROBE_ROWS = 200


@command
def validate(
    config: ConfigFile,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Check a job without running it: configuration, schema, input columns, output names, first texts.

    Exit codes: 0 can run, 2 cannot; every reason names the file, key or column.
    """
    job = compose(load_config(config, set_ or ()), config, inputs=input or (), output=output_folder, limit=limit)
    check_present(job.decoder.model)
    with output(json_) as out:
        prepared = prepare(job)
        items = probe(prepared, PROBE_ROWS)
        facts = describe(prepared, items)
        out.finish(facts)
        for key, value in facts.items():
            out.console.print(f"{key}: {value}", highlight=False, markup=False, soft_wrap=True)
    for file in prepared.plan.bad:
        say(f"error: {file}")
    if prepared.plan.bad and job.on_bad_file == "fail":
        raise typer.Exit(Exit.INPUT)


def probe(prepared: Prepared, rows: int) -> list[Document | RowFault]:
    """What the reader makes of the first rows of the first file that has any, under the schema that all files share."""
    unit = next((unit for unit in prepared.plan.units if unit.rows), None)
    if unit is None:
        return []
    uri = unit.file.uri
    with explained(uri), prepared.source.open(uri) as file, pq.ParquetFile(file) as parquet:
        table = pa.Table.from_batches([next(parquet.iter_batches(batch_size=rows))])
    return list(prepared.job.reader.documents(conform(with_partitions(table, uri), prepared.plan.schema)))


def describe(prepared: Prepared, items: Sequence[Document | RowFault]) -> dict[str, Any]:
    """JSON-able facts about a checked job."""
    job, plan = prepared.job, prepared.plan
    documents = [item for item in items if isinstance(item, Document)]
    faults = [item for item in items if isinstance(item, RowFault)]
    return {
        "files": len(plan.files),
        "rows": plan.rows,
        "units": len(plan.units),
        "input_columns": list(plan.schema.names),
        "attribute_columns": list(job.attributes()),
        "schemas": {schema.name: len(schema) for schema in job.schemas},
        "model": job.decoder.model.name,
        "output": prepared.output.uri,
        "probed_rows": len(items),
        "probed_without_text": sum(fault.status is RowStatus.NO_TEXT for fault in faults),
        "probed_errors": sorted({fault.reason for fault in faults if fault.status is RowStatus.ERROR}),
        "first_text": documents[0].text if documents else None,
    }


if __name__ == "__main__":
    run_alone(validate)
