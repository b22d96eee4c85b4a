"""Every fault at every kind of request at the door to files: once, and it is as if nothing had been; always, and there
is an error that names the object, soon, with nothing half written.

The kinds of one operation run side by side, each on an object of its own, since all that they do is wait.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.storage import Storage, StoreUnavailableError, explained
from tests.faults.proxy import Fault, Kind, Proxy
from tests.faults.server import OUTPUT, Server, options

PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
WRITES = ("PutObject", *PARTS)
READS = ("GetObject", "HeadObject", "ListObjectsV2")
#: In place of 64 MiB; parts are half of it, and S3 takes none below 5 MiB.
SMALL_PUT = 10 * 2**20
DATA = bytes(range(256)) * 1000
IN_PARTS = DATA * 41
#: Every case ends so soon, on a busy machine too; on a quiet one a tenth of it.
SECONDS = 60.0


@dataclass
class Outcome:
    """What one call came to: its result or its error, the requests that were hit, and what the store holds then."""

    kind: Kind
    uri: str
    result: object
    error: Exception | None
    struck: int
    seconds: float
    stored: bytes | None


@pytest.fixture(autouse=True)
def small_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.writers.ONE_PUT", SMALL_PUT)


@pytest.fixture(autouse=True)
def nothing_left(server: Server) -> Iterator[None]:
    """Other tests find no trace of what `abandoned` finds."""
    yield
    server.client().clear_multipart_uploads(OUTPUT)


def impatient(endpoint: str, wait: float = 1.0) -> Storage:
    """Two tries in place of five, `wait` seconds for an answer in place of fifteen."""
    retries = {"mode": "legacy", "total_max_attempts": 2}
    return Storage(options(endpoint, retries=retries, read_timeout=wait))


def act(door: Storage, operation: str, uri: str) -> object:
    """The call of the door that makes requests of this kind."""
    calls: dict[str, Callable[[], object]] = {
        "GetObject": lambda: door.read(uri),
        "HeadObject": lambda: door.stat(uri).size,
        "ListObjectsV2": lambda: [file.uri for file in door.find(uri.rpartition("/")[0])],
        "PutObject": lambda: door.create(uri, DATA),
    }
    return calls.get(operation, lambda: door.create(uri, IN_PARTS))()


def outcomes(server: Server, proxy: Proxy, operation: str, times: int | None) -> list[Outcome]:
    """One call for each kind of fault, all at once."""
    wait = 3.0 if operation in PARTS else 1.0
    client, door = server.client(), impatient(proxy.endpoint, wait)
    # Without faults first: making a client takes longer on a busy machine than some of the limits here.
    door.names(f"s3://{OUTPUT}/none")

    def run(kind: Kind) -> Outcome:
        folder = f"{OUTPUT}/{operation}-{times}-{kind.value}"
        key = f"{folder}/a b ü.parquet"
        if operation in READS:
            client.pipe_file(key, DATA)
        fault = proxy.add(Fault(kind, operation, f"{folder}/*", times, seconds=1.5 * wait))
        started, result, error = time.monotonic(), None, None
        try:
            result = act(door, operation, f"s3://{key}")
        except Exception as e:
            error = e
        seconds = time.monotonic() - started
        stored = client.cat_file(key) if client.exists(key) else None
        return Outcome(kind, f"s3://{key}", result, error, fault.struck, seconds, stored)

    # An answer to HEAD has no body that could be cut; bodies that trickle have a test of their own.
    kinds = [kind for kind in Kind if (operation, kind) != ("HeadObject", Kind.TRUNCATED) and kind is not Kind.TRICKLE]
    with ThreadPoolExecutor(3 if operation in PARTS else len(kinds)) as threads:
        return list(threads.map(run, kinds))


@pytest.mark.parametrize("operation", [*READS, *WRITES])
def test_one_fault_changes_nothing(server: Server, proxy: Proxy, operation: str) -> None:
    data = IN_PARTS if operation in PARTS else DATA
    for outcome in outcomes(server, proxy, operation, 1):
        assert outcome.error is None, outcome
        assert outcome.struck == 1 and outcome.stored == data, outcome.kind
        expected = {"GetObject": DATA, "HeadObject": len(DATA), "ListObjectsV2": [outcome.uri]}
        if operation in READS:
            assert outcome.result == expected[operation], outcome.kind
        elif not outcome.kind.reaches_server or operation not in ("PutObject", "CompleteMultipartUpload"):
            assert outcome.result is True, outcome.kind
        # Else the store did it, nobody heard, and the next try may find the object there: False, with the data whole.
    assert server.client().list_multipart_uploads(OUTPUT) == abandoned(server)


@pytest.mark.parametrize("operation", [*READS, *WRITES])
def test_a_fault_that_stays_is_an_error_that_names_the_object(server: Server, proxy: Proxy, operation: str) -> None:
    data = IN_PARTS if operation in PARTS else DATA
    for outcome in outcomes(server, proxy, operation, None):
        assert isinstance(outcome.error, StoreUnavailableError), outcome
        assert outcome.uri.rpartition("/")[0] in str(outcome.error), outcome.kind
        assert 2 <= outcome.struck <= 16 and outcome.seconds < SECONDS, outcome
        last = operation in ("PutObject", "CompleteMultipartUpload")
        if operation in READS:
            assert outcome.stored == data
        elif last and outcome.kind.reaches_server:
            assert outcome.stored in (None, data), outcome.kind
        else:
            assert outcome.stored is None, outcome.kind
    assert server.client().list_multipart_uploads(OUTPUT) == abandoned(server)


def abandoned(server: Server) -> list[object]:
    """Uploads that nobody can end: the server began them, and its answer, with the name to abort, was lost."""
    uploads: list[dict[str, str]] = server.client().list_multipart_uploads(OUTPUT)
    return [upload for upload in uploads if upload["Key"].startswith("CreateMultipartUpload-")]


def test_an_abort_that_fails_is_tried_again(server: Server, proxy: Proxy) -> None:
    proxy.add(Fault(Kind.ERROR, "CompleteMultipartUpload"))
    abort = proxy.add(Fault(Kind.SLOW_DOWN, "AbortMultipartUpload", times=1))
    with pytest.raises(StoreUnavailableError, match="internal error"):
        impatient(proxy.endpoint).create(f"s3://{OUTPUT}/aborted/x", IN_PARTS)
    assert abort.struck == 1
    assert not [u for u in server.client().list_multipart_uploads(OUTPUT) if u["Key"].startswith("aborted/")]


def test_a_table_is_read_whole_although_every_third_answer_is_cut(server: Server, proxy: Proxy) -> None:
    key, table = f"{OUTPUT}/cut/table.parquet", pa.table({"id": list(range(50_000)), "text": ["x" * 20] * 50_000})
    with server.client().open(key, "wb") as file:
        pq.write_table(table, file, row_group_size=5_000)
    fault = proxy.add(Fault(Kind.TRUNCATED, "GetObject", every=3))
    for _ in range(5):  # of which each makes two requests or more
        with impatient(proxy.endpoint).open(f"s3://{key}") as opened:
            assert pq.read_table(opened).equals(table)
    assert fault.struck > 0


def test_a_store_that_takes_no_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.bounded_s3fs.CALL_SECONDS", 2.0)
    monkeypatch.setattr("pipeline.writers.ONE_PUT", 64 * 2**20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        door = impatient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(
            StoreUnavailableError, match=f"s3://{OUTPUT}/x: ConnectionError: put_object was not done after 2 s"
        ):
            door.create(f"s3://{OUTPUT}/x", bytes(32 * 2**20))
        assert time.monotonic() - started < SECONDS
        for connection in held:
            connection.close()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_that_trickles_is_asked_for_once_more_and_given_up(
    server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """A byte comes before the client stops waiting for one, for ever: of a whole object, and of a part of one."""
    monkeypatch.setattr("pipeline.bounded_s3fs.CALL_SECONDS", 2.0)
    key, door = f"{OUTPUT}/trickle-{whole}/x", impatient(proxy.endpoint)
    server.client().pipe_file(key, DATA)

    def read() -> bytes | None:
        if whole:
            return door.read(f"s3://{key}")
        with explained(f"s3://{key}"), door.open(f"s3://{key}", ahead=False) as file:
            file.seek(10)
            return file.read(1000)

    wanted = DATA if whole else DATA[10:1010]
    once = proxy.add(Fault(Kind.TRICKLE, "GetObject", key, times=1))
    assert read() == wanted and once.struck == 1
    always, started = proxy.add(Fault(Kind.TRICKLE, "GetObject", key)), time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"s3://{key}: .* not there whole after 2 s"):
        read()
    assert always.struck == 2 and time.monotonic() - started < SECONDS


def test_nobody_listening_is_no_reason_to_give_up_for_good() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(StoreUnavailableError, match=f"s3://{OUTPUT}/x: EndpointConnectionError"):
        impatient(endpoint).find(f"s3://{OUTPUT}/x")
