"""A small job for a cluster: a tiny random model, a catalog in S3, and one whose second file cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.core.tiny_folder import write_tiny_model
from tests.e2e.world import World
from tests.faults.server import INPUT, OUTPUT, options

UNIT = 50


def job_file(world: World, model: Path) -> Path:
    """The job's YAML, with the keys of the store in it, and without a price."""
    storage = options(world.server.endpoint)
    tree = {
        "input": {"storage": storage},
        "output": {"storage": storage},
        "text": {"template": "{{ title }}"},
        "schemas": {"define": {"lamps": {"attributes": ["Brand", "Socket"]}}, "default": "lamps"},
        "model": {"name": str(model), "prompting": "plain"},
        "decode": {"max_value_tokens": 3, "max_document_tokens": 64},
        "pool": {"cpus": 1, "threads": 1},
        "units": {"rows": UNIT},
        "run": {"max_rounds": 1},
        "limits": {"max_error_rate": 0.5},
    }
    path = model.parent / "job.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def tiny(folder: Path) -> Path:
    return write_tiny_model(folder / "model")


def catalog(world: World, name: str, rows: int, broken: bool = False) -> str:
    """Uploads `rows` rows in two files, of which the second may have damaged pages; the URI."""
    folder = world.folder / "catalogs" / name
    folder.mkdir(parents=True)
    for part in range(2):
        numbers = range(part * rows // 2, (part + 1) * rows // 2)
        table = pa.table({"id": list(numbers), "title": [f"Lamp {n} of Harbour, E{n % 30}" for n in numbers]})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=UNIT, compression="zstd")
    if broken:
        damaged = folder / "part-1.parquet"
        content = bytearray(damaged.read_bytes())
        # Not in the first row group, where `hpd validate` looks.
        pages = pq.ParquetFile(damaged).metadata.row_group(1).column(1)
        start = pages.dictionary_page_offset or pages.data_page_offset
        content[start : start + pages.total_compressed_size] = b"\xff" * pages.total_compressed_size
        damaged.write_bytes(content)
    _inside(world, f"client.put({str(folder)!r} + '/', '{INPUT}/{name}/', recursive=True)")
    return f"s3://{INPUT}/{name}/"


def target(name: str) -> str:
    return f"s3://{OUTPUT}/{name}"


def stored(world: World, name: str) -> list[str]:
    """Names of the objects in an output."""
    found = _inside(world, f"import json; print(json.dumps(client.find('{OUTPUT}/{name}')))")
    return [path.removeprefix(f"{OUTPUT}/{name}/") for path in json.loads(found)]


def listing(world: World, name: str) -> dict:
    """The list of a finished output."""
    return json.loads(_inside(world, f"print(client.cat_file('{OUTPUT}/{name}/_manifest/job.json').decode())"))


def _inside(world: World, code: str) -> str:
    server = f"Server({world.server.port}, {world.server.filer_port})"
    script = f"from tests.faults.server import Server\nclient = {server}.client()\n{code}"
    done: subprocess.CompletedProcess = world.run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
