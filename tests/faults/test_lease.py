"""The lease of an output in a real store, and two writers at once that no lease keeps apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import lease as leases
from pipeline.holder import Holder
from pipeline.lease import LEASE, Lease, LeaseLostError, OutputHeldError, Pace, held
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.verify import verify
from pipeline.versioned import read_version, swap
from tests.faults.jobs import assert_exact_in_store, catalog, s3_job, stored
from tests.faults.proxy import Fault, Kind, Proxy
from tests.faults.server import OUTPUT, READER, Server, options
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import inline
from tests.pipeline.holding import without_lease

SILENT = Pace(seconds=1.0, renew=60.0, poll=0.05)
ELSEWHERE = replace(Holder.here(), run="elsewhere", host="node-7", pid=4321, place="another boot")


def ignore(_: str) -> None:
    pass


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pace], None]:
    return lambda pace: monkeypatch.setattr(leases, "PACE", pace)


def folder(endpoint: str, name: str) -> OutputFolder:
    return OutputFolder(f"s3://{OUTPUT}/{name}", Storage(options(endpoint)))


def holder_of(output: OutputFolder) -> Holder | None:
    version = read_version(output.storage, output.path(LEASE))
    return None if version is None else Holder.from_json(version.data)


def test_an_object_is_swapped_once(server: Server) -> None:
    storage, uri = Storage(options(server.endpoint)), f"s3://{OUTPUT}/swap/a b.json"
    assert read_version(storage, uri) is None and not swap(storage, uri, b"2", '"0"')
    storage.create(uri, b"1")
    first = read_version(storage, uri)
    assert first is not None and first.data == b"1"
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(swap(storage, uri, b"%d" % n, first.tag))) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]
    with pytest.raises(StorageError, match=f"{uri}: PermissionError"):
        swap(Storage(options(server.endpoint, READER)), uri, b"3", first.tag)
    with pytest.raises(StorageError, match="bucket does not exist"):
        read_version(storage, "s3://no-such-bucket/x")


def test_a_lease_in_a_store_is_refused_lost_taken_over_and_given_back(server: Server, pace: Callable) -> None:
    output = folder(server.endpoint, "lease")
    pace(Pace(seconds=20.0, renew=0.3, poll=0.1))
    with held(output, ignore) as first:
        with pytest.raises(OutputHeldError, match=r"is being written by process .* on "), held(output, ignore):
            pytest.fail("two hold the lease")
        first.confirm()
    assert holder_of(output) is None

    pace(SILENT)
    stale = Lease(output, SILENT)
    stale.take(ignore)
    started = time.monotonic()
    with held(output, ignore) as second:
        assert second.waited and time.monotonic() - started >= SILENT.seconds
        with pytest.raises(LeaseLostError, match="another driver has taken over"):
            stale.confirm()
        stale.release()
        second.confirm()
        output.storage.delete(output.path(LEASE))  # by hand
        second.confirm()
        assert holder_of(output) is not None
    assert holder_of(output) is None


@pytest.mark.parametrize("kind", [Kind.SLOW_DOWN, Kind.RESET, Kind.LOST])
def test_a_lease_outlives_faults_of_its_store(server: Server, proxy: Proxy, pace: Callable, kind: Kind) -> None:
    """A write whose answer is lost is refused when it is tried again, and has been done."""
    pace(SILENT)
    output = folder(proxy.endpoint, f"shaky-{kind.value}")
    faults = [proxy.add(Fault(kind, "PutObject", times=1)), proxy.add(Fault(kind, "HeadObject", times=1))]
    with held(output, ignore) as lease:
        assert not lease.waited
        faults.append(proxy.add(Fault(kind, "PutObject", times=1)))
        lease.confirm()
    assert [fault.struck for fault in faults] == [1, 1, 1] and holder_of(output) is None


def test_a_job_takes_over_from_a_driver_that_is_gone(
    server: Server, tmp_path: Path, pace: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    pace(SILENT)
    source = catalog(server, tmp_path, "taken", count=1)
    output = folder(server.endpoint, "taken")
    output.storage.create(output.path(LEASE), ELSEWHERE.to_json(1))
    messages: list[str] = []
    summary = run(s3_job(tmp_path, server.endpoint, "taken"), progress=lambda p: messages.append(p.reason))
    assert summary.complete and "process 4321" in messages[0] and "taking over" in messages[1]
    assert LEASE not in assert_exact_in_store(server, "taken", source, tmp_path)


def test_two_writers_at_once_make_one_exact_output(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any lease: what protects the rows is that data and manifests are created once."""
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    source = catalog(server, tmp_path, "two", rows=60)
    ended: dict[str, object] = {}

    def write(log: str) -> None:
        ended[log] = run(s3_job(tmp_path, server.endpoint, "two", log)).complete

    threads = [threading.Thread(target=write, args=(log,)) for log in ("first.log", "second.log")]
    with without_lease():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ended == {"first.log": True, "second.log": True}
    assert sum(sum(HashDecoders(tmp_path / log).calls()) for log in ended) > 180, "they did not run at the same time"
    assert_exact_in_store(server, "two", source, tmp_path)
    output = folder(server.endpoint, "two")
    assert verify(output, output.storage).findings == ()
    assert len([path for path in stored(server, "two") if path.startswith("_manifest/units/")]) == 9
