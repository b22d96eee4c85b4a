from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from pipeline.job import JobError
from pipeline.storage import Storage, StorageError

STORAGE = Storage()


def test_create_writes_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.bin"
    assert STORAGE.create(str(path), b"first") is True
    assert STORAGE.create(str(path), b"second") is False
    assert path.read_bytes() == b"first"
    assert os.listdir(path.parent) == ["x.bin"]


def _create(path: str, byte: int, queue: multiprocessing.Queue) -> None:
    queue.put((byte, STORAGE.create(path, bytes([byte]) * 200_000)))


def test_of_many_writers_one_wins_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue = context.Queue()
    path = tmp_path / "x.bin"
    writers = [context.Process(target=_create, args=(str(path), i, queue)) for i in range(6)]
    for writer in writers:
        writer.start()
    results = dict(queue.get(timeout=30) for _ in writers)
    for writer in writers:
        writer.join()
    [winner] = [byte for byte, won in results.items() if won]
    assert path.read_bytes() == bytes([winner]) * 200_000
    assert os.listdir(tmp_path) == ["x.bin"]


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_one_writer_wins_whole_as_well(tmp_path: Path) -> None:
    test_of_many_writers_one_wins_whole(tmp_path)
    test_create_writes_once_and_leaves_nothing_else(tmp_path)


def _killed_at_the_rename(path: str) -> None:
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    STORAGE.create(path, b"half")


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_a_killed_writer_leaves_no_object_and_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.local_files._CLAIM_SECONDS", 0.2)
    path = tmp_path / "x.bin"
    writer = multiprocessing.get_context("fork").Process(target=_killed_at_the_rename, args=(str(path),))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL and STORAGE.read(str(path)) is None
    assert STORAGE.create(str(path), b"whole") is True and STORAGE.create(str(path), b"late") is False
    assert path.read_bytes() == b"whole"
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".tmp")] == ["x.bin"]


def test_replace_and_delete(tmp_path: Path) -> None:
    uri = str(tmp_path / "run.json")
    STORAGE.replace(uri, b"1")
    STORAGE.replace(uri, b"2")
    assert STORAGE.read(uri) == b"2"
    STORAGE.delete(uri)
    STORAGE.delete(uri)
    assert STORAGE.read(uri) is None
    assert STORAGE.names(str(tmp_path)) == [] and STORAGE.names(str(tmp_path / "none")) == []


def test_find_takes_files_folders_and_globs_and_skips_bookkeeping(tmp_path: Path) -> None:
    wanted = ["a.parquet", "b c.snappy.parquet", "sub/d.PARQUET", "sub/e.parq", "ü/f.parquet"]
    others = ["_SUCCESS", "_metadata", ".a.parquet.crc", "x.json", "y.parquet.tmp", "sub/_SUCCESS", "_tmp/z.parquet"]
    for name in [*wanted, *others]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    found = STORAGE.find(str(tmp_path))
    assert [f.uri for f in found] == sorted(str(tmp_path / name) for name in wanted)
    assert all(f.size == 4 and f.version.startswith("mtime:") for f in found)
    assert STORAGE.find(f"file://{tmp_path}") == found
    assert [f.uri for f in STORAGE.find(str(tmp_path / "x.json"))] == [str(tmp_path / "x.json")]
    assert [f.uri for f in STORAGE.find(str(tmp_path / "*" / "e.*"))] == [str(tmp_path / "sub/e.parq")]


def test_a_file_name_may_hold_glob_characters(tmp_path: Path) -> None:
    path = tmp_path / "a[1].parquet"
    path.write_bytes(b"1")
    assert [f.uri for f in STORAGE.find(str(path))] == [str(path)]


@pytest.mark.parametrize("name", ["missing.parquet", "missing-*.parquet", "empty"])
def test_an_input_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobError, match=f"{name.replace('*', '[*]')}.*(no file|not exist)"):
        STORAGE.find(str(tmp_path / name))


def test_a_changed_file_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"1234")
    before = STORAGE.stat(str(path))
    os.utime(path, ns=(1, 1))
    assert STORAGE.stat(str(path)).version != before.version


def test_errors_name_the_uri_and_secrets_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        STORAGE.create(str(tmp_path / "file" / "below"), b"x")
    assert "hunter2" not in repr(Storage({"secret": "hunter2"}))
    with pytest.raises(JobError, match="nosuch://"):
        STORAGE.find("nosuch://bucket/x")


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert STORAGE.absolute("out/") == str(tmp_path / "out")
    assert Storage().absolute("s3://bucket/a b/") == "s3://bucket/a b"


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("a/../b.parquet", "b.parquet"),
        ("a/./b//c.parquet", "a/b/c.parquet"),
        ("a/b/../../c", "c"),
        ("link/x.parquet", "link/x.parquet"),  # a link keeps its name: what is behind `current` may change
        ("link/../x.parquet", "deep/x.parquet"),  # as `cat` has it: the parent of the folder that the link is to
        ("link/sub/../x.parquet", "link/x.parquet"),
        ("a/..b/c..", "a/..b/c.."),
        ("a/*/../b", "a/*/../b"),
    ],
)
def test_a_local_path_has_one_name(tmp_path: Path, given: str, means: str) -> None:
    (tmp_path / "deep/er/sub").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    assert STORAGE.absolute(f"{tmp_path}/{given}") == f"{tmp_path}/{means}"
    if "*" not in given and "/b" not in given:
        assert os.path.realpath(f"{tmp_path}/{given}") == os.path.realpath(f"{tmp_path}/{means}")


def test_a_path_with_steps_back_finds_the_same_files_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("in/x.parquet", "here/notes"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path / "here")
    [file] = STORAGE.find("../in")
    assert file == STORAGE.find(str(tmp_path / "in"))[0] == STORAGE.stat("../in/x.parquet")
    assert STORAGE.find("../in/*.parquet") == STORAGE.find(f"file://{tmp_path}/here/../in/") == [file]
    assert file.uri == str(tmp_path / "in/x.parquet") and STORAGE.absolute("/..") == "/"


def test_steps_back_in_a_key_are_the_stores_own() -> None:
    assert STORAGE.absolute("memory://a/../b") == "memory:///a/../b"
