"""What follows from a store that fails for a time, and not for good; without a store. tests/faults has a real one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.exceptions as boto
import pytest

from hpd_core.passing import codes
from pipeline.manifest import OutputFolder
from pipeline.plan import make_plan
from pipeline.prepare import prepare
from pipeline.run import run
from pipeline.storage import Storage, StorageError, StoreUnavailableError, explained
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, inline, input_table, job, shards, write

STORAGE_OPEN = Storage.open


def answered(code: str, kind: type[OSError] = OSError) -> OSError:
    """As s3fs raises what a store answered."""
    error = kind("words of the store")
    response: Mapping[str, Any] = {"Error": {"Code": code}}
    error.__cause__ = boto.ClientError(response, "PutObject")
    return error


PASSING = [
    answered("InternalError"),
    answered("SlowDown"),
    answered("503"),
    boto.EndpointConnectionError(endpoint_url="http://x"),
    boto.ReadTimeoutError(endpoint_url="http://x"),
    boto.ConnectionClosedError(endpoint_url="http://x"),
    ConnectionResetError("reset"),
    TimeoutError(),
]
LASTING = [
    answered("AccessDenied", PermissionError),
    answered("NoSuchBucket", FileNotFoundError),
    answered("SignatureDoesNotMatch", PermissionError),
    boto.NoCredentialsError(),
    boto.SSLError(endpoint_url="http://x", error="certificate"),
    PermissionError(13, "Permission denied"),
    ValueError("not Parquet"),
]


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=lambda e: f"{type(e).__name__} {codes(e)}")
def test_what_passes_is_told_from_what_stays(error: Exception) -> None:
    with (
        pytest.raises(StorageError, match=f"s3://bucket/key: {type(error).__name__}") as caught,
        explained("s3://bucket/key"),
    ):
        raise error
    assert isinstance(caught.value, StoreUnavailableError) is (error in PASSING)


def test_an_input_that_cannot_be_reached_is_no_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan over the other files would bind the output to their schema, and `skip` would call it complete."""
    source = shards(tmp_path / "in", 3)
    monkeypatch.setattr(Storage, "open", lambda self, uri: _failing(uri, "part-0001", ConnectionResetError("reset")))
    with pytest.raises(StoreUnavailableError, match=r"part-0001.parquet: ConnectionResetError"):
        make_plan([str(source)], Storage(), job(tmp_path, source).units, None)
    monkeypatch.setattr(Storage, "open", lambda self, uri: _failing(uri, "part-0001", PermissionError("refused")))
    assert [b.reason for b in make_plan([str(source)], Storage(), job(tmp_path, source).units, None).bad] == [
        "PermissionError: refused"
    ]


def unreachable(monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    """Files whose name holds one of the `parts` do not answer; all do where there is none."""
    open_ = STORAGE_OPEN

    def opened(self: Storage, uri: str, **how: Any) -> Any:
        if any(part in uri for part in parts):
            raise ConnectionResetError("reset")
        return open_(self, uri, **how)

    monkeypatch.setattr(Storage, "open", opened)


def test_the_units_of_other_files_are_committed_where_a_footer_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    source = shards(tmp_path / "in", 3)
    spec = replace(job(tmp_path, source), on_bad_file="skip")  # which is for files that are broken
    unreachable(monkeypatch, "part-0001")
    summary = run(spec)
    assert not summary.complete and summary.rows_in == 80
    assert summary.failures == (f"{source}/part-0001.parquet: not reached: ConnectionResetError: reset",)
    assert not (tmp_path / "out/_SUCCESS").exists()
    with pytest.raises(StoreUnavailableError, match=r"part-0001\.parquet: ConnectionResetError"):
        run(spec)  # nothing to do but what cannot be reached
    unreachable(monkeypatch, "part-0000")  # what is committed of it stays
    assert run(spec).rows_in == 120
    unreachable(monkeypatch)
    summary = run(spec)
    assert summary.complete and summary.model_calls == 0
    assert_exact(tmp_path / "out", input_table(source))
    unreachable(monkeypatch, "part-0001")
    with pytest.raises(StoreUnavailableError):
        run(spec)
    assert (tmp_path / "out/_SUCCESS").exists() and sum(HashDecoders(tmp_path / "calls.log").calls()) == 120


def test_a_footer_that_could_decide_the_columns_or_the_rows_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    source = shards(tmp_path / "in", 3)
    spec = job(tmp_path, source)
    unreachable(monkeypatch, "part-0001")
    with pytest.raises(StoreUnavailableError, match=r"part-0001.parquet: .*reset \(with a limit"):
        run(replace(spec, limit=10))
    write(source / "more.parquet", {"id": [1], "title": ["x"], "colour": ["red"]})
    with pytest.raises(StoreUnavailableError, match=r"part-0001.*the 3 other file\(s\) differ in their columns"):
        run(spec)
    assert not (tmp_path / "out").exists()
    unreachable(monkeypatch, "part-0", "more")
    with pytest.raises(StoreUnavailableError, match="reset"):
        run(spec)
    unreachable(monkeypatch)
    assert run(spec).complete
    write(source / "later.parquet", {"id": [2], "title": ["y"]})
    unreachable(monkeypatch, "part-0001")  # the columns are known by now
    assert run(spec).rows_in == 122
    unreachable(monkeypatch, "more")
    with pytest.raises(StoreUnavailableError, match=r"more.*do not give the columns that the output was begun with"):
        run(spec)


def test_a_store_that_answers_nobody_is_asked_for_few_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shards(tmp_path / "in", 200, rows=1)
    asked: list[str] = []

    def silent(self: Storage, uri: str) -> Any:
        asked.append(uri)
        time.sleep(0.01)
        raise ConnectionResetError("reset")

    monkeypatch.setattr(Storage, "open", silent)
    with pytest.raises(StoreUnavailableError):
        prepare(job(tmp_path, source))
    assert len(asked) < 60


@pytest.mark.parametrize(("error", "complete"), [(ConnectionResetError("reset"), False), (OSError("corrupt"), True)])
def test_what_could_not_be_read_for_a_time_is_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, complete: bool
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    spec = replace(job(tmp_path, shards(tmp_path / "in", 3)), on_bad_file="skip")

    def failing(unit: Any, *how: Any) -> Any:
        if "part-0001" in unit.file.uri:
            raise error
        return read(unit, *how)

    from pipeline.read import read_unit as read

    monkeypatch.setattr("pipeline.read.read_unit", failing)
    summary = run(spec)
    assert summary.complete is complete and summary.rows_in == 80
    [failure] = summary.failures
    assert (
        "part-0001.parquet" in failure and ("file: OSError" if complete else "store: ConnectionResetError") in failure
    )
    monkeypatch.setattr("pipeline.read.read_unit", read)
    assert run(spec).rows_in == 120


def test_a_record_whose_answer_was_lost_still_counts_as_this_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    create = Storage.create

    def deaf(self: Storage, uri: str, data: bytes) -> bool:
        """Writes the object, and then finds it there."""
        return create(self, uri, data) and "_manifest" not in uri and "/data/" not in uri

    monkeypatch.setattr(Storage, "create", deaf)
    summary = run(job(tmp_path, shards(tmp_path / "in", 2)))
    assert summary.complete and summary.model_calls > 0 and summary.rows_in == 80


def test_a_missing_bucket_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        protocol = "s3"

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: (_ for _ in ()).throw(missing) if name != "invalidate_cache" else None

        def find(self, *_: object, **__: object) -> None:
            raise missing

    monkeypatch.setattr(Storage, "at", lambda self, uri: (Nothing(), uri))
    folder = OutputFolder("s3://bucket/out", Storage())
    missing = answered("NoSuchBucket", FileNotFoundError)
    for call in (lambda: folder.read_json("run.json"), folder.data_files):
        with pytest.raises(StorageError, match="s3://bucket/out/"):
            call()
    missing = answered("NoSuchKey", FileNotFoundError)
    assert folder.read_json("run.json") is None and folder.data_files() == []


@pytest.mark.parametrize("code", ["NoSuchUpload", "ConditionalRequestConflict", "409"])
@pytest.mark.parametrize("there", [True, False])
def test_after_an_answer_that_leaves_it_open_the_store_is_asked(
    monkeypatch: pytest.MonkeyPatch, code: str, there: bool
) -> None:
    """An upload is unknown once it was completed; two conditional writes at once may both be refused."""

    class Store:
        protocol = "s3"

        def pipe_file(self, *_: object, **__: object) -> None:
            raise answered(code)

        def info(self, path: str) -> dict[str, Any]:
            if not there:
                raise FileNotFoundError(path)
            return {"name": path, "size": 1, "type": "file"}

    monkeypatch.setattr(Storage, "at", lambda self, uri: (Store(), uri))
    if there:
        assert Storage().create("s3://bucket/x", b"1") is False
    else:
        with pytest.raises(StorageError, match="s3://bucket/x: OSError"):
            Storage().create("s3://bucket/x", b"1")


def _failing(uri: str, part: str, error: Exception) -> Any:
    if part in uri:
        raise error
    return open(uri, "rb")
