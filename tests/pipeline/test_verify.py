"""Every kind of damage once, on an output of the real stages with fake decoders: it is named, with its place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.books import read_books
from pipeline.commit import FACTS, to_parquet
from pipeline.coverage import check_coverage
from pipeline.findings import Finding, FindingKind, OutputVerdict, Verification
from pipeline.job import JobError, OutputOptions
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.helpers import inline, job, write
from tests.pipeline.messy import messy

ROWS, UNITS = 137, 8  # of 20 rows, the last of a.parquet of 17, the one of b.parquet of none


@dataclass(frozen=True)
class Case:
    """A copy of a finished output and of its input, to be damaged."""

    source: Path
    out: Path

    def verify(self, **options: object) -> Verification:
        inputs = () if options.get("compare") is False else (str(self.source),)
        return verify(OutputFolder(str(self.out), Storage()), Storage(), inputs=inputs, **options)  # type: ignore[arg-type]

    @property
    def listing(self) -> dict:
        return json.loads((self.out / "_manifest/job.json").read_text())

    def data(self, number: int) -> Path:
        return self.out / self.listing["objects"][number]["data"]

    def manifest(self, number: int) -> Path:
        return self.out / "_manifest/units" / f"{self.listing['objects'][number]['object']}.json"

    def edit(self, name: str, change: Callable[[dict], object]) -> None:
        facts = json.loads((self.out / name).read_text())
        change(facts)
        (self.out / name).write_text(json.dumps(facts))

    def rewrite(self, number: int, change: Callable[[pa.Table], pa.Table]) -> None:
        """Another table in a data file, and its checksum in the manifests: what remains to be seen is in the rows."""
        path = self.data(number)
        facts = pq.read_metadata(path).metadata[FACTS].decode()
        path.write_bytes(to_parquet(change(pq.read_table(path)), facts))
        new = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        self.edit(str(self.manifest(number).relative_to(self.out)), lambda facts: facts.update(new))
        self.edit("_manifest/job.json", lambda facts: facts["objects"][number].update(new))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("finished")
    first, second = messy(97), messy(40, first=97)
    write(folder / "in/a.parquet", first, row_group_size=20)
    write(folder / "in/b.parquet", second.slice(0, 0))
    write(folder / "in/sub/c.parquet", second)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.drive.drive", inline)
        summary = run(job(folder, folder / "in", config={"input": {"limit": None}}))
    assert summary.complete and summary.rows_in == ROWS
    return Case(folder / "in", folder / "out")


@pytest.fixture
def case(finished: Case, tmp_path: Path) -> Case:
    shutil.copytree(finished.source, tmp_path / "in")  # with its times, which are its versions
    shutil.copytree(finished.out, tmp_path / "out")
    return Case(tmp_path / "in", tmp_path / "out")


def only(result: Verification) -> Finding:
    [finding] = result.findings
    return finding


def test_an_undamaged_output_is_verified(finished: Case, case: Case) -> None:
    there = verify(OutputFolder(str(finished.out), Storage()), Storage())
    for result in (there, case.verify()):
        assert (result.verdict, result.findings) == (OutputVerdict.VERIFIED, ())
        assert (result.rows_in, result.units) == (ROWS, UNITS) and result.rows_in == result.rows_ok + result.rows_error
        assert (result.extent.units_read, result.extent.units_compared, result.extent.rows_compared) == (
            UNITS,
            UNITS,
            ROWS,
        )
    assert json.loads(json.dumps(there.as_dict()))["verdict"] == "verified"


def flip(path: Path, place: int = 200) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def swap(table: pa.Table) -> pa.Table:
    return table.take([0, 1, 3, 2, *range(4, table.num_rows)])


def put(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    """`table` with another value in one place."""
    index = table.schema.get_field_index(column)
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


@pytest.mark.parametrize(
    ("damage", "place", "message"),
    [
        (lambda c: c.data(0).unlink(), "data/a-", "is missing"),
        (lambda c: (c.out / "data/more.parquet").write_bytes(b"x"), "data/more.parquet", "not listed"),
        (lambda c: write(c.out / "data/sub/x.parquet", {"a": [1]}), "data/sub/x.parquet", "not listed"),
        (lambda c: (c.out / "data/readme.txt").write_text("x"), "data/readme.txt", "not listed"),
        (lambda c: c.manifest(1).unlink(), "_manifest/units/a-", "is missing, and the job manifest lists it"),
        (lambda c: c.manifest(1).write_text("{"), "_manifest/units/a-", "cannot be read: JSONDecodeError"),
        (lambda c: c.edit("metrics.json", lambda f: f.update(rows_ok=1)), "metrics.json", "rows_ok is 1, and the"),
        (
            lambda c: c.edit("metrics.json", lambda f: f["values"].update(brand=7)),
            "metrics.json",
            "values.brand is 7, and the units",
        ),
        (
            lambda c: c.edit("metrics.json", lambda f: f["decode"].update(steps=0.5)),
            "metrics.json",
            "decode.steps is 0.5",
        ),
        (lambda c: c.edit("metrics.json", lambda f: f.update(complete=False)), "metrics.json", "does not say that"),
        (lambda c: (c.out / "metrics.json").unlink(), "metrics.json", "is missing"),
        (lambda c: (c.out / "run.json").unlink(), "run.json", "is missing"),
        (lambda c: c.edit("run.json", lambda f: f.pop("output_schema_arrow")), "run.json", "'output_schema_arrow'"),
        (
            lambda c: c.edit(str(c.manifest(1).relative_to(c.out)), lambda f: f["metrics"]["rows"].update(ok=3)),
            "_manifest/units/a-",
            "differs from the job manifest: metrics.rows.ok: 14 -> 3",
        ),
        (
            lambda c: c.edit(str(c.manifest(1).relative_to(c.out)), lambda f: f["metrics"]["rows"].update(odd=3)),
            "_manifest/units/a-",
            "cannot be read: ValueError: 'odd'",
        ),
        (lambda c: c.edit("_manifest/job.json", lambda f: f.update(plan=[{}])), "_manifest/job.json", "its plan"),
        (lambda c: c.edit("_manifest/job.json", lambda f: f.update(rows_in=9)), "_manifest/job.json", "rows_in is 9"),
        (lambda c: (c.out / "_manifest/job.json").write_text("[]"), "_manifest/job.json", "not a JSON object"),
        (
            lambda c: c.rewrite(0, lambda t: put(t, "hpd_error", 0, "odd")),
            "data/a-",
            "row 0: column 'hpd_error': the row is ok, and has the error 'odd'",
        ),
        (
            lambda c: c.rewrite(0, lambda t: put(t, "hpd_error", 4, None)),
            "data/a-",
            "row 4: column 'hpd_error': the row has the status no_text, and no reason",
        ),
        (
            lambda c: c.rewrite(1, lambda t: put(t, "brand", 4, "Odd")),
            "data/a-",
            "row 24: column 'brand': the row is in error, and has a value",
        ),
        (
            lambda c: c.rewrite(1, lambda t: put(t, "hpd_values", 0, 1)),
            "data/a-",
            "column 'hpd_values': its rows have",
        ),
        (
            lambda c: c.rewrite(1, lambda t: put(t, "path", 7, "yours")),
            "data/a-",
            "row 27: column 'path': is 'yours', and 'mine' in",
        ),
        (lambda c: c.rewrite(1, lambda t: t.drop_columns(["never"])), "data/a-", "column 'never': is missing"),
    ],
)  # fmt: skip
def test_one_damage_is_one_finding_that_names_its_place(
    case: Case, damage: Callable[[Case], object], place: str, message: str
) -> None:
    damage(case)
    result = case.verify()
    assert result.verdict is OutputVerdict.DAMAGED
    finding = only(result)
    assert finding.file.startswith(str(case.out / place)) and message in str(finding)


def test_a_flipped_byte_is_seen_by_its_checksum(case: Case) -> None:
    flip(case.data(2))
    findings = case.verify().findings
    assert any("its checksum is" in f.message for f in findings)
    assert {f.file for f in findings} == {str(case.data(2))} and {f.unit for f in findings} != {""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.slice(1), "has 19 rows for 20"),
        (lambda t: put(t, "hpd_status", 3, "great"), "row 3: column 'hpd_status': is 'great', which is no status"),
        (lambda t: put(t, "hpd_status", 3, "cut"), "its rows are {'ok': 1"),
        (lambda t: t.select(t.column_names[::-1]), "its columns are in another order"),
        (lambda t: t.append_column("more", t.column("title")), "column 'more': is not in the output's schema"),
        (lambda t: t.set_column(1, "big", t.column("big").cast(pa.float64(), safe=False)), "column 'big': is"),
    ],
)
def test_a_data_file_of_another_shape_is_named(
    case: Case, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    case.rewrite(0, change)
    findings = case.verify().findings
    assert {f.file for f in findings} == {str(case.data(0))} and any(message in str(f) for f in findings)


def test_a_data_file_of_another_unit_is_named(case: Case) -> None:
    case.data(4).write_bytes(case.data(1).read_bytes())  # the last unit of its file has fewer rows, hence fewer bytes
    messages = [f.message for f in case.verify().findings]
    assert any("its footer says that it is rows 20..40" in m for m in messages)
    assert any("its checksum is" in m for m in messages) and any("bytes, not the" in m for m in messages)


def test_a_unit_of_another_job_is_named(case: Case) -> None:
    case.edit("run.json", lambda facts: facts.update(fingerprint="0123456789abcdef"))
    findings = case.verify().findings
    assert len(findings) == UNITS and all("is not one of run.json's" in f.message for f in findings)


def test_a_file_that_ends_early_is_named(case: Case) -> None:
    raw = case.data(2).read_bytes()
    case.data(2).write_bytes(raw[:-100])
    messages = [f.message for f in case.verify().findings]
    assert any(f"has {len(raw) - 100} bytes, not the {len(raw)}" in m for m in messages)
    assert any("cannot be read" in m for m in messages)


def test_two_swapped_rows_are_named_in_every_column_that_shows_it(case: Case) -> None:
    case.rewrite(0, swap)
    result = case.verify()
    assert result.verdict is OutputVerdict.DAMAGED and {f.row for f in result.findings} <= {2, 3}
    seen = {f.column: f.message for f in result.findings}
    assert {"title", "big", "exact", "a.b ü 😀", "image", "offers"} <= set(seen)
    assert not {"path", "never"} & set(seen)
    assert seen["a.b ü 😀"].startswith(f"is 3, and 2 in {case.source}/a.parquet")


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("price", 24, 0.0),  # NaN
        ("price", 25, float("nan")),  # null
        ("big", 25, 2**53),
        ("bullets", 23, ["a", None]),
        ("offers", 22, [{"seller": "x", "cents": 0}, None]),
        ("facts", 22, [("k", "v"), ("l", "")]),
        ("details", 25, {"dims": {"w": 25}, "x": ""}),
        ("image", 24, b"\0\x18\xfe"),
        ("seen", 25, None),
    ],
)
def test_one_value_of_any_type_is_named(case: Case, column: str, row: int, value: object) -> None:
    case.rewrite(1, lambda table: put(table, column, row - 20, value))
    finding = only(case.verify())
    assert (finding.kind, finding.row, finding.column) == (FindingKind.DAMAGE, row, column)
    assert only(case.verify(sample=UNITS)).row == row
    assert case.verify(compare=False).verdict is OutputVerdict.VERIFIED


def test_a_value_that_changed_in_the_input_is_named_and_a_rerun_advised(case: Case) -> None:
    path = case.source / "a.parquet"
    write(path, put(pq.read_table(path), "title", 50, "another item"), row_group_size=20)
    result = case.verify(sample=1)  # what has changed is looked at all the same
    assert result.verdict is OutputVerdict.INCOMPLETE
    [finding] = [f for f in result.findings if f.kind is FindingKind.INCOMPLETE]
    assert (finding.row, finding.column) == (50, "title") and "'another item' in" in finding.message
    assert "run the job again" in finding.message and "another version" in str(result.findings[0])


def test_a_file_with_another_time_and_the_same_values_is_a_note(case: Case) -> None:
    os.utime(case.source / "a.parquet", ns=(1, 1))
    result = case.verify()
    assert result.verdict is OutputVerdict.VERIFIED and only(result).kind is FindingKind.NOTE
    assert result.extent.rows_compared == ROWS


def test_a_changed_file_whose_columns_the_output_lacks_cannot_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    path = write(tmp_path / "in/a.parquet", {"id": [1, 2], "title": ["x", "y"]})
    assert run(job(tmp_path, tmp_path / "in", output_options=OutputOptions(columns=("id",)))).complete
    folder = OutputFolder(str(tmp_path / "out"), Storage())
    result = verify(folder, Storage())
    assert result.findings == () and result.extent.rows_compared == 2
    os.utime(path, ns=(1, 1))
    result = verify(folder, Storage())
    assert result.verdict is OutputVerdict.INCOMPLETE and "its columns title, which the output lacks" in str(
        result.findings
    )


def test_inputs_that_are_gone_new_or_shorter(case: Case) -> None:
    (case.source / "sub/c.parquet").rename(case.source / "sub/d.parquet")
    result = case.verify()
    kinds = {Path(f.file).name: f.kind for f in result.findings}
    assert (
        kinds == {"c.parquet": FindingKind.INPUT, "d.parquet": FindingKind.INCOMPLETE}
        and result.verdict is OutputVerdict.INCOMPLETE
    )
    (case.source / "sub/d.parquet").unlink()
    assert case.verify().verdict is OutputVerdict.NO_INPUT
    shutil.rmtree(case.source)
    gone = case.verify()
    assert gone.verdict is OutputVerdict.NO_INPUT and "does not exist" in only(gone).message
    assert case.verify(compare=False).verdict is OutputVerdict.VERIFIED


def test_an_input_file_that_lost_rows_is_named(case: Case) -> None:
    write(case.source / "a.parquet", messy(90), row_group_size=20)
    result = case.verify()
    assert result.verdict is OutputVerdict.INCOMPLETE
    assert any("rows 80..97 of a file that has only 90" in f.message for f in result.findings)


def forget(case: Case, number: int) -> None:
    """Takes a unit out of everything that counts it: only the plan still knows of its rows."""
    case.data(number).unlink()
    case.manifest(number).unlink()
    case.edit("_manifest/job.json", lambda facts: facts["objects"].pop(number))
    shutil.rmtree(case.out / "_symlink_format_manifest", ignore_errors=True)  # as an older version left it
    books = read_books(OutputFolder(str(case.out), Storage()))
    sums = {n: getattr(books.metrics, n) for n in ("rows_in", "rows_ok", "rows_error")}
    case.edit("_manifest/job.json", lambda facts: facts.update(sums))
    case.edit("metrics.json", lambda facts: facts.update(sums | books.metrics.as_dict() | {"units": UNITS - 1}))


@pytest.mark.parametrize("compare", [True, False])
def test_a_unit_that_nothing_counts_any_more_is_missed_by_the_plan(case: Case, compare: bool) -> None:
    forget(case, 2)
    finding = only(case.verify(compare=compare))
    assert finding.kind is FindingKind.DAMAGE and "no unit holds its 20 rows" in finding.message
    assert finding.unit.startswith("rows 40..60 of") and finding.unit.endswith("a.parquet")


def test_a_unit_that_stands_twice_is_named(case: Case) -> None:
    def double(facts: dict) -> None:
        facts["objects"].append(facts["objects"][0])

    case.edit("_manifest/job.json", double)
    messages = [str(f) for f in case.verify().findings]
    assert any("overlaps the unit rows 0..20" in m for m in messages) and any("twice" in m for m in messages)


def test_an_output_that_is_not_finished_is_incomplete(case: Case) -> None:
    forget(case, 2)
    (case.out / "_SUCCESS").unlink()
    (case.out / "data/half.parquet").write_bytes(b"a worker is at it")
    result = case.verify()
    assert result.verdict is OutputVerdict.INCOMPLETE
    assert any("20 of 137 planned rows are not committed" in f.message for f in result.findings)
    case.rewrite(0, lambda table: put(table, "path", 0, "yours"))
    assert case.verify().verdict is OutputVerdict.DAMAGED


def test_what_a_rerun_drops_is_no_damage_of_an_output_that_is_not_finished(case: Case) -> None:
    (case.out / "_SUCCESS").unlink()
    foreign = str(case.manifest(0).relative_to(case.out))
    case.edit(foreign, lambda facts: facts.update(fingerprint="of a run that had committed nothing"))
    result = case.verify()
    assert result.verdict is OutputVerdict.INCOMPLETE and result.units == UNITS - 1
    assert any("20 of 137 planned rows are not committed" in f.message for f in result.findings)

    books = read_books(OutputFolder(str(case.out), Storage()))
    twice = [*books.records, replace(books.records[0], unit=replace(books.records[0].unit, start=25))]
    assert check_coverage(replace(books, records=twice), []) == []
    [overlap] = check_coverage(replace(books, records=twice, finished=True), [])
    assert "overlaps" in overlap.message


def test_what_is_no_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="not the output of a job"):
        verify(OutputFolder(str(tmp_path), Storage()), Storage())
    with pytest.raises(JobError, match="not the output of a job"):
        verify(OutputFolder(str(tmp_path / "none"), Storage()), Storage())


def test_remains_of_a_killed_worker_are_a_note(case: Case) -> None:
    (case.out / "data/.x.parquet.0123.tmp").write_bytes(b"x")
    assert only(case.verify()).kind is FindingKind.NOTE


def test_a_sample_opens_only_so_many_files_and_looks_at_all_names(case: Case) -> None:
    result = case.verify(sample=3)
    assert (result.verdict, result.extent.units_read) == (OutputVerdict.VERIFIED, 3)
    case.data(UNITS - 1).unlink()
    assert case.verify(sample=1).verdict is OutputVerdict.DAMAGED


def older(facts: dict) -> None:
    del facts["plan"], facts["limit"]


def test_an_older_output_without_a_plan_is_covered_by_its_input(case: Case) -> None:
    case.edit("_manifest/job.json", older)
    assert case.verify().findings == () and case.verify(compare=False).findings == ()
    forget(case, UNITS - 1)  # the end of the last file
    assert "no unit holds its 20 rows" in only(case.verify()).message
    # A run that does not say its limit may have wanted no more; nor does a limit that was met.
    case.edit("run.json", lambda facts: facts.update(config={}))
    assert case.verify().findings == ()
    case.edit("run.json", lambda facts: facts.update(config={"input": {"limit": 117}}))
    assert case.verify().findings == ()
    case.edit("run.json", lambda facts: facts.update(config={"input": {"limit": 118}}))
    assert "rows 20..21 of" in str(only(case.verify()))
    case.edit("run.json", lambda facts: [facts.pop("inputs"), facts.update(config={})])
    assert case.verify().findings == ()


def test_a_limit_and_skipped_rows_are_no_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    write(tmp_path / "in/a.parquet", messy(50), row_group_size=25)
    write(tmp_path / "in/b.parquet", messy(50), row_group_size=25)
    limited = replace(job(tmp_path, tmp_path / "in"), limit=30)
    assert run(limited).complete
    folder = OutputFolder(str(tmp_path / "out"), Storage())
    assert verify(folder, Storage()).findings == ()

    (tmp_path / "in/text.parquet").write_bytes(b"no Parquet file")
    path = write(tmp_path / "in/z.parquet", {"title": [f"{i}" * 50 for i in range(1000)]})
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    skipping = replace(limited, limit=None, on_bad_file="skip", output=str(tmp_path / "out2"))
    summary = run(skipping)
    assert summary.complete and summary.rows_in == 100 and len(summary.failures) == 2
    result = verify(OutputFolder(str(tmp_path / "out2"), Storage()), Storage())
    assert result.findings == () and result.rows_in == 100
