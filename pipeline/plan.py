"""What there is to do, decided before anything runs: input files, one schema, checked names, units in order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import s3
from pipeline.block import RESERVED_PREFIX, explain
from pipeline.job import JobError, UnitCaps
from pipeline.schema import plain, unify
from pipeline.storage import Storage, explained
from pipeline.units import InputFile, RowGroup, Unit, cut, first_rows

_FOOTER_THREADS = 16


@dataclass(frozen=True, slots=True)
class Footer:
    """What planning needs of a Parquet file."""

    file: InputFile
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class BadFile:
    """An input that cannot be read as Parquet, and why."""

    file: InputFile
    reason: str

    def __str__(self) -> str:
        return f"{self.file.uri}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """files: everything listed, also what is bad or what a limit leaves without units."""

    files: tuple[InputFile, ...]
    units: tuple[Unit, ...]
    schema: pa.Schema
    bad: tuple[BadFile, ...]

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)


def make_plan(inputs: Sequence[str], storage: Storage, caps: UnitCaps, limit: int | None) -> Plan:
    """Lists the inputs, reads every footer, unifies the schemas and cuts the files into units.

    Files come in the order of `inputs`, within one input by URI; one that two inputs name is taken once. Raises
    `JobError` for an input that is not there, for schemas without a common type, and where no file can be read;
    `StoreUnavailableError` where a store does not answer: a plan over some of the files might get another schema.
    """
    files = list({file.uri: file for uri in inputs for file in storage.find(uri)}.values())
    with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
        results = list(threads.map(lambda file: read_footer(file, storage), files))
    bad = tuple(r for r in results if isinstance(r, BadFile))
    footers = [r for r in results if isinstance(r, Footer)]
    if not footers:
        raise JobError("no input file can be read: " + "; ".join(str(b) for b in bad[:5]))
    units = [
        unit
        for footer in footers
        for unit in cut(footer.file, footer.row_groups, max_rows=caps.max_rows, max_bytes=caps.bytes)
    ]
    schema = unify((f.file.uri, f.schema) for f in footers)
    return Plan(tuple(files), tuple(first_rows(units, limit)), schema, bad)


def read_footer(file: InputFile, storage: Storage) -> Footer | BadFile:
    """The footer of one file, or what is wrong with it. Raises `StoreUnavailableError` where its store is at fault."""
    if not file.size:
        return BadFile(file, "the file has 0 bytes")
    try:
        with storage.open(file.uri) as f, pq.ParquetFile(f) as parquet:
            schema, metadata = parquet.schema_arrow, parquet.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            for field in schema:
                pa.nulls(0, field.type).cast(plain(field.type))  # a type that cannot be unpacked is found now
            return Footer(file, schema, tuple(RowGroup(g.num_rows, g.total_byte_size) for g in groups))
    except Exception as e:
        if s3.is_passing(e):
            with explained(file.uri):
                raise
        # Any other failure of one file is that file's; the others go on.
        return BadFile(file, explain(e))


def check_names(input_columns: Collection[str], kept: Collection[str] | None, output_columns: dict[str, str]) -> None:
    """Raises `JobError` where an output column (name -> what it is) has the name of a kept input column (None: all are
    kept), or an input column has a reserved one."""
    for name in input_columns:
        if name.startswith(RESERVED_PREFIX):
            raise JobError(f"input column {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved; rename it")
        if name in output_columns and (kept is None or name in kept):
            raise JobError(
                f"the input column {name!r} and {output_columns[name]} share the output column {name!r}: "
                "set another 'column' for the attribute, or leave the input column out of the output"
            )
