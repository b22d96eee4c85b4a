"""Whole jobs through the door to stores that are neither local nor S3: an object store that fsspec knows, and HDFS as
pyarrow shows it, a filesystem with a host in its URIs. HDFS itself is a folder here, behind the real wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFile
from fsspec.registry import _registry

from pipeline.compact import compact
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.verify import verify
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, inline, job
from tests.pipeline.stores import Hadoop
from tests.pipeline.test_writers import Killed

ROWS = {"id": list(range(45)), "title": [f"title {i}" for i in range(45)]}
Place = Callable[[str], str]


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)


@pytest.fixture(params=["memory://", "hdfs://one:8020/", "hdfs://two/deep/er/"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """place(name): its URI in a store that is empty at first."""

    class PerHost(Hadoop):
        """Each host and port is a folder."""

        def __init__(self, host: str = "default", port: int = 0, **options: Any) -> None:
            super().__init__(tmp_path / f"{host}-{port}")

    monkeypatch.setitem(_registry, "hdfs", PerHost)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield lambda name: f"{request.param}{name}"
    memory.store.clear()


def copied(uri: str, folder: Path) -> Path:
    """All that lies below `uri`, on the local disk."""
    fs, path = Storage().at(uri)
    for name in fs.find(path):
        local = folder / name.removeprefix(path).lstrip("/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(fs.cat_file(name))
    return folder


def filled(place: Place, name: str, table: pa.Table) -> None:
    with fsspec.open(place(name), "wb", auto_mkdir=True) as file:
        pq.write_table(table, file, row_group_size=20)


@pytest.fixture
def spec(place: Place, tmp_path: Path) -> JobSpec:
    for name in ("in/a b/größe=1", "in"):
        fs, path = Storage().at(place(name))
        fs.makedirs(path, exist_ok=True)
    filled(place, "in/a b/größe=1/part-0.parquet", pa.table(ROWS))
    filled(place, "in/part-1.parquet", pa.table({"id": [1], "title": ["y"]}))
    filled(place, "in/_part-2.parquet", pa.table({"id": [1], "title": ["no data"]}))
    return job(tmp_path, [place("in")], output=place("out/put"))  # type: ignore[list-item]


def test_a_job_is_exact_resumed_verified_and_merged(spec: JobSpec, place: Place, tmp_path: Path) -> None:
    calls = HashDecoders(tmp_path / "calls.log").calls
    output, storage = OutputFolder(Storage().absolute(place("out/put")), Storage()), Storage()
    first = run(spec)
    assert first.complete and sum(calls()) == 46, first.failures
    source = pa.table(ROWS | {"größe": ["1"] * 45})
    rest = pa.table({"id": [1], "title": ["y"], "größe": pa.nulls(1, pa.string())})
    expected = pa.concat_tables([source, rest], promote_options="default")
    assert_exact(copied(place("out/put"), tmp_path / "copy"), expected)
    assert [f.uri for f in storage.find(place("in/*.parquet"))] == [storage.absolute(place("in/part-1.parquet"))]

    storage.delete(output.path("_SUCCESS"))
    storage.delete(output.path("_manifest/job.json"))
    lost = min(output.record_names())
    storage.delete(output.record(lost))
    assert run(spec).complete and run(spec).model_calls == 0
    assert verify(output, storage).findings == () and sum(calls()) == 46 + 20
    assert compact(output, most=2**30).files_after == 1
    found = verify(output, storage)
    assert found.findings == () and found.extent.rows_compared == 46
    assert run(spec).model_calls == 0


@pytest.mark.parametrize("place", ["hdfs://one/"], indirect=True)
@pytest.mark.parametrize("name", ["_manifest/job.json", "_SUCCESS", "metrics.json"])
def test_a_kill_while_bookkeeping_is_replaced_has_nothing_decoded_again(
    spec: JobSpec, place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Records of merged files count only where job.json names them."""
    output, storage = OutputFolder(Storage().absolute(place("out/put")), Storage()), Storage()
    assert run(spec).complete and compact(output, most=2**30).files_after == 1
    storage.delete(output.path("_SUCCESS"))

    def killed(step: str, *paths: str) -> None:
        if step == "move" and paths[-1] == f"out/put/{name}":
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Hadoop, "before", killed)
        run(spec)
    again = run(spec)
    assert again.complete and again.model_calls == 0 and verify(output, storage).findings == ()


def test_an_object_is_there_whole_or_not_at_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, uri = Storage(), place("x/a b.json")
    assert storage.create(uri, b"first") and not storage.create(uri, b"second") and storage.read(uri) == b"first"
    assert storage.create_file(place("x/file"), lambda file: file.write(b"1") and None)
    assert not storage.create_file(place("x/file"), lambda file: file.write(b"2") and None)
    before = storage.stat(uri).version
    storage.replace(uri, b"other content")
    assert storage.read(uri) == b"other content" and storage.stat(uri).version != before
    storage.delete(uri)
    storage.delete(uri)
    assert storage.read(uri) is None and storage.names(place("x")) == ["file"] and storage.names(place("none")) == []

    if uri.startswith("hdfs"):

        def killed(self: ArrowFile, data: bytes) -> None:
            self.stream.write(data[:3])
            raise OSError("the datanode is gone")

        with monkeypatch.context() as patch:
            patch.setattr(ArrowFile, "write", killed, raising=False)
            for act in (storage.create, storage.replace):
                with pytest.raises(StorageError, match="the datanode is gone"):
                    act(uri, b"content")
        assert storage.read(uri) is None and storage.names(place("x")) == ["file"]


def test_a_host_stays_in_every_name(place: Place) -> None:
    storage, uri = Storage(), place("x/y.parquet")
    storage.create(uri, b"PAR1")
    [found] = storage.find(place("x"))
    assert found == storage.stat(found.uri) == storage.stat(uri) and storage.absolute(uri) == found.uri
    if uri.startswith("hdfs"):
        assert found.uri == uri


def test_a_store_that_does_not_tell_one_version_from_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/timeless/x.parquet", b"PAR1")
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda *given, **how: info(*given, **how) | {"created": None})
    with pytest.raises(JobError, match=r"memory:///timeless/x\.parquet: its store tells neither a tag nor a time"):
        Storage().stat("memory://timeless/x.parquet")
