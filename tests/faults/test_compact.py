"""`hpd compact` and segments on a real S3 server, without Ray: in parts, created once, a failed upload, no row lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

import pipeline.drive
from pipeline.compact import compact
from pipeline.folding import Folding
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.verify import verify
from tests.faults.jobs import assert_exact_in_store, catalog, s3_job, stored
from tests.faults.proxy import Fault, Kind, Proxy
from tests.faults.server import OUTPUT, Server, options
from tests.pipeline.helpers import inline, job, write


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)


def test_a_file_is_created_in_parts_and_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.writers.ONE_PUT", 10 * 2**20)
    door, uri, content = Storage(options(server.endpoint)), f"s3://{OUTPUT}/file/ü.bin", bytes(range(256)) * 2**17

    def made(text: bytes) -> bool:
        def write(file: IO[bytes]) -> None:
            file.write(text)

        return door.create_file(uri, write)

    assert [made(content), made(b"other"), made(content[::-1])] == [True, False, False]
    assert door.read(uri) == content


def test_an_output_in_a_store_is_folded_merged_and_resumed(
    server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = catalog(server, tmp_path, "compact me")
    spec = s3_job(tmp_path, server.endpoint, "compact me")
    assert run(spec).complete
    output = OutputFolder(f"s3://{OUTPUT}/compact me", Storage(options(server.endpoint)))
    before = output.read_records()
    monkeypatch.setattr("pipeline.folding.SEGMENT_UNITS", 2)
    Folding(output, before)
    assert output.record_names() == set() and len(output.segment_names()) == 3 and output.read_records() == before

    retries = {"mode": "legacy", "total_max_attempts": 2}
    slow = OutputFolder(output.uri, Storage(options(proxy.endpoint, retries=retries)))
    proxy.add(Fault(Kind.ERROR, "PutObject", f"{OUTPUT}/compact me/data/*-merged-*"))
    with pytest.raises(StorageError, match="-merged-"):
        compact(slow, most=2**30)
    assert output.committed() == before
    proxy.forget()
    assert compact(slow, most=2**30).files_after == 1
    result = verify(output, Storage(options(server.endpoint)))
    assert result.findings == () and result.extent.rows_compared == 120
    assert_exact_in_store(server, "compact me", source, tmp_path)
    [line] = stored(server, "compact me")["_symlink_format_manifest/manifest"].decode().splitlines()
    assert line.startswith(f"s3://{OUTPUT}/compact me/data/") and "-merged-" in line
    assert run(spec).model_calls == 0


def test_files_are_fetched_once_each(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    columns = {name: [os.urandom(20_000) for _ in range(60)] for name in "abcd"}
    write(tmp_path / "in/a.parquet", pa.table({"title": ["x"] * 60} | columns), row_group_size=20)
    place = f"s3://{OUTPUT}/fetched once"
    assert run(job(tmp_path, tmp_path / "in", output=place, output_storage=options(server.endpoint))).complete
    done = compact(OutputFolder(place, Storage(options(proxy.endpoint))), most=2**30)
    assert (done.files_before, done.files_after) == (3, 1) and done.bytes_before > 4 * 2**20
    # For checksum and rows together, and the merged file for its checksum; the rest is bookkeeping.
    assert proxy.sent["GetObject"] < done.bytes_before + done.bytes_after + 2**18
