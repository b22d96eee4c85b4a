"""`hpd compact`: the same rows in the same order in fewer files, a listing that is whole wherever it is cut off, and an
output that verifies, resumes and compacts again as before."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pipeline.compact
import pipeline.drive
from jobs.cli import app
from pipeline.books import read_books
from pipeline.commit import FACTS, to_parquet
from pipeline.compact import Compaction, DataFile, compact, groups
from pipeline.equality import first_difference
from pipeline.findings import FindingKind, OutputVerdict, Verification
from pipeline.job import JobError, JobSpec
from pipeline.lease import LEASE, Lease, LeaseLostError, OutputHeldError
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.verify import verify
from tests.pipeline.helpers import inline, input_table, job, output_files, output_table, write
from tests.pipeline.holding import QUICK, holding, without_lease
from tests.pipeline.messy import typed
from tests.pipeline.test_resume import A, record
from tests.pipeline.test_segments import Killed, killed_after

UNITS = 8


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    """Done: typed() in two files, and one without rows, in units of 20 rows and fewer."""
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    write(tmp_path / "in/part-0.parquet", typed(45), row_group_size=15)
    write(tmp_path / "in/part-1.parquet", typed(45).slice(0, 0))
    write(tmp_path / "in/part-2.parquet", typed(80), row_group_size=80)
    spec = job(tmp_path, tmp_path / "in", config={"input": {"limit": None}})
    assert run(spec).units == UNITS
    return spec


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal Arrow values, floats inside lists bit by bit too."""
    columns = ((x.column(name).combine_chunks() for x in (a, b)) for name in a.column_names)
    return a.schema.equals(b.schema) and len(a) == len(b) and all(first_difference(*both) is None for both in columns)


def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(str(tmp_path / "out"), Storage())


def check(tmp_path: Path) -> Verification:
    return verify(folder(tmp_path), Storage())


def all_in(tmp_path: Path, most: int = 2**30) -> Compaction:
    return compact(folder(tmp_path), most=most)


@pytest.mark.parametrize("most", [2**30, 40_000])
def test_the_same_rows_in_the_same_order_in_fewer_files(spec: JobSpec, tmp_path: Path, most: int) -> None:
    before, source = output_table(tmp_path / "out"), input_table(tmp_path / "in")
    sizes = {path.name: path.stat().st_size for path in output_files(tmp_path / "out")}
    done = all_in(tmp_path, most)
    assert (done.files_before, done.bytes_before) == (UNITS, sum(sizes.values()))
    assert (
        done.files_after
        == len(output_files(tmp_path / "out"))
        == (1 if most == 2**30 else -(-sum(sizes.values()) // most))
    )
    assert same(output_table(tmp_path / "out"), before) and before.select(source.column_names).num_rows == 125
    result = check(tmp_path)
    assert result.findings == () and result.verdict is OutputVerdict.VERIFIED
    assert (result.units, result.extent.units_compared, result.extent.rows_compared) == (UNITS, UNITS, 125)
    assert verify(folder(tmp_path), Storage(), sample=2).findings == ()
    assert folder(tmp_path).record_names() == set()

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    again = run(spec)
    assert again.complete and again.model_calls == 0 and again.units == UNITS
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert all_in(tmp_path, most).merged == 0
    # The end of a job over it, as after a kill before the mark: nothing is decoded, and the files stay.
    (tmp_path / "out/_SUCCESS").unlink()
    assert run(spec).model_calls == 0 and check(tmp_path).findings == ()
    assert len(output_files(tmp_path / "out")) == done.files_after


def test_a_footer_says_which_units_are_in_a_file_and_where(spec: JobSpec, tmp_path: Path) -> None:
    all_in(tmp_path)
    [path] = output_files(tmp_path / "out")
    facts = json.loads(pq.read_metadata(path).metadata[FACTS])["units"]
    assert [(Path(f["unit"]["file"]["uri"]).name, f["unit"]["start"], f["row"]) for f in facts] == [
        ("part-0.parquet", 0, 0), ("part-0.parquet", 15, 15), ("part-0.parquet", 30, 30), ("part-1.parquet", 0, 45),
        ("part-2.parquet", 0, 45), ("part-2.parquet", 20, 65), ("part-2.parquet", 40, 85), ("part-2.parquet", 60, 105),
    ]  # fmt: skip
    assert all(f["metrics"]["rows"]["ok"] == f["unit"]["stop"] - f["unit"]["start"] for f in facts)


def test_rows_are_held_a_row_group_at_a_time(spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = output_table(tmp_path / "out")
    monkeypatch.setattr(pipeline.compact, "ROW_GROUP_BYTES", 1)
    all_in(tmp_path)
    [path] = output_files(tmp_path / "out")
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [15] * 3 + [20] * 4
    assert same(output_table(tmp_path / "out"), before) and check(tmp_path).findings == ()


def listed_table(tmp_path: Path) -> pa.Table:
    """What a reader sees that takes the files of the listing."""
    output = folder(tmp_path)
    files = dict.fromkeys(output.data(record.data) for record in output.committed())
    return pa.concat_tables([pq.read_table(uri) for uri in sorted(files)])


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 6, 13, 14, 15, 21, 22, 23])
def test_cut_off_at_any_write_the_listing_is_whole_and_a_rerun_finishes(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    before = output_table(tmp_path / "out")
    with monkeypatch.context() as patch, without_lease():
        killed_after(patch, steps)
        try:
            all_in(tmp_path, 40_000)
            assert steps == 23  # 3 files, a segment, two lists, 8 manifests and 8 files removed, the table of units
        except Killed:
            assert steps < 23
    assert same(listed_table(tmp_path), before)
    if steps <= 4:  # merged files, and perhaps their segment, are there: a resume must not take some of their rows
        assert not any(r.is_merged for r in folder(tmp_path).read_records())
    kinds = {finding.kind for finding in check(tmp_path).findings}
    assert kinds <= {FindingKind.INCOMPLETE} and (kinds or steps in (0, 22, 23))
    other = JobSpec(**{name: getattr(spec, name) for name in spec.__slots__} | {"allow_mixed": True})
    if steps % 2:  # the job first
        assert run(other).model_calls == 0
        assert same(listed_table(tmp_path), before)
    all_in(tmp_path, 40_000)
    assert same(listed_table(tmp_path), before) and same(output_table(tmp_path / "out"), before)
    assert len(output_files(tmp_path / "out")) == 3 and check(tmp_path).findings == ()
    assert run(spec).model_calls == 0


def test_what_was_known_before_a_merge_that_was_killed_does_not_count_twice(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver read the records, `hpd compact` listed the merged file and was killed before it removed the others."""
    output = folder(tmp_path)
    known = output.read_records()
    with monkeypatch.context() as patch, without_lease():
        killed_after(patch, 4)  # one file, a segment, two lists
        with pytest.raises(Killed):
            all_in(tmp_path)
    assert all(output.data_names() >= {record.data} for record in known)
    assert read_books(output).records == output.committed() == output.read_records(known)
    assert all(r.is_merged for r in output.read_records(known))
    output.reopen()
    assert read_books(output).records == output.read_records() == output.read_records(known)
    with monkeypatch.context() as patch:
        read = OutputFolder.read_records
        patch.setattr(OutputFolder, "read_records", lambda self, *_, **__: read(self, known))
        assert run(spec).model_calls == 0
    assert len(output_files(tmp_path / "out")) == 1 and check(tmp_path).findings == ()


def test_files_are_not_merged_while_a_driver_is_at_work(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.lease.PACE", QUICK)
    before = output_files(tmp_path / "out")
    with holding(folder(tmp_path)), pytest.raises(OutputHeldError, match="is being written by"):
        all_in(tmp_path)
    assert output_files(tmp_path / "out") == before and check(tmp_path).findings == ()
    assert all_in(tmp_path).files_after == 1


def test_a_merged_file_of_which_a_part_is_outdated_is_taken_apart(spec: JobSpec, tmp_path: Path) -> None:
    calls = spec.decoder_factory.calls  # type: ignore[union-attr]
    all_in(tmp_path)
    done = sum(calls())
    os.utime(tmp_path / "in/part-0.parquet", ns=(1, 1))  # another version
    write(tmp_path / "in/part-3.parquet", typed(5))
    summary = run(spec)
    assert summary.complete and summary.rows_in == 130 and summary.rows_dropped == 0 + 45
    assert sum(calls()) - done == 45 + 5
    source = input_table(tmp_path / "in")
    assert same(output_table(tmp_path / "out").select(source.column_names), source)
    for path in output_files(tmp_path / "out"):  # the facts of its own unit, and of no other
        assert "unit" in json.loads(pq.read_metadata(path).metadata[FACTS])
        assert FACTS not in (pq.ParquetFile(path).schema_arrow.metadata or {}) and b'"units"' not in path.read_bytes()
    assert len(output_files(tmp_path / "out")) == UNITS + 1 and check(tmp_path).findings == ()
    all_in(tmp_path)
    assert same(output_table(tmp_path / "out").select(source.column_names), source) and check(tmp_path).findings == ()


@pytest.mark.parametrize(
    ("steps", "decoded"), [*((steps, 45) for steps in (1, 2, 3, 4, 9, 10, 11)), (12, 45 + 15), (13, 45 + 15), (18, 45)]
)
def test_cut_off_while_a_merged_file_is_taken_apart_nothing_that_stays_is_decoded_again(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, decoded: int
) -> None:
    """Five units that stay get files and manifests (1 to 10), then the merged file goes (11). The changed file has 45
    rows in three units (12 to 17): the one that was decoded and not committed is decoded again."""
    all_in(tmp_path)
    os.utime(tmp_path / "in/part-0.parquet", ns=(1, 1))  # another version
    done = sum(spec.decoder_factory.calls())  # type: ignore[union-attr]
    with monkeypatch.context() as patch, without_lease():
        killed_after(patch, steps)
        with pytest.raises(Killed):
            run(spec)
    assert run(spec).complete
    assert sum(spec.decoder_factory.calls()) - done == decoded  # type: ignore[union-attr]
    source = input_table(tmp_path / "in")
    assert same(output_table(tmp_path / "out").select(source.column_names), source) and check(tmp_path).findings == ()


def test_a_damaged_merged_file_is_not_taken_apart(spec: JobSpec, tmp_path: Path) -> None:
    all_in(tmp_path)
    [path] = output_files(tmp_path / "out")
    edited(path, 50, "rewritten")  # readable: its rows would get checksums that agree with them
    os.utime(tmp_path / "in/part-0.parquet", ns=(1, 1))
    with pytest.raises(StorageError, match=f"{path}: is not the file that its job committed"):
        run(spec)
    assert output_files(tmp_path / "out") == [path]


@pytest.mark.parametrize("step", [1, 2])
def test_without_the_lease_nothing_is_taken_apart(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    all_in(tmp_path)
    before = output_files(tmp_path / "out")
    os.utime(tmp_path / "in/part-0.parquet", ns=(1, 1))  # another version
    confirm, steps = Lease.confirm, iter(range(1, 9))

    def losing(self: Lease) -> None:
        if next(steps) == step:
            raise LeaseLostError("another driver has taken over")
        confirm(self)

    monkeypatch.setattr(Lease, "confirm", losing)
    with pytest.raises(LeaseLostError):
        run(spec)
    assert output_files(tmp_path / "out") == before
    assert folder(tmp_path).is_finished() == (step == 1)


def test_a_compacted_output_grows_and_is_compacted_again(spec: JobSpec, tmp_path: Path) -> None:
    all_in(tmp_path)
    write(tmp_path / "in/part-1a.parquet", typed(30))
    assert run(spec).rows_in == 155 and check(tmp_path).findings == ()
    before = output_table(tmp_path / "out")
    assert all_in(tmp_path).merged == 1 and len(output_files(tmp_path / "out")) == 1
    assert same(output_table(tmp_path / "out"), before) and check(tmp_path).findings == ()


def test_what_is_not_finished_or_damaged_is_refused(spec: JobSpec, tmp_path: Path) -> None:
    victim = output_files(tmp_path / "out")[2]
    raw = bytearray(victim.read_bytes())
    raw[100] ^= 1
    victim.write_bytes(raw)
    before = {path.name for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(StorageError, match=f"{victim}: is not the file that its job committed"):
        all_in(tmp_path)
    assert {path.name for path in (tmp_path / "out").rglob("*")} == before
    (tmp_path / "out/_SUCCESS").unlink()
    with pytest.raises(JobError, match="not a finished output"):
        all_in(tmp_path)
    with pytest.raises(JobError, match="not a finished output"):
        compact(OutputFolder(str(tmp_path / "none"), Storage()), most=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes, not the"),
        (lambda path: flip(path), "its checksum is"),
        (lambda path: edited(path, 50, "rewritten"), "row 5: column 'title': is 'rewritten', and 'item 5' in"),
    ],
)
def test_damage_of_a_merged_file_is_named(
    spec: JobSpec, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    all_in(tmp_path)
    [path] = output_files(tmp_path / "out")
    damage(path)
    result = check(tmp_path)
    assert result.verdict is OutputVerdict.DAMAGED and any(message in str(f) for f in result.findings), result.findings
    assert {f.file for f in result.findings} == {str(path)}


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)


def edited(path: Path, row: int, title: str) -> None:
    """Another title in one row, and the same footer."""
    table, facts = pq.read_table(path), pq.read_metadata(path).metadata[FACTS].decode()
    titles = table.column("title").to_pylist()
    titles[row] = title
    path.write_bytes(to_parquet(table.set_column(0, "title", pa.array(titles)), facts))


def files(*sizes: int, folder: str = "") -> list[DataFile]:
    made = []
    for i, size in enumerate(sizes):
        unit = record(A, i, i + 1)
        made.append(DataFile(f"{folder}{unit.object}", (replace(unit, size=size, file=f"{folder}{unit.object}"),)))
    return made


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([10] * 10, [[10] * 10]),
        ([10] * 30, [[10] * 10] * 3),
        ([10] * 21, [[10] * 7] * 3),
        ([60, 10, 10, 90, 10, 40], [[60], [10, 10], [90], [10, 40]]),
        ([1], [[1]]),
        ([0, 0], [[0, 0]]),
    ],
)
def test_files_come_out_even_and_large_ones_stay(sizes: list[int], wanted: list[list[int]]) -> None:
    assert [[f.size for f in group] for group in groups(files(*sizes), 100)] == wanted


def test_what_was_merged_once_is_not_merged_again_for_being_a_little_small() -> None:
    a, b, c = files(30, 30, 5)
    a = DataFile("a-merged-1", tuple(replace(unit, file="a-merged-1") for unit in a.units))
    assert [[f.size for f in group] for group in groups([a, b, c], 100)] == [[30], [30, 5]]


def test_folders_are_never_mixed() -> None:
    both = [*files(1, 1, folder="colour=blue/"), *files(1, folder="colour=red/")]
    assert [[f.size for f in group] for group in groups(both, 100)] == [[1, 1], [1]]


def test_the_command(spec: JobSpec, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compact", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0 and "8/8 files merged" in result.stderr and "8 files" in result.stderr
    result = CliRunner().invoke(app, ["compact", str(tmp_path / "out")])
    assert result.exit_code == 0 and "1 files," in result.stdout
    result = CliRunner().invoke(app, ["compact", str(tmp_path / "in")])
    assert result.exit_code == 2 and "not a finished output" in result.stderr


def test_sigterm_gives_the_lease_back(spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(output: OutputFolder, *_: object) -> None:
        assert output.storage.read(output.path(LEASE)) is not None
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pipeline.compact, "_compact", terminated)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody handles SIGTERM"))
    try:
        result = CliRunner().invoke(app, ["compact", str(tmp_path / "out")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 4 and "terminated" in result.stderr
    assert not (tmp_path / "out" / LEASE).exists() and check(tmp_path).findings == ()
