"""What there is to do, decided before anything runs: input files, one schema, units in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.passing import is_passing
from pipeline.block import explain
from pipeline.job import JobError, UnitCaps
from pipeline.listing import check_distinct
from pipeline.partitions import contradicted, partitioned
from pipeline.schema import plain, unify
from pipeline.storage import Storage, StoreUnavailableError, explained
from pipeline.units import InputFile, RowGroup, Unit, cut, first_rows

_FOOTER_THREADS = 16
#: A plan is made without so many files at most whose store does not answer: where there are more, it answers nobody.
_UNREACHED = 16


@dataclass(frozen=True, slots=True)
class Footer:
    """What planning needs of a Parquet file. schema: with the columns that its path adds. contradicted: folders on its
    path that it is known to contradict, see `partitions.contradicted`."""

    file: InputFile
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]
    contradicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BadFile:
    """An input that cannot be read as Parquet, or whose store did not answer, and why."""

    file: InputFile
    reason: str

    def __str__(self) -> str:
        return f"{self.file.uri}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """files: everything listed, also what is bad or what a limit or a sample leaves without units.

    drawn_from: number of units that the `units` are a random sample of; None where they are no sample.
    unreached: files of which nothing is known, since their store did not answer: there are no units of them here.
    is_uniform: whether all files that could be read have the same columns.
    contradicted: (URI, key) of folders that a file is known to contradict.
    """

    files: tuple[InputFile, ...]
    units: tuple[Unit, ...]
    schema: pa.Schema
    bad: tuple[BadFile, ...]
    drawn_from: int | None = None
    unreached: tuple[BadFile, ...] = ()
    is_uniform: bool = True
    contradicted: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """What a plan asks of one input file, as the job manifest keeps it.

    rows: rows [0, rows) are planned; None where none are, since the file cannot be read or a limit ends before it.
    skipped: row ranges of them that could not be read, in a job that may skip such.
    undrawn: row ranges of them that a random sample of units left out.
    """

    file: InputFile
    rows: int | None
    skipped: tuple[tuple[int, int], ...] = ()
    undrawn: tuple[tuple[int, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        facts = {**asdict(self.file), "rows": self.rows}
        ranges = {"skipped": self.skipped, "undrawn": self.undrawn}
        return facts | {name: [list(r) for r in found] for name, found in ranges.items() if found}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> PlannedFile:
        file = InputFile(facts["uri"], facts["size"], facts["version"])
        skipped, undrawn = (
            tuple((start, stop) for start, stop in facts.get(name, ())) for name in ("skipped", "undrawn")
        )
        return cls(file, facts["rows"], skipped, undrawn)


def planned_files(plan: Plan, left: Sequence[Unit]) -> list[PlannedFile]:
    """What the `plan` asks of each file. left: units of it that are not committed."""
    planned: dict[InputFile, list[tuple[int, int]]] = {}
    for unit in plan.units:
        planned.setdefault(unit.file, [(0, 0)]).append((unit.start, unit.stop))
    rows = {file: max(stop for _, stop in ranges) for file, ranges in planned.items()}
    undrawn = {
        file: tuple((a[1], b[0]) for a, b in pairwise(sorted(ranges)) if a[1] < b[0])
        for file, ranges in planned.items()
    }
    skipped: dict[InputFile, list[tuple[int, int]]] = {}
    for unit in left:
        skipped.setdefault(unit.file, []).append((unit.start, unit.stop))
    return [
        PlannedFile(file, rows.get(file), tuple(sorted(skipped.get(file, ()))), undrawn.get(file, ()))
        for file in plan.files
    ]


def sampled(plan: Plan, count: int, seed: int) -> Plan:
    """The plan with `count` of its units that have rows, drawn at random over all files, in its order; all of them
    where it has no more. What a larger count draws with the same seed holds all that a smaller one draws.

    A unit's lot is its own: a file that comes or goes changes the draw by its own units alone.
    """
    units = [unit for unit in plan.units if unit.rows]
    lots = {unit: hashlib.sha256(f"{seed} {unit.key}".encode()).digest() for unit in units}
    chosen = set(sorted(units, key=lots.__getitem__)[:count])
    return replace(plan, units=tuple(unit for unit in units if unit in chosen), drawn_from=len(units))


def make_plan(
    inputs: Sequence[str], storage: Storage, caps: UnitCaps, limit: int | None, *, partial: bool = False
) -> Plan:
    """Lists the inputs, reads every footer, unifies the schemas and cuts the files into units.

    Files come in the order of `inputs`, within one input by URI; one that two inputs name is taken once. Raises
    `JobError` for an input that is not there, for links to files of the input (see `listing.check_distinct`), for
    schemas without a common type, and where no file can be read;
    `StoreUnavailableError` where a store does not answer. With `partial` a few files that cannot be reached are left
    for later: it is for the caller to judge whether the schema could be another one with them.
    """
    files = list({file.uri: file for uri in inputs for file in storage.find(uri)}.values())
    check_distinct(files)
    results, unreached = _reachable(files, storage, _UNREACHED if partial else 0)
    bad = tuple(r for r in results if isinstance(r, BadFile))
    footers = [r for r in results if isinstance(r, Footer)]
    if not footers and unreached:
        raise StoreUnavailableError(str(unreached[0]))
    if not footers:
        raise JobError("no input file can be read: " + "; ".join(str(b) for b in bad[:5]))
    units = [
        unit
        for footer in footers
        for unit in cut(footer.file, footer.row_groups, max_rows=caps.max_rows, max_bytes=caps.bytes)
    ]
    schema = unify((f.file.uri, f.schema) for f in footers)
    is_uniform = all(f.schema.equals(footers[0].schema) for f in footers)
    return Plan(
        tuple(files),
        tuple(first_rows(units, limit)),
        schema,
        bad,
        unreached=tuple(unreached),
        is_uniform=is_uniform,
        contradicted=tuple((f.file.uri, key) for f in footers for key in f.contradicted),
    )


def _reachable(files: Iterable[InputFile], storage: Storage, most: int) -> tuple[list[Footer | BadFile], list[BadFile]]:
    """(footers and bad files in order, at most so many files that could not be reached)."""

    def attempt(file: InputFile) -> tuple[InputFile, Footer | BadFile | StoreUnavailableError]:
        try:
            return file, read_footer(file, storage)
        except StoreUnavailableError as e:
            return file, e

    found: list[Footer | BadFile] = []
    unreached: list[BadFile] = []
    with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
        for file, result in threads.map(attempt, files):
            if not isinstance(result, StoreUnavailableError):
                found.append(result)
                continue
            unreached.append(BadFile(file, str(result).removeprefix(f"{file.uri}: ")))
            if len(unreached) > most:
                raise result
    return found, unreached


def read_footers(files: Iterable[InputFile], storage: Storage) -> list[Footer | BadFile]:
    """`read_footer` of many files at once, in their order."""
    with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
        return list(threads.map(lambda file: read_footer(file, storage), files))


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
            return Footer(
                file,
                partitioned(schema, file.uri),
                tuple(RowGroup(g.num_rows, g.total_byte_size) for g in groups),
                contradicted(metadata, schema, file.uri),
            )
    except Exception as e:
        if is_passing(e):
            with explained(file.uri):
                raise
        # Any other failure of one file is that file's; the others go on.
        return BadFile(file, explain(e))
