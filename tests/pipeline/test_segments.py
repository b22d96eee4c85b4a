"""Manifests of single units folded into segments: no record is lost at any point at which a driver may be killed, and
what outlives a kill reads as it would have without one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import pipeline.drive
import pipeline.folding
import pipeline.manifest
import pipeline.record
from pipeline.books import read_books
from pipeline.commit import commit
from pipeline.findings import OutputVerdict
from pipeline.folding import Folding
from pipeline.job import JobSpec
from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics
from pipeline.record import Segment, UnitRecord
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.units import InputFile, Unit
from pipeline.verify import verify
from tests.pipeline.helpers import assert_exact, inline, input_table, job, output_table, shards, write
from tests.pipeline.holding import without_lease

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def few_to_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pipeline.folding, pipeline.manifest, pipeline.record):
        monkeypatch.setattr(module, "SEGMENT_UNITS", 3)


def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(str(tmp_path / "out"), Storage())


def committed(output: OutputFolder, count: int, first: int = 0) -> list[UnitRecord]:
    """Units of two rows of one file, committed for good."""
    found = []
    for start in range(2 * first, 2 * (first + count), 2):
        unit = Unit(InputFile("/in/a.parquet", 9, "v1"), start, start + 2)
        table = pa.table({"id": [start, start + 1]}, schema=SCHEMA)
        metrics = Metrics.from_dict({"rows": {"ok": 2}, "values": {"brand": 2}, "seconds": {"read": 0.5}, "decode": {}})
        receipt = commit(output, unit, table, metrics, schema=SCHEMA, fingerprint="f")
        assert receipt.record is not None
        found.append(receipt.record)
    return found


def as_read(records: list[UnitRecord]) -> list[dict]:
    return [r.as_dict() for r in sorted(records, key=lambda r: r.object)]


def test_a_segment_holds_what_its_records_say(tmp_path: Path) -> None:
    records = [
        replace(record, file=f"colour=red/{record.object}", row=7, unit=replace(record.unit, bytes=5))
        for record in committed(folder(tmp_path), 3)
    ]
    segment = Segment.of(records)
    again = Segment.from_parquet(segment.name, segment.to_parquet())
    assert as_read(list(again.records)) == as_read(records) and Segment.of(again.records).name == segment.name
    assert len({id(r.unit.file) for r in again.records}) == 1
    with pytest.raises(ValueError):
        Segment.from_parquet("x", b"no Parquet")


def test_a_driver_folds_as_it_goes_and_a_rerun_reads_the_same(tmp_path: Path) -> None:
    output = folder(tmp_path)
    records = committed(output, 2)
    folding = Folding(output, records)  # left by an earlier run
    assert output.segment_names() == set()
    for record in committed(output, 5, first=2):
        records.append(record)
        folding.add(record)
        folding.add(record)  # a receipt may come twice
    assert len(output.segment_names()) == 2 and output.record_names() == {records[-1].object}
    assert as_read(output.read_records()) == as_read(records)
    assert as_read(output.read_records(records[:4])) == as_read(records)
    # A second driver over the same units folds nothing anew, and a late worker's manifest counts once.
    output.storage.create(output.record(records[0].object), records[0].to_json().encode())
    Folding(output, output.read_records())
    assert len(output.segment_names()) == 2 and as_read(output.read_records()) == as_read(records)


@pytest.mark.parametrize("steps", range(6))
def test_a_kill_while_folding_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    output = folder(tmp_path)
    records = committed(output, 3)
    with monkeypatch.context() as patch:
        killed_after(patch, steps)
        try:
            Folding(output, records)
            assert steps >= 4  # one segment created, three manifests removed
        except Killed:
            assert steps < 4
    assert as_read(output.read_records()) == as_read(records)
    more = committed(output, 1, first=3)
    Folding(output, output.read_records())
    assert as_read(output.read_records()) == as_read(records + more)


class Killed(BaseException):
    pass


def killed_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """The process ends before its write number `steps`, counted from 0."""
    left = [steps]

    def counted(real: Callable) -> Callable:
        def call(self: Storage, *args: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(self, *args)

        return call

    for name in ("create", "create_file", "replace", "delete"):
        if hasattr(Storage, name):
            patch.setattr(Storage, name, counted(getattr(Storage, name)))


def test_a_store_that_fails_costs_the_folding_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    output = folder(tmp_path)
    records = committed(output, 6)
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "write_segment", lambda *_: (_ for _ in ()).throw(StorageError("s3://x: no")))
        folding = Folding(output, records[:5])
    assert "s3://x: no" in caplog.text and len(output.record_names()) == 6
    folding.add(records[5])
    assert len(output.segment_names()) == 2 and as_read(output.read_records()) == as_read(records)


def test_segments_that_cannot_be_read_cost_the_folding_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    output = folder(tmp_path)
    records = committed(output, 9)
    Folding(output, records[:3])
    [name] = output.segment_names()
    whole = output.storage.read(output.segment(name)) or b""
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "segment_names", lambda _: (_ for _ in ()).throw(StorageError("s3://x: no")))
        folding = Folding(output, records[:3])
    assert "s3://x: no" in caplog.text
    output.storage.replace(output.segment(name), b"PAR1")
    for record in records[3:6]:
        folding.add(record)
    assert output.record_names() == {r.object for r in records[3:]}
    output.storage.replace(output.segment(name), whole)
    for record in records[6:]:
        folding.add(record)
    assert len(output.segment_names()) == 3 and output.record_names() == set()
    assert as_read(output.read_records()) == as_read(records)


def test_a_lost_data_file_is_forgotten_in_its_segment_too(tmp_path: Path) -> None:
    output = folder(tmp_path)
    records = committed(output, 6)
    Folding(output, records)
    (tmp_path / f"out/data/{records[1].object}.parquet").unlink()
    rest = [records[0], *records[2:]]
    assert as_read(output.read_records()) == as_read(rest)
    output.forget_lost()
    held = [r.object for name in output.segment_names() for r in output.read_segment(name).records]  # type: ignore[union-attr]
    assert sorted(held) == sorted(r.object for r in rest)
    assert as_read(output.read_records()) == as_read(rest)


@pytest.mark.parametrize("steps", range(4))
def test_a_kill_while_a_lost_file_is_forgotten_loses_no_other_record(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    run(spec)
    output, calls = folder(tmp_path), spec.decoder_factory.calls  # type: ignore[union-attr]
    records = output.read_records()
    Path(output.data(records[4].data)).unlink()
    output.reopen()
    rest, done = [*records[:4], *records[5:]], len(calls())
    with monkeypatch.context() as patch:
        killed_after(patch, steps)
        try:
            output.forget_lost()
            assert steps == 3  # a new segment, the listing, the old segment
        except Killed:
            assert steps < 3
    assert as_read(output.read_records()) == as_read(rest)
    assert run(spec).complete and len(calls()) == done + 1
    assert_exact(tmp_path / "out", input_table(tmp_path / "in"))
    assert check(tmp_path) is OutputVerdict.VERIFIED


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    def folds(prepared: object, fingerprint: str, units: list, kept: list, started: float, show: object, work) -> None:  # type: ignore[no-untyped-def]
        folding = Folding(prepared.output, [*kept, *work.committed])  # type: ignore[attr-defined]
        for unit in units:
            before = len(work.committed)
            inline(prepared, fingerprint, [unit], kept, started, show, work)  # type: ignore[arg-type]
            folding.add(work.committed[before] if len(work.committed) > before else None)

    monkeypatch.setattr(pipeline.drive, "drive", folds)
    return job(tmp_path, shards(tmp_path / "in", 4), config={"input": {"limit": None}})


def check(tmp_path: Path) -> OutputVerdict:
    result = verify(folder(tmp_path), Storage())
    print(*result.findings, sep="\n")
    return result.verdict


def test_a_large_output_is_listed_by_segments_and_verified(spec: JobSpec, tmp_path: Path) -> None:
    summary = run(spec)
    assert summary.complete and summary.units == 12
    listing = json.loads((tmp_path / "out/_manifest/job.json").read_text())
    assert "objects" not in listing and [part["units"] for part in listing["segments"]] == [3, 3, 3, 3]
    assert folder(tmp_path).record_names() == set() and len(folder(tmp_path).segment_names()) == 4
    assert_exact(tmp_path / "out", input_table(tmp_path / "in"))
    assert check(tmp_path) is OutputVerdict.VERIFIED
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert run(spec).model_calls == 0
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert [r.unit.start for r in folder(tmp_path).committed()] == [0, 15, 30] * 4


def test_a_rerun_reads_each_segment_once_and_once_more_to_list_it(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spec)
    write(tmp_path / "in/part-0009.parquet", {"id": [900], "title": ["one more"]})
    before = folder(tmp_path).segment_names()
    parsed: Counter[str] = Counter()
    parse = Segment.from_parquet
    monkeypatch.setattr(Segment, "from_parquet", lambda name, raw: (parsed.update([name]), parse(name, raw))[1])
    summary = run(spec)
    assert summary.complete and summary.units == 13 and summary.model_calls == 1
    assert parsed == dict.fromkeys(before, 2) and len(before) == 4
    assert_exact(tmp_path / "out", input_table(tmp_path / "in"))
    assert check(tmp_path) is OutputVerdict.VERIFIED


@pytest.mark.parametrize("steps", range(30))
def test_a_kill_at_any_write_of_a_job_is_finished_by_a_rerun(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Before run.json, between a unit's data and its manifest, while folding, between the last unit and _SUCCESS."""
    for name in ("part-0002.parquet", "part-0003.parquet"):
        (tmp_path / "in" / name).unlink()
    with monkeypatch.context() as patch, without_lease():  # test_lease says what a kill leaves of one
        killed_after(patch, steps)
        try:
            run(spec)
            assert steps == 29
        except Killed:
            assert steps < 29 and not (tmp_path / "out/_SUCCESS").exists()
    calls = len(spec.decoder_factory.calls())  # type: ignore[union-attr]
    begun = len(folder(tmp_path).read_records())
    summary = run(spec)
    assert summary.complete and len(spec.decoder_factory.calls()) - calls == 6 - begun  # type: ignore[union-attr]
    assert_exact(tmp_path / "out", input_table(tmp_path / "in"))
    assert check(tmp_path) is OutputVerdict.VERIFIED


def test_an_output_of_before_segments_goes_on(spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # as an older version left it: a manifest for each unit, listed one by one
        for module in (pipeline.folding, pipeline.manifest, pipeline.record):
            patch.setattr(module, "SEGMENT_UNITS", 1000)
        assert run(spec).complete
    listing = json.loads((tmp_path / "out/_manifest/job.json").read_text())
    assert len(listing["objects"]) == 12 and len(folder(tmp_path).record_names()) == 12
    assert run(spec).model_calls == 0 and check(tmp_path) is OutputVerdict.VERIFIED
    before = output_table(tmp_path / "out")
    (tmp_path / "out/_SUCCESS").unlink()
    done = run(spec)
    assert done.complete and done.model_calls == 0 and output_table(tmp_path / "out").equals(before)
    assert len(folder(tmp_path).segment_names()) == 4 and check(tmp_path) is OutputVerdict.VERIFIED


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing, and the job manifest lists it"),
        (lambda path: path.write_bytes(b"PAR1"), "cannot be read"),
        (lambda path: path.write_bytes(path.with_name("other.parquet").read_bytes()), "holds other records"),
    ],
)
def test_a_damaged_segment_is_named(
    spec: JobSpec, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    run(spec)
    first, second, *_ = sorted((tmp_path / "out/_manifest/segments").iterdir())
    kept = second.read_bytes()
    first.with_name("other.parquet").write_bytes(kept)
    damage(first)
    first.with_name("other.parquet").unlink()
    result = verify(folder(tmp_path), Storage())
    assert result.verdict is OutputVerdict.DAMAGED
    assert any(message in f.message and f.file == str(first) for f in result.findings), result.findings


@pytest.mark.parametrize("victim", ["segment", "manifest", "listing"])
def test_damage_in_an_output_that_is_not_finished_is_a_finding(spec: JobSpec, tmp_path: Path, victim: str) -> None:
    run(spec)
    output = folder(tmp_path)
    output.reopen()
    assert read_books(output).records == output.read_records() and len(output.read_records()) == 12
    unit = read_books(output).records[0]
    output.storage.create(output.record(unit.object), unit.to_json().encode())
    path = {
        "segment": Path(output.segment(output.read_json("_manifest/job.json")["segments"][-1]["name"])),  # type: ignore[index]
        "manifest": Path(output.record(unit.object)),
        "listing": tmp_path / "out/_manifest/job.json",
    }[victim]
    path.write_bytes(b"PAR1 {")
    result = verify(output, Storage())
    assert result.verdict is OutputVerdict.DAMAGED
    assert any(f.file == str(path) and "cannot be read" in f.message for f in result.findings), result.findings
    assert result.units == {"segment": 9, "manifest": 12, "listing": 12}[victim]
