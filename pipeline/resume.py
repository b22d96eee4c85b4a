"""What an earlier run left behind: whether this job may go on from it, which units are done, which rows are left."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from hpd_core.settings import fingerprint
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder, UnitRecord
from pipeline.output import OUTPUT_VERSION
from pipeline.storage import StorageError
from pipeline.units import InputFile, Unit, uncovered

RUN = "run.json"


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings given as `auto`, decided once and reused by every rerun."""

    dtype: str
    threads: int


def resolve(job: JobSpec, stored: Mapping[str, Any] | None) -> tuple[JobSpec, Resolved]:
    """The job without `auto`: what run.json says where it says something, else what fits the pool."""
    before = (stored or {}).get("facts", {}).get("resolved", {})
    dtype = job.decoder.model.dtype
    if dtype == "auto":
        on_gpu = job.pool.gpus > 0 or job.pool.device == "cuda"
        dtype = before.get("dtype") or ("bfloat16" if on_gpu else "float32")
    threads = job.pool.threads or before.get("threads") or max(1, int(job.pool.cpus))
    model = replace(job.decoder.model, dtype=dtype)
    pool = replace(job.pool, threads=threads)
    return replace(job, decoder=replace(job.decoder, model=model), pool=pool), Resolved(dtype, threads)


def job_facts(job: JobSpec, resolved: Resolved) -> dict[str, Any]:
    """Everything that decides the output's rows; its hash is the job's fingerprint."""
    return {
        "output_version": OUTPUT_VERSION,
        "decoder_name": job.decoder_name,
        "decoder": job.decoder.as_dict(),
        "schemas": [asdict(schema) for schema in job.schemas],
        "reader": dict(job.reader.facts()),
        "output": asdict(job.output_options),
        "pack_documents": job.pack_documents,
        "resolved": asdict(resolved),
    }


def open_run(
    folder: OutputFolder, job: JobSpec, facts: Mapping[str, Any], schema: pa.Schema, stored: Mapping[str, Any] | None
) -> str:
    """Writes run.json, or checks it against the job; returns the fingerprint.

    Raises `JobError` with the difference where the output was begun by another job, unless `allow_mixed`; other output
    columns are always refused, since all files have the same.
    """
    mark = fingerprint(facts)
    run = {
        "fingerprint": mark,
        "facts": facts,
        "output_schema": {f.name: str(f.type) for f in schema},
        "output_schema_arrow": base64.b64encode(schema.serialize().to_pybytes()).decode(),
        "config": dict(job.config),
    }
    if stored is None and folder.create_json(RUN, run):
        return mark
    stored = stored or folder.read_json(RUN)
    if stored is None:
        raise StorageError(f"{folder.path(RUN)} was there and is gone: somebody clears the output")
    before = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored["output_schema_arrow"])))
    if stored["fingerprint"] != mark and not job.allow_mixed:
        raise JobError(
            f"{folder.uri} was begun by another job (fingerprint {stored['fingerprint']}, now {mark}). "
            "Take a new output, or allow a mixed one. The difference:\n"
            + "\n".join(differences(stored["facts"], facts))
        )
    if not before.equals(schema):
        old, new = ({f.name: str(f.type) for f in s} for s in (before, schema))
        changed = differences(old, new) or ["  the order of the columns, or whether they may be null"]
        raise JobError(
            f"{folder.uri} was begun with other output columns; every file must have the same. Take a new output. "
            "The difference:\n" + "\n".join(changed)
        )
    if stored["fingerprint"] != mark:
        folder.write_json(RUN, run | {"mixed_with": [*stored.get("mixed_with", []), stored["fingerprint"]]})
    return mark


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """One indented line per leaf that differs: `path: before -> now`."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        paths = {k: f"{path}.{k}".lstrip(".") for k in [*before, *now]}
        return [d for k, p in paths.items() for d in differences(before.get(k, "(none)"), now.get(k, "(none)"), p)]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    return [] if before == now else [f"  {path}: {before!r} -> {now!r}"]


def select(records: Iterable[UnitRecord], files: Sequence[InputFile]) -> tuple[list[UnitRecord], list[UnitRecord]]:
    """(records that make up the output, records to drop): no row twice, nothing of an input that is gone or changed.

    Row ranges overlap only where writers cut differently at the same time; of those the earlier and longer one stays.
    """
    current = {(f.uri, f.version, f.size): place for place, f in enumerate(files)}
    kept: list[UnitRecord] = []
    dropped: list[UnitRecord] = []

    def order(record: UnitRecord) -> tuple[int, int, int, str]:
        file = record.unit.file
        place = current.get((file.uri, file.version, file.size), len(current))
        return place, record.unit.start, -record.unit.stop, record.object

    at: tuple[int, int] | None = None  # (place of the file, first row not covered yet)
    for record in sorted(records, key=order):
        place, start = order(record)[0], record.unit.start
        gone = place == len(current)
        if gone or (at is not None and at[0] == place and (start < at[1] or (start, record.unit.stop) == (0, at[1]))):
            dropped.append(record)
        else:
            kept.append(record)
            at = (place, record.unit.stop)
    return kept, dropped


def remaining(units: Iterable[Unit], kept: Iterable[UnitRecord]) -> list[Unit]:
    """The planned units without the rows that are committed."""
    done: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for record in kept:
        uri, version, start, stop = record.unit.key
        done.setdefault((uri, version), []).append((start, stop))
    return [left for unit in units for left in uncovered(unit, done.get((unit.file.uri, unit.file.version), []))]
