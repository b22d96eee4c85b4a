"""Writing to filesystems that are neither the local disk nor S3: which are trusted, what a kill between two steps
leaves, and that an error is no answer to whether an object is there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from pipeline.job import JobError
from pipeline.listing import files_below
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.versioned import read_version, swap
from pipeline.writers import NoWriter, RenamingWriter, SteppingWriter, Writer, is_there, writer_of
from tests.pipeline.helpers import job, write
from tests.pipeline.messy import typed
from tests.pipeline.stores import Hadoop

OLD, NEW, NEXT = b"old", b"new, and longer", b"the next one"


class Killed(BaseException):
    pass


class Cluster:
    """hdfs://one."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        class One(Hadoop):
            def __init__(self, host: str = "", port: int = 0) -> None:
                super().__init__(root)

        self.kind, self.fs, self._patch = One, One(), patch
        self.writer = writer_of(self.fs)

    @property
    def before(self) -> Callable[..., object]:
        return Hadoop.before

    @before.setter
    def before(self, act: Callable[..., object]) -> None:
        self._patch.setattr(Hadoop, "before", act)

    def content(self) -> bytes | None:
        try:
            return self.writer.read("/x/a.json")
        except FileNotFoundError:
            return None


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(tmp_path / "cluster", monkeypatch)
    monkeypatch.setitem(_registry, "hdfs", cluster.kind)
    return cluster


def killed_at(step: int) -> Callable[..., None]:
    left = iter(range(step))

    def count(*_: object) -> None:
        if next(left, None) is None:
            raise Killed

    return count


def gap(step: str, *paths: str) -> None:
    """The old one has stepped aside, and the new one has not got its name."""
    if step == "move" and paths[-1] == "x/a.json":
        raise Killed


@pytest.mark.parametrize("before", [None, OLD], ids=["new", "replaced"])
@pytest.mark.parametrize("step", range(12))
def test_a_kill_at_any_step_leaves_the_old_object_or_the_new_one(
    cluster: Cluster, before: bytes | None, step: int
) -> None:
    writer = cluster.writer
    if before:
        writer.replace("/x/a.json", before)
    cluster.before = killed_at(step)
    try:
        writer.replace("/x/a.json", NEW)
        assert step >= (10 if before else 7)
    except Killed:
        assert step < (10 if before else 7)
    cluster.before = lambda *_: None
    found = cluster.content()
    assert found in (before, NEW) and writer.create("/x/a.json", NEXT) is (found is None)

    writer.replace("/x/a.json", NEXT)
    assert cluster.content() == NEXT and is_there(cluster.fs, "/x/a.json")
    assert [name for name in files_below(cluster.fs, "/x") if not name.endswith(".tmp")] == ["/x/a.json"]
    writer.replace("/x/a.json", OLD)
    writer.delete("/x/a.json")
    assert cluster.content() is None


@pytest.mark.parametrize("step", range(11))
@pytest.mark.parametrize("again", range(4))
def test_what_is_deleted_after_a_kill_stays_deleted_wherever_that_is_cut_off(
    cluster: Cluster, step: int, again: int
) -> None:
    cluster.writer.replace("/x/a.json", OLD)
    acts = (lambda: cluster.writer.replace("/x/a.json", NEW), lambda: cluster.writer.delete("/x/a.json"))
    for stop, act in zip((step, again), acts, strict=True):
        found = cluster.content()
        cluster.before = killed_at(stop)
        with suppress(Killed, FileNotFoundError):
            act()
        cluster.before = lambda *_: None
    assert cluster.content() in (found, None)  # and not what was there before it
    with suppress(FileNotFoundError):
        cluster.writer.delete("/x/a.json")
    assert cluster.content() is None


def test_whoever_reads_while_it_is_replaced_finds_it(cluster: Cluster) -> None:
    cluster.writer.replace("/x/a.json", OLD)
    seen: list[bytes | None] = []

    def look(*_: object) -> None:
        cluster.before = lambda *_: None
        seen.append(cluster.content())
        cluster.before = look

    cluster.before = look
    for data in (NEW, OLD, NEW):
        cluster.writer.replace("/x/a.json", data)
    assert len(seen) == 30 and set(seen) == {OLD, NEW}


def test_whoever_looks_aside_too_late_looks_again(cluster: Cluster) -> None:
    cluster.writer.replace("/x/a.json", OLD)
    cluster.before = gap
    with pytest.raises(Killed):
        cluster.writer.replace("/x/a.json", NEW)

    def finished(step: str, path: str) -> None:
        if step == "open_input_stream" and path.endswith(".before"):
            cluster.before = lambda *_: None
            cluster.writer.replace("/x/a.json", NEXT)

    cluster.before = finished
    assert not is_there(cluster.fs, "/x/a.json") and cluster.content() == NEXT


def test_a_lease_is_there_while_it_is_renewed(cluster: Cluster) -> None:
    """Who watches it must not take it for one that was given back."""
    storage, uri = Storage(), "hdfs://one/x/a.json"
    assert storage.create(uri, OLD)
    version = read_version(storage, uri)
    assert version is not None and version.data == OLD
    cluster.before = gap
    with pytest.raises(Killed):
        swap(storage, uri, NEW, version.tag)
    cluster.before = lambda *_: None
    assert read_version(storage, uri) == version and not storage.create(uri, NEXT)
    assert not swap(storage, uri, NEXT, "another") and swap(storage, uri, NEXT, version.tag)
    assert storage.read(uri) == NEXT


class Unconditional(MemoryFileSystem):
    """Files that fsspec writes through an open file."""

    cachable = False
    pipe_file = AbstractFileSystem.pipe_file

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store, self.pseudo_dirs = {}, [""]  # type: ignore[misc]


class Refusing(Unconditional):
    """The answer to a rename onto another file is no, and nobody hears it: WebHDFS."""

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if not self.exists(path2):
            super().mv(path1, path2, **options)


class Losing(Unconditional):
    """A rename that copies, and comes only half way."""

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1)[:3])
        self.rm_file(path1)


@pytest.mark.parametrize("kind", [Refusing, Losing])
def test_a_rename_that_did_not_happen_is_an_error(kind: type[Unconditional]) -> None:
    fs = kind()
    writer = RenamingWriter(fs)
    fs.pipe_file("/x/a.json", OLD)
    with pytest.raises(OSError, match=r"a\.json\.\w+\.tmp of 15 bytes was not renamed"):
        writer.replace("/x/a.json", NEW)
    assert [name for name in fs.find("/x") if name.endswith(".tmp")] == []


def made(module: str, name: str) -> AbstractFileSystem:
    return type(name, (Unconditional,), {"__module__": module})()


@pytest.mark.parametrize(
    ("fs", "writer"),
    [
        (made("fsspec.implementations.sftp", "SFTPFileSystem"), RenamingWriter),
        (made("fsspec.implementations.webhdfs", "WebHDFS"), NoWriter),
        (made("fsspec.implementations.smb", "SMBFileSystem"), NoWriter),
        (made("fsspec.implementations.ftp", "FTPFileSystem"), NoWriter),
        (made("nobody.knows", "Odd"), NoWriter),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_stores_whose_renames_are_known_are_written_to(fs: AbstractFileSystem, writer: type[Writer]) -> None:
    assert type(writer_of(fs)) is writer


class Odd(MemoryFileSystem):
    cachable, protocol = False, "odd"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    pipe_file = AbstractFileSystem.pipe_file

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("odd://")))


def test_other_stores_are_read_and_not_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(_registry, "odd", Odd)
    Odd.store.clear()
    fs, storage, uri = Odd(), Storage(), "odd://x/a.json"
    fs.pipe_file("/x/a.json", OLD)
    assert storage.read(uri) == OLD and storage.sizes("odd://x") == {"a.json": 3}
    acts: list[Callable[[], object]] = [
        lambda: storage.create(uri, NEW),
        lambda: storage.create_file(uri, lambda file: file.write(NEW) and None),
        lambda: storage.replace(uri, NEW),
        lambda: storage.delete(uri),
        lambda: storage.check_writable("odd://x"),
    ]
    write(tmp_path / "in/x.parquet", typed(5))
    spec = job(tmp_path, tmp_path / "in", output="odd://out")
    for act in (*acts, lambda: run(spec)):
        with pytest.raises(JobError, match=r"^odd:///\S+: nothing is written to a store of this kind"):
            act()
    assert fs.find("/") == ["/x/a.json"] and storage.read(uri) == OLD
    assert spec.decoder_factory.calls() == []  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [RenamingWriter, SteppingWriter])
def test_a_lost_connection_is_not_a_missing_object(kind: type[Writer], monkeypatch: pytest.MonkeyPatch) -> None:
    fs = Unconditional()
    fs.pipe_file("/x/a.json", OLD)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "info", lost)
        assert not AbstractFileSystem.exists(fs, "/x/a.json")
        with pytest.raises(ConnectionResetError):
            kind(fs).create("/x/a.json", NEW)
    assert fs.cat_file("/x/a.json") == OLD and fs.find("/x") == ["/x/a.json"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_errors_that_say_it_is_missing_are_understood(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    class Foreign(OSError):
        """As smbprotocol has them, no FileNotFoundError."""

    fs = Unconditional()
    monkeypatch.setattr(fs, "info", lambda _: (_ for _ in ()).throw(Foreign(number, "not there")))
    assert not is_there(fs, "/x")


def test_folders_that_cannot_be_listed_are_no_empty_ones(cluster: Cluster) -> None:
    names = {"a/b/x.parquet", "a/y.parquet"}
    for name in names:
        cluster.writer.replace(f"/in/{name}", OLD)
    storage, uri = Storage(), "hdfs://one/in"
    asks = [lambda: set(storage.sizes(uri))]
    for pattern in ("", "/**", "/*", "/a/[by]*"):
        asks.append(lambda p=pattern: {f.uri.removeprefix(f"{uri}/") for f in storage.find(uri + p)})  # type: ignore[misc]
    assert [ask() for ask in asks] == [names] * len(asks)
    for folder in ("in/a", "in/a/b"):

        def gone(step: str, path: str, folder: str = folder) -> None:
            if step == "get_file_info" and path == folder:
                raise OSError("the namenode is gone")

        cluster.before = gone
        for ask in asks:
            with pytest.raises(StorageError, match="the namenode is gone"):
                ask()


def test_local_folders_that_may_not_be_listed_are_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("a/x.parquet", "a/b/y.parquet"):
        (tmp_path / name).write_bytes(OLD)
    scandir = os.scandir

    def refused(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("/b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    for ask in (Storage().sizes, Storage().find, lambda uri: Storage().find(f"{uri}/*")):
        with pytest.raises(StorageError, match=r"Permission denied.*a/b"):
            ask(str(tmp_path))
