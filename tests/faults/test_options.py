"""What a job's storage options ask of a store reaches every request: encryption with a key of KMS, buckets whose
readers pay, and keys of a role that are replaced while a job runs.

The first two are looked at in front of the server: SeaweedFS has no KMS here, and bills nobody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.commit import CommitStage
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.versioned import read_version, swap
from tests.faults.jobs import assert_exact_in_store, catalog, s3_job
from tests.faults.proxy import Proxy
from tests.faults.server import OUTPUT, REGION, RENEWED, SECRETS, WRITER, Server, options
from tests.pipeline.helpers import inline

PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")


@pytest.fixture(autouse=True)
def small_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.writers.ONE_PUT", 10 * 2**20)


def writes(door: Storage, place: str) -> list[Callable[[], object]]:
    """Every way in which a job writes, below `place`, where `x` is."""

    def swapped() -> None:
        version = read_version(door, f"{place}/x")
        assert version is not None
        swap(door, f"{place}/x", b"2", version.tag)

    return [
        lambda: door.create(f"{place}/one", b"1"),
        lambda: door.create(f"{place}/parts", bytes(11 * 2**20)),
        lambda: door.create_file(f"{place}/file", lambda file: file.write(bytes(11 * 2**20)) and None),
        lambda: door.replace(f"{place}/x", b"1"),
        swapped,
    ]


def test_encryption_with_a_key_is_asked_for_with_every_object(server: Server, proxy: Proxy) -> None:
    place, given = f"s3://{OUTPUT}/encrypted", options(proxy.endpoint, retries={"total_max_attempts": 1})
    Storage(given).replace(f"{place}/x", b"1")
    proxy.forget()
    key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:of:a-key"}
    for write in writes(Storage(given | {"s3_additional_kwargs": key}), place):
        try:
            write()
        except StorageError as e:  # that it has no such key is the server's to say
            assert place in str(e)
    assert proxy.seen["PutObject"] >= 3 and proxy.seen["CreateMultipartUpload"] == 2
    for headers in proxy.asked["PutObject"] + proxy.asked["CreateMultipartUpload"]:
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:of:a-key"


def test_who_reads_pays_with_every_request(server: Server, proxy: Proxy) -> None:
    place, door = f"s3://{OUTPUT}/paid", Storage(options(proxy.endpoint) | {"requester_pays": True})
    door.replace(f"{place}/x", b"1")
    for write in writes(door, place):
        write()
    with door.open(f"{place}/parts", ahead=False) as file:
        assert len(file.read()) == 11 * 2**20
    assert door.stat(f"{place}/x").size == 1 and door.names(place)
    door.delete(f"{place}/x")
    for operation in ("GetObject", "HeadObject", "ListObjectsV2", "PutObject", "DeleteObject", *PARTS):
        assert proxy.asked[operation], operation
        assert all(headers.get("x-amz-request-payer") == "requester" for headers in proxy.asked[operation]), operation


@contextmanager
def role(identities: list[tuple[str, str]]) -> Iterator[str]:
    """The address at which a machine's role is asked for keys: each answer names the first of `identities`, which is
    to be renewed at once."""

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
            key, secret = identities[0]
            facts = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": "", "Expiration": soon}
            body = json.dumps(facts).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{answering.server_port}/keys"
        finally:
            answering.shutdown()


def test_keys_of_a_role_are_renewed_in_the_middle_of_a_job(
    server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = catalog(server, tmp_path, "role", count=1, rows=60)
    monkeypatch.setattr("pipeline.drive.drive", inline)
    identities, committed, commit = [WRITER], [], CommitStage.__call__

    def renewed(stage: CommitStage, block: pa.Table) -> pa.Table:
        identities[0] = RENEWED if len(committed) == 1 else identities[0]
        committed.append(commit(stage, block))
        return committed[-1]

    monkeypatch.setattr(CommitStage, "__call__", renewed)
    with role(identities) as address:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
        storage = {"endpoint_url": proxy.endpoint, "client_kwargs": REGION}
        assert run(s3_job(tmp_path, proxy.endpoint, "role", storage=storage)).complete
    signed = [headers["authorization"] for headers in proxy.asked["PutObject"]]
    by = ["".join(key for key, _ in (WRITER, RENEWED) if f"Credential={key}/" in line) for line in signed]
    first = by.index(RENEWED[0])
    assert first > 2 and set(by[:first]) == {WRITER[0]} and set(by[first:]) == {RENEWED[0]}
    there = assert_exact_in_store(server, "role", source, tmp_path)
    assert not any(secret.encode() in content for secret in SECRETS for content in there.values())
