"""Jobs of tests/pipeline over S3: the same fake decoder, input and output in the store.

`python -m tests.faults.jobs FOLDER ENDPOINT NAME` is a driver to be killed, in a Ray of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.job import JobSpec
from pipeline.run import run
from tests.faults.server import INPUT, OUTPUT, Server, options
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, input_table, job, shards


def catalog(server: Server, folder: Path, name: str, count: int = 3, rows: int = 40) -> pa.Table:
    """Uploads `count` shards of `rows` rows to the input folder `name`; all their rows."""
    local = shards(folder / "in", count, rows, row_group_size=20)
    server.client().put(f"{local}/", f"{INPUT}/{name}/", recursive=True)
    return input_table(local)


def s3_job(folder: Path, endpoint: str, name: str, log: str = "calls.log", **changes: Any) -> JobSpec:
    """From `name` in the input bucket to `name` in the output bucket. folder: where the decoder counts its calls."""
    storage = changes.pop("storage", options(endpoint))
    decoders = HashDecoders(folder / log, delay=changes.pop("delay", 0.0))
    made = {"output": f"s3://{OUTPUT}/{name}", "input_storage": storage, "output_storage": storage}
    return job(folder, [f"s3://{INPUT}/{name}"], decoder_factory=decoders, **made | changes)  # type: ignore[list-item]


def assert_exact_in_store(server: Server, name: str, source: pa.Table, folder: Path) -> dict[str, bytes]:
    """`assert_exact` of the output folder `name`; {file: content} of all that lies in it."""
    copy = folder / "copy"
    for path, content in stored(server, name).items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(content)
    assert_exact(copy, source)
    return stored(server, name)


def stored(server: Server, name: str) -> dict[str, bytes]:
    client = server.client()
    root = f"{OUTPUT}/{name}/"
    return {path.removeprefix(root): client.cat_file(path) for path in client.find(root) if not path.endswith("/")}


if __name__ == "__main__":
    where, at, what = sys.argv[1:]
    run(s3_job(Path(where), at, what, "first.log", delay=0.3))
