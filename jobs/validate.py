"""`hpd validate`: is this a job? Checks what `hpd extract` refuses at its start, without weights, torch or Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from hpd_core import recipe
from hpd_core.rows import RowStatus
from hpd_core.schema import Document
from jobs.console import Exit, command, output, run_alone, say
from jobs.described import described
from jobs.options import AsJson, ConfigFile, Inputs, Limit, OutputFolder, Overrides
from pipeline.block import explain
from pipeline.closed_lists import has_lists, load_and_check
from pipeline.job import JobError, JobSpec, RowFault
from pipeline.partitions import with_partitions
from pipeline.prepare import Prepared, Start
from pipeline.reader import CatalogReader
from pipeline.schema import conform
from pipeline.storage import explained

#: Rows whose texts are built, to see what the template makes of real data, and the places that they are taken from:
#: catalogs are sorted, and what the first rows lack the others may have.
PROBE_ROWS, PROBE_PLACES = 200, 5
#: Characters of the first text that are shown, and reasons of rows in error that people are told.
SHOWN, REASONS = 2000, 3

T = TypeVar("T")


@command
def validate(
    config: ConfigFile,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Check a job without running it: configuration, schemas, model, input, output, pool, and the texts of some rows.

    Writes nothing. What needs Ray, the weights or a write to an object store is not checked; the tokenizer is loaded
    only where decode.closed_values is listed and there are lists. Exit codes: 0 can run,
    2 cannot; every reason names the file, key or column. Also 2: an input file that cannot be read, unless
    run.on_bad_file is skip, and no text in any of the rows that were looked at. 4: a store did not answer.
    """
    with output(json_) as out:
        asked = described(config, set_, inputs=input, output=output_folder, limit=limit)
        prepared, job = asked.prepared, asked.job
        _check_lists(job)
        items = list(probe(prepared))
        facts = describe(prepared, asked.start, items)
        out.finish(facts)
        for line in shown(facts):
            out.console.print(line, highlight=False, markup=False, soft_wrap=True)
    asked.say_files()
    if items and not any(isinstance(item, Document) for item in items):
        (reason, count), *_ = reasons(items).items()
        say(f"error: none of the {len(items)} rows that were looked at can be used; of {count} the reason is: {reason}")
        if isinstance(job.reader, CatalogReader) and job.reader.schemas:
            say(f"categories that have a schema: {', '.join(map(repr, job.reader.schemas))}")
        raise typer.Exit(Exit.INPUT)
    in_error = sum(isinstance(item, RowFault) for item in items)
    if not asked.settings.limits.allow(in_error, len(items)):
        limit_ = f"beyond limits.max_error_rate ({asked.settings.limits.max_error_rate:g}) extract exits with 3"
        say(f"warning: {in_error} of the {len(items)} rows that were looked at end in error; {limit_}")
    asked.end()


def _check_lists(job: JobSpec) -> None:
    """Whether the values of closed lists can be written, where nothing else may be: the one thing that a tokenizer is
    loaded for. Raises `JobError`."""
    if not has_lists(job):
        return
    try:
        load_and_check(job.decoder, job.schemas)
    except JobError:
        raise
    except Exception as e:  # the model may be where the job is to run, and only there
        say(f"note: nobody has looked whether the closed lists fit decode.max_value_tokens: {explain(e)}")


def probe(prepared: Prepared) -> Iterator[Document | RowFault]:
    """What the reader makes of some rows, under the schema that all files share: the first of row groups that lie
    evenly over the input."""
    plan, source = prepared.plan, prepared.source
    files = spread(list(dict.fromkeys(unit.file for unit in plan.units if unit.rows)), PROBE_PLACES)
    for uri in (file.uri for file in files):
        with explained(uri), source.open(uri) as file, pq.ParquetFile(file) as parquet:
            groups = [g for g in range(parquet.num_row_groups) if parquet.metadata.row_group(g).num_rows]
            groups = spread(groups, PROBE_PLACES // len(files))
            for group in groups:
                rows = min(PROBE_ROWS // (len(files) * len(groups)), plan.rows)
                batch = next(parquet.iter_batches(batch_size=rows, row_groups=[group]))
                table = with_partitions(pa.Table.from_batches([batch]), uri)
                yield from prepared.job.reader.documents(conform(table, plan.schema))


def spread(items: list[T], most: int) -> list[T]:
    """At most so many of the `items`, evenly, the first among them."""
    return items[:: -(-len(items) // most)] if items else []


def reasons(items: Sequence[Document | RowFault]) -> dict[str, int]:
    """{why rows are not asked: how many}, the most frequent first."""
    return dict(Counter(item.reason for item in items if isinstance(item, RowFault)).most_common())


def describe(prepared: Prepared, start: Start, items: Sequence[Document | RowFault]) -> dict[str, Any]:
    """JSON-able facts about a checked job."""
    job, plan = prepared.job, prepared.plan
    notice = recipe.notice_of(job.decoder.model)
    texts = [item.text for item in items if isinstance(item, Document)]
    errors = [item for item in items if isinstance(item, RowFault) and item.status is RowStatus.ERROR]
    return {
        "files": len(plan.files),
        "bad_files": [str(file) for file in plan.bad],
        "rows": plan.rows,
        "units": len(plan.units),
        "rows_left": sum(unit.rows for unit in start.todo),
        "input_columns": list(plan.schema.names),
        "attribute_columns": list(job.attributes()),
        "schemas": {schema.name: len(schema) for schema in job.schemas},
        "model": job.decoder.model.name,
        **({"notice": notice} if notice else {}),
        "output": prepared.output.uri,
        "probed_rows": len(items),
        "probed_without_text": len(items) - len(texts) - len(errors),
        "probed_errors": reasons(errors),
        "first_text": shortened(texts[0]) if texts else None,
        "first_text_characters": len(texts[0]) if texts else None,
    }


def shortened(text: str) -> str:
    """The beginning of a text; of one that is cut, how long it is."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… [cut here, {len(text):,} characters in all]"


def shown(facts: dict[str, Any]) -> Iterator[str]:
    """The facts for people."""
    done = facts["rows"] - facts["rows_left"]
    begun = f", {done:,} of them committed already: extract goes on" if done else ""
    errors = [f"{count:,} in error ({reason})" for reason, count in facts["probed_errors"].items()][:REASONS]
    more = len(facts["probed_errors"]) - len(errors)
    errors += [f"and {more:,} more reasons"] if more else []
    without = [f"{facts['probed_without_text']:,} without text"] if facts["probed_without_text"] else []
    usable = facts["probed_rows"] - facts["probed_without_text"] - sum(facts["probed_errors"].values())
    yield f"input           {facts['rows']:,} row(s) in {facts['files']:,} file(s), {facts['units']:,} unit(s){begun}"
    yield f"input columns   {', '.join(facts['input_columns'])}"
    yield f"output          {facts['output']}"
    yield f"new columns     {', '.join(facts['attribute_columns'])}"
    yield f"schemas         {', '.join(f'{name} ({count} attributes)' for name, count in facts['schemas'].items())}"
    yield f"model           {facts['model']}"
    if "notice" in facts:
        yield f"notice          {facts['notice']}"
    yield f"rows looked at  {facts['probed_rows']:,}: {', '.join([f'{usable:,} with text', *without, *errors])}"
    if facts["first_text"] is not None:
        yield f"the first text that the model would read:\n\n{facts['first_text']}"


if __name__ == "__main__":
    run_alone(validate)
