"""The listed files of a finished output -> an Iceberg table, in one commit, once. Needs the extra `publish`.

The files stay where they are: Iceberg's metadata points to them. The snapshot says which output and which listing it
came from, so that a second run finds it and appends nothing. The output says which tables point to which of its files
(see pipeline.published), so that nobody merges or removes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hpd_core.passing import is_passing
from pipeline.block import explain
from pipeline.compact import DataFile, data_files, finished
from pipeline.job import JobError
from pipeline.lease import Lease, LeaseError, held
from pipeline.manifest import OutputFolder
from pipeline.published import forget_published, note_published, read_published
from pipeline.resume import output_schema_of
from pipeline.storage import StorageError, StoreUnavailableError

#: Properties of a snapshot: where its rows come from, the job's fingerprint, and the hash of the files listed.
OUTPUT, FINGERPRINT, LISTING = "hpd.output", "hpd.fingerprint", "hpd.listing"
EXTRA = "pip install 'hpd-catalog[publish]'"


@dataclass(frozen=True, slots=True)
class Publication:
    """What `publish` did. files, rows: appended, none where the table has them. created: the table is new."""

    table: str
    files: int
    rows: int
    created: bool
    snapshot: int | None


def publish(
    output: OutputFolder,
    catalog_name: str,
    table_name: str,
    *,
    properties: Mapping[str, str],
    create: bool,
    tell: Callable[[str], None] = lambda _: None,
) -> Publication:
    """Appends the data files that a finished output lists to an Iceberg table.

    catalog_name: of pyiceberg's configuration, `properties` laid over it. table_name: `namespace.table`. create: makes
    table and namespace where they are not there. tell: is told when another driver is waited for. Raises `JobError`
    where the extra, the output, the table or a column cannot be used, or where the table has files that the output does
    not list any more; `LeaseError` where a driver is at work on the output, which could remove files while they are
    published; `StorageError` where catalog or store fail.
    """
    _check_extra()
    finished(output)  # before a lease is written into the folder of somebody else
    with held(output, tell) as lease:
        return _publish(output, lease, catalog_name, table_name, properties, create)


def withdraw(
    output: OutputFolder,
    catalog_name: str,
    table_name: str,
    *,
    properties: Mapping[str, str],
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Lets the files of an output go that an Iceberg table does not point to any more, in none of its snapshots; how
    many they are. Raises what `publish` raises, and `JobError` where the table still points to some."""
    _check_extra()
    if not any((t.catalog, t.table) == (catalog_name, table_name) for t in read_published(output)):
        return 0  # and no lease is written into the folder of somebody else
    with held(output, tell) as lease, _explained(catalog_name, table_name):
        catalog = _catalog(catalog_name, properties)
        if catalog.table_exists(_checked_name(table_name)):
            left = _pointed(catalog.load_table(table_name), output)
            if left:
                raise JobError(
                    f"table {table_name} still points to {len(left)} file(s) of {output.uri}, such as {min(left)}: "
                    "drop it without purging it, or rewrite it and expire the snapshots that know them"
                )
        lease.confirm()
        return forget_published(output, catalog_name, table_name)


def _publish(
    output: OutputFolder,
    lease: Lease,
    catalog_name: str,
    table_name: str,
    properties: Mapping[str, str],
    create: bool,
) -> Publication:
    run, listing = finished(output)
    if run["facts"]["output"].get("layout") == "hive":
        raise JobError(
            f"{output.uri}: the columns of its folders (output.layout hive) are in no file, and Iceberg's add_files "
            "reads nothing else: extract with the layout flat"
        )
    schema = output_schema_of(run)
    files = {_address(output, file): file for file in data_files(output.listed(listing)) if file.rows}
    mark = _mark(files)
    _checked_name(table_name)
    with _explained(catalog_name, table_name):
        catalog = _catalog(catalog_name, properties)
        created = create and not catalog.table_exists(table_name)
        if created:
            _check_types(schema)
            catalog.create_namespace_if_not_exists(table_name.rpartition(".")[0])
            catalog.create_table(table_name, schema)
        table = catalog.load_table(table_name)
        missing = [] if _is_published(table, mark) else _missing(table, output, files, table_name)
        # Before the table points to them. What is published already may be so by a version that left no note.
        pointed = files.keys() if missing else files.keys() & _pointed(table, output)
        note_published(output, catalog_name, table_name, (files[uri].name for uri in pointed))
        if missing:
            facts = {OUTPUT: output.uri, FINGERPRINT: str(run["fingerprint"]), LISTING: mark}
            lease.confirm()
            table.add_files(missing, snapshot_properties=facts)
        snapshot = table.current_snapshot()
        rows = sum(files[uri].rows for uri in missing)
        return Publication(table_name, len(missing), rows, created, snapshot.snapshot_id if snapshot else None)


def _check_extra() -> None:
    try:
        import pyiceberg.catalog  # noqa: F401 (is it there?)
    except ImportError as e:
        raise JobError(f"publishing needs pyiceberg ({e}): {EXTRA}") from e


def _catalog(name: str, properties: Mapping[str, str]) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **properties)


def _checked_name(table: str) -> str:
    if table.count(".") < 1 or not all(table.split(".")):
        raise JobError(f"table {table!r}: must be written namespace.table")
    return table


@contextmanager
def _explained(catalog_name: str, table_name: str) -> Iterator[None]:
    """Turns what pyiceberg raises into errors that name table and catalog, and say whether they may pass."""
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchTableError,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
    )

    try:
        yield
    except (JobError, StorageError, LeaseError):
        raise
    except NoSuchTableError as e:
        raise JobError(f"table {table_name} is not in the catalog {catalog_name}: give --create to make it") from e
    except CommitFailedException as e:
        raise StoreUnavailableError(f"table {table_name}: somebody else wrote to it meanwhile: {explain(e)}") from e
    except Exception as e:
        text = f"table {table_name} of catalog {catalog_name}: {explain(e)}"
        if is_passing(e) or isinstance(e, ServerError | ServiceUnavailableError | TooManyRequestsError):
            raise StoreUnavailableError(text) from e
        if isinstance(e, ValueError | TypeError | NotImplementedError):
            raise JobError(text) from e
        raise StorageError(text) from e


def _address(output: OutputFolder, file: DataFile) -> str:
    uri = output.data(file.name)
    return uri if "://" in uri else f"file://{uri}"


def _mark(files: Mapping[str, DataFile]) -> str:
    text = "\n".join(f"{uri} {file.units[0].sha256}" for uri, file in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_published(table: Any, mark: str) -> bool:
    """Whether a snapshot of the table holds just this listing, whatever became of its files since."""
    summaries = (snapshot.summary for snapshot in table.snapshots())
    return any(summary is not None and summary.get(LISTING) == mark for summary in summaries)


def _missing(table: Any, output: OutputFolder, files: Mapping[str, DataFile], name: str) -> list[str]:
    """The files that the table lacks. Raises `JobError` where it has rows of this output that would stand twice."""
    there = _of_output(table.inspect.files(), output)
    outdated = sorted(there - files.keys())
    if outdated:
        raise JobError(
            f"table {name} has {len(outdated)} file(s) that {output.uri} does not list any more, such as "
            f"{outdated[0]}: it was compacted, or its input has changed, since it was published. Publish it to a new "
            "table"
        )
    before = [s.summary for s in table.snapshots() if s.summary is not None and s.summary.get(OUTPUT) == output.uri]
    added = sum(int(summary.get("added-data-files") or 0) for summary in before)
    # Maintenance rewrites files, all of them or some: their rows are in files of the table's own.
    if added > len(there) or (before and not there):
        raise JobError(
            f"table {name} has had {added} files of {output.uri}, and {len(there)} of them are left: the table "
            "keeps its rows elsewhere now, or they were deleted. Which of them are there cannot be told: publish to a "
            "new table"
        )
    return sorted(files.keys() - there)


def _pointed(table: Any, output: OutputFolder) -> set[str]:
    """The files of the output that any snapshot of the table points to."""
    return _of_output(table.inspect.all_files(), output) if table.snapshots() else set()


def _of_output(files: pa.Table, output: OutputFolder) -> set[str]:
    place = output.path("data/")
    place = place if "://" in place else f"file://{place}"
    return {path for path in files.column("file_path").to_pylist() if path.startswith(place)}


def _check_types(schema: pa.Schema) -> None:
    """Raises `JobError` naming the first column that Iceberg has no type for."""
    from pyiceberg.catalog import Catalog

    for field in schema:
        try:
            Catalog._convert_schema_if_needed(pa.schema([field]))
        except Exception as e:
            raise JobError(
                f"column {field.name!r} is {field.type}, which Iceberg cannot hold ({explain(e)}): leave it out by "
                "output.keep, or extract with output.profile athena"
            ) from e
