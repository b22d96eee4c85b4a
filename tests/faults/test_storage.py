"""The door to files against a real S3 server, without faults: what is found, read, written once, and refused."""

from __future__ import annotations

import dataclasses
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.job import JobError, UnitCaps
from pipeline.plan import make_plan
from pipeline.storage import Storage, StorageError, StoreUnavailableError
from tests.faults.proxy import Proxy
from tests.faults.server import INPUT, OUTPUT, PUBLIC, READER, SECRETS, WRITER, Server, options


@pytest.fixture
def door(server: Server) -> Storage:
    return Storage(options(server.endpoint))


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    """A prefix that no other test uses."""
    return f"s3://{OUTPUT}/{request.node.name}"


def parquet(rows: int = 3) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(rows))}), sink)
    return sink.getvalue()


def test_an_object_is_created_once_replaced_and_deleted(door: Storage, folder: str) -> None:
    uri = f"{folder}/a b/ü 😀+%20=&.json"
    assert door.read(uri) is None and door.names(folder) == []
    assert door.create(uri, b"first") is True
    assert door.create(uri, b"second") is False
    assert door.read(uri) == b"first"
    before = door.stat(uri)
    assert (before.uri, before.size) == (uri, 5) and not before.version.startswith("mtime")
    door.replace(uri, b"third")
    assert door.read(uri) == b"third" and door.stat(uri).version != before.version
    assert door.names(f"{folder}/a b") == ["ü 😀+%20=&.json"]
    door.delete(uri)
    door.delete(uri)
    assert door.read(uri) is None and door.names(f"{folder}/a b") == []
    with pytest.raises(FileNotFoundError):
        door.stat(uri)


def test_of_many_writers_at_once_one_wins_whole(door: Storage, folder: str) -> None:
    contents = [bytes([byte]) * 200_000 for byte in range(8)]
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda data: door.create(f"{folder}/x", data), contents))
    assert won.count(True) == 1
    assert door.read(f"{folder}/x") == contents[won.index(True)]


def test_a_large_object_goes_in_parts_and_is_created_once_too(
    proxy: Proxy, folder: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.writers.ONE_PUT", 10 * 2**20)
    door = Storage(options(proxy.endpoint))
    data = os.urandom(12 * 2**20 + 1)
    assert door.create(f"{folder}/big", data) is True
    assert proxy.seen["UploadPart"] == 3 and proxy.seen["PutObject"] == 0
    assert door.create(f"{folder}/big", bytes(len(data))) is False
    assert door.read(f"{folder}/big") == data
    door.replace(f"{folder}/big", data[::-1])
    assert door.read(f"{folder}/big") == data[::-1]
    assert door.create(f"{folder}/small", data[: 9 * 2**20]) is True
    assert proxy.seen["PutObject"] == 1
    assert server.client().list_multipart_uploads(OUTPUT) == []


def test_more_objects_than_one_page_of_a_listing(proxy: Proxy, server: Server) -> None:
    names = [f"part-{i:05d}.parquet" for i in range(2105)]
    server.fill(OUTPUT, "many", names)
    door, folder = Storage(options(proxy.endpoint)), f"s3://{OUTPUT}/many"
    assert door.names(folder) == names
    assert proxy.seen["ListObjectsV2"] == 3
    assert [file.uri for file in door.find(folder)] == [f"{folder}/{name}" for name in names]
    assert len(door.find(f"{folder}/part-*[05].parquet")) == 421


def test_inputs_are_folders_globs_and_files_with_any_name(door: Storage, server: Server) -> None:
    client, root = server.client(), f"{INPUT}/many inputs"
    wanted = ["a b/part 1.parquet", "a b/c/ü.parquet", "größe=1/😀.parquet", "x+y&z=%20.parquet"]
    others = ["_SUCCESS", "a b/_metadata", "a b/.p.parquet.crc", "a b/_tmp/x.parquet", "notes.json"]
    for name in [*wanted, *others]:
        client.pipe_file(f"{root}/{name}", parquet())
    client.pipe_file(f"{root}/empty/", b"")  # as consoles mark a folder
    client.pipe_file(f"{root} 2/other.parquet", parquet())  # whose prefix begins alike
    uris = sorted(f"s3://{root}/{name}" for name in wanted)
    assert [f.uri for f in door.find(f"s3://{root}")] == [f.uri for f in door.find(f"s3a://{root}/")] == uris
    assert [f.uri for f in door.find(f"s3://{root}/*/*.parquet")] == [
        f"s3://{root}/a b/part 1.parquet",
        f"s3://{root}/größe=1/😀.parquet",
    ]
    assert [f.uri for f in door.find(f"s3://{root}/*")] == uris  # files and folders directly below
    assert [f.uri for f in door.find(f"s3://{root}/größe=*")] == [f"s3://{root}/größe=1/😀.parquet"]
    assert [f.uri for f in door.find(f"s3://{root}/{wanted[3]}")] == [f"s3://{root}/{wanted[3]}"]
    plan = make_plan([f"s3://{root} 2", f"s3://{root}/a b", f"s3://{root}/a b/*.parquet"], door, UnitCaps(), None)
    assert [f.uri for f in plan.files] == [f"s3://{root} 2/other.parquet", *uris[:2]]
    assert plan.rows == 9 and not plan.bad
    for missing in ("nothing", "nothing-*.parquet", "empty"):
        with pytest.raises(JobError, match=rf"s3://{INPUT}/many inputs/{missing.replace('*', '[*]')}"):
            door.find(f"s3://{root}/{missing}")


def test_keys_and_endpoint_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), WRITER, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    # fsspec keeps one client for each set of options, and another test may have come first with the empty one.
    door = Storage({"client_kwargs": {"region_name": "us-east-1"}})
    assert door.create(f"{folder}/x", b"1") and door.read(f"{folder}/x") == b"1"


def test_what_anybody_may_read_needs_no_key(server: Server) -> None:
    server.client().pipe_file(f"{PUBLIC}/open/a.parquet", parquet())
    door = Storage({"anon": True, "endpoint_url": server.endpoint})
    [file] = door.find(f"s3://{PUBLIC}/open")
    assert door.read(file.uri) == parquet()
    with door.open(file.uri) as opened:
        assert pq.read_table(opened).num_rows == 3
    with pytest.raises(StorageError, match=f"s3://{INPUT}"):
        door.find(f"s3://{INPUT}/x")


def _refusals() -> list[tuple[str, tuple[str, str], str, str]]:
    wrong, nobody = (WRITER[0], "wS3cr3t-wrong-3f3f3f3f"), ("nobody-1f1f", WRITER[1])
    return [
        ("wrong secret", wrong, INPUT, "signature"),
        ("unknown key", nobody, INPUT, "does not exist in our records"),
        ("missing bucket", WRITER, "no-such-bucket", "bucket does not exist"),
    ]


@pytest.mark.parametrize(
    ("identity", "bucket", "reason"), [r[1:] for r in _refusals()], ids=[r[0] for r in _refusals()]
)
@pytest.mark.parametrize("verb", ["find", "names", "read", "create"])
def test_a_refusal_names_bucket_key_and_reason_at_once(
    server: Server, identity: tuple[str, str], bucket: str, reason: str, verb: str
) -> None:
    if (verb, bucket) == ("create", "no-such-bucket"):
        pytest.skip("this server makes the bucket")  # nothing is created before run.json was read, which is refused
    door, uri = Storage(options(server.endpoint, identity)), f"s3://{bucket}/some folder/ü.json"
    started = time.monotonic()
    with pytest.raises(StorageError) as caught:
        door.create(uri, b"1") if verb == "create" else getattr(door, verb)(uri)
    assert time.monotonic() - started < 30
    assert not isinstance(caught.value, StoreUnavailableError)
    assert uri in str(caught.value) and reason in str(caught.value)
    assert not any(secret in f"{caught.value}{door}" for secret in (*SECRETS, identity[1]))


@pytest.mark.parametrize("verb", ["create", "replace", "delete"])
def test_who_may_only_read_is_told_so(server: Server, verb: str) -> None:
    uri = f"s3://{OUTPUT}/readonly/x.json"
    Storage(options(server.endpoint)).replace(uri, b"1")
    door = Storage(options(server.endpoint, READER))
    assert door.read(uri) == b"1"
    with pytest.raises(StorageError, match=f"{uri}: PermissionError: Access Denied"):
        door.delete(uri) if verb == "delete" else getattr(door, verb)(uri, b"2")
    assert door.read(uri) == b"1"


def test_without_any_key_the_error_says_so(server: Server) -> None:
    door = Storage({"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-2"}})
    with pytest.raises(StorageError, match=f"s3://{INPUT}/x: NoCredentialsError"):
        door.read(f"s3://{INPUT}/x")


def test_an_option_that_does_not_exist_is_named_without_its_value(server: Server) -> None:
    door = Storage(options(server.endpoint) | {"secrt": "hunter2"})
    with pytest.raises(StorageError, match="secrt") as caught:
        door.read(f"s3://{INPUT}/x")
    assert "hunter2" not in str(caught.value)


def test_the_options_of_a_job_go_over_the_doors_own(server: Server) -> None:
    given = options(server.endpoint, retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=3)
    fs, _ = Storage(given).at("s3://x")
    assert fs.config_kwargs == given["config_kwargs"] and fs.retries == 2 and fs.max_concurrency == 1
    usual, _ = Storage(options(server.endpoint)).at("s3://x")
    assert usual.config_kwargs["retries"]["total_max_attempts"] == 5
    assert dataclasses.replace(Storage(given)).options == given
