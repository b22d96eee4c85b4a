"""How an extraction ended, for people (tables) and for programs (one JSON object)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.form import as_decoded
from pipeline.job import JobSpec
from pipeline.manifest import OutputFolder
from pipeline.reader import CatalogReader
from pipeline.resume import RUN
from pipeline.storage import Storage
from pipeline.summary import RunSummary

FIRST_ROWS = 8
_TEXT_WIDTH = 44


def summary_facts(summary: RunSummary) -> dict[str, Any]:
    """The object that `hpd extract --json` ends with; `values` is the sum, `values_per_attribute` its parts."""
    facts = summary.as_dict()
    return facts | {"values": sum(summary.values.values()), "values_per_attribute": dict(summary.values)}


def print_summary(summary: RunSummary, job: JobSpec, console: Console) -> None:
    """The figures of a run, the values found per attribute, and the first rows of its output."""
    rows = first_rows(summary.output, job, FIRST_ROWS)
    if rows:
        console.print(row_table(rows, job))
    console.print(value_table(summary.values))
    console.print(figures(summary, job.price_per_hour))


def figures(summary: RunSummary, price_per_hour: float) -> Table:
    title = "complete" if summary.complete else "INCOMPLETE"
    if summary.complete and not summary.model_calls:
        title = "complete: nothing was left to do (speed, cost and seconds are of the run that did it)"
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    price = (
        f"at {price_per_hour:.2f} dollars an hour, an assumption to set under `price`"
        if price_per_hour
        else "no price is set"
    )
    dropped = f"{summary.rows_dropped:,} of inputs that are gone or changed" if summary.rows_dropped else ""
    for name, value in (
        ("rows in", f"{summary.rows_in:,} = {summary.rows_ok:,} ok + {summary.rows_error:,} in error"),
        ("rows dropped", dropped),
        ("values found", f"{sum(summary.values.values()):,}{_not_found(summary)}"),
        ("documents per second", f"{summary.docs_per_second:.2f}"),
        ("slots per step", f"{summary.slots_per_step:.1f}"),
        ("tokens per step", f"{summary.tokens_per_step:.1f}"),
        ("model calls of this run", f"{summary.model_calls:,}"),
        ("dollars per 1,000 products", f"{summary.dollars_per_1000:.4f} ({price})"),
        ("units, seconds", f"{summary.units:,} unit(s), {summary.seconds:.1f} s"),
        ("output", summary.output),
    ):
        if value:
            table.add_row(name, Text(value))
    return table


def _not_found(summary: RunSummary) -> str:
    """What was answered and is null all the same: people look for it in the input."""
    decode = summary.metrics.get("decode", {})
    parts = [f"{decode[name]:,} {name}" for name in ("truncated", "invalid", "unsure") if decode.get(name)]
    return f", and {', '.join(parts)} (null; `output.statuses` and `output.raw` tell which)" if parts else ""


def value_table(values: Mapping[str, int]) -> Table:
    table = Table(title="values found per attribute column", title_justify="left")
    table.add_column("column")
    table.add_column("values", justify="right")
    for column, count in values.items():
        table.add_row(Text(column), f"{count:,}")
    return table


def row_table(rows: Sequence[Mapping[str, Any]], job: JobSpec) -> Table:
    """Each row's text as the template begins it, its status, and what was found."""
    names = {column: attribute.name for column, attribute in job.attributes().items()}
    table = Table(title=f"first {len(rows)} rows", title_justify="left")
    table.add_column("text", overflow="ellipsis", no_wrap=True, max_width=_TEXT_WIDTH)
    table.add_column("status", no_wrap=True)
    table.add_column("values", overflow="fold")
    for row in rows:
        found = [f"{name}: {_shown(row[column])}" for column, name in names.items() if row.get(column) is not None]
        found += [f"{name}: {value} (extra)" for name, value in row["hpd_extra"] or ()]
        table.add_row(
            Text(_headline(row, job)),  # a product's text may look like rich's markup
            str(row["hpd_status"]),
            Text("\n".join(found) or str(row["hpd_error"] or "")),
            end_section=True,
        )
    return table


def _shown(value: Any) -> str:
    """A value of an output column: a list with semicolons, a quantity with its unit."""
    if isinstance(value, list):
        return "; ".join(map(_shown, value))
    return f"{value['value']:g} {value['unit']}" if isinstance(value, dict) else str(value)


def first_rows(output: str, job: JobSpec, count: int) -> list[dict[str, Any]]:
    """The first rows, by name of the files that readers see: the columns that `row_table` shows, as the job names them.
    None where there is no such file. What Python cannot hold (no UTF-8, the year 20000) is shown as its reason."""
    folder = OutputFolder(output, Storage(job.output_storage))
    sources = (folder.read_json(RUN) or {}).get("output_sources", {})
    shown = dict.fromkeys([*_text_columns(job), *job.attributes(), "hpd_status", "hpd_error", "hpd_extra"])
    rows: list[dict[str, Any]] = []
    for name in sorted(folder.data_names()):
        if len(rows) >= count:
            break
        with folder.storage.open(folder.data(name)) as file, pq.ParquetFile(file) as parquet:
            stored = [column for column in parquet.schema_arrow.names if sources.get(column, column) in shown]
            batch = next(parquet.iter_batches(batch_size=count - len(rows), columns=stored), None)
        if batch is None:
            continue
        table = as_decoded(pa.Table.from_batches([batch]), name, sources, shown)
        names = [column for column in shown if column in table.column_names]
        for index in range(len(table)):
            rows.append(dict.fromkeys(shown) | {column: _held(table.column(column)[index]) for column in names})
    return rows


def _held(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return f"({error})"


def _headline(row: Mapping[str, Any], job: JobSpec) -> str:
    kept = next((row[column] for column in _text_columns(job) if row.get(column)), "")
    return " ".join(str(kept).split())


def _text_columns(job: JobSpec) -> Sequence[str]:
    return job.reader.template.columns if isinstance(job.reader, CatalogReader) else ()
