"""Outputs of `hpd extract` as its bookkeeping leaves them, with units whose seconds follow a known formula."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hpd_core.rows import Counts
from pipeline.manifest import OutputFolder, UnitRecord
from pipeline.metrics import Metrics, device_key, length_bin
from pipeline.storage import Storage
from pipeline.summary import work_of, write_metrics
from pipeline.units import InputFile, Unit

#: Seconds of a unit, of a prefill token, of a value token; and what an actor waits before each unit but its first.
PER_UNIT, PER_TOKEN, PER_STEP, IDLE, LOAD = 2.0, 0.003, 0.001, 0.5, 6.0
#: Rows of a unit, attributes of a document, tokens of the prefix that all share.
ROWS, SLOTS, PREFIX = 50, 4, 80
DECODER = {
    "model": {"source": "sha256:0", "adapter": "sha256:1", "dtype": "float32"},
    "settings": {"max_value_tokens": 24},
}
CPU, DTYPE = "AMD EPYC 9B14, 2 threads", "float32"


def unit_metrics(
    random: np.random.Generator, *, first: bool, device: str = CPU, slower: float = 1.0, fed: bool = False
) -> Metrics:
    """Of a unit of `ROWS` rows, one of them without text and one a repeat. slower: factor on its seconds. fed: whether
    each document's prefix is fed, as where each has its own, and not the first's of an actor alone."""
    decoded = ROWS - 2
    lengths = np.minimum(1000, 100 * np.exp(random.normal(0, 0.5, decoded)) + 5).astype(int)
    steps, prompt = int(random.poisson(30, decoded).sum()), int(lengths.sum())
    prefix = PREFIX * decoded if fed else PREFIX * first
    seconds = slower * (PER_UNIT + PER_TOKEN * (prompt + prefix) + PER_STEP * steps) * random.uniform(0.97, 1.03)
    return Metrics(
        rows=Counter(ok=ROWS - 1, no_text=1),
        values=Counter(brand=decoded),
        seconds={"decode": seconds, "tokenize": 0.05, "commit": 0.01} | ({"load": LOAD} if first else {"idle": IDLE}),  # type: ignore[arg-type]
        decode=Counts(
            documents=decoded,
            duplicates=1,
            slots=SLOTS * decoded,
            prompt_tokens=prompt,
            prefix_tokens=prefix,
            cached_tokens=PREFIX * decoded - prefix,
            decode_rows=steps,
            slot_steps=steps,
            generated_tokens=steps + SLOTS * decoded,
            steps=40,
            model_calls=60,
            prefill_seconds=0.6 * seconds,
            decode_seconds=0.3 * seconds,
        ),
        lengths=Counter(map(length_bin, lengths.tolist())),
        devices=Counter({device_key(device, DTYPE): ROWS}),
        peak_memory={"resident": 3 * 2**30},
    )


def write_output(
    folder: Path,
    units: int = 40,
    *,
    seed: int = 0,
    sample: dict[str, int] | None = None,
    limit: int | None = None,
    finished: bool = True,
    price: dict[str, Any] | None = None,
    fingerprint: str = "f" * 16,
    device: str = CPU,
    slower: float = 1.0,
    actors: int = 1,
    fed: bool = False,
    begin: int = 0,
    waste: tuple[int, int] = (0, 0),
    wasted_seconds: float = 0.0,
) -> Path:
    """An output of `units` units, the first of which is number `begin` of the file. sample, limit: as the manifest has
    them. waste: (tries that came to nothing, their prompt tokens), which took so many seconds of the clock."""
    random = np.random.default_rng(seed)
    output = OutputFolder(str(folder), Storage())
    file = InputFile("/in/part-0.parquet", 1, "v")
    records = []
    for number in range(units):
        unit = Unit(file, (begin + number) * ROWS, (begin + number + 1) * ROWS)
        metrics = unit_metrics(random, first=number < actors, device=device, slower=slower, fed=fed)
        name = unit.object_name(fingerprint)
        record = UnitRecord(unit, name, fingerprint, 1, "", metrics)
        output.storage.create(output.record(name), record.to_json().encode())
        output.storage.create(output.data(name), b"x")
        records.append(record)
    busy = sum(sum(r.metrics.seconds.get(stage, 0) for stage in ("decode", "idle", "load")) for r in records) / actors
    seconds = busy + wasted_seconds + 9
    work = work_of(records, rounds=1, seconds=seconds, stream_seconds=seconds - 5, price_per_hour=0.1, waste=waste)
    write_metrics(output, records, units * ROWS, work, finished)
    config = {
        "model": {"name": "smollm2-135m-ave"},
        "pool": {"max_size": actors},
        "price": {"machine": "laptop-2-core"} if price is None else price,
    }
    facts = {"decoder": DECODER, "resolved": {"dtype": DTYPE, "threads": 2}}
    output.write_json("run.json", {"fingerprint": fingerprint, "facts": facts, "config": config})
    if finished:
        output.finish(records, {"limit": limit} | ({"sample": sample} if sample else {}))
    return folder


def write_plan(path: Path, mean: float = 150, seed: int = 5) -> Path:
    """What `hpd plan --json` prints, as far as a report reads it."""
    random = np.random.default_rng(seed)
    places, lengths = [], Counter[str]()
    for _ in range(64):
        texts = (mean * np.exp(random.normal(0, 0.5, 15))).astype(int)
        places.append([16, 15, int(texts.sum()), 15 * SLOTS, 15 * PREFIX])
        lengths.update(map(length_bin, texts.tolist()))
    documents = 64 * 15
    sample = {
        "rows": 64 * 16,
        "documents": documents,
        "prompt_tokens_per_document": sum(p[2] for p in places) / documents,
        "prefix_tokens_per_document": float(PREFIX),
        "key_tokens_per_document": 10.0,
        "stub_tokens_per_document": 6.0,
        "attributes_per_document": float(SLOTS),
        "lengths": dict(lengths),
        "places": places,
    }
    path.write_text(json.dumps({"rows_per_unit": 50.0, "sample": sample}))
    return path


def write_benchmark(path: Path, kind: str = "comparison") -> Path:
    """A benchmark.json, as far as a report reads it."""
    speeds = {"hpd": 4.0, "hpd, batch 1": 1.25, "ar, batch 1": 0.2, "ar, batch 32": 0.9, "ar-lookup": 0.3}
    engines = [
        {"engine": label.partition(",")[0], "label": label, "without": "", "docs_per_second": speed}
        for label, speed in (speeds | {"per-attribute-cached, batch 32": 1.0}).items()
    ]
    machine = {"body": 106e6, "head": 28e6, "dollars_per_hour": 0.1}
    facts = {"kind": kind, "heading": "oa-mine/test.jsonl: 32 documents", "documents": 32, "engines": engines}
    path.write_text(json.dumps(facts | {"machine": machine, "spec": DECODER}))
    return path
