"""`hpd extract` itself from S3 to S3, with another decoder and without Ray: where its keys come from, what its inputs
may be called, and outputs so large that they go in parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.manifest import OutputFolder
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.faults.jobs import assert_exact_in_store, stored
from tests.faults.proxy import Fault, Kind, Proxy
from tests.faults.server import INPUT, OUTPUT, PUBLIC, REGION, SECRETS, WRITER, Server, options
from tests.jobs.faked_extract import Extract, faked_extract
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import input_table, shards, write


@pytest.fixture
def extract(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Extract:
    return faked_extract(tmp_path / "calls.log", repository / "conf/quickstart.yaml", monkeypatch)


def upload(server: Server, folder: Path, place: str, count: int = 1, first: int = 0) -> pa.Table:
    """Shards of 40 rows at `bucket/prefix`; all their rows."""
    local = shards(folder, first + count)
    for number in range(first):
        (local / f"part-{number:04d}.parquet").unlink()
    server.client().put(f"{local}/", f"{place}/", recursive=True)
    return input_table(local)


def test_keys_endpoint_and_region_of_the_environment_and_what_anybody_may_read(
    server: Server, tmp_path: Path, extract: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"AWS_ACCESS_KEY_ID": WRITER[0], "AWS_SECRET_ACCESS_KEY": WRITER[1], "AWS_ENDPOINT_URL": server.endpoint}
    for name, value in (named | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    source = upload(server, tmp_path / "in", f"{PUBLIC}/of anybody/größe=1", 2)
    log = tmp_path / "log.jsonl"
    words = ["--input", f"s3://{PUBLIC}/of anybody/größe=1", "--set", 'input.storage={"anon": true}']
    words += ["--output", f"s3://{OUTPUT}/by environment/größe=1", "--log-file", str(log), "--json"]
    done = extract(*words)
    assert done.exit_code == 0, done.output
    there = assert_exact_in_store(server, "by environment/größe=1", source, tmp_path)
    told = [done.output.encode(), log.read_bytes(), *there.values()]
    assert not any(secret.encode() in text for secret in SECRETS for text in told)
    assert extract(*words).exit_code == 0
    assert stored(server, "by environment/größe=1") == there
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) == 80

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wS3cr3t-wrong-3f3f3f3f")
    # The client of these options is there already, with the keys that it began with: as in a new process.
    wrong = extract(*words[:4], "--output", f"s3://{OUTPUT}/other", "--set", 'output.storage={"default_block_size": 7}')
    assert wrong.exit_code == 2 and f"error: s3://{OUTPUT}/other" in wrong.output and "signature" in wrong.output
    assert "wS3cr3t" not in wrong.output


def test_keys_endpoint_and_region_of_the_configuration_and_several_inputs(
    server: Server, tmp_path: Path, extract: Extract
) -> None:
    parts = [
        upload(server, tmp_path / "a", f"{INPUT}/command/a b"),
        upload(server, tmp_path / "b", f"{INPUT}/command/b/größe=1", first=1),
        upload(server, tmp_path / "c", f"{INPUT}/command/c/größe=2", first=2),
    ]
    client = server.client()
    client.pipe_file(f"{INPUT}/command/b/größe=1/_SUCCESS", b"")
    storage = json.dumps(options(server.endpoint) | {"client_kwargs": REGION})
    inputs = [f"s3://{INPUT}/command/a b/", f"s3://{INPUT}/command/[bc]/*/part-*.parquet"]
    words = [word for uri in inputs for word in ("--input", uri)]
    words += ["--set", f"input.storage={storage}", "--set", f"output.storage={storage}"]
    done = extract(*words, "--output", f"s3://{OUTPUT}/configured")
    assert done.exit_code == 0, done.output
    sizes = [pa.array(["1"] * 40), pa.array(["2"] * 40)]
    expected = pa.concat_tables(
        [parts[0], *(part.append_column("größe", size) for part, size in zip(parts[1:], sizes, strict=True))],
        promote_options="default",
    )
    assert_exact_in_store(server, "configured", expected, tmp_path)
    output = OutputFolder(f"s3://{OUTPUT}/configured", Storage(options(server.endpoint)))
    assert verify(output, Storage(options(server.endpoint))).findings == ()


def test_another_setting_is_refused_with_the_difference_until_it_is_allowed(
    server: Server, tmp_path: Path, extract: Extract
) -> None:
    source = upload(server, tmp_path / "in", f"{INPUT}/mixed")
    storage = json.dumps(options(server.endpoint))
    words = ["--input", f"s3://{INPUT}/mixed", "--output", f"s3://{OUTPUT}/mixed"]
    words += ["--set", f"input.storage={storage}", "--set", f"output.storage={storage}"]
    assert extract(*words, "--set", "pool.threads=1").exit_code == 0
    upload(server, tmp_path / "more", f"{INPUT}/mixed", first=1)
    refused = extract(*words, "--set", "pool.threads=2")
    assert refused.exit_code == 2 and f"error: s3://{OUTPUT}/mixed was begun by another job" in refused.output
    assert "threads: 1 -> 2" in refused.output and "--allow-mixed" in refused.output
    assert extract(*words, "--set", "pool.threads=2", "--allow-mixed").exit_code == 0
    expected = pa.concat_tables([source, input_table(tmp_path / "more")])
    assert_exact_in_store(server, "mixed", expected, tmp_path)
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) == 80


PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")


@pytest.mark.parametrize("operation", PARTS)
def test_a_unit_that_goes_in_parts_is_committed_or_named_and_leaves_no_upload(
    server: Server,
    proxy: Proxy,
    tmp_path: Path,
    extract: Extract,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    monkeypatch.setattr("pipeline.writers.ONE_PUT", 10 * 2**20)
    name = f"parts {operation}"
    source = pa.table({"title": [f"t{i}" for i in range(60)], "image": [os.urandom(600_000) for _ in range(60)]})
    write(tmp_path / "in/part-0000.parquet", source, row_group_size=20)
    storage = options(proxy.endpoint, retries={"mode": "legacy", "total_max_attempts": 2})
    words = ["--input", str(tmp_path / "in"), "--output", f"s3://{OUTPUT}/{name}"]
    words += ["--set", f"output.storage={json.dumps(storage)}"]
    fault = proxy.add(Fault(Kind.ERROR, operation, f"{OUTPUT}/{name}/data/part-0000-*-000000000020-000000000040-*"))

    ended = extract(*words)

    assert ended.exit_code == 4 and fault.struck >= 2, ended.output
    [line] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert f"{tmp_path}/in/part-0000.parquet: 1 unit(s), rows 20 to 40: commit:" in line
    assert f"s3://{OUTPUT}/{name}/data/part-0000-" in line and "internal error" in line
    assert proxy.seen["CompleteMultipartUpload"] >= 2  # those of the two other units
    there = server.client().find(f"{OUTPUT}/{name}")
    assert sum("/data/" in path for path in there) == sum("/_manifest/units/" in path for path in there) == 2
    assert not any(path.endswith("_SUCCESS") for path in there)
    assert server.client().list_multipart_uploads(OUTPUT) == []

    proxy.forget()
    again = proxy.add(Fault(Kind.ERROR, operation, f"{OUTPUT}/{name}/data/*", times=1))
    done = extract(*words)
    assert done.exit_code == 0 and again.struck == 1, done.output
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) == 80  # the unit that failed was decoded again
    assert_exact_in_store(server, name, source, tmp_path)
    assert server.client().list_multipart_uploads(OUTPUT) == []
    server.client().rm(f"{OUTPUT}/{name}", recursive=True)
