"""How long a driver takes to see what is done, and what it holds: `python -m jobs.timing.start_up --units 5000`.

An output of so many units is made of records and empty data files, once with a manifest for each unit and once folded
into segments; a process of its own reads each as a rerun does (list, read, select, subtract from the plan) and tells
seconds and resident memory. Requests are what a store would be asked: on S3 each is a round trip, and a page of a
listing has 1,000 names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.folding import Folding
from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics
from pipeline.peak import resident_bytes
from pipeline.record import UnitRecord
from pipeline.resume import remaining, select
from pipeline.storage import Storage
from pipeline.units import InputFile, Unit

UNIT_ROWS, UNITS_OF_A_FILE, ATTRIBUTES, LISTED = 10_000, 10, 12, 1000


def units(count: int) -> list[Unit]:
    """The plan: files of 100,000 rows."""
    files = [
        InputFile(f"s3://catalog/2026-11-30/part-{i:05d}.snappy.parquet", 10**8, f"{i:032x}")
        for i in range(-(-count // UNITS_OF_A_FILE))
    ]
    return [
        Unit(file, start * UNIT_ROWS, (start + 1) * UNIT_ROWS, 10**7)
        for file in files
        for start in range(UNITS_OF_A_FILE)
    ][:count]


def build(output: OutputFolder, plan: list[Unit]) -> list[UnitRecord]:
    """An output of the plan, all of it committed, its data files empty."""
    metrics = {
        "rows": {"ok": 9_800, "cut": 100, "no_text": 80, "error": 20},
        "values": {f"attribute_{i}": 5_000 + i for i in range(ATTRIBUTES)},
        "seconds": {stage: 12.345678 for stage in ("read", "tokenize", "decode", "build", "commit")},
        "decode": {"documents": 9_900, "slots": 118_800, "model_calls": 20, "steps": 4_000},
    }
    Path(output.path("data")).mkdir(parents=True)
    Path(output.path("_manifest/units")).mkdir(parents=True)
    records = []
    for unit in plan:
        record = UnitRecord(unit, unit.object_name("f" * 16), "f" * 16, 0, "0" * 64, Metrics.from_dict(metrics))
        Path(output.data(record.object)).touch()
        Path(output.record(record.object)).write_text(record.to_json())
        records.append(record)
    return records


def read(folder: str, count: int) -> dict[str, Any]:
    """What a rerun does before it starts Ray, timed. Bytes are resident ones."""
    output, plan = OutputFolder(folder, Storage()), units(count)
    before, started = _peak_mib(), time.perf_counter()
    records = output.read_records()
    read_ = time.perf_counter()
    kept, dropped = select(records, list(dict.fromkeys(unit.file for unit in plan)))
    left = remaining(plan, kept)
    assert (len(kept), dropped, left) == (count, [], [])
    own, parts = len(output.record_names()), len(output.segment_names())
    pages = sum(max(1, -(-names // LISTED)) for names in (own, parts, count))
    return {
        "objects_read": own + parts,
        "requests": own + parts + pages,
        "read_seconds": round(read_ - started, 2),
        "select_seconds": round(time.perf_counter() - read_, 2),
        "peak_mib_before": before,
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> int:
    """The most that this process ever held. `getrusage` would tell that of the process that started it."""
    return resident_bytes("VmHWM") // 2**20


def main(
    units_: Annotated[int, typer.Option("--units", min=1)] = 5000,
    read_only: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Prints one JSON object a line: with a manifest for each unit, then folded into segments."""
    if read_only:
        print(json.dumps(read(read_only, units_)))
        return
    with tempfile.TemporaryDirectory() as folder:
        output = OutputFolder(f"{folder}/out", Storage())
        records = build(output, units(units_))
        for kind in ("manifests", "segments"):
            seconds = time.perf_counter()
            if kind == "segments":
                Folding(output, records)
            seconds = time.perf_counter() - seconds
            command = [sys.executable, "-m", __spec__.name, "--units", str(units_), "--read-only", output.uri]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(json.dumps({"units": units_, "kind": kind, "folded_in": round(seconds, 2)} | json.loads(done.stdout)))


if __name__ == "__main__":
    typer.run(main)
