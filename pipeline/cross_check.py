"""Whether what an output folder says of itself agrees with itself: records, the listing of data/, totals, the list for
other readers. Nothing in data/ is opened here."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from pipeline import symlinks
from pipeline.books import Books, read_json
from pipeline.findings import Finding, FindingKind
from pipeline.manifest import JOB, UNITS
from pipeline.metrics import with_slot_steps
from pipeline.partitions import partition_folder
from pipeline.published import PUBLISHED, published_files, read_published
from pipeline.record import MERGED
from pipeline.resume import RUN, marks
from pipeline.storage import StorageError
from pipeline.summary import METRICS_FILE
from pipeline.totals import unequal
from pipeline.units import is_object_name


def cross_check(books: Books) -> None:
    """Adds what is wrong to the findings, and fills in `present`."""
    _check_records(books)
    _check_files(books)
    _check_published(books)
    if books.finished:
        _check_metrics(books)
        _check_symlinks(books)


def _check_records(books: Books) -> None:
    known = marks(books.run) if books.run.get("fingerprint") else frozenset()
    seen: set[str] = set()
    hive = (books.run.get("facts") or {}).get("output", {}).get("layout") == "hive"
    for record in books.records:
        where = f"{UNITS}/{record.object}.json"
        if record.object in seen:
            books.damage(JOB, f"lists {record.object} twice", record.unit)
        seen.add(record.object)
        if known and record.fingerprint not in known:
            books.damage(where, f"its fingerprint {record.fingerprint} is not one of {RUN}'s", record.unit)
        if record.object != record.unit.object_name(record.fingerprint):
            books.damage(where, f"its unit's object is {record.unit.object_name(record.fingerprint)}", record.unit)
        folder = partition_folder(record.unit.file.uri) if hive else ""
        # A profile lowers keys, and writes those without escapes that need none.
        if unquote(posixpath.dirname(record.data)).lower() != unquote(folder).lower():
            message = f"has its data in the folder {posixpath.dirname(record.data)!r}, not {folder!r}"
            books.damage(where, message, record.unit)
        if record.metrics.rows_in != record.unit.rows:
            books.damage(where, f"counts {record.metrics.rows_in} rows for {record.unit.rows}", record.unit)


def _check_published(books: Books) -> None:
    """Every file that a table points to is one of the output's."""
    listed = {record.data for record in books.records}
    try:
        held = published_files(read_published(books.output))
    except StorageError as e:
        books.damage(PUBLISHED, f"cannot be read: {e}")
        return
    for name in sorted(held.keys() - listed):
        tables = " and ".join(map(str, held[name]))
        books.damage(
            f"data/{name}.parquet", f"is not the output's any more, and the Iceberg table {tables} points to it"
        )


def _check_files(books: Books) -> None:
    """Every listed file is there with its size, and no other, hidden ones apart, which readers pass over."""
    sizes = books.output.storage.sizes(books.output.path("data"))
    objects = {record.object for record in books.records}
    left = sizes.keys() - {f"{record.data}.parquet" for record in books.records}
    told: set[str] = set()
    for record in books.records:
        name, unit = f"{record.data}.parquet", "" if record.is_merged else record.unit
        size = sizes.get(name)
        books.present |= {record.object} if size is not None else set()
        if name in told:  # a file of many units
            continue
        told.add(name)
        if size is None:
            # A rerun finds it missing as well, where the job has not ended.
            tell = books.damage if books.finished else books.incomplete
            tell(f"data/{name}", "is missing", unit)
        elif size != record.size:
            books.damage(f"data/{name}", f"has {size} bytes, not the {record.size} of its manifest", unit)
    for name in sorted(left):
        stem = name.rpartition("/")[2].removesuffix(".parquet")
        if any(part.startswith((".", "_")) for part in name.split("/")):
            message = "is left over from a worker that was killed; readers pass over it, and it may be removed"
            books.findings.append(Finding(FindingKind.NOTE, books.output.path(f"data/{name}"), message))
        elif books.finished and (MERGED in stem or stem in objects):
            message = (
                "is not listed: an `hpd compact` was cut off; run it again, until then readers find its rows twice"
            )
            books.incomplete(f"data/{name}", message)
        elif books.finished and is_object_name(stem):
            message = "is not listed: a worker that outlived its job left it; run the job again, which removes it"
            books.incomplete(f"data/{name}", f"{message}, until then readers that glob the folder find its rows")
        elif books.finished:
            books.damage(f"data/{name}", "is not listed in the manifest: readers that glob the folder find its rows")


def _check_metrics(books: Books) -> None:
    """The totals in the job manifest and in metrics.json are the sums over the units."""
    metrics = books.metrics
    for name in ("rows_in", "rows_ok", "rows_error"):
        if books.job and books.job.get(name) != getattr(metrics, name):
            books.damage(JOB, f"{name} is {books.job.get(name)}, and its units have {getattr(metrics, name)}")
    stored = read_json(books, METRICS_FILE, books.output.storage.read(books.output.path(METRICS_FILE)))
    if not stored:
        return
    if stored.get("complete") is not True:
        books.damage(METRICS_FILE, "does not say that the output is complete")
    if isinstance(decode := stored.get("decode"), dict):
        stored = stored | {"decode": with_slot_steps(decode)}
    sums = {name: getattr(metrics, name) for name in ("rows_in", "rows_ok", "rows_error")} | metrics.as_dict()
    for line in unequal(stored, {"units": len(books.records)} | sums):
        books.damage(METRICS_FILE, line)


def _check_symlinks(books: Books) -> None:
    """The list for Athena, Trino and Hive, where there is one, has the listed files. The output may have been moved."""
    there = books.output.storage.sizes(books.output.path(symlinks.FOLDER))
    wanted = symlinks.texts({r.data for r in books.records}, "") if there else {}
    for name in sorted(wanted.keys() | {f"{symlinks.FOLDER}/{name}" for name in there}):
        raw = books.output.storage.read(books.output.path(name)) or b""
        lines = [line.rpartition("/")[2] for line in raw.decode("utf-8", "replace").splitlines()]
        if lines != [line.rpartition("/")[2] for line in wanted.get(name, "").splitlines()]:
            books.incomplete(name, "lists other files than the job manifest: run `hpd compact` to write it again")
