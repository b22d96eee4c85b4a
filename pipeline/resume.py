"""What an earlier run left behind: whether this job may go on from it, which units are done, which rows are left."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from hpd_core import recipe, sizing
from hpd_core.spec import fingerprint
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.output import OUTPUT_VERSION
from pipeline.record import UnitRecord
from pipeline.units import InputFile, Unit, uncovered

RUN = "run.json"
#: Characters of a value in a list of differences, and what stands for a value that is not there.
_SHOWN, _NONE = 120, "(none)"


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings given as `auto`, decided once and reused by every rerun."""

    dtype: str
    threads: int


def resolve(job: JobSpec, stored: Mapping[str, Any] | None) -> tuple[JobSpec, Resolved]:
    """The job without `auto`: what run.json says where it says something, else what fits the pool.

    `auto` decode settings stay where there is no run.json: only a machine that has what an actor has can tell.
    """
    before = (stored or {}).get("facts", {}).get("resolved", {})
    dtype = job.decoder.model.dtype
    if dtype == "auto":
        on_gpu = job.pool.gpus > 0 or job.pool.device == "cuda"
        dtype = before.get("dtype") or ("bfloat16" if on_gpu else "float32")
    threads = job.pool.threads or before.get("threads") or max(1, int(job.pool.cpus))
    decoder = replace(job.decoder, model=replace(job.decoder.model, dtype=dtype))
    if stored is not None and decoder.settings.is_auto:
        decoder = replace(decoder, settings=sizing.reused(decoder.settings, settings_of(stored)))
    return replace(job, decoder=decoder, pool=replace(job.pool, threads=threads)), Resolved(dtype, threads)


def settings_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decode settings in the facts of a run.json."""
    settings: Mapping[str, Any] = run.get("facts", {}).get("decoder", {}).get("settings", {})
    return settings


def job_facts(job: JobSpec, resolved: Resolved) -> dict[str, Any]:
    """Everything that decides the output's rows; its hash is the job's fingerprint."""
    return {
        "output_version": OUTPUT_VERSION,
        "decoder_name": job.decoder_name,
        "decoder": job.decoder.as_dict(),
        "schemas": [asdict(schema) for schema in job.schemas],
        "reader": dict(job.reader.facts()),
        "output": job.output_options.facts(),
        "pack_documents": job.pack_documents,
        "resolved": asdict(resolved),
    }


def revision_of(facts: Mapping[str, Any]) -> str:
    """What tells the weights of a job from others: hub id and revision, or a digest of local files; the adapter's too.
    facts: of `job_facts`."""
    model = facts["decoder"]["model"]
    return " + ".join([model["source"], *([f"adapter {model['adapter']}"] if model.get("adapter") else [])])


def run_facts(
    job: JobSpec, facts: Mapping[str, Any], inputs: Sequence[str], schema: pa.Schema, sources: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of run.json. inputs: in the form that identities use. A model's notice stands beside the facts, not
    in them: it decides no row. sources: the column behind each of the schema's, where names differ."""
    notice = recipe.notice_of(job.decoder.model)
    renamed = {f.name: source for f, source in zip(schema, sources, strict=False) if f.name != source}
    run = {
        "fingerprint": fingerprint(facts),
        "facts": facts,
        "inputs": list(inputs),
        "output_schema": {f.name: str(f.type) for f in schema},
        "output_schema_arrow": base64.b64encode(schema.serialize().to_pybytes()).decode(),
        **({"output_sources": renamed} if renamed else {}),
        "config": dict(job.config),
        **({"notice": notice} if notice else {}),
    }
    return dict(json.loads(json.dumps(run)))


def output_schema_of(run: Mapping[str, Any]) -> pa.Schema:
    """The schema of every data file, as run.json has it. Raises KeyError, TypeError or ValueError where it has none."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(run["output_schema_arrow"])))


def check_run(uri: str, run: Mapping[str, Any], stored: Mapping[str, Any], *, lost: int, allow_mixed: bool) -> None:
    """Checks `run` (see `run_facts`) against what an earlier run `stored` in the output at `uri`.

    lost: committed rows that this job would drop. Raises `JobError` with the difference where the output was begun by
    another job, or from other inputs whose rows would be lost, unless `allow_mixed`; other output columns are always
    refused, since all files have the same.
    """
    mark = run["fingerprint"]
    if stored["fingerprint"] != mark and not allow_mixed:
        raise JobError(
            f"{uri} was begun by another job (fingerprint {stored['fingerprint']}, now {mark}). "
            "Take a new output, or allow a mixed one (--allow-mixed). The difference:\n"
            + "\n".join(differences(_once(stored["facts"]), _once(run["facts"])))
        )
    before, schema = output_schema_of(stored), output_schema_of(run)
    if not before.equals(schema):
        changed = differences(stored["output_schema"], run["output_schema"])
        raise JobError(
            f"{uri} was begun with other output columns; every file must have the same. Take a new output. "
            "The difference:\n" + "\n".join(changed or ["  the order of the columns, or whether they may be null"])
        )
    inputs = stored.get("inputs", run["inputs"])
    if lost and set(inputs) != set(run["inputs"]) and not allow_mixed:
        raise JobError(
            f"{uri} holds {lost} rows of other inputs, which this job would drop. Take a new output, give those "
            f"inputs as well, or drop them by --allow-mixed. The inputs were {', '.join(inputs)} and are "
            f"{', '.join(run['inputs'])}"
        )


def open_run(folder: OutputFolder, run: Mapping[str, Any], stored: Mapping[str, Any] | None) -> str:
    """Writes run.json of a `run` that `check_run` lets go on from what is `stored`; returns the fingerprint."""
    mark = str(run["fingerprint"])
    mixed = sorted(marks(stored) - {mark})
    now = dict(run) | ({"mixed_with": mixed} if mixed else {})
    if now != stored:
        folder.write_json(RUN, now)
    return mark


def marks(run: Mapping[str, Any] | None) -> frozenset[str]:
    """Fingerprints of the units that belong to an output with this run.json. A unit of another one was committed by a
    worker that outlived a run which had committed nothing."""
    return frozenset() if run is None else frozenset([run["fingerprint"], *run.get("mixed_with", [])])


def lost_rows(dropped: Iterable[UnitRecord], files: Iterable[InputFile]) -> int:
    """Rows among the `dropped` whose file is not there any more in the version that they were read from."""
    there = set(files)
    return sum(record.unit.rows for record in dropped if record.unit.file not in there)


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """One indented line per leaf that differs: `path: before -> now`, long ones shortened.

    Named things in a list (schemas, attributes) go by their name: `schemas.shoes.attributes.Color.values`.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        paths = {k: f"{path}.{k}".lstrip(".") for k in [*before, *now]}
        return [d for k, p in paths.items() for d in differences(before.get(k, _NONE), now.get(k, _NONE), p)]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        old, new = _by_name(before), _by_name(now)
        if old and new:
            orders = [[n for n in old if n in new], [n for n in new if n in old]]
            moved = [f"  {path}, in order: {_changed(*orders)}"] if orders[0] != orders[1] else []
            return differences(old, new, path) + moved
        if len(before) == len(now):
            pairs = enumerate(zip(before, now, strict=True))
            return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    return [] if before == now else [f"  {path}: {_changed(before, now)}"]


def _once(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` whose reader names the schemas in place of repeating them, so that no difference is shown twice."""
    schemas = facts["schemas"]

    def named(value: Any) -> Any:
        if value in schemas:
            return value["name"]
        return {key: named(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    return {**facts, "reader": named(facts["reader"])}


def _by_name(items: Sequence[Any]) -> dict[str, Any]:
    """{name: item} of things that all have a name of their own; empty where they do not."""
    found = {item["name"]: item for item in items if isinstance(item, Mapping) and "name" in item}
    return found if len(found) == len(items) else {}


def _changed(before: Any, now: Any) -> str:
    """`before -> now`; of long ones the neighbourhood of the first character that differs."""
    texts = [value if value is _NONE else repr(value) for value in (before, now)]
    start = 0
    if max(map(len, texts)) > _SHOWN:
        differ = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        start = max(0, differ - _SHOWN // 4)
    shown = [text[start : start + _SHOWN] + "…" * (len(text) > start + _SHOWN) for text in texts]
    return " -> ".join("…" * (start > 0) + text for text in shown)


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
